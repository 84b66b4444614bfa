//! Images and text files of a conversation. A user uploads a file and then names it in a message. The model is shown
//! images. It reads a text file with the tool `read_resource`, as far as it wants.

use crate::app::{App, accounts::usage, tools::toolset::truncate_text};
use domain::{
    attachment::{self, Attachment, MAX_SIZE, MOST_OF_MESSAGE, SCHEME},
    error::{Error, ErrorCode, Result},
    ids::{AttachmentId, ConversationId},
    message::{Message, Part},
    principal::Principal,
    run::Conversation,
};
use store::Tx;

/// The most characters of a text file that the model reads with one call.
const READ: usize = 64 << 10;

/// Stores a file in a conversation of the principal.
pub async fn create(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    name: &str,
    data: &[u8],
) -> Result<Attachment> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let attachment = insert(app, &mut tx, principal, &conversation, name, data).await?;
    tx.commit().await?;
    Ok(attachment)
}

/// Stores a file like [`create`], in a transaction of the caller.
pub(super) async fn insert(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    conversation: &Conversation,
    name: &str,
    data: &[u8],
) -> Result<Attachment> {
    let unfit = |reason: &'static str| Err(Error::invalid("body", reason));
    if data.len() > MAX_SIZE {
        return unfit("is larger than 10 MiB; send a smaller file");
    }
    let Some(media_type) = attachment::media_type(name, data) else {
        return unfit("must be a PNG, JPEG, GIF or WebP image, or a text in UTF-8");
    };
    let attachment = Attachment {
        id: AttachmentId::new(),
        name: attachment::clean_name(name, media_type),
        media_type: media_type.to_owned(),
        size: i64::try_from(data.len()).map_err(Error::internal)?,
    };
    // A user who has no space left must not make the database write the content.
    usage::require_space(app, tx, principal, data.len()).await?;
    if store::attachments::insert(tx, conversation.id, &attachment, data).await? {
        let (user, agent) = (&principal.user, &conversation.agent);
        // Usage is locked, so that files that come at the same time cannot all take the space that is left for one. The
        // lock is taken after the content was written, so that no other user of the tenant waits for that.
        store::usage::lock(tx).await?;
        usage::require_space(app, tx, principal, data.len()).await?;
        store::usage::add_stored(tx, user, agent, attachment.size).await?;
        return Ok(attachment);
    }
    Err(Error::conflict(
        ErrorCode::LimitReached,
        "this conversation has as many attachments as one may have; begin a new one",
    ))
}

/// Reads an attachment of the principal's conversation, with its content.
pub async fn get(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    id: AttachmentId,
) -> Result<(Attachment, Vec<u8>)> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, conversation, false).await?;
    let found = load(&mut tx, conversation, id).await?;
    found.ok_or_else(|| Error::not_found(format!("attachment {id} of this conversation")))
}

async fn load(
    tx: &mut Tx,
    conversation: ConversationId,
    id: AttachmentId,
) -> Result<Option<(Attachment, Vec<u8>)>> {
    let attachments = store::attachments::list(tx, conversation, &[id]).await?;
    let contents = store::attachments::list_contents(tx, conversation, &[id]).await?;
    let contents = contents.into_iter().map(|(_, data)| data);
    Ok(attachments.into_iter().zip(contents).next())
}

/// Reads the attachments that a message names. Each must exist and be named once.
pub(super) async fn find_named(
    tx: &mut Tx,
    conversation: ConversationId,
    ids: &[AttachmentId],
) -> Result<Vec<Attachment>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    if ids.len() > MOST_OF_MESSAGE {
        let reason = format!("may hold at most {MOST_OF_MESSAGE} attachments");
        return Err(Error::unfit(ErrorCode::TooLong, "attachments", reason));
    }
    let found = store::attachments::list(tx, conversation, ids).await?;
    if found.len() == ids.len() {
        return Ok(found);
    }
    Err(Error::unfit(
        ErrorCode::UnknownReference,
        "attachments",
        "names one twice, or one that this conversation does not have",
    ))
}

/// The attachments in a message.
pub(super) fn list(message: &Message) -> impl DoubleEndedIterator<Item = &Attachment> {
    message.parts.iter().filter_map(|part| match part {
        Part::Attachment(attachment) => Some(attachment),
        _ => None,
    })
}

/// Reads the text of an attachment for the model. `None` when the address is not that of an attachment. The inner error
/// is a sentence for the model.
pub(super) async fn read(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    uri: &str,
) -> Result<Option<std::result::Result<String, String>>> {
    let Some(id) = uri.strip_prefix(SCHEME) else {
        return Ok(None);
    };
    let unknown = || {
        Err(format!(
            "not read: no attachment of this conversation is {uri:?}"
        ))
    };
    let Ok(id) = id.parse::<AttachmentId>() else {
        return Ok(Some(unknown()));
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    Ok(Some(match load(&mut tx, conversation, id).await? {
        None => unknown(),
        Some((attachment, _)) if attachment.is_image() => {
            Err("not read: this is an image, and only its name is known here".to_owned())
        }
        Some((_, data)) => Ok(truncate_text(&String::from_utf8_lossy(&data), READ)),
    }))
}
