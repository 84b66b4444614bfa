//! Images and text files of a conversation. A user sends one and then names it in a message. Images are shown to the
//! model; of a text the model reads as much as it wants with the tool `read_resource`.

use crate::{
    app::{App, accounts::usage, tools::toolset::truncate_text},
    domain::{
        attachment::{self, Attachment, MAX_SIZE, MOST_OF_MESSAGE, SCHEME},
        error::{Error, ErrorCode, Result},
        ids::{AttachmentId, ConversationId},
        message::{Message, Part},
        principal::Principal,
        run::Conversation,
    },
    store::{self, Tx},
};

/// Characters of a text that the model reads at once.
const READ: usize = 64 << 10;

/// Keeps a file in a conversation of the principal.
pub async fn create(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    name: &str,
    data: &[u8],
) -> Result<Attachment> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let kept = keep(app, &mut tx, principal, &conversation, name, data).await?;
    tx.commit().await?;
    Ok(kept)
}

/// The same in a transaction of the caller.
pub(super) async fn keep(
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
    let kept = Attachment {
        id: AttachmentId::new(),
        name: attachment::clean_name(name, media_type),
        media_type: media_type.to_owned(),
        size: i64::try_from(data.len()).map_err(Error::internal)?,
    };
    // Whoever has no space left writes nothing.
    usage::require_space(app, tx, principal, data.len()).await?;
    if store::attachments::insert(tx, conversation.id, &kept, data).await? {
        let (user, agent) = (&principal.user, &conversation.agent);
        // One at a time, so that many that come at once do not all find the same space. Others of the tenant do not
        // wait while the content is written.
        store::usage::lock(tx).await?;
        usage::require_space(app, tx, principal, data.len()).await?;
        store::usage::add_stored(tx, user, agent, kept.size).await?;
        return Ok(kept);
    }
    Err(Error::conflict(
        ErrorCode::LimitReached,
        "this conversation has as many attachments as one may have; begin a new one",
    ))
}

/// An attachment of the principal's conversation, with its content.
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
    let about = store::attachments::find(tx, conversation, &[id]).await?;
    let content = store::attachments::contents(tx, conversation, &[id]).await?;
    let content = content.into_iter().map(|(_, data)| data);
    Ok(about.into_iter().zip(content).next())
}

/// The attachments that a message names; each must be there.
pub(super) async fn named(
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
    let found = store::attachments::find(tx, conversation, ids).await?;
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
pub(super) fn of(message: &Message) -> impl DoubleEndedIterator<Item = &Attachment> {
    message.parts.iter().filter_map(|part| match part {
        Part::Attachment(attachment) => Some(attachment),
        _ => None,
    })
}

/// What the model reads at an address; `None` when it is not the address of an attachment. The error is a sentence for
/// the model.
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
        Some((about, _)) if about.is_image() => {
            Err("not read: this is an image, and only its name is known here".to_owned())
        }
        Some((_, data)) => Ok(truncate_text(&String::from_utf8_lossy(&data), READ)),
    }))
}
