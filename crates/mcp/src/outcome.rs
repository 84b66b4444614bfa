//! Reads the result of a tool call: keeps its raw JSON, and turns its content into text for the model.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{error::Failure, redaction::clip};
use domain::{
    canonical,
    elicitation::{self, InputRequired},
    hidden::remove_hidden,
    json::Json,
    jsonrpc::object,
    tool::ToolOutcome,
};

/// The most bytes of text of one result that the model gets.
pub(super) const MAX_TEXT: usize = 64 * 1024;
/// The most bytes of structured content that are compared with the text.
const MAX_COMPARED: usize = 1 << 20;
/// The deepest nesting of a result that is kept. Postgres and parsers fail for deeper ones.
const MAX_DEPTH: usize = 64;

/// The members of a result that are read. `C` is the type of the content.
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

/// A content block.
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

/// Reads a result. `can_ask_user`: the call declared that the user can be asked, so the result may be a request for input;
/// otherwise such a result is a refusal.
pub(super) fn read(raw: Box<RawValue>, can_ask_user: bool) -> Result<ToolOutcome, Failure> {
    if can_ask_user && let Some(input) = required_input(&raw)? {
        return Ok(ToolOutcome {
            is_error: false,
            text: String::new(),
            raw,
            input: Some(input),
            declined: Vec::new(),
        });
    }
    let (is_error, text) = match object::<Outcome<Vec<Block>>>(raw.get()) {
        Ok(outcome) if outcome.content.is_some() || outcome.structured_content.is_some() => {
            outcome.read(|blocks| blocks.into_iter().map(Some).collect())?
        }
        // A result without content is not valid, and the text says so.
        Ok(outcome) => {
            let (is_error, _) = outcome.read(|_| Vec::new())?;
            let none = if is_error {
                ""
            } else {
                "[the result has no content]"
            };
            (is_error, none.to_owned())
        }
        // The result is not valid. Each block is read by itself, so that one bad block does not affect the others.
        Err(_) => object::<Outcome<&RawValue>>(raw.get())
            .map_err(|_| Failure::Lost("the result of the tool cannot be read".to_owned()))?
            .read(read_each_block)?,
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

/// A tool result with one text, as if a server had sent it.
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

/// Whether JSON is nested deeper than `most` levels.
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

/// The input that the server requires before it continues, if the result asks for input.
fn required_input(raw: &RawValue) -> Result<Option<Box<InputRequired>>, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Kind<'a> {
        #[serde(borrow, default)]
        result_type: Option<Cow<'a, str>>,
    }
    // A quick check, so that most results are parsed only once.
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

/// Reads the blocks one by one; `None` for a block that cannot be read.
fn read_each_block(content: &RawValue) -> Vec<Option<Block<'_>>> {
    let text = content.get();
    match text.as_bytes().first() {
        Some(b'[') => {
            let blocks: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            let blocks = blocks.into_iter();
            blocks.map(|block| object(block.get()).ok()).collect()
        }
        // Some servers send a text instead of the list.
        Some(b'"') => vec![serde_json::from_str(text).ok().map(Block::of_text)],
        _ => vec![object(text).ok()],
    }
}

impl<'a, C> Outcome<'a, C> {
    /// Whether the result is an error, and its text.
    fn read(
        self,
        blocks: impl FnOnce(C) -> Vec<Option<Block<'a>>>,
    ) -> Result<(bool, String), Failure> {
        if let Some(kind) = self.result_type.filter(|kind| kind != "complete") {
            let message = format!(
                "the tool answered with {:?} instead of a result, which is not supported",
                clip(&kind)
            );
            // A server that asks for input has not executed the tool. For other kinds of results that is not known.
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
            content_text(
                self.content.map(blocks).unwrap_or_default(),
                self.structured_content,
            ),
        ))
    }
}

