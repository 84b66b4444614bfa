//! How the text of each setting is read, and what is wrong with a text that cannot be.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;

use super::{DirectAddress, IdClaim, MAX_TOKEN_BYTES, OPERATOR_LEAST};
use crate::{retention::MAX_DAYS, ring::KeyRing, secret::Secret, sign_in::SignInProvider};

#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn text(value: &str) -> Result<String, String> {
    Ok(value.to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn optional_path(value: &str) -> Result<Option<PathBuf>, String> {
    Ok((!value.is_empty()).then(|| value.into()))
}

#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn path(value: &str) -> Result<PathBuf, String> {
    Ok(value.into())
}

#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn secret(value: &str) -> Result<Option<Secret>, String> {
    Ok((!value.trim().is_empty()).then(|| Secret::new(value)))
}

#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn direct_address(value: &str) -> Result<DirectAddress, String> {
    Ok(match value.trim() {
        "" => DirectAddress::Same,
        "off" => DirectAddress::Off,
        address => DirectAddress::At(Secret::new(address)),
    })
}

/// Texts with commas between them.
#[expect(clippy::unnecessary_wraps, reason = "as the other readers")]
pub(super) fn list(value: &str) -> Result<Vec<String>, String> {
    let items = value.split(',').map(str::trim);
    Ok(items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Networks or single addresses with commas between them.
pub(super) fn networks(value: &str) -> Result<Vec<IpNet>, String> {
    let network = |text: String| {
        let net = text
            .parse()
            .or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map_err(|_| format!("{text:?} is not a network such as 10.0.0.0/8"))
    };
    list(value)?.into_iter().map(network).collect()
}

/// Providers as JSON, or none.
pub(super) fn sign_in(value: &str) -> Result<Vec<SignInProvider>, String> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    SignInProvider::parse_all(value)
}

/// Variables, each with the host that it may be sent to.
pub(super) fn grants(value: &str) -> Result<Vec<String>, String> {
    let grants = list(value)?;
    for grant in &grants {
        let parts = grant.split_once('@');
        if !parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty()) {
            return Err(format!(
                "{grant:?} names no host; write `NAME@host`, or `NAME@*` to let any server of the registry have it"
            ));
        }
    }
    Ok(grants)
}

/// Claims, each with the issuer that is trusted with it.
pub(super) fn id_claims(value: &str) -> Result<Vec<IdClaim>, String> {
    let marks = list(value)?.into_iter().map(|mark| match mark.split_once('@') {
        Some((claim, issuer)) if !claim.is_empty() && !issuer.is_empty() => {
            Ok(IdClaim {
                claim: claim.to_owned(),
                issuer: issuer.to_owned(),
            })
        }
        _ => Err(format!(
            "{mark:?} names no issuer; write `CLAIM@ISSUER`, such as `preferred_username@https://login.example.org`"
        )),
    });
    marks.collect()
}

pub(super) fn address(value: &str) -> Result<SocketAddr, String> {
    value
        .parse()
        .map_err(|_| format!("{value:?} is not an address and port such as 127.0.0.1:8080"))
}

pub(super) fn optional_address(value: &str) -> Result<Option<SocketAddr>, String> {
    (!value.is_empty()).then(|| address(value)).transpose()
}

/// A whole number above zero.
pub(super) fn number<T: FromStr + PartialOrd + From<u8>>(value: &str) -> Result<T, String> {
    let number: T = value
        .parse()
        .map_err(|_| format!("{value:?} is not a whole number above 0"))?;
    if number < T::from(1) {
        return Err("must be a whole number above 0".to_owned());
    }
    Ok(number)
}

/// The bytes of a token, which the head of a request has room for.
pub(super) fn token_bytes(value: &str) -> Result<usize, String> {
    let bytes = number(value)?;
    if bytes > MAX_TOKEN_BYTES {
        return Err(format!("must be at most {MAX_TOKEN_BYTES}"));
    }
    Ok(bytes)
}

/// A whole number above zero, or none.
pub(super) fn limit(value: &str) -> Result<Option<i64>, String> {
    (!value.is_empty()).then(|| number(value)).transpose()
}

/// So many MiB in bytes, or none.
pub(super) fn mebibytes(value: &str) -> Result<Option<i64>, String> {
    if value == "unlimited" {
        return Ok(None);
    }
    let bytes = value
        .parse::<i64>()
        .ok()
        .and_then(|mib| mib.checked_mul(1 << 20));
    bytes
        .filter(|bytes| *bytes > 0)
        .map(Some)
        .ok_or_else(|| format!("{value:?} is neither a number of MiB above zero nor `unlimited`"))
}

/// A number of days, or none.
pub(super) fn days(value: &str) -> Result<Option<i32>, String> {
    if value.is_empty() || value == "unlimited" {
        return Ok(None);
    }
    let days = value
        .parse()
        .ok()
        .filter(|days| (1..=MAX_DAYS).contains(days));
    days.map(Some).ok_or_else(|| {
        format!("{value:?} is neither a number of days from 1 to {MAX_DAYS} nor `unlimited`")
    })
}

pub(super) fn seconds(value: &str) -> Result<Duration, String> {
    number(value).map(Duration::from_secs)
}

pub(super) fn is_on(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{other:?} is neither `on` nor `off`")),
    }
}

pub(super) fn is_json(value: &str) -> Result<bool, String> {
    match value {
        "text" => Ok(false),
        "json" => Ok(true),
        other => Err(format!("{other:?} is neither `text` nor `json`")),
    }
}

pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("{other:?} is neither `true` nor `false`")),
    }
}

pub(super) fn one_key(value: &str) -> Result<Option<KeyRing>, String> {
    let value = value.trim();
    (!value.is_empty())
        .then(|| KeyRing::parse_one(value))
        .transpose()
}

pub(super) fn key_ring(value: &str) -> Result<Option<KeyRing>, String> {
    let value = value.trim();
    (!value.is_empty())
        .then(|| KeyRing::parse(value))
        .transpose()
}

/// What the operator is known by. The error never repeats it.
pub(super) fn operator_token(value: &str) -> Result<Option<Secret>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    if value.len() < OPERATOR_LEAST || !value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "must be at least {OPERATOR_LEAST} visible ASCII characters (`openssl rand -hex 32` makes them)"
        ));
    }
    Ok(Some(Secret::new(value)))
}

/// An address without a path of its own, or nothing.
pub(super) fn public_url(value: &str) -> Result<String, String> {
    let usable = |url: url::Url| is_http(&url) && url.query().is_none();
    if value.is_empty() || url::Url::parse(value).is_ok_and(usable) {
        return Ok(value.to_owned());
    }
    Err("write an address such as https://chat.example.org".to_owned())
}

/// An address with a place for the id, or nothing.
pub(super) fn approval_url(value: &str) -> Result<String, String> {
    let filled = value.replace("{id}", "id");
    let usable = value.contains("{id}") && url::Url::parse(&filled).is_ok_and(|url| is_http(&url));
    if value.is_empty() || usable {
        return Ok(value.to_owned());
    }
    Err("write an address such as https://chat.example.org/approvals/{id}".to_owned())
}

fn is_http(url: &url::Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}
