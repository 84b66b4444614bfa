//! What a provider can keep of a request for the next one: the bytes that both begin with.

use super::*;
use crate::support::model::{StrictProvider, rules::Kind};

/// How much of all requests, in percent, is a beginning that the request before had, too.
pub fn kept(requests: &[String]) -> usize {
    let common = |one: &str, other: &str| {
        one.bytes()
            .zip(other.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let all: usize = requests.iter().map(String::len).sum();
    let kept: usize = requests
        .windows(2)
        .map(|pair| common(&pair[0], &pair[1]))
        .sum();
    100 * kept / all
}

#[tokio::test]
async fn the_beginning_of_a_request_stays_from_step_to_step_at_every_provider() {
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        let schema = json!({ "type": "object", "properties": { "a b": { "$ref": "#/$defs/x" } }, "$defs": { "x": { "type": "string" } } });
        let tools: Vec<ToolDef> = (0..20)
            .map(|at| tool(&format!("many__{at}"), schema.clone()))
            .collect();
        let mut history = vec![user("go")];
        for step in 0..10 {
            ask(
                &stub.llm(),
                StepRequest {
                    history: history.clone(),
                    tools: tools.clone(),
                    ..request()
                },
            )
            .await
            .unwrap();
            let id = format!("call_step_{step:04}");
            history.push(assistant("", [made(&id, "many__1", "{\"a b\": \"1\"}")]));
            history.push(result(&id, &"a result of some length ".repeat(20)));
        }
        let share = kept(&stub.texts());
        assert!(share >= 80, "{kind:?}: {share}");
    }
}

/// Anthropic looks for a kept beginning in the twenty blocks before a mark; a step may have more.
#[tokio::test]
async fn anthropic_is_told_where_the_request_before_ended() {
    let stub = StrictProvider::start(Kind::Anthropic).await;
    let calls: Vec<ModelCall> = (0..30)
        .map(|at| made(&format!("call_many_{at:02}"), "bank__get_balances", "{}"))
        .collect();
    let mut history = vec![user("go"), assistant("", calls.clone())];
    history.extend(calls.iter().map(|call| result(&call.call_id, "1")));
    ask(
        &stub.llm(),
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    let body = stub.last_request();
    let marked = |block: &Value| block["cache_control"]["type"] == "ephemeral";
    assert!(marked(&body["tools"][0]) && marked(&body["system"][0]));
    assert!(marked(&body["messages"][0]["content"][0]), "{body}");
    assert!(marked(&body["messages"][2]["content"][29]), "{body}");
}
