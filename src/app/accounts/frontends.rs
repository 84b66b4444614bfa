//! The users of a frontend, named by the headers that its key's settings choose. The frontend has
//! authenticated them; its key vouches for what it says.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    Headers,
    authentication::{unauthenticated, user_id},
};
use domain::{
    account::{ApiKey, FrontendHeaders},
    error::Result,
    principal::{Audience, Principal},
};

const MAX_VALUE: usize = 1024;

/// The user that a request of a frontend is for, and the frontend's id of the conversation.
pub(super) fn read_user(
    key: &ApiKey,
    settings: &FrontendHeaders,
    headers: &Headers<'_>,
) -> Result<(Principal, Option<String>)> {
    let name = &settings.user_id;
    let Some(id) = read_header(headers, name)? else {
        return unauthenticated(format!(
            "this key speaks for users: send the user's id in the header `{name}`"
        ));
    };
    // The id is used unchanged: two spellings are two users and never become one by accident.
    let subject = user_id(&id, &format!("the header `{name}`"))?;
    let user = key.source.user(&subject);
    let mut claims = Map::from_iter([("sub".to_owned(), Value::from(id))]);
    let described = [
        ("name", &settings.name),
        ("email", &settings.email),
        ("roles", &settings.roles),
    ];
    for (claim, header) in described {
        if let Some(text) = read_optional(headers, header.as_ref())? {
            claims.insert(claim.to_owned(), decode(&text).into());
        }
    }
    key.source.vouch(&mut claims);
    let locale = read_optional(headers, settings.locale.as_ref())?;
    let conversation = read_optional(headers, settings.conversation.as_ref())?;
    Ok((
        Principal {
            tenant: key.tenant,
            user,
            claims: Arc::new(claims),
            locale,
            authenticated: true,
            key: Some(key.id),
            audience: Audience::default(),
        },
        conversation,
    ))
}

fn read_optional(headers: &Headers<'_>, name: Option<&String>) -> Result<Option<String>> {
    name.map_or(Ok(None), |name| read_header(headers, name))
}

/// The value of a header; `None` when it is absent or blank. A frontend that does not know the user may
/// send its placeholder unfilled; such a value is refused.
fn read_header(headers: &Headers<'_>, name: &str) -> Result<Option<String>> {
    let sent = headers(name);
    let value = match sent.as_slice() {
        [] => return Ok(None),
        [value] => *value,
        _ => return unauthenticated(format!("the header `{name}` was sent more than once")),
    };
    let text = match str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.iter().copied().map(char::from).collect(),
    };
    // Spaces and tabs around a value do not belong to it (RFC 9110). Other white space does.
    let text = text.trim_matches([' ', '\t']);
    if text.starts_with("{{") && text.ends_with("}}") {
        return unauthenticated(format!(
            "the header `{name}` holds a placeholder that the frontend did not fill in"
        ));
    }
    if text.len() > MAX_VALUE {
        return unauthenticated(format!(
            "the header `{name}` is longer than {MAX_VALUE} bytes"
        ));
    }
    Ok((!text.trim().is_empty()).then(|| text.to_owned()))
}

/// Decodes a value that a frontend has encoded for a header: percent-encoded (Open WebUI) or with `b64:` (LibreChat).
/// Any other value stays as it is.
fn decode(text: &str) -> String {
    let base64 = text
        .strip_prefix("b64:")
        .and_then(|encoded| STANDARD.decode(encoded).ok());
    let bytes = base64.or_else(|| decode_percent(text));
    let plain = |text: &String| !text.chars().any(char::is_control);
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(plain)
        .unwrap_or_else(|| text.to_owned())
}

/// `None` when a `%` is not followed by two hexadecimal digits: then the text was not encoded.
fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut pieces = text.split('%');
    bytes.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.extend(hex::decode(digits).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}
