//! The ways in which a run ends, and the rows of its end.

use super::RunWorker;
use crate::app::{chat::commands, runs::scheduler::RunEnd};
use domain::{
    error::{ErrorCode, Result},
    event::Event,
    hidden::one_line,
    message::{CallStatus, Part, Role, ToolResult, called_tools},
    pack::Pack,
    run::{ClaimedRun, RunKind, RunStatus, Usage},
    texts::{self, Key, Texts},
};
use llm::{ModelError, Reply, Stop};
use std::time::Duration;
use store::{messages::NewMessage, runs::RunResult};

/// How a run ends. All of it is written in one transaction, so that a run that is taken up again never writes its final
/// messages twice.
pub(super) struct Ending {
    pub status: RunStatus,
    error: Option<String>,
    /// What kind of failure it is; `run_failed`, unless the client can do something about it.
    code: ErrorCode,
    /// When an equal run may succeed, if the run failed because the model did not answer.
    retry_after: Option<Duration>,
    /// The answer or the part of it that was shown, a notice, the text of a command.
    final_messages: Vec<FinalMessage>,
    /// The usage of the model's last step, when it is known.
    usage: Option<Usage>,
}

struct FinalMessage {
    role: Role,
    parts: Vec<Part>,
    for_model: bool,
}

impl Ending {
    fn new(status: RunStatus, error: Option<String>) -> Self {
        Self {
            status,
            error,
            code: ErrorCode::RunFailed,
            retry_after: None,
            final_messages: Vec::new(),
            usage: None,
        }
    }

    pub fn succeeded() -> Self {
        Self::new(RunStatus::Succeeded, None)
    }

    pub fn failed(error: impl Into<String>) -> Self {
        Self::new(RunStatus::Failed, Some(error.into()))
    }

    /// The model did not keep to the form that the client asked for.
    pub fn without_format(reason: String) -> Self {
        Self {
            code: ErrorCode::AnswerNotInFormat,
            ..Self::failed(reason)
        }
    }

    pub fn cancelled() -> Self {
        Self::new(RunStatus::Cancelled, None)
    }

    /// Adds the text of the model, unless it is blank.
    pub fn with_text(mut self, text: String, usage: Option<Usage>) -> Self {
        if !text.trim().is_empty() {
            self.final_messages.push(FinalMessage {
                role: Role::Assistant,
                parts: vec![Part::text(text)],
                for_model: true,
            });
        }
        self.usage = usage;
        self
    }

    /// Whether the model has given an answer.
    pub fn is_answer(&self) -> bool {
        self.status == RunStatus::Succeeded
            && self
                .final_messages
                .iter()
                .any(|message| message.role == Role::Assistant)
    }

    /// Adds notices of the program for the user.
    pub fn with_notices(mut self, parts: Vec<Part>) -> Self {
        self.final_messages.push(FinalMessage {
            role: Role::System,
            parts,
            for_model: false,
        });
        self
    }
}

impl FinalMessage {
    fn to_row(&self, run: &ClaimedRun) -> NewMessage<'_> {
        NewMessage {
            run: Some(run.id),
            run_ordinal: run.ordinal,
            role: self.role,
            parts: &self.parts,
            for_model: self.for_model,
        }
    }
}

