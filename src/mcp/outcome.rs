//! The result of a tool call: kept as it came, and turned into text for the model.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    error::Failure,
    interceptor::{clipped, object},
};
use crate::domain::{
    elicitation::{self, InputRequired},
    hidden::remove_hidden,
    tool::ToolOutcome,
};

/// Bytes of text that a model is given of one result.
pub(super) const MAX_TEXT: usize = 64 * 1024;
/// How deep a result may be nested that is kept as it came. Postgres and parsers give up on deeper ones.
const MAX_DEPTH: usize = 64;

/// The members that are looked at. Everything else stays raw.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "C: Deserialize<'de>"))]
struct Outcome<'a, C> {
    #[serde(default)]
    content: Option<C>,
    #[serde(borrow, default)]
    structured_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    is_error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    mime_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource: Option<Resource<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    #[serde(borrow, default)]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    mime_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    blob: Option<Cow<'a, str>>,
}

/// Reads a result. One that asks for something instead of answering is a refusal unless somebody can be asked
/// (`asks`), which only then was declared.
pub(super) fn read(raw: Box<RawValue>, asks: bool) -> Result<ToolOutcome, Failure> {
    if asks && let Some(input) = input(&raw)? {
        return Ok(ToolOutcome {
            is_error: false,
            text: String::new(),
            raw,
            input: Some(input),
            declined: Vec::new(),
        });
    }
    let (is_error, text) = match object::<Outcome<Vec<Block>>>(raw.get()) {
        Ok(outcome) => outcome.read(|blocks| blocks.into_iter().map(Some).collect())?,
        // The result is not valid: each block is read alone, so that one bad block does not cost the others.
        Err(_) => object::<Outcome<&RawValue>>(raw.get())
            .map_err(|_| Failure::Lost("the result of the tool cannot be read".to_owned()))?
            .read(block_by_block)?,
    };
    if is_deeper_than(raw.get(), MAX_DEPTH) {
        return Ok(text_outcome(
            &format!(
                "{}\n[the server's own result is nested deeper than {MAX_DEPTH} levels and is not kept]",
                cut(remove_hidden(&text), MAX_TEXT - 256)
            ),
            is_error,
        ));
    }
    Ok(ToolOutcome {
        is_error,
        text: cut(remove_hidden(&text), MAX_TEXT),
        raw,
        input: None,
        declined: Vec::new(),
    })
}

/// A result of one text, as a server writes it.
pub fn text_outcome(text: &str, is_error: bool) -> ToolOutcome {
    let raw = serde_json::json!({
        "resultType": "complete",
        "content": [{ "type": "text", "text": text }],
        "isError": is_error,
    });
    ToolOutcome {
        raw: serde_json::value::to_raw_value(&raw).expect("JSON can be written"),
        is_error,
        text: cut(remove_hidden(text), MAX_TEXT),
        input: None,
        declined: Vec::new(),
    }
}

/// Whether JSON has more than so many open brackets at once.
fn is_deeper_than(json: &str, most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth > most {
            return true;
        }
    }
    false
}

/// What the server wants to know before it goes on, if that is its answer.
fn input(raw: &RawValue) -> Result<Option<Box<InputRequired>>, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Kind<'a> {
        #[serde(borrow, default)]
        result_type: Option<Cow<'a, str>>,
    }
    // Most results are none and are read once.
    if !raw.get().contains("input_required") {
        return Ok(None);
    }
    let kind = object::<Kind>(raw.get())
        .ok()
        .and_then(|kind| kind.result_type);
    if kind.as_deref() != Some("input_required") {
        return Ok(None);
    }
    let unreadable =
        |why| format!("the server asks for input in a way that cannot be answered: {why}");
    let input = elicitation::read(raw).map_err(|why| Failure::Refused {
        code: None,
        message: unreadable(why),
    })?;
    Ok(Some(Box::new(input)))
}

fn block_by_block(content: &RawValue) -> Vec<Option<Block<'_>>> {
    let blocks: Vec<&RawValue> = serde_json::from_str(content.get()).unwrap_or_default();
    blocks
        .into_iter()
        .map(|block| object(block.get()).ok())
        .collect()
}

