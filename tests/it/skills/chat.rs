use serde_json::{Value, json};

use super::SkillsFixture;
use crate::support::{
    client::{Client, plain, roles, tool_results},
    has::Has,
};

/// Says a line in a new conversation: the run, and the last words.
async fn said(client: &Client, line: &str) -> (Value, String) {
    let conversation = client.open("bank").await;
    let run = client.say_and_wait(&conversation, line).await;
    (
        run,
        plain(client.messages(&conversation).await.last().unwrap()),
    )
}

#[tokio::test]
async fn a_skill_is_one_call_and_no_model() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let conversation = ann.open("bank").await;
    let run = ann
        .say_and_wait(&conversation, "/web-search rust async")
        .await;
    run.has(json!({ "status": "succeeded", "kind": "command" }));
    assert_eq!(fixture.searched(), [json!({ "input": "rust async" })]);
    assert_eq!(
        fixture.search.requests("tools/call")[0].body["params"]["name"],
        "web_search",
        "the first of its tools"
    );
    assert_eq!(
        plain(ann.messages(&conversation).await.last().unwrap()),
        "first hit\nsecond hit"
    );
    assert_eq!(
        roles(&ann, &conversation).await,
        ["user", "assistant", "system"]
    );
    assert_eq!(
        tool_results(&ann, &conversation).await[0]["status"],
        "succeeded"
    );
    assert!(
        fixture.world.model.requests().is_empty(),
        "no model was asked"
    );
    let line: (String, String, String, String) = sqlx::query_as(
        "select server, tool, o.outcome, run_id::text from audit join audit_outcomes o using (tenant_id, id)
         where action = 'tool.call'",
    )
    .fetch_one(&mut fixture.world.db.as_tenant(fixture.world.tenant.id).await)
    .await
    .unwrap();
    let expected = (
        "search",
        "web_search",
        "succeeded",
        run["id"].as_str().unwrap(),
    );
    assert_eq!((&*line.0, &*line.1, &*line.2, &*line.3), expected);
}

#[tokio::test]
async fn an_object_is_the_arguments_themselves() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    said(&ann, r#"/web-search {"repo":"x","input":"go"}"#).await;
    said(&ann, "/web-search").await;
    assert_eq!(
        fixture.searched(),
        [json!({ "repo": "x", "input": "go" }), json!({})]
    );
    let (run, words) = said(&ann, "/web-search {repo: x}").await;
    assert_eq!(run["status"], "succeeded");
    assert!(
        words.starts_with("What stands in braces is not one JSON object"),
        "{words}"
    );
    assert_eq!(
        fixture.searched().len(),
        2,
        "what looks like arguments is not searched for as text"
    );
}

#[tokio::test]
async fn what_a_tool_says_in_structure_goes_before_its_words() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let (_, words) = said(&ann, "/structured x").await;
    assert_eq!(
        serde_json::from_str::<Value>(&words).unwrap(),
        json!({ "hits": [1, 2] })
    );
}

#[tokio::test]
async fn a_tool_that_fails_makes_the_skill_fail_with_its_words() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let (run, words) = said(&ann, "/broken x").await;
    run.has(json!({ "status": "failed", "error": "the index is on fire" }));
    assert_eq!(words, "the index is on fire");
}

#[tokio::test]
async fn a_dead_server_fails_openly_and_no_model_takes_its_place() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let (run, words) = said(&ann, "/nowhere x").await;
    assert_eq!(run["status"], "failed");
    assert!(
        words.starts_with("MCP server \"dead\" is not available"),
        "{words}"
    );
    let (run, words) = said(&ann, "/lost x").await;
    assert_eq!(run["status"], "failed");
    assert!(words.starts_with("outcome unknown: "), "{words}");
    assert_eq!(
        fixture.searched().len(),
        1,
        "what may have been done is not done again"
    );
    for (line, told) in [
        (
            "/call dead anything {}",
            "not executed: MCP server \"dead\" is not available",
        ),
        (
            "/call search nonsense {}",
            "not executed: there is no tool \"search nonsense\" for you; /tools lists those that there are",
        ),
    ] {
        assert_eq!(said(&ann, line).await.1, told);
    }
    assert!(fixture.world.model.requests().is_empty());
}

#[tokio::test]
async fn a_skill_whose_tool_one_may_not_call_is_no_command() {
    let fixture = SkillsFixture::new().await;
    let guest = fixture.world.guest().await;
    let (run, words) = said(&guest, "/pay 10").await;
    let (_, nonsense) = said(&guest, "/nonsense 10").await;
    assert_eq!(words, nonsense.replace("/nonsense", "/pay"));
    assert_eq!(run["status"], "succeeded");
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn help_menu_and_tools_name_the_skills_that_one_may_run() {
    let fixture = SkillsFixture::new().await;
    let (ann, guest) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.guest().await,
    );
    for command in ["/help", "/tools"] {
        let (_, words) = said(&ann, command).await;
        assert!(words.contains("/web-search – Searches the web"), "{words}");
        assert!(
            words.contains("/pay – Pay (needs approval by cfo)"),
            "{words}"
        );
        let (_, words) = said(&guest, command).await;
        assert!(
            words.contains("/rate – Rate") && !words.contains("/pay"),
            "{words}"
        );
    }
    for (client, pays) in [(&ann, true), (&guest, false)] {
        let conversation = client.open("bank").await;
        client.say_and_wait(&conversation, "/menu").await;
        let last = client.messages(&conversation).await.pop().unwrap();
        let choices = last["parts"][0]["choices"].as_array().unwrap().clone();
        let offers = |value: &str| choices.iter().any(|choice| choice["value"] == value);
        assert!(offers("/web-search"), "{choices:?}");
        assert_eq!(offers("/pay"), pays, "{choices:?}");
    }
}

#[tokio::test]
async fn a_skill_is_a_command_in_the_middle_of_a_question_too() {
    let own = r#"    - name: own
      transport: streamable-http
      url: "${SEARCH_URL}"
      accessMode: user-controlled
      userConfig: { fields: [{ name: token, type: secret, headerName: X-API-Key }] }
      toolAccess: { default: public }
    - { name: dead,"#;
    let pack = super::PACK.replace("    - { name: dead,", own);
    let fixture = SkillsFixture::with(&pack).await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let conversation = ann.open("bank").await;
    ann.say_and_wait(&conversation, "/connect own").await;
    let asked = ann.messages(&conversation).await.pop().unwrap();
    assert_eq!(asked["parts"][0]["type"], "prompt", "{asked}");
    ann.say_and_wait(&conversation, "/web-search rust").await;
    assert_eq!(fixture.searched(), [json!({ "input": "rust" })]);
}

#[tokio::test]
async fn a_tool_that_its_server_lacks_is_said_to_be_lacking() {
    let pack = super::PACK.replace(
        "server: dead, tools: [anything]",
        "server: search, tools: [nonexistent]",
    );
    let fixture = SkillsFixture::with(&pack).await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let (run, _) = said(&ann, "/nowhere x").await;
    run.has(json!({
        "status": "failed",
        "error": r#"MCP server "search" has no tool "nonexistent", so nothing was called"#,
    }));
}