impl RunWorker {
    /// How the run ends whose model did not answer. Its user reads what to do, and an admin of the agent what the
    /// operator needs: a setting, the provider's words. The log has the host, the status and a code.
    pub(super) fn without_answer(&self, pack: &Pack, error: &ModelError) -> Ending {
        let cause = error.to_string();
        let seconds = error.passes_after().unwrap_or_default().as_secs().max(1);
        let values = [("seconds", seconds.to_string())];
        let values = values
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let key = match error {
            ModelError::NoModel => Key::AgentHasNoModel,
            ModelError::Unauthorized(_)
            | ModelError::NotFound(_)
            | ModelError::RefusedTools(_)
            | ModelError::Protocol(_) => Key::ModelNotSetUp,
            ModelError::RateLimited { .. } => Key::ModelBusy,
            ModelError::Unavailable { .. } | ModelError::Paused { .. } => Key::ModelUnavailable,
            ModelError::BadRequest(_) => Key::ModelRefused,
            ModelError::Truncated => Key::ModelBrokeOff,
            ModelError::TimedOut => Key::ModelTooSlow,
            ModelError::TooLarge => Key::ModelTooMuch,
        };
        let principal = &self.run.principal;
        let reason = if principal.access(pack).admin {
            cause
        } else {
            texts::of(pack, principal).render(key, &values)
        };
        Ending {
            retry_after: error.passes_after(),
            ..Ending::failed(reason)
        }
    }

    /// Writes the end of the run: its final messages, why it failed, its status. Returns the events to announce.
    pub(super) async fn write_end(&self, ending: Ending) -> Result<(RunEnd, Vec<Event>)> {
        let run = &self.run;
        let Ending {
            status,
            error,
            code,
            retry_after,
            mut final_messages,
            usage,
        } = ending;
        if let Some(reason) = &error {
            let notice = commands::notice(code.as_str(), reason.clone());
            final_messages.push(FinalMessage {
                role: Role::System,
                parts: vec![notice],
                for_model: false,
            });
        }
        let mut tx = self.app.db.tenant(run.tenant).await?;
        let is_failed_turn = status != RunStatus::Succeeded && run.kind == RunKind::Turn;
        let has_called = is_failed_turn && {
            let written = store::messages::list_of_run(&mut tx, run.conversation, run.id).await?;
            !called_tools(&written).is_empty()
        };
        let result = RunResult {
            status,
            error: error.as_deref(),
            // An equal run would call the tools again.
            retry_after: retry_after.filter(|_| !has_called),
            usage,
            final_messages: final_messages
                .iter()
                .map(|message| message.to_row(run))
                .collect(),
        };
        let finished = store::runs::finish(&mut tx, run, &result).await?;
        if has_called {
            // An equal request would call them again, too.
            let is_stopped = status == RunStatus::Cancelled;
            store::request_keys::mark_failed(&mut tx, run.conversation, run.id, is_stopped).await?;
        } else if is_failed_turn {
            store::request_keys::mark_answered(&mut tx, run.conversation, run.id, true).await?;
        }
        tx.commit().await?;
        let end = RunEnd {
            next: finished.next,
            in_tree: finished.in_tree,
        };
        Ok((end, finished.events))
    }
}

/// How the run ends with this reply; absent when the reply calls tools.
pub(super) fn ending_of_reply(reply: &Reply, texts: &Texts<'_>) -> Option<Ending> {
    let failed = |key| Some(Ending::failed(texts.render(key, &[])));
    match (&reply.stop, reply.calls.is_empty()) {
        (Stop::ContentFilter, _) => failed(Key::AnswerWithheld),
        (Stop::Length, true) => failed(Key::AnswerCut),
        (_, true) if reply.text.trim().is_empty() => failed(Key::AnswerEmpty),
        (_, true) => Some(Ending::succeeded()),
        (_, false) => None,
    }
}

/// Characters of a tool's own error text in the error of a skill's run.
const MAX_REASON: usize = 1000;

/// How the run of a skill ends with the result of its one call. After a failure no model is asked.
pub(super) fn ending_of_skill(result: Option<&ToolResult>, is_cancelled: bool) -> Ending {
    let Some(result) = result else {
        return Ending::failed("its call has no result; run it again");
    };
    match result.status {
        CallStatus::Succeeded | CallStatus::AwaitingApproval => Ending::succeeded(),
        CallStatus::Cancelled => Ending::cancelled(),
        CallStatus::OutcomeUnknown if is_cancelled => Ending::cancelled(),
        _ => Ending::failed(one_line(&result.text, MAX_REASON)),
    }
}
