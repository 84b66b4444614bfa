//! What a response answers, as items.

use serde::Serialize;

use crate::domain::{
    ids::{AttachmentId, MessageId},
    message::{Message, Part, Role},
};

/// The id of a message among the items.
fn id_of(message: MessageId) -> String {
    format!("msg_{}", message.0.simple())
}

/// The message of an item.
pub(in crate::api::openai::responses) fn message_id(id: &str) -> Option<MessageId> {
    let id = id.strip_prefix("msg_")?;
    uuid::Uuid::try_parse(id).ok().map(MessageId)
}

/// A page of items.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInput)]
pub(in crate::api) struct ItemList {
    object: &'static str,
    data: Vec<InputItem>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl ItemList {
    /// A page of so many items. A message more was read when there are more.
    pub fn of_page(mut messages: Vec<Message>, limit: i64) -> Self {
        let limit = usize::try_from(limit).unwrap_or_default();
        let has_more = messages.len() > limit;
        messages.truncate(limit);
        let id = |message: Option<&Message>| message.map(|message| id_of(message.id));
        Self {
            object: "list",
            data: messages.iter().map(InputItem::of).collect(),
            first_id: id(messages.first()),
            last_id: id(messages.last()),
            has_more,
        }
    }
}

/// A message that a response answers, or that was said before.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInputItem)]
pub(in crate::api) struct InputItem {
    id: String,
    r#type: &'static str,
    /// `user` or `assistant`.
    role: &'static str,
    status: &'static str,
    content: Vec<InputContent>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum InputContent {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
    },
    /// An attachment of the conversation.
    InputImage {
        file_id: AttachmentId,
        filename: String,
    },
    /// The same.
    InputFile {
        file_id: AttachmentId,
        filename: String,
    },
}

impl InputItem {
    pub fn of(message: &Message) -> Self {
        let is_answer = message.role == Role::Assistant;
        let content = message.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } if is_answer => Some(InputContent::OutputText {
                text: text.clone(),
                annotations: [],
            }),
            Part::Text { text, .. } => Some(InputContent::InputText { text: text.clone() }),
            Part::Attachment(file) => {
                let (file_id, filename) = (file.id, file.name.clone());
                Some(if file.is_image() {
                    InputContent::InputImage { file_id, filename }
                } else {
                    InputContent::InputFile { file_id, filename }
                })
            }
            _ => None,
        });
        Self {
            id: id_of(message.id),
            r#type: "message",
            role: if is_answer { "assistant" } else { "user" },
            status: "completed",
            content: content.collect(),
        }
    }
}
