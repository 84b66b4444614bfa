use serde_json::{Value, json};

use super::{SkillsFixture, ids, skills};
use crate::support::{
    client::{Answer, Client},
    has::Has,
    wait::eventually,
};

async fn run(client: &Client, skill: &str, body: Value) -> Answer {
    client
        .post(&format!("/v1/agents/bank/skills/{skill}"), body)
        .await
}

#[tokio::test]
async fn the_list_is_of_those_that_one_may_run_and_how_they_are() {
    let fixture = SkillsFixture::new().await;
    let ann = skills(&fixture.world.user("ann", &["employee"]).await).await;
    let all = [
        "web-search",
        "structured",
        "broken",
        "slow",
        "lost",
        "nowhere",
        "rate",
        "pay",
    ];
    assert_eq!(ids(&ann), all);
    assert_eq!(ids(&skills(&fixture.world.guest().await).await), all[..7]);
    let search = &ann[0];
    search.has(json!({
        "command": "/web-search",
        "server": "search",
        "tool": "web_search",
        "input_schema": { "properties": { "input": { "type": "string" } } },
        "state": "ready",
    }));
    assert_eq!(search.get("needs_approval_by"), None);
    assert_eq!(ann[5]["state"], "unavailable");
    assert_eq!(ann[5].get("input_schema"), None);
    assert_eq!(ann[7]["needs_approval_by"], json!(["cfo"]));
}

#[tokio::test]
async fn arguments_and_free_text_reach_the_tool_as_the_document_says() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let answer = run(
        &ann,
        "web-search",
        json!({ "arguments": { "repo": "x" }, "input": "go" }),
    )
    .await;
    let done = answer.expect(200);
    done.has(json!({
        "status": "succeeded",
        "skill": "web-search",
        "text": "first hit\nsecond hit",
    }));
    assert_eq!(fixture.searched(), [json!({ "repo": "x", "input": "go" })]);
    assert_eq!(answer.header("x-run-id"), done["run_id"].as_str().unwrap());
    let path = format!(
        "/v1/agents/bank/skills/web-search/runs/{}",
        done["run_id"].as_str().unwrap()
    );
    assert_eq!(
        ann.get(&path).await.expect(200),
        done,
        "it can be read again"
    );
    fixture
        .world
        .user("bob", &["employee"])
        .await
        .get(&path)
        .await
        .expect(404);
    ann.get(&path.replace("web-search", "rate"))
        .await
        .expect(404);
    let done = run(&ann, "structured", json!({})).await.expect(200);
    assert_eq!(done["structured_content"], json!({ "hits": [1, 2] }));
    assert_eq!(done["text"], r#"{"hits":[1,2]}"#);
    assert!(fixture.world.model.requests().is_empty());
}

#[tokio::test]
async fn what_cannot_be_run_is_said_before_anything_is_written() {
    let fixture = SkillsFixture::new().await;
    let (ann, guest) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.guest().await,
    );
    let office = ann.open("office").await;
    let refused: [(&Client, &str, Value, u16, &str); 8] = [
        (&ann, "rate", json!({ "input": "EUR" }), 400, "arguments"),
        (
            &ann,
            "web-search",
            json!({ "arguments": [1] }),
            400,
            "arguments",
        ),
        (
            &ann,
            "web-search",
            json!({ "arguments": { "input": "a" }, "input": "b" }),
            400,
            "input",
        ),
        (
            &ann,
            "web-search",
            json!({ "argument": {} }),
            400,
            "argument",
        ),
        (&ann, "nonsense", json!({}), 404, ""),
        (&ann, "help", json!({}), 404, ""),
        (&guest, "pay", json!({}), 404, ""),
        (
            &ann,
            "web-search",
            json!({ "conversation_id": office }),
            404,
            "",
        ),
    ];
    for (client, skill, body, status, field) in refused {
        let problem = run(client, skill, body).await.expect(status);
        assert_eq!(
            problem["field"].as_str().unwrap_or_default(),
            field,
            "{problem}"
        );
    }
    let twice = ann.request(http::Method::POST, "/v1/agents/bank/skills/web-search");
    let twice = twice
        .header("content-type", "application/json")
        .body(r#"{"arguments":{"repo":"a","repo":"b"}}"#);
    assert_eq!(ann.send(twice).await.expect(400)["field"], "arguments");
    let problem = run(&ann, "rate", json!({ "input": "EUR" }))
        .await
        .expect(400);
    problem["detail"].says("\"from\" is a required property");
    let conversations = ann.get("/v1/conversations?agent=bank").await.expect(200);
    assert_eq!(conversations["items"], json!([]));
    assert!(fixture.searched().is_empty());
}

