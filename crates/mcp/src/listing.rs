//! Lists the tools of a server (`tools/list`), page by page and within limits. A broken tool does not affect the others, and
//! the operator gets a reason for each tool that is left out.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{
    Lifecycle,
    error::Failure,
    param_headers::{MarkedParam, marked_params},
    redaction::clip,
    request::Request,
    schemas,
    session::Session,
};
use domain::{
    canonical::{self, Hex},
    hidden::remove_hidden,
    jsonrpc::object,
    pin,
    tool::{CacheHints, CacheScope, MAX_NAME, Tool, check_name, clean_hints, clean_title},
};

/// The most pages of a list, tools in all pages, and bytes of all pages.
const MAX_PAGES: usize = 100;
const MAX_TOOLS: usize = 2_000;
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The most characters of a description that are kept.
const MAX_DESCRIPTION: usize = 10_000;
/// The most bytes of each: annotations of a tool, its output schema, icons and `_meta`. Larger ones are not kept.
const MAX_ASIDE: usize = 64 * 1024;
/// The longest valid `ttlMs`, about 300 years. Larger values are ignored.
const LONGEST_TTL_MS: f64 = 1e13;

/// The tools of a server.
#[derive(Default)]
pub(super) struct ToolListing {
    pub(super) tools: Vec<Arc<Tool>>,
    /// The tools that were left out, one text with the reason for each.
    pub(super) dropped: Vec<String>,
    /// The rules in input schemas that only the server checks.
    pub(super) unchecked: Vec<String>,
    /// The cache hints of the server; `None` when no page was read.
    pub(super) cache: Option<CacheHints>,
    /// The arguments that are also sent as headers, by tool.
    pub(super) headers: HashMap<String, Vec<MarkedParam>>,
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

/// The cache hints of a page. An invalid time is ignored; a scope that the protocol does not define counts as `private`.
pub(super) fn cache_hints(ttl_ms: Option<&RawValue>, scope: Option<&RawValue>) -> CacheHints {
    let ttl = ttl_ms.and_then(|ttl| ttl.get().parse::<f64>().ok());
    // The specification says that a negative time counts as 0.
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

/// The cursor of the next page. An empty cursor is valid in revision 2026-07-28; before that, it marks the last page.
pub(super) fn next_cursor(
    cursor: Option<&RawValue>,
    lifecycle: Lifecycle,
) -> Result<Option<String>, &'static str> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let cursor = text_of(cursor).ok_or("the server gives a cursor that is no text")?;
    Ok(Some(cursor).filter(|cursor| lifecycle == Lifecycle::Stateless || !cursor.is_empty()))
}

/// The value of a JSON string; `None` for other JSON.
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
    #[serde(borrow, default)]
    icons: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// Lists all tools, without those whose input schema cannot be used.
pub(super) async fn list(session: &Session) -> Result<ToolListing, Failure> {
    let mut listed = read_pages(session).await?;
    for tool in std::mem::take(&mut listed.tools) {
        match schemas::examine(&tool).await {
            Ok(unchecked) => {
                let unchecked = unchecked.iter();
                let unchecked = unchecked.map(|rule| format!("tool {:?}: {rule}", tool.name));
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

async fn read_pages(session: &Session) -> Result<ToolListing, Failure> {
    let mut reader = Reader {
        lifecycle: session.lifecycle(),
        ..Reader::default()
    };
    let mut cursors = HashSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let raw = session.read(&Request::Tools { cursor }).await?;
        let next = reader.read_page(&raw)?;
        let Some(next) = next else {
            return Ok(reader.listed);
        };
        if !cursors.insert(next.clone()) {
            reader.end("the server repeats a cursor");
            return Ok(reader.listed);
        }
        if reader.is_full {
            return Ok(reader.listed);
        }
        cursor = Some(next);
    }
    reader.end(&format!("more than {MAX_PAGES} pages"));
    Ok(reader.listed)
}

#[derive(Default)]
struct Reader {
    lifecycle: Lifecycle,
    listed: ToolListing,
    names: HashSet<String>,
    bytes: usize,
    seen: usize,
    /// A limit was reached, so no further page is read.
    is_full: bool,
}

impl Reader {
    /// Adds the tools of one page; the cursor of the next page.
    fn read_page(&mut self, raw: &RawValue) -> Result<Option<String>, Failure> {
        let page: Page = object(raw.get()).map_err(|error| {
            Failure::Lost(format!("the server's tool list cannot be read: {error}"))
        })?;
        let hints = cache_hints(page.ttl_ms, page.cache_scope);
        let before = self.listed.cache.unwrap_or(hints);
        self.listed.cache = Some(before.and(hints));
        self.bytes += raw.get().len();
        if self.bytes > MAX_BYTES {
            self.end(&format!("more than {MAX_BYTES} bytes"));
            return Ok(None);
        }
        for tool in page.tools {
            if self.listed.tools.len() == MAX_TOOLS {
                self.end(&format!("more than {MAX_TOOLS} tools"));
                break;
            }
            self.seen += 1;
            if let Err(reason) = self.add(tool) {
                self.listed.dropped.push(reason);
            }
        }
        Ok(
            next_cursor(page.next_cursor, self.lifecycle).unwrap_or_else(|why| {
                self.end(why);
                None
            }),
        )
    }

    /// Ends the list early, and notes why.
    fn end(&mut self, why: &str) {
        self.is_full = true;
        self.listed
            .dropped
            .push(format!("the list was cut after {} tools: {why}", self.seen));
    }

    fn add(&mut self, raw: &RawValue) -> Result<(), String> {
        let tool: ListedTool = object(raw.get()).map_err(|error| {
            format!(
                "{}: not a tool: {}",
                self.label(raw),
                clip(&error.to_string())
            )
        })?;
        let label = format!("tool {:?}", shorten_name(&tool.name));
        // What is pinned and checked would be one of the two, and the model might read the other.
        if let Some(why) = canonical::ambiguity(raw.get()) {
            return Err(format!("{label}: {why}"));
        }
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
        let headers = if self.lifecycle == Lifecycle::Stateless {
            marked_params(&input_schema)
        } else {
            Ok(Vec::new())
        };
        let headers = headers.map_err(|why| format!("{label}: {why}"))?;
        if !headers.is_empty() {
            self.listed.headers.insert(tool.name.clone(), headers);
        }
        self.names.insert(tool.name.clone());
        let is_small = |raw: &&RawValue| raw.get().len() <= MAX_ASIDE;
        let mut tool = Tool {
            name: tool.name,
            // A title or a description that is not a string is left out; the tool is kept.
            title: tool.title.and_then(read_title),
            description: shorten_description(
                &tool.description.and_then(text_of).unwrap_or_default(),
            ),
            input_schema,
            output_schema: tool
                .output_schema
                .filter(|schema| is_small_object(schema))
                .map(ToOwned::to_owned),
            annotations: tool
                .annotations
                .filter(|hints| is_small_object(hints))
                .and_then(read_hints),
            icons: tool.icons.filter(is_small).map(ToOwned::to_owned),
            meta: tool.meta.filter(is_small).map(ToOwned::to_owned),
            hash: None,
        };
        tool.hash = Some(Hex(pin::fingerprint(&tool)));
        self.listed.tools.push(Arc::new(tool));
        Ok(())
    }

    /// The label of a tool that could not be read: its name if that is readable, otherwise its number in the list.
    fn label(&self, raw: &RawValue) -> String {
        #[derive(Deserialize)]
        struct ToolName {
            name: String,
        }
        let named = object::<ToolName>(raw.get());
        named.map_or_else(
            |_| format!("tool #{}", self.seen),
            |named| format!("tool {:?}", shorten_name(&named.name)),
        )
    }
}

fn read_title(raw: &RawValue) -> Option<String> {
    clean_title(&serde_json::from_str::<String>(raw.get()).ok()?)
}

fn read_hints(raw: &RawValue) -> Option<Box<RawValue>> {
    to_raw_value(&clean_hints(object(raw.get()).ok()?)).ok()
}

/// A description without hidden characters, cut to [`MAX_DESCRIPTION`]. A note at its end says how much was cut.
fn shorten_description(text: &str) -> String {
    let mut text = remove_hidden(text);
    if let Some((end, _)) = text.char_indices().nth(MAX_DESCRIPTION) {
        let left_out = text[end..].chars().count();
        text.truncate(end);
        text = format!("{text}\n[cut: {left_out} more characters are not shown]");
    }
    text
}

fn shorten_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME)]
}

fn is_small_object(raw: &RawValue) -> bool {
    is_object(raw) && raw.get().len() <= MAX_ASIDE
}

fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// The schema of a tool that has none: it accepts any arguments.
fn any_object() -> Box<RawValue> {
    to_raw_value(&serde_json::json!({"type": "object"})).expect("a literal serialises")
}
