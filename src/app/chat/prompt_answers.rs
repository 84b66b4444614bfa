//! Answers to prompts. A prompt asks for a credential ([`flows`]), or asks a question of a server ([`elicitations`]). A
//! text that answers a prompt is recognised before any of it is stored. The transaction that stores the message attaches
//! the answer to the run of the message, and that run reads the answer here.

use super::{elicitations, flows};
use crate::app::App;
use domain::{
    elicitation::{Elicitation, State},
    error::Result,
    flow::Flow,
    ids::{ConversationId, RunId},
    pack::Pack,
    principal::Principal,
    run::{ClaimedRun, RunKind},
};
use store::Tx;

/// A text that answers a prompt of its conversation.
pub enum PromptAnswer {
    Flow(flows::FlowAnswer),
    Elicitation(elicitations::ElicitationAnswer),
}

impl PromptAnswer {
    /// The text that the conversation keeps.
    pub fn shown(&self) -> &str {
        match self {
            Self::Flow(answer) => &answer.shown,
            Self::Elicitation(answer) => &answer.shown,
        }
    }

    /// The kind of the run that continues with the answer.
    pub fn run_kind(&self) -> RunKind {
        match self {
            Self::Flow(_) => RunKind::Command,
            Self::Elicitation(answer) => answer.run_kind(),
        }
    }

    /// The answer and the run that waits for it, if a run does.
    pub fn waiting_run(&self) -> Option<(&elicitations::ElicitationAnswer, RunId)> {
        match self {
            Self::Flow(_) => None,
            Self::Elicitation(answer) => answer.waiting_run().map(|run| (answer, run)),
        }
    }

    /// Gives the answer to its run, in the transaction that stores the message. `Conflict` when the prompt was answered
    /// or ended meanwhile.
    pub async fn attach_to_run(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        match self {
            Self::Flow(answer) => answer.attach_to_run(tx, run).await,
            Self::Elicitation(answer) => answer.attach_to_run(tx, run).await,
        }
    }
}

/// A text that may answer a prompt.
#[derive(Clone, Copy)]
pub struct AnswerCandidate<'a> {
    pub principal: &'a Principal,
    pub pack: &'a Pack,
    pub conversation: ConversationId,
    pub text: &'a str,
    /// If present, the text answers the prompt for this field and nothing else.
    pub field: Option<&'a str>,
}

/// Finds the prompt that a text answers: the prompt for its field; without a field the prompt of a flow, or else that of a
/// server. `Conflict` when no prompt asks for the field.
pub async fn match_pending_prompt(
    app: &App,
    candidate: &AnswerCandidate<'_>,
) -> Result<Option<PromptAnswer>> {
    if candidate.field.is_some()
        && let Some(answer) = elicitations::match_answer(app, candidate).await?
    {
        return Ok(Some(PromptAnswer::Elicitation(answer)));
    }
    if let Some(answer) = flows::match_answer(app, candidate).await? {
        return Ok(Some(PromptAnswer::Flow(answer)));
    }
    let answer = elicitations::match_answer(app, candidate).await?;
    Ok(answer.map(PromptAnswer::Elicitation))
}

/// The answer that a run was given, by the step that follows.
pub enum RunInput {
    Nothing,
    /// The next step of a flow.
    Flow(Box<Flow>),
    /// The next question of a server's form.
    Question(Box<Elicitation>),
    /// The last answer of a command's form.
    Command(Box<Elicitation>),
    /// Calls that are made again with their answers.
    Calls(Vec<Elicitation>),
}

/// Reads the answer that a run was given.
pub async fn load_input(app: &App, run: &ClaimedRun) -> Result<RunInput> {
    let mut tx = app.db.tenant(run.tenant).await?;
    let flow = match run.kind {
        RunKind::Command => store::flows::get(&mut tx, run.conversation).await?,
        RunKind::Turn => None,
    };
    if let Some(flow) = flow.filter(|flow| flow.answer_run == Some(run.id)) {
        return Ok(RunInput::Flow(Box::new(flow)));
    }
    if !app.keys.has_ring() {
        return Ok(RunInput::Nothing);
    }
    let mut calls = store::elicitations::list_answered(&mut tx, run.id).await?;
    let is_of_form = |given: &Elicitation| given.state == State::Open || given.is_of_command();
    Ok(match calls.iter().position(is_of_form) {
        Some(at) if calls[at].state == State::Open => {
            RunInput::Question(Box::new(calls.swap_remove(at)))
        }
        Some(at) => RunInput::Command(Box::new(calls.swap_remove(at))),
        None if calls.is_empty() => RunInput::Nothing,
        None => RunInput::Calls(calls),
    })
}
