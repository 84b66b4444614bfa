//! Labels of text encodings, as packs write them and as Python and the web platform spell them.

use std::borrow::Cow;

use encoding_rs::Encoding;

/// The encoding of a label such as `utf-8`, `latin-1`, `cp1252` or `utf-16-le`; the error says what to write.
pub fn parse_label(label: &str) -> Result<&'static Encoding, String> {
    let plain = label.trim().to_ascii_lowercase().replace('_', "-");
    let spellings = [
        plain.clone(),
        plain.replacen('-', "", 1),
        plain.replacen("-le", "le", 1).replacen("-be", "be", 1),
    ];
    let found = spellings
        .iter()
        .find_map(|label| Encoding::for_label_no_replacement(label.as_bytes()));
    found.ok_or_else(|| {
        format!("unknown encoding {label:?}; write a label such as utf-8, windows-1252 or utf-16le")
    })
}

/// Half of a surrogate pair, which a program that cuts a text by UTF-16 units leaves over, becomes U+FFFD: neither a
/// string of ours nor Postgres can hold it.
pub fn replace_lone_surrogates(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut mended = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let len = match (unit(escape), unit(escape.get(6..).unwrap_or_default())) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.push_str(&rest[..at]);
                mended.push_str("\\ufffd");
                rest = &rest[at + 6..];
                continue;
            }
            _ => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        mended.push_str(&rest[..at + len]);
        rest = &rest[at + len..];
    }
    mended.push_str(rest);
    Cow::Owned(mended)
}

/// The UTF-16 unit of an escape at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}
