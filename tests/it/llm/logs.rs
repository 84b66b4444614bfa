//! Prompts, answers and keys are in no log line, whatever the filter.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use tracing::{Dispatch, instrument::WithSubscriber, level_filters::LevelFilter};

use super::*;
use crate::support::model::error;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn prompts_answers_and_keys_are_not_logged_even_at_trace() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber: Dispatch = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish()
        .into();
    // With a single subscriber, tracing asks the one of the thread that comes first which lines are enabled, and
    // that may be another test's.
    let _second = Dispatch::new(tracing_subscriber::registry());
    let model = ScriptedModel::start().await;
    model.reply(text("the answer").and_call(call(
        "bank__get_balances",
        "{\"account\": \"the argument\"}",
    )));
    model.reply(error(400, "the complaint"));
    async {
        ask(&model.llm(), request()).await.unwrap();
        ask(&model.llm(), request()).await.unwrap_err();
    }
    .with_subscriber(subscriber)
    .await;
    let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        written.contains("model request failed"),
        "our own line is missing: {written}"
    );
    for private in [
        "the answer",
        "the argument",
        "the complaint",
        "be brief",
        "how much",
        "model-key",
    ] {
        assert!(
            !written.contains(private),
            "{private:?} is in the log: {written}"
        );
    }
}
