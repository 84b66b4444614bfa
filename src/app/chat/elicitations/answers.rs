//! What the user says to a question of a server. It is judged when it comes in, before anything of it is stored; the
//! transaction that stores the message moves the row on, so that an answer counts once.

use std::sync::Arc;

use super::{LIFE, OfElicitation, context, live::LEASE, opened, seal, words};
use crate::{
    app::{App, servers::agents},
    domain::{
        command,
        elicitation::{Asked, Fault, Leave, Pending, State, steps},
        error::{Error, Result},
        ids::{ConversationId, RunId},
        message::Part,
        principal::Principal,
        prompt,
        run::{ClaimedRun, RunKind},
        texts::{self, Key},
    },
    store::{self, Tx, elicitations::Step},
};

/// A text that answers a question.
pub struct Caught {
    pending: Pending,
    /// What is kept of it in the conversation.
    pub shown: String,
    state: State,
    step: usize,
    entered: Option<Vec<u8>>,
    fault: Option<Fault>,
    /// What is asked next in the run that waits; of others it is asked in the run that is given the answer.
    pub next: Vec<Part>,
}

impl Caught {
    /// The run that waits for the answer, if one does.
    pub fn waiting(&self) -> Option<RunId> {
        self.pending.live.then_some(self.pending.run)
    }

    /// The last answer opens the turn in which the model hears what came of the call.
    pub fn kind(&self) -> RunKind {
        if self.state == State::Answered && self.pending.for_model {
            RunKind::Turn
        } else {
            RunKind::Command
        }
    }

    /// Hands the answer to its run, in the transaction that stores the message.
    pub async fn deliver(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        let entered = self.entered.as_deref();
        let (run, life) = if self.pending.live {
            (None, LEASE)
        } else {
            (Some(run), LIFE)
        };
        let next = Step {
            state: self.state,
            step: self.step,
            entered,
            fault: self.fault,
            run,
        };
        if store::elicitations::answer(tx, &self.pending, &next, life).await? {
            return Ok(());
        }
        Err(Error::Conflict(
            "the question was answered or withdrawn meanwhile; look at the conversation".to_owned(),
        ))
    }
}

/// Whether a text answers the question that is open in its conversation; with `field` only if that is what is asked.
pub async fn catch(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    text: &str,
    field: Option<&str>,
) -> Result<Option<Caught>> {
    if !app.keys.has_ring() {
        return Ok(None);
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let pending = store::elicitations::open(&mut tx, conversation).await?;
    let Some(pending) = pending.filter(|pending| pending.user == principal.user) else {
        return Ok(None);
    };
    let said = text.trim();
    let leave = match said {
        "/decline" if field.is_none() => Some(Leave::Decline),
        // Connecting a server comes first: it was begun on purpose.
        "/cancel" if field.is_none() => {
            let (user, agent) = (&principal.user, &pending.agent);
            let flow = store::flows::is_open(&mut tx, user, agent, Some(conversation)).await?;
            (!flow).then_some(Leave::Cancel)
        }
        _ => None,
    };
    drop(tx);
    // Commands keep their meaning in the middle of a form; anything else is its answer.
    if field.is_none()
        && leave.is_none()
        && (command::is_one(said) || prompt::command(said).is_some())
    {
        return Ok(None);
    }
    judged(app, principal, pending, text, leave, field).await
}

async fn judged(
    app: &App,
    principal: &Principal,
    pending: Pending,
    text: &str,
    leave: Option<Leave>,
    field: Option<&str>,
) -> Result<Option<Caught>> {
    let Some((asked, mut entered)) = opened(app, principal.tenant, &pending).await? else {
        return Ok(None);
    };
    let steps = steps(&asked.questions);
    let Some(step) = steps.get(pending.step) else {
        return Ok(None);
    };
    if field.is_some_and(|field| field != step.name()) {
        return Ok(None);
    }
    let (mut state, mut at, mut fault) = (State::Open, pending.step, None);
    match (leave, step.value(text)) {
        (Some(leave), _) => (state, entered.leave) = (State::Answered, Some(leave)),
        (None, Ok(value)) => {
            entered.values.push(value);
            at += 1;
            if at == steps.len() {
                state = State::Answered;
            }
        }
        (None, Err(why)) => fault = Some(why),
    }
    let context = context(principal.tenant, &pending, OfElicitation::Entered);
    let sealed = seal(app, &context, &entered).await?;
    let mut next = Vec::new();
    if pending.live && state == State::Open {
        let (pending, pack) = (
            Pending {
                step: at,
                fault,
                ..pending.clone()
            },
            app.library.get(&pending.agent),
        );
        next = asked_next(&texts::of_any(pack.as_deref(), principal), &pending, &asked);
    }
    Ok(Some(Caught {
        pending,
        shown: text.to_owned(),
        state,
        step: at,
        entered: Some(sealed),
        fault,
        next,
    }))
}

/// What is asked at a row's step, after what was wrong with the last answer.
fn asked_next(texts: &texts::Texts<'_>, pending: &Pending, asked: &Asked) -> Vec<Part> {
    let mut parts = Vec::new();
    if let (Some(fault), Some(step)) = (pending.fault, steps(&asked.questions).get(pending.step)) {
        parts.push(words::fault(texts, fault, step));
    }
    parts.push(words::prompt(texts, pending, asked));
    parts
}

/// What a run that was given an answer has to ask next; `None` when it was given none.
pub async fn resume(app: &Arc<App>, run: &ClaimedRun) -> Result<Option<Vec<Part>>> {
    if !app.keys.has_ring() {
        return Ok(None);
    }
    let mut tx = app.db.tenant(run.tenant).await?;
    let given = store::elicitations::given_to(&mut tx, run.id).await?;
    drop(tx);
    let Some(pending) = given
        .into_iter()
        .find(|pending| pending.state == State::Open)
    else {
        return Ok(None);
    };
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let Some((asked, _)) = opened(app, run.tenant, &pending).await? else {
        return Ok(Some(vec![nothing_open(&texts)]));
    };
    Ok(Some(asked_next(&texts, &pending, &asked)))
}

/// What somebody hears who answers nothing.
pub fn nothing_open(texts: &texts::Texts<'_>) -> Part {
    Part::Notice {
        code: "nothing_asked".to_owned(),
        text: texts.say(Key::AskNone, &[]),
    }
}
