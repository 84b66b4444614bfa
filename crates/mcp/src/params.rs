//! `x-mcp-header`: arguments that a server of the modern era also wants as `Mcp-Param-*` headers, so that a
//! proxy can route requests without reading bodies.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, HeaderValue};
use serde_json::{Value, value::RawValue};

const MARK: &str = "x-mcp-header";

/// An argument and its header.
#[derive(Clone, Debug)]
pub(super) struct Param {
    /// Property names from the arguments down to the value.
    path: Vec<String>,
    header: HeaderName,
}

/// The marked arguments of a tool. The protocol requires us to refuse a tool with invalid marks; the error
/// names them.
pub(super) fn of(schema: &RawValue) -> Result<Vec<Param>, String> {
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

fn collect(schema: &Value, path: &mut Vec<String>, params: &mut Vec<Param>) -> Result<(), String> {
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return Ok(());
    };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(mark) = property.get(MARK) {
            params.push(Param {
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

/// The headers for one call.
pub(super) fn headers(params: &[Param], arguments: &RawValue) -> Vec<(HeaderName, HeaderValue)> {
    let values = params.iter().filter_map(|param| {
        let value = HeaderValue::from_str(&encoded(param.text(arguments)?)).ok()?;
        Some((param.header.clone(), value))
    });
    values.collect()
}

/// A header that repeats an argument of a call.
pub struct ParamHeader {
    /// In small letters.
    pub name: String,
    /// The argument as a header carries it before it is encoded; `None` when the call has no such argument.
    pub text: Option<String>,
}

/// The headers that a client of the modern era sends with a call of this tool. None for a tool with invalid marks, which
/// such a client refuses.
pub fn param_headers(schema: &RawValue, arguments: &str) -> Vec<ParamHeader> {
    let params = of(schema).unwrap_or_default();
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

impl Param {
    /// The argument, a number with the digits that it was written with.
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

/// A value that a header cannot carry is sent as Base64 between marks.
fn encoded(text: String) -> String {
    let foreign = text.bytes().any(|byte| !(0x20..=0x7e).contains(&byte));
    let padded = text.starts_with(' ') || text.ends_with(' ');
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    if foreign || padded || looks_encoded {
        format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
    } else {
        text
    }
}
