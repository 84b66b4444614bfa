//! Editing and asking again. A message of the user is replaced by a new one in a branch of its own, and the answer to it
//! stands there, too. What was said before stays as it is and can be switched back to. The model reads the active branch.
//!
//! A request for consent that the replaced messages have asked for is taken back, so that nothing is carried out which
//! its user has replaced. One that is being carried out already goes on; its outcome is told in the active branch. A
//! switch takes nothing back.

use super::{
    attachments,
    conversations::{self, PostedMessage, UnwrittenMessage},
};
use crate::{
    app::{App, runs::repeats, servers::agents},
    domain::{
        error::{Error, ErrorCode, Result, Thing},
        ids::{ConversationId, MessageId},
        message::{Message, Part, Role},
        principal::Principal,
        request_key::{KeyedRun, RequestKey},
        run::{Conversation, ConversationBranch},
    },
    store::{self, Tx},
};

/// Branches of one conversation.
const MAX_BRANCHES: i32 = 500;

/// Says something in place of an earlier message: another text, or without `text` the same once more.
pub async fn replace(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    (replaced, text): (MessageId, Option<&str>),
    key: Option<&RequestKey>,
) -> Result<PostedMessage> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    agents::pack(app, principal, conversation.agent.as_str()).await?;
    let old = replaced_message(&mut tx, id, replaced).await?;
    let attachments: Vec<_> = attachments::of(&old).cloned().collect();
    let text = match text {
        Some(text) => conversations::checked(text)?,
        None => text_of(&old),
    };
    // Requests first: whoever decides about one locks it before its conversation.
    let runs = store::branches::runs_from(&mut tx, id, replaced).await?;
    let withdrawn = store::approvals::withdraw(&mut tx, &runs, &principal.user).await?;
    let conversation = lock_idle(&mut tx, principal, id).await?;
    let fork = store::branches::fork_of(&mut tx, id, replaced).await?;
    let (parent, from_seq) = fork.ok_or(Error::NotFound(Thing::Conversation(id)))?;
    if store::branches::insert(&mut tx, id, parent, from_seq).await? > MAX_BRANCHES {
        return Err(Error::conflict(
            ErrorCode::LimitReached,
            format!(
                "this conversation has {MAX_BRANCHES} branches, and no more are allowed; begin a new one"
            ),
        ));
    }
    let message = UnwrittenMessage {
        conversation: &conversation,
        text: &text,
        attachments: &attachments,
        answer: None,
        format: None,
    };
    let said = conversations::append_user_message(app, &mut tx, principal, message).await?;
    let begun = KeyedRun {
        conversation: id,
        run: Some(said.posted().run.id),
        message: Some(said.posted().message.id),
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, key, begun).await?;
    tx.commit().await?;
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((principal.tenant, approval));
    }
    Ok(said.publish(app, principal))
}

/// The message of the user that another one replaces.
async fn replaced_message(
    tx: &mut Tx,
    conversation: ConversationId,
    id: MessageId,
) -> Result<Message> {
    let old = match store::messages::get(tx, conversation, id).await {
        Err(Error::NotFound(_)) => {
            let detail = "is no message of this conversation";
            return Err(Error::unfit(
                ErrorCode::UnknownReference,
                "replaces",
                detail,
            ));
        }
        old => old?,
    };
    if old.role != Role::User {
        let detail =
            "must be a message of the user; to ask again, name the message that was answered";
        return Err(Error::invalid("replaces", detail));
    }
    Ok(old)
}

/// What the user said, without attachments.
fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The conversation, locked; `Conflict` while an answer is on its way, which belongs to the branch it began in.
pub(super) async fn lock_idle(
    tx: &mut Tx,
    principal: &Principal,
    id: ConversationId,
) -> Result<Conversation> {
    let conversation = store::conversations::get(tx, &principal.user, id, true).await?;
    if store::branches::has_open_turn(tx, id).await? {
        return Err(Error::conflict(
            ErrorCode::ConversationBusy,
            "an answer is on its way; wait for its end or cancel its run first",
        ));
    }
    Ok(conversation)
}

/// The branches of a conversation, the first one included.
pub async fn list(
    app: &App,
    principal: &Principal,
    id: ConversationId,
) -> Result<Vec<ConversationBranch>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let first = ConversationBranch {
        number: 0,
        parent: None,
        from_seq: 1,
        created_at: conversation.created_at,
        active: false,
    };
    let mut branches = vec![first];
    branches.extend(store::branches::list(&mut tx, id).await?);
    for branch in &mut branches {
        branch.active = branch.number == conversation.branch;
    }
    Ok(branches)
}
