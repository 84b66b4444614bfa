//! Discovery: reads all pages of `tools/list` within limits, tool by tool. A broken tool does not affect the
//! others, and each tool that is left out has a reason for the operator.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{
    Era,
    error::Failure,
    interceptor::{clipped, object},
    params,
    reading::Reading,
    schemas,
    session::Session,
};
use domain::{
    hidden::remove_hidden,
    tool::{CacheHints, CacheScope, MAX_NAME, Tool, check_name, clean_hints, clean_title},
};

const PAGES: usize = 100;
const TOOLS: usize = 2_000;
const BYTES: usize = 8 * 1024 * 1024;
/// Characters of a description that reach a model.
const DESCRIPTION: usize = 10_000;
/// Bytes of a server's own hints about a tool, and of the schema of its results: more are not kept.
const ASIDE: usize = 64 * 1024;
/// Milliseconds for which a list may be kept at most, about 300 years: more is nonsense.
const LONGEST_TTL_MS: f64 = 1e13;

/// What a server offers.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) tools: Vec<Arc<Tool>>,
    pub(super) dropped: Vec<String>,
    /// What of the tools' schemas is left to the server.
    pub(super) unchecked: Vec<String>,
    /// How the server says that the list may be kept; absent when no page was read.
    pub(super) cache: Option<CacheHints>,
    /// Arguments that travel as headers too, by tool.
    pub(super) headers: HashMap<String, Vec<params::Param>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    next_cursor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_scope: Option<&'a RawValue>,
}

/// The cache hints of a page. A time that is none is dropped; a scope that the protocol does not define is taken as
/// `private`.
pub(super) fn cache_hints(ttl_ms: Option<&RawValue>, scope: Option<&RawValue>) -> CacheHints {
    let ttl = ttl_ms.and_then(|ttl| ttl.get().parse::<f64>().ok());
    // A negative time is none, says the specification.
    let ttl = ttl
        .filter(|ttl| *ttl <= LONGEST_TTL_MS)
        .and_then(|ttl| Duration::try_from_secs_f64(ttl.max(0.0) / 1000.0).ok());
    let scope = match scope {
        None => None,
        Some(scope) => match text_of(scope).as_deref() {
            Some("") => None,
            Some("public") => Some(CacheScope::Public),
            _ => Some(CacheScope::Private),
        },
    };
    CacheHints { ttl, scope }
}

/// The cursor of the next page. An empty one is a cursor like any other in 2026-07-28, and an end before.
pub(super) fn next_cursor(
    cursor: Option<&RawValue>,
    era: Era,
) -> Result<Option<String>, &'static str> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let cursor = text_of(cursor).ok_or("the server gives a cursor that is no text")?;
    Ok(Some(cursor).filter(|cursor| era == Era::Modern || !cursor.is_empty()))
}

/// A text, if it is one.
fn text_of(json: &RawValue) -> Option<String> {
    serde_json::from_str(json.get()).ok()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedTool<'a> {
    name: String,
    #[serde(borrow, default)]
    title: Option<&'a RawValue>,
    #[serde(borrow, default)]
    description: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    annotations: Option<&'a RawValue>,
}

/// Asks for page after page, and leaves out the tools whose schema cannot be used.
pub(super) async fn list(session: &Session) -> Result<Listed, Failure> {
    let mut listed = read_pages(session).await?;
    for tool in std::mem::take(&mut listed.tools) {
        match schemas::compile(tool.clone()).await {
            Ok(schema) => {
                let unchecked = schema.unchecked().iter();
                let unchecked = unchecked.map(|what| format!("tool {:?}: {what}", tool.name));
                listed.unchecked.extend(unchecked);
                listed.tools.push(tool);
            }
            Err(why) => {
                let reason = format!(
                    "tool {:?}: the input schema cannot be used: {why}",
                    tool.name
                );
                listed.dropped.push(reason);
                listed.headers.remove(&tool.name);
            }
        }
    }
    Ok(listed)
}

async fn read_pages(session: &Session) -> Result<Listed, Failure> {
    let mut reader = Reader {
        era: session.era,
        ..Reader::default()
    };
    let mut cursors = HashSet::new();
    let mut cursor = None;
    for _ in 0..PAGES {
        let raw = session.read(&Reading::Tools { cursor }).await?;
        let next = reader.read(&raw)?;
        let Some(next) = next else {
            return Ok(reader.listed);
        };
        if !cursors.insert(next.clone()) {
            reader.cut("the server repeats a cursor");
            return Ok(reader.listed);
        }
        if reader.is_full() {
            return Ok(reader.listed);
        }
        cursor = Some(next);
    }
    reader.cut(&format!("more than {PAGES} pages"));
    Ok(reader.listed)
}

