//! The user's side of a server's question: which text of the conversation answers the question, and what is asked next.
//! An answer is parsed before any of it is stored. The transaction that stores the message also advances the row of the
//! question, so an answer counts once.

use super::prompt_answers::AnswerCandidate;
use crate::app::{
    App,
    tools::elicitations::{record_answer, seal_entered, time_limit_of, unseal},
};
use domain::{
    command,
    elicitation::{
        AnswerError, Dismissal, Elicitation, Entered, Request, State, fault_notice, prompt, steps,
    },
    error::Result,
    ids::RunId,
    message::Part,
    prompt as server_prompt,
    run::{ClaimedRun, RunKind},
    skill,
    texts::{self, Key, Texts},
};
use store::{Tx, elicitations::NextStep};

/// A text that answers the open question of its conversation.
pub struct ElicitationAnswer {
    elicitation: Elicitation,
    /// The text that the conversation keeps.
    pub shown: String,
    state: State,
    step: usize,
    entered: Vec<u8>,
    fault: Option<AnswerError>,
    /// The next prompts, if a run waits for the answer. Otherwise the run that receives the answer asks them.
    pub next: Vec<Part>,
}

impl ElicitationAnswer {
    /// The run that waits for the answer, if one does.
    pub fn waiting_run(&self) -> Option<RunId> {
        self.elicitation.live.then_some(self.elicitation.run)
    }

    /// The kind of the run that receives the answer. The last answer begins the turn in which the model reads the outcome
    /// of the call.
    pub fn run_kind(&self) -> RunKind {
        if self.state == State::Answered && self.elicitation.for_model {
            RunKind::Turn
        } else {
            RunKind::Command
        }
    }

    /// Gives the answer to the run that continues with it, in the transaction that stores the message.
    pub async fn attach_to_run(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        let next = NextStep {
            state: self.state,
            step: self.step,
            entered: &self.entered,
            fault: self.fault,
            run: (!self.elicitation.live).then_some(run),
        };
        record_answer(tx, &self.elicitation, &next).await
    }
}

/// Reads a text as the answer to the open question of its conversation; with a `field` only if the question asks for that
/// field. `None` when the text is no answer.
pub(super) async fn match_answer(
    app: &App,
    candidate: &AnswerCandidate<'_>,
) -> Result<Option<ElicitationAnswer>> {
    let AnswerCandidate {
        principal,
        pack,
        conversation,
        text,
        field,
    } = *candidate;
    if !app.keys.has_ring() {
        return Ok(None);
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let open = store::elicitations::get_open(&mut tx, conversation).await?;
    let Some(elicitation) = open.filter(|open| open.user == principal.user) else {
        return Ok(None);
    };
    let command = text.trim();
    let dismissal = match command {
        "/decline" if field.is_none() => Some(Dismissal::Decline),
        // `/cancel` ends an open `/connect` first, since the user began that on purpose.
        "/cancel" if field.is_none() => {
            let (user, agent) = (&principal.user, &elicitation.agent);
            let flow = store::flows::is_open(&mut tx, user, agent, Some(conversation)).await?;
            (!flow).then_some(Dismissal::Cancel)
        }
        _ => None,
    };
    drop(tx);
    // Commands keep their meaning in the middle of a form. Any other text is its answer.
    if field.is_none()
        && dismissal.is_none()
        && (command::is_command(command)
            || server_prompt::command(command).is_some()
            || skill::find_in_text(pack, command).is_some())
    {
        return Ok(None);
    }
    parse_answer(app, candidate, elicitation, dismissal).await
}

async fn parse_answer(
    app: &App,
    candidate: &AnswerCandidate<'_>,
    elicitation: Elicitation,
    dismissal: Option<Dismissal>,
) -> Result<Option<ElicitationAnswer>> {
    let AnswerCandidate {
        principal,
        text,
        field,
        ..
    } = *candidate;
    let Some((request, mut entered)) = unseal(app, principal.tenant, &elicitation).await? else {
        return Ok(None);
    };
    let steps = steps(&request.questions);
    let Some(step) = steps.get(elicitation.step) else {
        return Ok(None);
    };
    if field.is_some_and(|field| field != step.name()) {
        return Ok(None);
    }
    let (mut state, mut at, mut fault) = (State::Open, elicitation.step, None);
    entered.unread = None;
    match (dismissal, step.value(text)) {
        (Some(how), _) => (state, entered.dismissal) = (State::Answered, Some(how)),
        (None, Ok(value)) => {
            entered.values.push(value);
            at += 1;
            if at == steps.len() {
                state = State::Answered;
            }
        }
        (None, Err(why)) => {
            fault = Some(why);
            entered.unread = Some(text.to_owned());
        }
    }
    let sealed = seal_entered(app, principal.tenant, &elicitation, &entered).await?;
    let mut next = Vec::new();
    if elicitation.live && state == State::Open {
        let advanced = Elicitation {
            step: at,
            fault,
            ..elicitation.clone()
        };
        let pack = app.packs.get(&elicitation.agent);
        next = next_prompt(
            &texts::for_optional_pack(pack.as_deref(), principal),
            &advanced,
            &request,
            &entered,
        );
    }
    Ok(Some(ElicitationAnswer {
        elicitation,
        shown: text.to_owned(),
        state,
        step: at,
        entered: sealed,
        fault,
        next,
    }))
}

/// The prompt for the present step. Before it stands a notice, if the last answer was wrong.
fn next_prompt(
    texts: &Texts<'_>,
    elicitation: &Elicitation,
    request: &Request,
    entered: &Entered,
) -> Vec<Part> {
    let steps = steps(&request.questions);
    let fault = elicitation.fault.zip(steps.get(elicitation.step));
    let said = entered.unread.as_deref().unwrap_or_default();
    let fault = fault.map(|(fault, step)| fault_notice(texts, fault, said, step));
    let prompt = prompt(texts, elicitation, request, time_limit_of(elicitation));
    fault.into_iter().chain([prompt]).collect()
}

/// The prompts that a run writes after an answer that was not the last one.
pub async fn ask_next(
    app: &App,
    run: &ClaimedRun,
    texts: &Texts<'_>,
    elicitation: &Elicitation,
) -> Result<Vec<Part>> {
    Ok(match unseal(app, run.tenant, elicitation).await? {
        Some((request, entered)) => next_prompt(texts, elicitation, &request, &entered),
        None => vec![Part::Notice {
            code: "nothing_asked".to_owned(),
            text: texts.render(Key::AskNone, &[]),
        }],
    })
}
