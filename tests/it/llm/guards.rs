//! What an endpoint may not do to us, and what we do not do to it.

use super::*;
use crate::support::model::{Gate, Reply, raw};

fn impatient() -> Models {
    let short = Duration::from_millis(100);
    Models::with_limits(
        client(),
        Limits {
            first_byte: short,
            idle: short,
            ..limits()
        },
    )
}

async fn ends_with(models: Models, reply: Reply) -> ModelError {
    let model = ScriptedModel::start().await;
    model.reply(reply);
    let error = collect(models.step(&model.llm(), request()))
        .await
        .1
        .unwrap_err();
    assert!(model.requests().len() <= 1, "an answer was asked for twice");
    error
}

#[tokio::test]
async fn an_answer_that_never_starts_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = Some(
        format!("http://{}/v1", listener.local_addr().unwrap())
            .parse()
            .unwrap(),
    );
    let llm = Llm {
        base_url,
        ..ScriptedModel::start().await.llm()
    };
    assert_eq!(
        collect(impatient().step(&llm, request())).await.1,
        Err(ModelError::TimedOut)
    );
}

#[tokio::test]
async fn silence_in_the_middle_times_out() {
    assert_eq!(
        ends_with(impatient(), raw([": still here\n\n"]).stall()).await,
        ModelError::TimedOut
    );
}

#[tokio::test]
async fn a_step_has_a_deadline_however_busy_the_model_looks() {
    let models = Models::with_limits(
        client(),
        Limits {
            step: Duration::from_millis(200),
            ..limits()
        },
    );
    let gate = Gate::new();
    assert_eq!(
        ends_with(models, text("one two").gate(2, &gate)).await,
        ModelError::TimedOut
    );
}

#[tokio::test]
async fn waiting_for_the_next_attempt_is_part_of_the_deadline() {
    let model = ScriptedModel::start().await;
    model.reply(crate::support::model::error(503, "later").retry_after("20"));
    let models = Models::with_limits(
        client(),
        Limits {
            step: Duration::from_millis(200),
            ..limits()
        },
    );
    assert_eq!(
        collect(models.step(&model.llm(), request())).await.1,
        Err(ModelError::TimedOut)
    );
}

#[tokio::test]
async fn an_endless_line_is_refused() {
    let piece = vec![b'x'; 64 << 10];
    let endless = raw::<32>(std::array::from_fn(|_| piece.clone())).stall();
    assert_eq!(ends_with(models(), endless).await, ModelError::TooLarge);
}

#[tokio::test]
async fn an_endless_answer_is_refused() {
    let line = format!(": {}\n\n", "x".repeat(8 << 10)).into_bytes();
    let endless = raw::<32>(std::array::from_fn(|_| line.clone())).stall();
    let models = Models::with_limits(
        client(),
        Limits {
            max_body: 128 << 10,
            ..limits()
        },
    );
    assert_eq!(ends_with(models, endless).await, ModelError::TooLarge);
}

#[tokio::test]
async fn endless_words_are_refused_long_before_an_endless_stream_is() {
    let words = serde_json::json!({ "choices": [{ "delta": { "content": "x".repeat(4 << 10) } }] });
    let line = format!("data: {words}\n\n").into_bytes();
    let endless = raw::<32>(std::array::from_fn(|_| line.clone())).stall();
    let models = Models::with_limits(
        client(),
        Limits {
            max_reply: 64 << 10,
            ..limits()
        },
    );
    assert_eq!(ends_with(models, endless).await, ModelError::TooLarge);
}

#[tokio::test]
async fn an_endless_error_is_cut() {
    let piece = vec![b'x'; 64 << 10];
    let endless = raw::<32>(std::array::from_fn(|_| piece.clone()))
        .status(400)
        .stall();
    assert_eq!(ends_with(models(), endless).await.code(), "bad_request");
}

#[tokio::test]
async fn dropping_the_stream_hangs_up() {
    let model = ScriptedModel::start().await;
    let gate = Gate::new();
    model.reply(text("one two three").gate(2, &gate));
    let mut stream = models().step(&model.llm(), request());
    assert_eq!(
        stream.next().await,
        Some(Ok(Delta::Text("one ".to_owned())))
    );
    gate.reached().await;
    drop(stream);
    model.wait_for_hangups(1).await;
}

#[tokio::test]
async fn nothing_is_sent_before_the_stream_is_polled() {
    let model = ScriptedModel::start().await;
    drop(models().step(&model.llm(), request()));
    model.reply(text("ok"));
    ask(&model.llm(), request()).await.unwrap();
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn text_is_handed_out_while_the_model_still_writes() {
    let model = ScriptedModel::start().await;
    let gate = Gate::new();
    model.reply(text("one two").gate(2, &gate));
    let mut stream = models().step(&model.llm(), request());
    assert_eq!(
        stream.next().await,
        Some(Ok(Delta::Text("one ".to_owned())))
    );
    gate.open();
    let (pieces, end) = collect(stream).await;
    assert_eq!(
        (pieces, end.unwrap().text),
        (vec!["two".to_owned()], "one two".to_owned())
    );
}
