//! Answers in a form that the client asked for. The model is told of it; what it answers is checked, and asked for once more
//! when it does not fit. So a client gets what it asked for, or hears that the model did not give it.

use serde_json::value::to_raw_value;

use super::{RunWorker, ending::Ending};
use crate::{
    domain::{
        answer_format::{correction, object_in},
        error::Result,
        run::Usage,
    },
    llm::Turn,
    mcp::schemas,
    store,
};

/// An answer of the model that is not in its format. It is no message: nobody but the model reads it again.
pub(super) struct RejectedAnswer {
    pub text: String,
    pub why: String,
}

impl RejectedAnswer {
    /// Puts the answer and what is wrong with it at the end of what the model reads.
    pub fn add_to(&self, history: &mut Vec<Turn>) {
        history.push(Turn::Assistant {
            text: self.text.clone(),
            calls: Vec::new(),
        });
        history.push(Turn::User(correction(&self.why)));
    }
}

/// The end of a run whose model did not hold the format.
pub(super) fn not_held(why: &str, usage: Usage) -> Ending {
    let reason = format!("the model's answer is not in the format that was asked for: {why}");
    Ending::failed(reason).with_text(String::new(), Some(usage))
}

impl RunWorker {
    /// A system prompt with what the model must know of the format, at its end.
    pub(super) fn with_format(&self, mut system: String) -> String {
        if let Some(format) = &self.run.start.format {
            system.push_str("\n\n");
            system.push_str(&format.instruction());
        }
        system
    }

    /// An answer as it is sent, or why it is not in the format of this run.
    pub(super) async fn in_format(&self, answer: &str) -> Result<String, String> {
        let Some(format) = &self.run.start.format else {
            return Ok(answer.to_owned());
        };
        let (json, text) = object_in(answer)?;
        if let Some(schema) = format.schema() {
            let raw = to_raw_value(schema).map_err(|error| error.to_string())?;
            let schema = schemas::compile_format(raw).await?;
            schemas::check(schema, &json).await?;
        }
        Ok(text)
    }

    /// Counts a step whose reply is not kept.
    pub(super) async fn count_step(&self, usage: Usage) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::add_step(&mut tx, &self.run, usage).await?;
        tx.commit().await
    }
}
