//! Reads which revision of the protocol a request uses, and checks that its headers agree with its body.
//!
//! Up to 2025-11-25 the version is in a header (absent: 2025-03-26). From 2026-07-28 on it is in `_meta` of each
//! request and in the header, and `Mcp-Method` and `Mcp-Name` repeat what the body says.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::message::{self, RpcError, params_of};
use crate::{api::problem::Problem, app::tools::client_tools::ParamHeader};
use domain::{jsonrpc::Message, revision::Revision, server::Lifecycle};

/// The supported revisions, the newest first. The oldest one, 2024-11-05, has another transport only; a client that names it
/// over this transport is served as with the next revision, which lacks nothing that such a client asks for.
pub(super) const SUPPORTED: [&str; 4] = [
    Revision::V2026_07_28.as_str(),
    Revision::V2025_11_25.as_str(),
    Revision::V2025_06_18.as_str(),
    Revision::V2025_03_26.as_str(),
];

const STATELESS: Revision = Revision::STATELESS;

const VERSION_HEADER: &str = "mcp-protocol-version";
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";

/// How long a client may cache a list. Every call is decided anew, so a client gains no right from an old list.
pub(super) const TTL_MS: u64 = 60_000;

/// The member `_meta` of a request.
#[derive(Deserialize, Default)]
pub(super) struct Meta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<Capabilities>,
    #[serde(borrow, default, rename = "progressToken")]
    pub progress: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Capabilities {
    #[serde(default)]
    extensions: Map<String, Value>,
    #[serde(default)]
    elicitation: Option<Map<String, Value>>,
}

impl Meta<'_> {
    pub fn has_extension(&self, name: &str) -> bool {
        let declared = self.capabilities.as_ref();
        declared.is_some_and(|capabilities| capabilities.extensions.contains_key(name))
    }

    /// Whether the client can ask its user with a form. A client that names no mode has this one.
    pub fn can_ask_user(&self) -> bool {
        let declared = self.capabilities.as_ref();
        let modes = declared.and_then(|capabilities| capabilities.elicitation.as_ref());
        modes.is_some_and(|modes| modes.is_empty() || modes.contains_key("form"))
    }
}

#[derive(Deserialize)]
struct WithMeta<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

/// Reads the lifecycle of a request from its headers and its `_meta`, and checks that they agree.
pub(super) fn read_lifecycle<'a>(
    headers: &HeaderMap,
    message: &Message<'a>,
) -> Result<(Lifecycle, Meta<'a>), RpcError> {
    let text = params_of(message).unwrap_or("{}");
    let header = single(headers, VERSION_HEADER)?;
    let method = message.method.as_deref().unwrap_or_default();
    let is_stateless = |version: &str| is_date(version) && version >= STATELESS.as_str();
    let must_be_stateless = method == "server/discover" || header.is_some_and(is_stateless);
    let meta = match serde_json::from_str::<WithMeta>(text) {
        Ok(found) => found.meta.unwrap_or_default(),
        Err(error) => return Err(RpcError::missing_meta(format!("_meta: {error}"))),
    };
    let Some(version) = meta.version.as_deref() else {
        if must_be_stateless && method != "initialize" {
            return Err(RpcError::missing_meta(
                "`_meta` lacks io.modelcontextprotocol/protocolVersion",
            ));
        }
        check_version(header)?;
        return Ok((Lifecycle::Handshake, meta));
    };
    if header != Some(version) {
        let header = header.unwrap_or("absent");
        let why = format!("MCP-Protocol-Version is {header}, and `_meta` says {version:?}");
        return Err(RpcError::header_mismatch(why));
    }
    if version != STATELESS.as_str() {
        return Err(RpcError::unsupported_version(version, &SUPPORTED));
    }
    if meta.capabilities.is_none() {
        return Err(RpcError::missing_meta(
            "`_meta` lacks io.modelcontextprotocol/clientCapabilities",
        ));
    }
    check_headers(headers, method, text)?;
    Ok((Lifecycle::Stateless, meta))
}

/// Checks the version of a notification, which only the header has.
pub(super) fn check_notification(headers: &HeaderMap) -> Result<(), RpcError> {
    let header = single(headers, VERSION_HEADER)?;
    check_version(header).map(|_| ())
}

/// Reads the lifecycle of a request without a body.
pub(super) fn read_lifecycle_of_stream(headers: &HeaderMap) -> Result<Lifecycle, Problem> {
    let unusable = |_| Problem::invalid("MCP-Protocol-Version", "is no supported version");
    let header = single(headers, VERSION_HEADER).map_err(unusable)?;
    Ok(check_version(header).map_err(unusable)?.lifecycle())
}

