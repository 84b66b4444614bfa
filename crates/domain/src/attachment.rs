//! Images and text files that a user sends, and images that tools return. The type is judged by the content; what a
//! client or a server says of it does not count.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    hidden::{breaks_line, is_hidden},
    ids::AttachmentId,
};

/// Bytes of one attachment.
pub const MAX_SIZE: usize = 10 << 20;
/// Attachments of one message.
pub const MOST_OF_MESSAGE: usize = 10;
/// What the address of an attachment begins with, for the model.
pub const SCHEME: &str = "attachment:";
/// Bytes of an image of a tool that a model is shown: 5 MB in base64, which is Anthropic's limit.
const MAX_SHOWN: usize = 3_750_000;
/// Characters of a name.
const MAX_NAME: usize = 120;

/// An image in the result of a tool.
#[derive(Clone, Debug)]
pub struct Image {
    pub media_type: &'static str,
    pub data: Arc<[u8]>,
}

/// The images that a tool's result holds, in its order: as blocks of their own, or as resources.
pub fn images_in(result: &RawValue) -> Vec<Image> {
    #[derive(Deserialize)]
    struct Outcome<'a> {
        #[serde(borrow, default)]
        content: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow, default)]
        data: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        resource: Option<Resource<'a>>,
    }
    #[derive(Deserialize)]
    struct Resource<'a> {
        #[serde(borrow, default)]
        blob: Option<Cow<'a, str>>,
    }
    // Most results have none, and may be long.
    if !result.get().contains("image") {
        return Vec::new();
    }
    let Ok(outcome) = serde_json::from_str::<Outcome<'_>>(result.get()) else {
        return Vec::new();
    };
    let blocks = outcome.content.into_iter();
    let blocks = blocks.filter_map(|block| serde_json::from_str::<Block<'_>>(block.get()).ok());
    let images = blocks.filter_map(|block| {
        let in_resource = block.resource.and_then(|resource| resource.blob);
        let base64 = block.data.or(in_resource)?;
        let data = STANDARD.decode(base64.as_bytes()).ok()?;
        let media_type = media_type("", &data)?;
        let is_shown = media_type.starts_with("image/") && data.len() <= MAX_SHOWN;
        is_shown.then(|| Image {
            media_type,
            data: data.into(),
        })
    });
    images.collect()
}

/// An image or a text file, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attachment {
    pub id: AttachmentId,
    pub name: String,
    /// By its content.
    pub media_type: String,
    /// In bytes.
    pub size: i64,
}

impl Attachment {
    pub fn is_image(&self) -> bool {
        self.media_type.starts_with("image/")
    }

    /// The attachment in words, for people.
    pub fn plain(&self) -> String {
        format!("[{}: {}, {}]", self.kind(), self.name, self.size_in_words())
    }

    /// The attachment as the model reads of it.
    pub fn for_model(&self) -> String {
        let hint = if self.is_image() {
            String::new()
        } else {
            format!("; read it as {SCHEME}{}", self.id)
        };
        let (kind, size) = (self.kind(), self.size_in_words());
        format!("[{kind}: {}, {}, {size}{hint}]", self.name, self.media_type)
    }

    fn kind(&self) -> &'static str {
        if self.is_image() { "image" } else { "file" }
    }

    fn size_in_words(&self) -> String {
        match self.size {
            size @ ..1000 => format!("{size} bytes"),
            size @ ..1_000_000 => format!("{} kB", size / 1000),
            size => format!("{}.{} MB", size / 1_000_000, size % 1_000_000 / 100_000),
        }
    }
}

/// The media type of a content: that of an image which models take, or of a text by its name; `None` for anything else.
pub fn media_type(name: &str, data: &[u8]) -> Option<&'static str> {
    match data {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Some("image/webp"),
        data => text_type(name, data),
    }
}

fn text_type(name: &str, data: &[u8]) -> Option<&'static str> {
    let text = std::str::from_utf8(data).ok()?;
    let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\u{c}');
    if text.trim().is_empty() || !text.chars().all(is_text) {
        return None;
    }
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    Some(match ending.as_deref() {
        Some("md" | "markdown") => "text/markdown",
        Some("csv") => "text/csv",
        Some("json") => "application/json",
        _ => "text/plain",
    })
}

/// A name that is safe in a header and on a disk: the last part of a path, without control characters and without those
/// that show `gnp.exe` as `exe.png`.
pub fn clean_name(name: &str, media_type: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept = last
        .chars()
        .filter(|c| !(c.is_control() || is_hidden(*c) || breaks_line(*c) || *c == '"'))
        .take(MAX_NAME);
    let name: String = kept.collect();
    if !name.trim().trim_matches('.').is_empty() {
        return name.trim().to_owned();
    }
    let ending = match media_type {
        "text/plain" => "txt",
        "text/markdown" => "md",
        other => other.rsplit('/').next().unwrap_or("bin"),
    };
    format!("file.{ending}")
}
