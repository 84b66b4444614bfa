//! Structured outputs: `response_format` and `text.format` reach the model, and hold for the answer that a client gets.

use domain::account::{ChatSettings, KeyKind, ShownCalls};
use serde_json::{Value, json};

use super::{PATH, request, stream};
use crate::support::{
    bank::{approval_by, pair, payment},
    model::{call, calls, error, results, said, text},
    wait::eventually,
    world::World,
};

const RESPONSES: &str = "/v1/responses";

fn schema() -> Value {
    json!({ "type": "object", "required": ["euros"], "additionalProperties": false,
            "properties": { "euros": { "type": "integer" } } })
}

fn with_schema(mut body: Value) -> Value {
    body["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "balance", "schema": schema() } });
    body
}

fn content(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

#[tokio::test]
async fn a_format_reaches_the_model_and_the_answer_is_in_it() {
    let world = World::shared().await;
    world
        .model
        .on(|_| Some(text("```json\n{\"euros\": 5}\n```")));
    let ann = world.user("ann", &[]).await;
    let answer = ann.post(PATH, with_schema(request(&["How much?"]))).await;
    assert_eq!(content(&answer.expect(200)), "{\"euros\": 5}");
    assert_eq!(answer.header("x-ignored-parameters"), "");
    let asked = world.model.last_request();
    assert_eq!(asked["response_format"]["json_schema"]["schema"], schema());
    assert!(
        asked["messages"][0]["content"]
            .as_str()
            .unwrap()
            .contains("\"euros\""),
        "an endpoint that ignores the field is told in words: {asked}"
    );
    let mut any = request(&["And as JSON?"]);
    any["response_format"] = json!({ "type": "json_object" });
    let answer = ann.post(PATH, any).await.expect(200);
    assert_eq!(content(&answer), "{\"euros\": 5}");
    let asked = world.model.last_request();
    assert_eq!(asked["response_format"], json!({ "type": "json_object" }));
    // A later question of the same chat is free again.
    ann.post(
        PATH,
        request(&["How much?", "{\"euros\": 5}", "And in words?"]),
    )
    .await
    .expect(200);
    assert_eq!(world.model.last_request()["response_format"], Value::Null);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_once_more_and_never_sent() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for is_streamed in [false, true] {
        world.model.reply(text("You have {\"euros\": \"5\"}."));
        world.model.reply(text("{\"euros\": 5}"));
        let body = with_schema(request(&["How much?"]));
        let answer = if is_streamed {
            let (chunks, is_done) = stream(&ann, body).await;
            assert!(is_done);
            let deltas = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
            deltas.collect::<String>()
        } else {
            let answer = ann.post(PATH, body).await.expect(200);
            content(&answer).as_str().unwrap().to_owned()
        };
        assert_eq!(answer, "{\"euros\": 5}");
        let asked = world.model.last_request();
        assert!(
            said(&asked, "This answer cannot be used: it is no JSON"),
            "{asked}"
        );
    }
    assert_eq!(world.model.requests().len(), 4);
}

#[tokio::test]
async fn a_model_that_does_not_hold_the_format_is_named_and_its_words_are_not_sent() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("{\"euros\": \"five\"}")));
    let ann = world.user("ann", &[]).await;
    let failed = ann.post(PATH, with_schema(request(&["How much?"]))).await;
    let body = failed.expect(422);
    assert_eq!(body["error"]["code"], "answer_not_in_format");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("not in the format that was asked for") && message.contains("/euros"),
        "{message}"
    );
    for name in ["x-conversation-id", "x-run-id"] {
        assert_eq!(failed.header(name).len(), 36, "{name}");
    }
    assert_eq!(body["error"]["run_id"], failed.header("x-run-id"));
    assert_eq!(world.model.requests().len(), 2);
}

#[tokio::test]
async fn tools_run_before_the_answer_and_nothing_of_them_is_in_it() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        Some(if results(request).is_empty() {
            text("Let me look.").and_call(call("bank__get_exchange_rate", pair().to_string()))
        } else {
            text("{\"euros\": 5}")
        })
    });
    let claims = [("roles".to_owned(), json!(["employee"]))];
    let speaker = KeyKind::Service(serde_json::Map::from_iter(claims));
    let settings = ChatSettings {
        tool_calls: ShownCalls::Text,
        ..ChatSettings::default()
    };
    let key = world.chat_key("job", settings, speaker).await;
    let job = world.client(&key);
    let answer = job
        .post(PATH, with_schema(request(&["How much?"])))
        .await
        .expect(200);
    assert_eq!(content(&answer), "{\"euros\": 5}");
    let (chunks, _) = stream(&job, with_schema(request(&["How much now?"]))).await;
    let deltas = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), "{\"euros\": 5}");
}

#[tokio::test]
async fn an_endpoint_that_refuses_the_field_is_told_in_words_alone_from_then_on() {
    let world = World::shared().await;
    world.model.on(|request| {
        Some(if request["response_format"].is_null() {
            text("{\"euros\": 5}")
        } else {
            error(400, "This response_format type is unavailable now")
        })
    });
    let ann = world.user("ann", &[]).await;
    for asked in [2, 3] {
        let answer = ann
            .post(PATH, with_schema(request(&["How much?"])))
            .await
            .expect(200);
        assert_eq!(content(&answer), "{\"euros\": 5}");
        assert_eq!(world.model.requests().len(), asked);
    }
}