/// The text of the content, followed by the structured content unless the content repeats it.
fn content_text(blocks: Vec<Option<Block>>, structured: Option<&RawValue>) -> String {
    let mut lines = Vec::with_capacity(blocks.len() + 1);
    let texts: Vec<_> = blocks.iter().flatten().filter_map(Block::text).collect();
    let structured = structured.map(RawValue::get);
    // Structured content that is nested too deep is left out; [`read`] adds a note.
    let structured = structured.filter(|structured| !is_deeper_than(structured, MAX_DEPTH));
    let structured = structured.filter(|structured| !is_repeated_in(&texts, structured));
    for block in blocks {
        let Some(block) = block else {
            lines.push("[content that cannot be read]".to_owned());
            continue;
        };
        lines.push(block.into_text());
    }
    if let Some(structured) = structured {
        lines.push(structured.to_owned());
    }
    if lines.len() == 1 {
        lines.remove(0)
    } else {
        lines.join("\n")
    }
}

/// Whether the texts of a result repeat its structured content. Servers repeat it as the JSON in one text, or as one text
/// for each item of a list. They wrap a value that is not an object in an object with a single member.
fn is_repeated_in(texts: &[&str], structured: &str) -> bool {
    let size: usize = texts.iter().map(|text| text.len()).sum();
    // An escaped character takes six bytes in JSON.
    if structured.len() > 6 * size + 64 || structured.len() > MAX_COMPARED {
        return false;
    }
    let is_repeated = || texts.iter().any(|text| text.contains(structured));
    if structured == "{}" || (structured.starts_with('{') && is_repeated()) {
        return size > 0;
    }
    let (Ok(structured), true) = (Json::parse(structured), size <= 2 * MAX_COMPARED) else {
        return false;
    };
    let wrapped = structured.as_object().filter(|members| members.len() == 1);
    let wrapped = wrapped.and_then(|members| members.iter().next());
    let candidates = [Some(&structured), wrapped.map(|(_, value)| value)];
    let spelling = |json: &Json| canonical::text(json).ok();
    let said: Vec<_> = candidates.into_iter().flatten().map(spelling).collect();
    let read = |text: &str| Json::parse(text).unwrap_or_else(|_| Json::Text(text.to_owned()));
    let as_text = |text: &str| spelling(&Json::Text(text.to_owned()));
    let all = spelling(&Json::List(texts.iter().map(|text| read(text)).collect()));
    let all_texts = texts.iter().map(|text| Json::Text((*text).to_owned()));
    let all_texts = spelling(&Json::List(all_texts.collect()));
    let is_one =
        |text: &&str| said.contains(&spelling(&read(text))) || said.contains(&as_text(text));
    said.contains(&all) || said.contains(&all_texts) || texts.iter().any(is_one)
}

impl<'a> Block<'a> {
    fn of_text(text: Cow<'a, str>) -> Self {
        Self {
            kind: Cow::Borrowed("text"),
            text: Some(text),
            data: None,
            mime_type: None,
            uri: None,
            resource: None,
        }
    }
}

impl Block<'_> {
    fn text(&self) -> Option<&str> {
        let of_resource = self
            .resource
            .as_ref()
            .and_then(|resource| resource.text.as_deref());
        self.text.as_deref().or(of_resource)
    }

    /// The block as text; a placeholder for content that is not text.
    fn into_text(self) -> String {
        let kind = self.kind.as_ref();
        match (kind, self.text, self.resource) {
            ("text", Some(text), _) => text.into_owned(),
            ("resource", _, Some(resource)) => resource.into_text(),
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
    /// A placeholder with the address and the type, followed by the text if there is one.
    fn into_text(self) -> String {
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

/// A placeholder for content that is not text, such as `[image image/png, 12 KB]`.
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

/// A content block as text.
pub(super) fn text_of(content: &RawValue) -> String {
    let text = object::<Block>(content.get()).map(|block| remove_hidden(&block.into_text()));
    text.unwrap_or_else(|_| "[content that cannot be read]".to_owned())
}

/// The contents of a resource as text.
pub(super) fn resource_text(content: &RawValue) -> String {
    let resource = object::<Resource>(content.get());
    resource.map_or_else(
        |_| "[content that cannot be read]".to_owned(),
        |resource| remove_hidden(&resource.into_text()),
    )
}

/// Cuts a text to `most` bytes, and adds a note about how much was cut.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = text.floor_char_boundary(most);
        let left_out = text.len() - end;
        text.truncate(end);
        text = format!("{text}\n[cut: {left_out} more bytes are not shown]");
    }
    text
}