pub(super) fn takes_batches(headers: &HeaderMap) -> bool {
    single(headers, VERSION_HEADER)
        .and_then(check_version)
        .is_ok_and(|revision| revision <= Revision::V2025_03_26)
}

/// Whether a text has the form of a revision, `2026-07-28`.
fn is_date(text: &str) -> bool {
    let digits = |part: &str, len| part.len() == len && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2))
}

/// The revision that a header names; a request without the header uses 2025-03-26.
fn check_version(header: Option<&str>) -> Result<Revision, RpcError> {
    let Some(version) = header else {
        return Ok(Revision::V2025_03_26);
    };
    Revision::parse(version).ok_or_else(|| RpcError::unsupported_version(version, &SUPPORTED))
}

/// The revision that a handshake agrees on: the client's, or the newest one that has a handshake.
pub(super) fn negotiate(text: &str) -> Result<&'static str, RpcError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Initialize<'a> {
        #[serde(borrow)]
        protocol_version: Cow<'a, str>,
    }
    let wanted: Initialize = message::params(text)?;
    let known = Revision::parse(&wanted.protocol_version);
    let known = known.filter(|revision| revision.lifecycle() == Lifecycle::Handshake);
    Ok(known.unwrap_or(Revision::LAST_HANDSHAKE).as_str())
}

/// Checks that `Mcp-Method` and `Mcp-Name` agree with the body. A proxy reads only the headers.
fn check_headers(headers: &HeaderMap, method: &str, text: &str) -> Result<(), RpcError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named<'a> {
        #[serde(borrow, default)]
        name: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        uri: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        task_id: Option<Cow<'a, str>>,
    }
    match single(headers, METHOD_HEADER)? {
        Some(sent) if sent == method => {}
        Some(_) => return Err(RpcError::header_mismatch("Mcp-Method is not the method")),
        None => {
            return Err(RpcError::header_mismatch(
                "the header Mcp-Method is missing",
            ));
        }
    }
    let needs_name = ["tools/call", "prompts/get", "resources/read"].contains(&method)
        || method.starts_with("tasks/");
    if !needs_name {
        return Ok(());
    }
    let named: Named = message::params(text)?;
    let expected = match method {
        "resources/read" => named.uri,
        "tools/call" | "prompts/get" => named.name,
        _ => named.task_id,
    };
    let Some(expected) = expected else {
        return Ok(());
    };
    let sent = single(headers, NAME_HEADER)?;
    let sent = sent.ok_or_else(|| RpcError::header_mismatch("the header Mcp-Name is missing"))?;
    if decode(sent).as_deref() == Some(&*expected) {
        return Ok(());
    }
    Err(RpcError::header_mismatch(
        "Mcp-Name is not the name in the body",
    ))
}

/// Checks that a header `Mcp-Param-*` agrees with the argument that it repeats, and is absent if the argument is.
pub(super) fn check_param(headers: &HeaderMap, expected: &ParamHeader) -> Result<(), RpcError> {
    let ParamHeader { name, text } = expected;
    let why = match (single(headers, name)?, text) {
        (None, None) => return Ok(()),
        (None, Some(_)) => format!("the header {name} is missing"),
        (Some(_), None) => format!("the header {name} repeats an argument that is not there"),
        (Some(sent), Some(text)) => {
            let sent = decode(sent);
            if sent.is_some_and(|sent| sent == *text || is_same_number(&sent, text)) {
                return Ok(());
            }
            format!("the header {name} is not the argument in the body")
        }
    };
    Err(RpcError::header_mismatch(why))
}

/// Whether two texts are the same whole number, as `7` and `7.0` are.
fn is_same_number(a: &str, b: &str) -> bool {
    let whole = |text: &str| {
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let is_whole = !rest.is_empty() && rest.bytes().all(|digit| digit == b'0');
        whole.parse::<i128>().ok().filter(|_| is_whole)
    };
    whole(a).is_some_and(|number| whole(b) == Some(number))
}

/// Decodes the value of a header. A value that a header cannot hold is written in base64.
fn decode(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix("=?base64?");
    let Some(encoded) = inner.and_then(|inner| inner.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The value of a header, which may be sent once only.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(RpcError::header_mismatch(format!(
            "the header {name} was sent twice"
        )));
    }
    let text = first.map(HeaderValue::to_str).transpose();
    text.map_err(|_| RpcError::header_mismatch(format!("the header {name} is not text")))
}
