//! The digest that identifies a transcript. White space around a message does not count, because clients
//! trim it. The tool calls that an answer shows do not count either: some clients leave them out of what
//! they send back.
//!
//! Many chats begin alike: with a system message, with instructions, with examples. Only an answer of ours tells them
//! apart, so a conversation gets the digest of a transcript that ends with one, and never another digest.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::Transcript;
use crate::{
    domain::message::{CALL_BOX, CALL_BOX_END, CALL_LINE, Role},
    store::conversations::keyed::NO_KEY,
};

/// The key of a conversation whose client shows this transcript: none unless it ends with an answer.
pub(super) fn key_of(chat: Option<&str>, transcript: &Transcript) -> String {
    match transcript.last() {
        Some((Role::Assistant, answer)) if !without_calls(answer).trim().is_empty() => {
            digest(chat, transcript)
        }
        _ => NO_KEY.to_owned(),
    }
}

/// SHA-256 over the chat id and every message, in hex.
pub(super) fn digest(chat: Option<&str>, transcript: &Transcript) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text);
    };
    add(chat.unwrap_or_default());
    for (role, text) in transcript {
        add(match role {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::System => "system",
        });
        match role {
            Role::Assistant => add(paragraphs(without_calls(text).lines()).trim()),
            _ => add(text.trim()),
        }
    }
    hex::encode(digest.finalize())
}

/// A text without the tool calls that the program has shown in it.
pub(super) fn without_calls(text: &str) -> Cow<'_, str> {
    if !text.contains(CALL_BOX) && !text.contains(CALL_LINE) {
        return Cow::Borrowed(text);
    }
    let (mut rest, mut said) = (text, String::new());
    while let Some((before, after)) = rest.split_once(CALL_BOX) {
        said.push_str(before);
        rest = after.split_once(CALL_BOX_END).map_or("", |(_, rest)| rest);
    }
    said.push_str(rest);
    let lines = said.lines().filter(|line| !line.starts_with(CALL_LINE));
    Cow::Owned(paragraphs(lines))
}

/// The paragraphs, a blank line apart.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(str::trim_end).collect();
    let paragraphs = lines.split(|line| line.is_empty());
    let paragraphs = paragraphs.filter(|lines| !lines.is_empty());
    let paragraphs: Vec<_> = paragraphs.map(|lines| lines.join("\n")).collect();
    paragraphs.join("\n\n")
}
