//! Other models are asked before the first word of an answer, and none after it.

use super::*;
use crate::support::model::{StrictProvider, error, rules::Kind};

fn with_fallback(llm: Llm, fallback: Vec<Llm>) -> Llm {
    Llm { fallback, ..llm }
}

/// An endpoint that nobody listens at.
async fn nowhere(llm: Llm) -> Llm {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    Llm {
        base_url: Some(base.parse().unwrap()),
        ..llm
    }
}

#[tokio::test]
async fn another_model_answers_when_the_first_says_nothing() {
    for (status, attempts) in [(503, 3), (429, 3), (401, 1), (404, 1), (400, 1)] {
        let first = ScriptedModel::start().await;
        first.on(move |_| Some(error(status, "no")));
        let second = StrictProvider::start(Kind::Anthropic).await;
        second.say("Hello.");
        let reply = ask(&with_fallback(first.llm(), vec![second.llm()]), request())
            .await
            .unwrap();
        assert_eq!(reply.text, "Hello.", "{status}");
        assert_eq!(
            (first.requests().len(), second.requests().len()),
            (attempts, 1),
            "{status}"
        );
    }
}

#[tokio::test]
async fn models_are_asked_in_their_order_and_the_last_error_is_told() {
    let model = ScriptedModel::start().await;
    let last = ScriptedModel::start().await;
    last.on(|_| Some(error(401, "no key")));
    let llm = with_fallback(
        nowhere(model.llm()).await,
        vec![nowhere(model.llm()).await, last.llm()],
    );
    let error = ask(&llm, request()).await.unwrap_err();
    assert!(matches!(error, ModelError::Unauthorized(_)), "{error}");
    assert_eq!(last.requests().len(), 1);
}

/// What was taken out for one endpoint is there for the next one.
#[tokio::test]
async fn another_model_is_asked_the_whole_question() {
    let first = ScriptedModel::start().await;
    first.on(|request| {
        let length = request.to_string().len();
        Some(error(
            400,
            &format!("This model's maximum context length is 10 tokens, you sent {length}"),
        ))
    });
    let second = StrictProvider::start(Kind::Openai).await;
    let history = vec![
        user("go"),
        assistant("", [made("call_first_1", "bank__get_balances", "{}")]),
        result("call_first_1", &"long ".repeat(2000)),
    ];
    let llm = with_fallback(first.llm(), vec![second.llm()]);
    ask(
        &llm,
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    assert_eq!(first.requests().len(), 2, "once more with less");
    assert!(
        second
            .last_request()
            .to_string()
            .contains(&"long ".repeat(2000))
    );
}

#[tokio::test]
async fn nobody_waits_for_a_model_where_another_can_be_asked() {
    let first = ScriptedModel::start().await;
    first.on(|_| Some(error(429, "later").retry_after("20")));
    let second = StrictProvider::start(Kind::Ollama).await;
    ask(&with_fallback(first.llm(), vec![second.llm()]), request())
        .await
        .unwrap();
    assert_eq!(first.requests().len(), 1);
}

#[tokio::test]
async fn after_a_word_no_other_model_is_asked() {
    let first = ScriptedModel::start().await;
    first.reply(text("The balance is").cut(3));
    let second = StrictProvider::start(Kind::Openai).await;
    let (pieces, end) =
        collect(models().step(&with_fallback(first.llm(), vec![second.llm()]), request())).await;
    assert_eq!(
        (pieces.concat().as_str(), end),
        ("The balance ", Err(ModelError::Truncated))
    );
    assert!(second.requests().is_empty());
}
