//! Branches of a conversation: a user edits a message or asks again. The new message and its answer stand in a branch
//! of their own. The old messages stay as they are, and the user can switch back to them. The model reads the active
//! branch.
//!
//! Requests for consent of the replaced messages are withdrawn, so that no call is made which its user has replaced. A
//! call that is under way goes on, and its outcome is written in the active branch. Switching to another branch
//! withdraws no request.

use super::{
    attachments,
    conversations::{self, PostedMessage, UnwrittenMessage},
};
use crate::app::{App, runs::repeats, servers::agents};
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    ids::{ConversationId, MessageId},
    message::{Message, Part, Role},
    principal::Principal,
    request_key::{KeyedRun, RequestKey},
    run::{Conversation, ConversationBranch},
};
use store::Tx;

/// The most branches of one conversation.
const MAX_BRANCHES: i32 = 500;

/// Posts a message in place of an earlier one. Without a `text`, the text of the earlier message is posted again.
pub async fn replace(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    replaced: MessageId,
    text: Option<&str>,
    key: Option<&RequestKey>,
) -> Result<PostedMessage> {
    let tenant = app.accounts.tenant(principal.tenant).await?;
    tenant.require_active()?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    agents::pack_of(app, &tenant, principal, conversation.agent.as_str())?;
    let old = get_replaceable(&mut tx, id, replaced).await?;
    let attachments: Vec<_> = attachments::list(&old).cloned().collect();
    let text = match text {
        Some(text) => conversations::clean_message_text(text)?,
        None => text_of(&old),
    };
    // Requests are locked first, as a decision locks its request before the conversation.
    let runs = store::branches::list_runs_from(&mut tx, id, replaced).await?;
    let withdrawn = store::approvals::withdraw(&mut tx, &runs, &principal.user).await?;
    let conversation = lock_idle(&mut tx, principal, id).await?;
    let fork = store::branches::find_fork(&mut tx, id, replaced).await?;
    let (parent, from_seq) = fork.ok_or(Error::NotFound(Missing::Conversation(id)))?;
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
    let pending = conversations::append_user_message(app, &mut tx, principal, message).await?;
    let begun = KeyedRun {
        conversation: id,
        run: Some(pending.posted().run.id),
        message: Some(pending.posted().message.id),
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, key, begun).await?;
    tx.commit().await?;
    app.settle_requests(principal.tenant, withdrawn);
    Ok(pending.publish(app, principal))
}

/// Reads a message that can be replaced: one of the user.
async fn get_replaceable(
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

/// The text of a message, without attachments.
fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Locks a conversation. `Conflict` while a turn is open, because its answer belongs to the branch in which it began.
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

/// Lists the branches of a conversation, including the first one, which has no row.
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
