//! The checks of a new key: its claims, its frontend headers and its scopes.

use serde_json::{Map, Value};

use super::NewKey;
use crate::domain::{
    account::{FrontendHeaders, KeyKind},
    error::{Error, Result},
    header,
    principal::{Scope, Scopes},
};

/// Bytes of a key's claims as JSON.
const MAX_CLAIMS: usize = 8 * 1024;

/// Claims that can be kept: not endless, and without the one character that Postgres cannot store.
pub(super) fn check_claims(claims: &Map<String, Value>) -> Result<()> {
    let text = serde_json::to_string(claims).map_err(Error::internal)?;
    if text.len() > MAX_CLAIMS || text.contains("\\u0000") {
        let rule =
            format!("must have at most {MAX_CLAIMS} bytes as JSON, without the character U+0000");
        return Err(Error::invalid("claims", rule));
    }
    Ok(())
}

fn is_key_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63
        && name.bytes().next().is_some_and(plain)
        && name
            .bytes()
            .all(|byte| plain(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

pub(super) fn check(new: &NewKey) -> Result<()> {
    let name = &new.name;
    if !is_key_name(name) {
        let rule = "use 1 to 63 lower-case letters, digits, `-`, `_` or `.`, starting with a letter or digit";
        return Err(Error::invalid(
            "name",
            format!("{name:?} is no key name: {rule}"),
        ));
    }
    if new.scopes == Scopes::default() {
        return Err(Error::invalid(
            "scopes",
            "a key without a scope opens nothing; give it `chat` or `admin`",
        ));
    }
    match &new.speaker {
        KeyKind::Service(_) => Ok(()),
        KeyKind::Frontend(_) if new.scopes.has(Scope::Admin) => Err(Error::invalid(
            "scopes",
            "`admin` on a frontend's key would make all its users admins",
        )),
        KeyKind::Frontend(headers) => check_headers(headers),
        KeyKind::Guest => Err(Error::invalid(
            "speaker",
            "a guest's key is made by asking for a guest",
        )),
    }
}

/// Headers that a frontend's settings name must be headers, and none that means something already.
fn check_headers(headers: &FrontendHeaders) -> Result<()> {
    let taken = [
        "authorization",
        "cookie",
        "host",
        "content-type",
        "content-length",
        "accept",
    ];
    for name in headers.names() {
        if !header::is_name(name) || taken.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
            return Err(Error::invalid(
                "frontend",
                format!("{name:?} cannot be the header that names a user"),
            ));
        }
    }
    Ok(())
}