#[tokio::test]
async fn it_is_written_down_in_the_conversation_that_is_named() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let conversation = ann.open("bank").await;
    let pair =
        json!({ "arguments": { "from": "EUR", "to": "USD" }, "conversation_id": conversation });
    let done = run(&ann, "rate", pair).await.expect(200);
    assert_eq!(done["conversation_id"], conversation.as_str());
    assert_eq!(ann.messages(&conversation).await.len(), 3);
    fixture
        .world
        .user("bob", &["employee"])
        .await
        .get(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(404);
}

#[tokio::test]
async fn what_fails_says_so_in_its_status() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    for (skill, code, words) in [
        ("broken", "skill_failed", "the index is on fire"),
        (
            "nowhere",
            "skill_failed",
            "MCP server \"dead\" is not available",
        ),
        ("lost", "outcome_unknown", "outcome unknown: "),
    ] {
        let answer = run(&ann, skill, json!({ "input": "x" })).await;
        let problem = answer.expect(502);
        assert_eq!(problem["code"], code, "{problem}");
        assert!(
            problem["detail"].as_str().unwrap().starts_with(words),
            "{problem}"
        );
        let path = format!(
            "/v1/agents/bank/skills/{skill}/runs/{}",
            answer.header("x-run-id")
        );
        let kept = ann.get(&path).await.expect(200);
        assert_eq!(kept["text"], problem["detail"], "{kept}");
    }
    assert_eq!(fixture.searched().len(), 2, "nothing is tried twice");
}

#[tokio::test]
async fn a_client_that_leaves_does_not_lose_the_result() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let request = ann
        .request(http::Method::POST, "/v1/agents/bank/skills/slow")
        .json(&json!({ "input": "x" }));
    let waiting = tokio::spawn(request.send());
    fixture.search.until("tools/call", 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    fixture.gate.add_permits(1);
    let conversations = ann.get("/v1/conversations?agent=bank").await.expect(200);
    let messages = ann
        .messages(conversations["items"][0]["id"].as_str().unwrap())
        .await;
    let path = format!(
        "/v1/agents/bank/skills/slow/runs/{}",
        messages[0]["run_id"].as_str().unwrap()
    );
    let mut kept = Value::Null;
    eventually(async || {
        kept = ann.get(&path).await.expect(200);
        kept["status"] != "running"
    })
    .await;
    kept.has(json!({ "status": "succeeded", "text": "at last" }));
    assert_eq!(fixture.searched().len(), 1);
}

#[tokio::test]
async fn a_run_that_is_stopped_says_so() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let request = ann
        .request(http::Method::POST, "/v1/agents/bank/skills/slow")
        .json(&json!({ "input": "x" }));
    let waiting = tokio::spawn(request.send());
    fixture.search.until("tools/call", 1).await;
    let conversations = ann.get("/v1/conversations?agent=bank").await.expect(200);
    let messages = ann
        .messages(conversations["items"][0]["id"].as_str().unwrap())
        .await;
    ann.post(
        &format!(
            "/v1/runs/{}/cancel",
            messages[0]["run_id"].as_str().unwrap()
        ),
        json!({}),
    )
    .await
    .expect(202);
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(
        answer.status(),
        502,
        "it was sent, so its outcome is unknown"
    );
    assert_eq!(
        answer.json::<Value>().await.unwrap()["code"],
        "outcome_unknown"
    );
}