/// A change to a good request, and the `param` and `code` of its refusal.
type Case = (fn(&mut Value), &'static str, &'static str);

const CASES: [Case; 7] = [
    (
        |body| body["response_format"]["type"] = json!("grammar"),
        "response_format.type",
        "unsupported",
    ),
    (
        |body| body["response_format"] = json!({}),
        "response_format.type",
        "missing_field",
    ),
    (
        |body| {
            _ = body["response_format"]["json_schema"]
                .as_object_mut()
                .unwrap()
                .remove("schema");
        },
        "response_format.json_schema.schema",
        "missing_field",
    ),
    (
        |body| body["response_format"]["json_schema"]["name"] = json!("a name"),
        "response_format.json_schema.name",
        "invalid",
    ),
    (
        |body| body["response_format"]["json_schema"]["schema"] = json!({ "type": "objekt" }),
        "response_format",
        "invalid",
    ),
    (
        |body| body["response_format"]["json_schema"]["schema"] = json!({ "type": "array" }),
        "response_format",
        "invalid",
    ),
    // The program answers a command with text.
    (
        |body| body["messages"][0]["content"] = json!("/help"),
        "response_format",
        "unsupported",
    ),
];

#[tokio::test]
async fn what_cannot_be_held_is_refused_by_name() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (change, param, code) in CASES {
        let mut body = with_schema(request(&["hi"]));
        change(&mut body);
        let refused = ann.post(PATH, body.clone()).await.expect(400);
        assert_eq!(refused["error"]["param"], param, "{body}: {refused}");
        assert_eq!(refused["error"]["code"], code, "{body}: {refused}");
        let mut response = json!({ "model": "bank", "input": body["messages"][0]["content"] });
        let mut format = body["response_format"]["json_schema"].clone();
        if format.is_null() {
            format = json!({});
        }
        format["type"] = body["response_format"]["type"].clone();
        response["text"] = json!({ "format": format });
        let refused = ann.post(RESPONSES, response).await.expect(400);
        let param = param
            .replace(".json_schema", "")
            .replace("response_format", "text.format");
        assert_eq!(refused["error"]["param"], param, "{body}: {refused}");
    }
    assert!(world.model.requests().is_empty());
}

#[tokio::test]
async fn a_response_has_its_format_and_is_the_same_when_it_is_read() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        Some(if results(request).is_empty() {
            text("Let me look.").and_call(call("bank__get_exchange_rate", pair().to_string()))
        } else {
            text("{\"euros\": 5}")
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let format =
        json!({ "type": "json_schema", "name": "balance", "schema": schema(), "strict": true });
    let body = json!({ "model": "bank", "input": "How much?", "text": { "format": format } });
    let response = ann.post(RESPONSES, body).await.expect(200);
    assert_eq!(response["text"]["format"]["schema"], schema());
    assert_eq!(response["text"]["format"]["strict"], true);
    assert_eq!(
        response["output"].as_array().unwrap().len(),
        1,
        "{response}"
    );
    assert_eq!(
        response["output"][0]["content"][0]["text"],
        "{\"euros\": 5}"
    );
    let asked = world.model.last_request();
    assert_eq!(asked["response_format"]["json_schema"]["strict"], true);
    let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    assert_eq!(ann.get(&path).await.expect(200), response);
}

#[tokio::test]
async fn what_happened_meanwhile_is_for_the_model_and_not_in_the_answer() {
    let world = World::with(|setup| setup.change_server(approval_by("cfo"))).await;
    world.tools_ready().await;
    world.model.on(|request| {
        if said(request, "pay") && results(request).is_empty() {
            return Some(calls([("bank__send_money", payment("5.00"))]));
        }
        Some(if request["response_format"].is_null() {
            text("Fine.")
        } else {
            text("{\"euros\": 5}")
        })
    });
    let fay = world.user("fay", &["finance"]).await;
    let mona = world.user("mona", &["cfo"]).await;
    let paid = fay.post(PATH, request(&["pay"])).await;
    let first = content(&paid.expect(200)).as_str().unwrap().to_owned();
    let list = mona.get("/v1/approvals").await.expect(200);
    let path = format!("/v1/approvals/{}", list["items"][0]["id"].as_str().unwrap());
    let seen = mona.get(&path).await.expect(200);
    let no = json!({ "decision": "reject", "id": seen["id"], "args_sha256": seen["args_sha256"] });
    mona.post(&format!("{path}/decision"), no).await.expect(200);
    // The follow-up run tells the user.
    eventually(async || {
        let messages = fay.messages(paid.header("x-conversation-id")).await;
        let answers = messages
            .iter()
            .filter(|message| message["role"] == "assistant");
        answers
            .filter(|message| message["parts"][0]["text"] == "Fine.")
            .count()
            == 2
    })
    .await;
    let answer = fay
        .post(PATH, with_schema(request(&["pay", &first, "How much?"])))
        .await
        .expect(200);
    assert_eq!(content(&answer), "{\"euros\": 5}");
    assert!(
        world.model.last_request().to_string().contains("rejected"),
        "the model knows: {}",
        world.model.last_request()
    );
    let history = ["pay", &first, "How much?", "{\"euros\": 5}", "And now?"];
    let next = fay.post(PATH, request(&history)).await;
    assert_eq!(content(&next.expect(200)), "Fine.");
    let conversation = paid.header("x-conversation-id");
    assert_eq!(
        next.header("x-conversation-id"),
        conversation,
        "the chat goes on"
    );
}
