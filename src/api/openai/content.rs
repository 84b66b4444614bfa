//! Reads the text and the files of a message. A part that is not text is named in the text, so that a conversation with
//! an image goes on.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::api::problem::Problem;
use domain::{attachment, error::ErrorCode, message::Role};

/// The most characters of an address that names an image or a video in the text.
const MAX_ADDRESS: usize = 200;

/// Reads a role.
pub(super) fn role(field: &str, role: &str) -> Result<Role, Problem> {
    match role {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" | "developer" => Ok(Role::System),
        "tool" | "function" => Ok(Role::Tool),
        other => {
            let reason = format!(
                "{other:?} is not one of `system`, `developer`, `user`, `assistant`, `tool`"
            );
            Err(Problem::invalid(format!("{field}.role"), reason))
        }
    }
}

/// Reads a content: a text, or a list of parts, whose texts are joined. An absent content is an empty text: a message
/// of the assistant that only calls tools has none.
pub(in crate::api) fn content(field: &str, content: Option<&Value>) -> Result<String, Problem> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .enumerate()
                .map(|(at, part)| text(&format!("{field}[{at}]"), part));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) => Err(Problem::unfit(
            ErrorCode::WrongType,
            field,
            "must be text or a list of parts",
        )),
    }
}

fn text(field: &str, part: &Value) -> Result<String, Problem> {
    let kind = part["type"].as_str().unwrap_or_default();
    match (kind, part["text"].as_str(), part["refusal"].as_str()) {
        ("text" | "input_text" | "output_text", Some(text), _) | ("refusal", _, Some(text)) => {
            Ok(text.to_owned())
        }
        ("text" | "input_text" | "output_text", None, _) => Err(Problem::unfit(
            ErrorCode::MissingField,
            format!("{field}.text"),
            "is missing or not text",
        )),
        ("", ..) => Err(Problem::unfit(
            ErrorCode::MissingField,
            format!("{field}.type"),
            "is missing",
        )),
        ("image_url" | "input_image" | "file" | "input_file", ..) if file_in(part).is_some() => {
            Ok(format!("[{}]", name_of(kind, part)))
        }
        (other, ..) => Ok(format!("[{}; not shown to you]", name_of(other, part))),
    }
}

/// The images and text files that a content has as data, each with its name. Other parts are only named in the text.
pub(in crate::api) fn files(content: &Value) -> Vec<(String, Vec<u8>)> {
    let parts = content.as_array().into_iter().flatten();
    let files = parts.filter_map(file_in);
    files.take(attachment::MOST_OF_MESSAGE).collect()
}

/// The image or text file in a part, with its name.
fn file_in(part: &Value) -> Option<(String, Vec<u8>)> {
    let image = &part["image_url"];
    let (name, data) = match image.as_str().or_else(|| image["url"].as_str()) {
        Some(url) => {
            let (_, data) = url.strip_prefix("data:image/")?.split_once(";base64,")?;
            ("", data)
        }
        None => {
            let file = part.get("file").unwrap_or(part);
            // OpenAI accepts data with and without the beginning of a `data:` address.
            let data = file["file_data"].as_str()?;
            let data = match data.strip_prefix("data:") {
                Some(address) => address.split_once(";base64,")?.1,
                None => data,
            };
            (file["filename"].as_str().unwrap_or_default(), data)
        }
    };
    let data = STANDARD.decode(data).ok()?;
    let media_type = attachment::media_type(name, &data)?;
    let is_fit =
        (image.is_null() || media_type.starts_with("image/")) && data.len() <= attachment::MAX_SIZE;
    is_fit.then(|| (name.to_owned(), data))
}

/// The name of a part without text: its type, and its address or file name.
fn name_of(kind: &str, part: &Value) -> String {
    let address = |value: &Value| match &value["url"] {
        Value::String(url) => describe_address(url),
        _ => value.as_str().map(describe_address).unwrap_or_default(),
    };
    let named = |what: &str, about: String| {
        if about.is_empty() {
            what.to_owned()
        } else {
            format!("{what}: {about}")
        }
    };
    let file = || {
        let file = part.get("file").unwrap_or(part);
        file["filename"].as_str().unwrap_or_default()
    };
    match kind {
        "image_url" | "input_image" => named("image", address(&part["image_url"])),
        "video_url" => named("video", address(&part["video_url"])),
        "input_audio" => "audio".to_owned(),
        "file" | "input_file" => named("file", file().chars().take(MAX_ADDRESS).collect()),
        other => {
            let other: String = other.chars().take(64).collect();
            format!("a part of the type {other:?}")
        }
    }
}

/// An address, or the type and the size of the data in it.
fn describe_address(url: &str) -> String {
    match url.strip_prefix("data:") {
        Some(data) => {
            let (head, body) = data.split_once(',').unwrap_or((data, ""));
            let media = head.split(';').next().unwrap_or_default();
            let media: String = media.chars().take(64).collect();
            format!("{media}, {} kB", (body.len() * 3 / 4).div_ceil(1000))
        }
        None => url.chars().take(MAX_ADDRESS).collect(),
    }
}
