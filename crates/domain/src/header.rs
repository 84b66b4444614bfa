//! Headers that a pack, a user or the registry may name and fill. Some headers belong to the transport and
//! can never be set. No value ends its header or starts another one.

/// Headers that the program sets itself.
const RESERVED: &[&str] = &[
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept",
    "accept-encoding",
    "last-event-id",
];

/// Checks the name of a header that a pack or the registry may set.
pub fn check_name(name: &str) -> Result<(), String> {
    if !is_name(name) {
        return Err(format!(
            "{name:?} is not the name of a header; use letters, digits and `-`"
        ));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&lower.as_str())
        || lower.starts_with("mcp-")
        || lower.starts_with("proxy-")
    {
        return Err(format!(
            "the header {name} is set by the program itself; remove it"
        ));
    }
    Ok(())
}

/// Whether this is the name of a header: a token of RFC 9110.
pub fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Whether a header can carry this text: printable ASCII and tabs, so no line break and no NUL.
pub fn can_carry(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
}

/// The header that a config key becomes: `X-Context-Id` for `context_id`; a key with a hyphen is
/// a header name already.
pub fn of_key(key: &str) -> String {
    if key.contains('-') {
        return key.to_owned();
    }
    let mut name = "X".to_owned();
    for word in key.split('_').filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        name.push('-');
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name
}