#[derive(Default)]
struct Reader {
    era: Era,
    listed: Listed,
    names: HashSet<String>,
    bytes: usize,
    seen: usize,
    full: bool,
}

impl Reader {
    /// Reads one page; the cursor of the next.
    fn read(&mut self, raw: &RawValue) -> Result<Option<String>, Failure> {
        let page: Page = object(raw.get()).map_err(|error| {
            Failure::Lost(format!("the server's tool list cannot be read: {error}"))
        })?;
        let hints = cache_hints(page.ttl_ms, page.cache_scope);
        let before = self.listed.cache.unwrap_or(hints);
        self.listed.cache = Some(before.and(hints));
        self.bytes += raw.get().len();
        if self.bytes > BYTES {
            self.cut(&format!("more than {BYTES} bytes"));
            return Ok(None);
        }
        for tool in page.tools {
            if self.listed.tools.len() == TOOLS {
                self.cut(&format!("more than {TOOLS} tools"));
                break;
            }
            self.seen += 1;
            if let Err(reason) = self.add(tool) {
                self.listed.dropped.push(reason);
            }
        }
        Ok(
            next_cursor(page.next_cursor, self.era).unwrap_or_else(|why| {
                self.cut(why);
                None
            }),
        )
    }

    fn is_full(&self) -> bool {
        self.full
    }

    fn cut(&mut self, why: &str) {
        self.full = true;
        self.listed
            .dropped
            .push(format!("the list was cut after {} tools: {why}", self.seen));
    }

    fn add(&mut self, raw: &RawValue) -> Result<(), String> {
        let tool: ListedTool = object(raw.get()).map_err(|error| {
            format!(
                "{}: not a tool: {}",
                self.label(raw),
                clipped(&error.to_string())
            )
        })?;
        let label = format!("tool {:?}", shortened(&tool.name));
        check_name(&tool.name).map_err(|why| format!("{label}: {why}"))?;
        if self.names.contains(&tool.name) {
            return Err(format!(
                "{label}: the server lists this name twice; the first one is kept"
            ));
        }
        let input_schema = match tool.input_schema {
            Some(schema) if is_object(schema) => schema.to_owned(),
            Some(_) => return Err(format!("{label}: the input schema is not an object")),
            None => any_object(),
        };
        let headers = if self.era == Era::Modern {
            params::of(&input_schema)
        } else {
            Ok(Vec::new())
        };
        let headers = headers.map_err(|why| format!("{label}: {why}"))?;
        if !headers.is_empty() {
            self.listed.headers.insert(tool.name.clone(), headers);
        }
        self.names.insert(tool.name.clone());
        self.listed.tools.push(Arc::new(Tool {
            name: tool.name,
            // A title or a description that is no text costs itself and not its tool.
            title: tool.title.and_then(read_title),
            description: shorten_description(
                &tool.description.and_then(text_of).unwrap_or_default(),
            ),
            input_schema,
            output_schema: tool
                .output_schema
                .filter(|schema| is_kept(schema))
                .map(ToOwned::to_owned),
            annotations: tool
                .annotations
                .filter(|hints| is_kept(hints))
                .and_then(read_hints),
        }));
        Ok(())
    }

    /// How to call a tool that could not be read.
    fn label(&self, raw: &RawValue) -> String {
        #[derive(Deserialize)]
        struct ToolName {
            name: String,
        }
        let named = object::<ToolName>(raw.get());
        named.map_or_else(
            |_| format!("tool #{}", self.seen),
            |named| format!("tool {:?}", shortened(&named.name)),
        )
    }
}

/// A title that is no text is none; the tool is as good without it.
fn read_title(raw: &RawValue) -> Option<String> {
    clean_title(&serde_json::from_str::<String>(raw.get()).ok()?)
}

fn read_hints(raw: &RawValue) -> Option<Box<RawValue>> {
    to_raw_value(&clean_hints(object(raw.get()).ok()?)).ok()
}

/// The start of a description, without what nobody sees, and with a mark where more was.
fn shorten_description(text: &str) -> String {
    let mut text = remove_hidden(text);
    if let Some((end, _)) = text.char_indices().nth(DESCRIPTION) {
        let left_out = text[end..].chars().count();
        text.truncate(end);
        text = format!("{text}\n[cut: {left_out} more characters are not shown]");
    }
    text
}

fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME)]
}

fn is_kept(raw: &RawValue) -> bool {
    is_object(raw) && raw.get().len() <= ASIDE
}

fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// The schema of a tool that gives none: any arguments.
fn any_object() -> Box<RawValue> {
    to_raw_value(&serde_json::json!({"type": "object"})).expect("a literal serialises")
}
