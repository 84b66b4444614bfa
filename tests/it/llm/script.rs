//! The scripted model itself: it must notice what it exists to notice.

use super::*;
use crate::support::model::{Request, last_user, results, said, tool_names};

async fn send(model: &ScriptedModel, body: &Value) -> u16 {
    let url = format!("{}/chat/completions", model.base_url());
    client()
        .post(url)
        .json(body)
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}

fn good() -> Value {
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "a__b", "arguments": "{}" } });
    json!({
        "model": "m", "stream": true,
        "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": "u" },
            { "role": "assistant", "tool_calls": [call("1"), call("2")] },
            { "role": "tool", "tool_call_id": "2", "content": "two" },
            { "role": "tool", "tool_call_id": "1", "content": "one" },
        ],
        "tools": [{ "type": "function", "function": { "name": "a__b", "parameters": { "type": "object", "properties": {} } } }],
    })
}

/// `good`, with the value at `pointer` replaced, or removed by `null`.
fn but(pointer: &str, value: Value) -> Value {
    let mut body = good();
    *body.pointer_mut(pointer).unwrap() = value;
    if let Some(messages) = body["messages"].as_array_mut() {
        messages.retain(|message| !message.is_null());
    }
    body
}

#[tokio::test]
async fn a_good_transcript_is_clean() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(text("ok"))).forbid("canary");
    assert_eq!(send(&model, &good()).await, 200);
    model.assert_clean();
}

#[tokio::test]
async fn each_kind_of_wrong_transcript_is_noticed() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(text("ok"))).forbid("canary");
    let tool = good()["tools"][0].clone();
    let wrong = [
        (but("/stream", json!(false)), "a stream"),
        (but("/messages/0", json!(null)), "not the system's"),
        (but("/messages/1/content", json!(" ")), "is empty"),
        (but("/messages/2", json!(null)), "nobody waits for"),
        (but("/messages/3", json!(null)), "no result"),
        (
            but(
                "/messages/3",
                json!({ "role": "user", "content": "between" }),
            ),
            "stands between",
        ),
        (
            but("/messages/4/tool_call_id", json!("2")),
            "nobody waits for",
        ),
        (
            but("/messages/2/tool_calls/1/id", json!("1")),
            "an id of its own",
        ),
        (
            but("/messages/2/tool_calls/0/function/name", json!("a.b")),
            "legal name",
        ),
        (
            but("/messages/2/tool_calls/0/function/arguments", json!("{")),
            "not an object",
        ),
        (but("/tools", json!([tool, tool])), "two tools"),
        (but("/tools/0/function/name", json!("")), "legal name"),
        (
            but("/tools/0/function/parameters", json!({ "type": "string" })),
            "schema",
        ),
        (but("/messages/3/content", json!("a canary sang")), "secret"),
    ];
    for (body, expected) in wrong {
        send(&model, &body).await;
        let noticed = model.take_violations().join("\n");
        assert!(
            noticed.contains(expected),
            "{expected:?} is not in {noticed:?}"
        );
    }
}

#[tokio::test]
async fn a_request_that_nobody_scripted_is_noticed() {
    let model = ScriptedModel::start().await;
    assert_eq!(send(&model, &good()).await, 400);
    assert!(model.take_violations()[0].contains("no answer was scripted"));
}

#[tokio::test]
#[should_panic(expected = "wrong transcripts")]
async fn dropping_a_model_with_violations_fails_the_test() {
    let model = ScriptedModel::start().await;
    send(&model, &good()).await;
}

#[tokio::test]
async fn rules_let_conversations_run_at_the_same_time() {
    let model = ScriptedModel::start().await;
    model
        .on(|request| said(request, "balance").then(|| calls([("bank__get_balances", json!({}))])));
    model.on(|request| {
        results(request)
            .pop()
            .map(|result| text(format!("You have {result}")))
    });
    model.on(|request| Some(text(format!("you said: {}", last_user(request)))));
    let models = models();
    let with = |history| {
        collect(models.step(
            &model.llm(),
            StepRequest {
                history,
                ..request()
            },
        ))
    };
    let called = vec![
        user("balance?"),
        assistant("", [made("call_rules_01", "bank__get_balances", "{}")]),
        result("call_rules_01", "5"),
    ];
    let (first, second, third) = tokio::join!(
        with(vec![user("my balance?")]),
        with(called),
        with(vec![user("hello")])
    );
    assert_eq!(first.1.unwrap().calls[0].name, "bank__get_balances");
    assert_eq!(second.1.unwrap().text, "You have 5");
    assert_eq!(third.1.unwrap().text, "you said: hello");
    let requests: Vec<Request> = model.wait_for_requests(3).await;
    assert!(
        requests
            .iter()
            .all(|request| tool_names(&request.body) == ["bank__get_balances"])
    );
}
