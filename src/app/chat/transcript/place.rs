//! Where a client's question belongs: in the conversation that its transcript shows, after an answer, or in a
//! conversation of its own with what was said before.

use super::{ClientQuestion, MOST_IMPORTED, Transcript, digest, key_of, without_calls};
use crate::{
    app::{
        App,
        chat::{branches, conversations},
        servers::credentials,
    },
    domain::{
        error::{Error, ErrorCode, Result, Thing},
        ids::{ConversationId, RunId},
        message::{Part, Role},
        pack::Pack,
        principal::Principal,
        run::Conversation,
        scrub::Scrubber,
    },
    store::{
        self, Tx,
        conversations::keyed::{NO_KEY, find_or_insert},
        responses::AnsweredPlace,
    },
};

/// By what the conversation of a question is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QuestionPlace {
    /// The transcript is all that was said.
    #[default]
    Transcript,
    /// The transcript is what is new after the answer of a run.
    After {
        run: RunId,
        /// Held for that answer, too, or are new.
        instructions: Option<String>,
    },
    /// The transcript is what is new in the chat that the client names.
    Chat,
    /// The transcript is what is new in a conversation.
    Conversation {
        id: ConversationId,
        instructions: Option<String>,
    },
}

impl QuestionPlace {
    /// The key by which the next question finds the conversation when this one was answered by `run`.
    pub(super) fn key_of_answer(&self, question: &ClientQuestion, run: RunId) -> String {
        match self {
            Self::Transcript => key_of(question.chat.as_deref(), &question.transcript),
            // The client shows more than this question has, so no transcript of it can be matched.
            Self::After { .. } | Self::Chat | Self::Conversation { .. } => format!("run:{run}"),
        }
    }
}

/// The conversation of a question, locked, and the last event that its client was told of; a new conversation with what
/// was said before when there is none. `earlier` is the transcript before what is asked.
pub(super) async fn locate(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    question: &ClientQuestion,
    earlier: &Transcript,
) -> Result<(Tx, Conversation, i64)> {
    // A secret that the user typed earlier is masked on our side only, and the client shows it again.
    let secrets = if earlier.is_empty() {
        Scrubber::default()
    } else {
        credentials::scrubber(app, principal, pack).await?
    };
    let said = parts_of(earlier, &secrets);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let (conversation, told) = match &question.place {
        QuestionPlace::Transcript => {
            let key = digest(question.chat.as_deref(), earlier);
            // A program's key may speak for many people. One of them is shown nothing that another one's chat holds and
            // does not show, such as results of tools. A chat that has an id of its own is one chat.
            let only_shown = principal.names_nobody() && question.chat.is_none();
            let (user, agent) = (&principal.user, pack.id());
            let found = find_or_insert(&mut tx, user, agent, &key, only_shown).await?;
            if found.is_new {
                take_over(&mut tx, found.conversation, said).await?
            } else {
                (found.conversation, found.told_event)
            }
        }
        QuestionPlace::After { run, instructions } => {
            let new = (instructions.as_ref(), said);
            follow(&mut tx, principal, pack, *run, new).await?
        }
        QuestionPlace::Conversation { id, instructions } => {
            let new = (instructions.as_ref(), said);
            go_on(&mut tx, principal, pack, *id, new).await?
        }
        QuestionPlace::Chat => {
            let chat = question.chat.as_deref().unwrap_or_default();
            let known = store::client_chats::place(&mut tx, &principal.user, chat).await?;
            let known = known.filter(|(conversation, _)| conversation.agent == *pack.id());
            match known {
                Some((mut conversation, told)) => {
                    conversation.last_event += import(&mut tx, conversation.id, said).await?;
                    (conversation, told)
                }
                None => begin(&mut tx, principal, pack, said).await?,
            }
        }
    };
    Ok((tx, conversation, told))
}

/// A new conversation with what was said before.
async fn begin(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    said: Vec<(Role, Vec<Part>)>,
) -> Result<(Conversation, i64)> {
    let conversation = conversations::open(tx, principal, pack, "", Some(NO_KEY)).await?;
    take_over(tx, conversation, said).await
}

