//! Answers to prompts. A prompt asks for a credential ([`flows`]) or for what a server wants to know ([`elicitations`]).
//! A text that answers one is recognised before anything of it is stored; the transaction that stores the message
//! attaches the answer to the message's run, and that run finds it here.

use super::{elicitations, flows};
use crate::{
    app::App,
    domain::{
        elicitation::{Elicitation, State},
        error::Result,
        flow::Flow,
        ids::{ConversationId, RunId},
        pack::Pack,
        principal::Principal,
        run::{ClaimedRun, RunKind},
    },
    store::{self, Tx},
};

/// A text that answers a prompt of its conversation.
pub enum PromptAnswer {
    Flow(flows::FlowAnswer),
    Elicitation(elicitations::ElicitationAnswer),
}

impl PromptAnswer {
    /// What is kept of it in the conversation.
    pub fn shown(&self) -> &str {
        match self {
            Self::Flow(answer) => &answer.shown,
            Self::Elicitation(answer) => &answer.shown,
        }
    }

    /// The kind of the run that goes on with it.
    pub fn run_kind(&self) -> RunKind {
        match self {
            Self::Flow(_) => RunKind::Command,
            Self::Elicitation(answer) => answer.run_kind(),
        }
    }

    /// The answer and its run, where a run waits for it.
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
    /// It answers the prompt for this field and nothing else.
    pub field: Option<&'a str>,
}

/// The prompt that a text answers: the one for its field, or else that of a flow before that of a server. `Conflict` when
/// no prompt asks for its field.
pub async fn match_pending_prompt(
    app: &App,
    matching: &AnswerCandidate<'_>,
) -> Result<Option<PromptAnswer>> {
    if matching.field.is_some()
        && let Some(answer) = elicitations::match_answer(app, matching).await?
    {
        return Ok(Some(PromptAnswer::Elicitation(answer)));
    }
    if let Some(answer) = flows::match_answer(app, matching).await? {
        return Ok(Some(PromptAnswer::Flow(answer)));
    }
    let answer = elicitations::match_answer(app, matching).await?;
    Ok(answer.map(PromptAnswer::Elicitation))
}

/// What a run was given an answer for.
pub enum RunInput {
    Nothing,
    /// The next step of a flow.
    Flow(Box<Flow>),
    /// The next question of a server's form.
    Question(Box<Elicitation>),
    /// Calls that are made again with their answers.
    Calls(Vec<Elicitation>),
}

/// Reads what a run was given.
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
    let mut calls = store::elicitations::answered_for(&mut tx, run.id).await?;
    let asked = calls.iter().position(|given| given.state == State::Open);
    Ok(match asked {
        Some(at) => RunInput::Question(Box::new(calls.swap_remove(at))),
        None if calls.is_empty() => RunInput::Nothing,
        None => RunInput::Calls(calls),
    })
}
