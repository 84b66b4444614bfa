//! `x-mcp-header` (revision 2026-07-28): a schema marks arguments that a client also sends as `Mcp-Param-*` headers, so
//! that a proxy can route requests without reading bodies.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, HeaderValue};
use serde_json::{Value, value::RawValue};

/// The keyword that marks a property of an input schema. Its value is the end of the header name.
const MARK: &str = "x-mcp-header";

/// A marked argument and its header.
#[derive(Clone, Debug)]
pub(super) struct MarkedParam {
    /// The property names that lead from the arguments object to the value.
    path: Vec<String>,
    header: HeaderName,
}

/// The marked arguments in an input schema. The protocol requires clients to refuse a tool with invalid marks; the error
/// says what is wrong.
pub(super) fn marked_params(schema: &RawValue) -> Result<Vec<MarkedParam>, String> {
    let quoted = format!("\"{MARK}\"");
    let marks = schema.get().matches(&quoted).count();
    if marks == 0 {
        return Ok(Vec::new());
    }
    let schema: Value = serde_json::from_str(schema.get()).map_err(|error| error.to_string())?;
    let mut params = Vec::new();
    collect(&schema, &mut Vec::new(), &mut params)?;
    if params.len() < marks {
        return Err(format!(
            "{MARK} stands where it cannot: only properties of properties may be marked"
        ));
    }
    let mut seen = HashSet::new();
    match params.iter().find(|param| !seen.insert(&param.header)) {
        Some(param) => Err(format!(
            "two arguments share the {MARK} {:?}",
            param.header.as_str()
        )),
        None => Ok(params),
    }
}

fn collect(
    schema: &Value,
    path: &mut Vec<String>,
    params: &mut Vec<MarkedParam>,
) -> Result<(), String> {
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return Ok(());
    };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(mark) = property.get(MARK) {
            params.push(MarkedParam {
                path: path.clone(),
                header: header_of(mark, property, path)?,
            });
        }
        collect(property, path, params)?;
        path.pop();
    }
    Ok(())
}

fn header_of(mark: &Value, property: &Value, path: &[String]) -> Result<HeaderName, String> {
    let path = path.join(".");
    let primitive = matches!(
        property.get("type").and_then(Value::as_str),
        Some("string" | "integer" | "boolean")
    );
    if !primitive {
        return Err(format!(
            "argument {path:?}: {MARK} needs the type string, integer or boolean"
        ));
    }
    let name = mark.as_str().filter(|name| !name.is_empty());
    name.and_then(|name| HeaderName::from_bytes(format!("mcp-param-{name}").as_bytes()).ok())
        .ok_or_else(|| format!("argument {path:?}: {MARK} is not a valid header name"))
}

/// The headers for a call with these arguments.
pub(super) fn call_headers(
    params: &[MarkedParam],
    arguments: &RawValue,
) -> Vec<(HeaderName, HeaderValue)> {
    let values = params.iter().filter_map(|param| {
        let value = HeaderValue::from_str(&encode_header(&param.text(arguments)?)).ok()?;
        Some((param.header.clone(), value))
    });
    values.collect()
}

/// A header that repeats an argument of a call.
pub struct ParamHeader {
    /// The name in lower case.
    pub name: String,
    /// The value before it is encoded; `None` when the call does not have the argument.
    pub text: Option<String>,
}

/// The headers that a client of revision 2026-07-28 sends with a call. Empty for a tool with invalid marks, which such a
/// client refuses.
pub fn param_headers(schema: &RawValue, arguments: &str) -> Vec<ParamHeader> {
    let params = marked_params(schema).unwrap_or_default();
    if params.is_empty() {
        return Vec::new();
    }
    let arguments: Option<&RawValue> = serde_json::from_str(arguments).ok();
    let headers = params.iter().map(|param| ParamHeader {
        name: param.header.as_str().to_owned(),
        text: arguments.and_then(|arguments| param.text(arguments)),
    });
    headers.collect()
}

impl MarkedParam {
    /// The value of the argument as text. A number keeps the digits with which it was written.
    fn text(&self, arguments: &RawValue) -> Option<String> {
        let value = self.path.iter().try_fold(arguments, |value, name| {
            let mut members: HashMap<Cow<str>, &RawValue> =
                serde_json::from_str(value.get()).ok()?;
            members.remove(name.as_str())
        })?;
        match value.get().as_bytes().first()? {
            b'"' => serde_json::from_str(value.get()).ok(),
            b'{' | b'[' | b'n' => None,
            _ => Some(value.get().to_owned()),
        }
    }
}

/// Encodes a value that a header cannot carry as `=?base64?…?=`.
pub(super) fn encode_header(text: &str) -> Cow<'_, str> {
    let foreign = text.bytes().any(|byte| !(0x20..=0x7e).contains(&byte));
    let padded = text.starts_with(' ') || text.ends_with(' ');
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    if foreign || padded || looks_encoded {
        format!("=?base64?{}?=", BASE64_STANDARD.encode(text)).into()
    } else {
        text.into()
    }
}