/// Puts what was said before into a new conversation. Its client knows all of that.
async fn take_over(
    tx: &mut Tx,
    mut conversation: Conversation,
    said: Vec<(Role, Vec<Part>)>,
) -> Result<(Conversation, i64)> {
    conversation.last_event += import(tx, conversation.id, said).await?;
    let told = conversation.last_event;
    Ok((conversation, told))
}

/// The conversation of an answer. When it went on after that answer, a new one with all that was said until then.
async fn follow(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    run: RunId,
    (wanted, mut new): (Option<&String>, Vec<(Role, Vec<Part>)>),
) -> Result<(Conversation, i64)> {
    let place = store::responses::place(tx, &principal.user, run).await?;
    let AnsweredPlace {
        mut conversation,
        told,
        status,
        is_followed,
        instructions,
    } = place.ok_or_else(|| Error::not_found(Thing::Run(run)))?;
    if conversation.agent != *pack.id() {
        let reason = format!(
            "was answered by {:?}; use this as `model`",
            conversation.agent.as_str()
        );
        return Err(Error::invalid("previous_response_id", reason));
    }
    if !status.is_final() {
        let detail = "the previous response is not complete; wait for its end or cancel it";
        return Err(Error::conflict(
            ErrorCode::ConversationBusy,
            detail.to_owned(),
        ));
    }
    // Instructions hold for one response, and are said again only when they are others.
    if let Some(wanted) = wanted.filter(|wanted| instructions.as_ref() != Some(*wanted)) {
        new.insert(0, (Role::User, vec![instruction(wanted)]));
    }
    if !is_followed {
        conversation.last_event += import(tx, conversation.id, new).await?;
        return Ok((conversation, told));
    }
    let mut said = store::messages::until(tx, conversation.id, run, MOST_IMPORTED).await?;
    said.extend(new);
    begin(tx, principal, pack, said).await
}

/// A conversation of the user, whoever began it, with what is new.
async fn go_on(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    id: ConversationId,
    (instructions, mut new): (Option<&String>, Vec<(Role, Vec<Part>)>),
) -> Result<(Conversation, i64)> {
    let mut conversation = branches::lock_idle(tx, principal, id).await?;
    if conversation.agent != *pack.id() {
        let reason = format!(
            "belongs to {:?}; use this as `model`",
            conversation.agent.as_str()
        );
        return Err(Error::invalid("conversation", reason));
    }
    if let Some(text) = instructions {
        new.insert(0, (Role::User, vec![instruction(text)]));
    }
    let told = store::conversations::keyed::told_event(tx, id).await?;
    conversation.last_event += import(tx, id, new).await?;
    Ok((conversation, told))
}

fn instruction(text: &str) -> Part {
    Part::text(format!("[Instructions of the client]\n{text}").replace('\0', ""))
}

/// A transcript as messages, without the user's secrets. They are not verified: they are what the user claims.
fn parts_of(transcript: &Transcript, secrets: &Scrubber) -> Vec<(Role, Vec<Part>)> {
    let said = transcript.iter().filter_map(|(role, text)| {
        let clean = secrets.text(text);
        let text = clean.as_ref().unwrap_or(text);
        let (role, part) = match role {
            Role::Assistant => {
                let text = without_calls(text);
                (Role::Assistant, Part::text(text.replace('\0', "")))
            }
            Role::System => (Role::User, instruction(text)),
            Role::User | Role::Tool => (Role::User, Part::text(text.replace('\0', ""))),
        };
        (!text.trim().is_empty()).then(|| (role, vec![part]))
    });
    said.collect()
}

/// Imports earlier messages; returns how many.
async fn import(tx: &mut Tx, id: ConversationId, mut said: Vec<(Role, Vec<Part>)>) -> Result<i64> {
    said.drain(..said.len().saturating_sub(MOST_IMPORTED));
    if said.is_empty() {
        return Ok(0);
    }
    store::messages::import(tx, id, &said).await?;
    i64::try_from(said.len()).map_err(Error::internal)
}