impl<'a, C> Outcome<'a, C> {
    /// Whether it is an error, and its words.
    fn read(
        self,
        blocks: impl FnOnce(C) -> Vec<Option<Block<'a>>>,
    ) -> Result<(bool, String), Failure> {
        if let Some(kind) = self.result_type.filter(|kind| kind != "complete") {
            let message = format!(
                "the tool answered with {:?} instead of a result, which is not supported",
                clipped(&kind)
            );
            // A server that asks for input has not acted yet; for other answers this is not known.
            return Err(if kind == "input_required" {
                Failure::Refused {
                    code: None,
                    message,
                }
            } else {
                Failure::Lost(message)
            });
        }
        let is_error = self.is_error.is_some_and(|flag| flag.get() == "true");
        Ok((
            is_error,
            words(
                self.content.map(blocks).unwrap_or_default(),
                self.structured_content,
            ),
        ))
    }
}

/// The text of the content; the structured content when there is no text.
fn words(blocks: Vec<Option<Block>>, structured: Option<&RawValue>) -> String {
    let mut lines = Vec::with_capacity(blocks.len() + 1);
    let mut has_text = false;
    for block in blocks {
        let Some(block) = block else {
            lines.push("[content that cannot be read]".to_owned());
            continue;
        };
        has_text |= block.text.is_some()
            || block
                .resource
                .as_ref()
                .is_some_and(|found| found.text.is_some());
        lines.push(block.words());
    }
    if let Some(structured) = structured.filter(|_| !has_text) {
        lines.push(structured.get().to_owned());
    }
    if lines.len() == 1 {
        lines.remove(0)
    } else {
        lines.join("\n")
    }
}

impl Block<'_> {
    fn words(self) -> String {
        let kind = self.kind.as_ref();
        match (kind, self.text, self.resource) {
            ("text", Some(text), _) => text.into_owned(),
            ("resource", _, Some(resource)) => resource.words(),
            ("resource_link", ..) => placeholder("link", &[self.uri, self.mime_type], None),
            _ => placeholder(
                kind,
                &[self.mime_type],
                self.data.as_deref().map(decoded_len),
            ),
        }
    }
}

impl Resource<'_> {
    /// A name for what it is, and its text if it is text: what a tool read is often given this way.
    fn words(self) -> String {
        let size = self
            .text
            .as_ref()
            .map(|text| text.len())
            .or_else(|| self.blob.as_deref().map(decoded_len));
        let head = placeholder("resource", &[self.uri, self.mime_type], size);
        self.text
            .map_or_else(|| head.clone(), |text| format!("{head}\n{text}"))
    }
}

/// `[image image/png, 12 KB]`.
fn placeholder(kind: &str, about: &[Option<Cow<str>>], size: Option<usize>) -> String {
    let about = about
        .iter()
        .flatten()
        .fold(String::new(), |all, part| format!("{all} {part}"));
    let size = size.map_or_else(String::new, |size| match size {
        0..1024 => format!(", {size} bytes"),
        1024..1_048_576 => format!(", {} KB", size / 1024),
        _ => format!(", {} MB", size / 1_048_576),
    });
    format!("[{kind}{about}{size}]")
}

fn decoded_len(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

/// One content block in words.
pub(super) fn text_of(content: &RawValue) -> String {
    let words = object::<Block>(content.get()).map(|block| remove_hidden(&block.words()));
    words.unwrap_or_else(|_| "[content that cannot be read]".to_owned())
}

/// A resource that was read, in words.
pub(super) fn resource_text(content: &RawValue) -> String {
    let resource = object::<Resource>(content.get());
    resource.map_or_else(
        |_| "[content that cannot be read]".to_owned(),
        |resource| remove_hidden(&resource.words()),
    )
}

/// At most `most` bytes, with a mark where more was.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = text.floor_char_boundary(most);
        let left_out = text.len() - end;
        text.truncate(end);
        text = format!("{text}\n[cut: {left_out} more bytes are not shown]");
    }
    text
}
