//! Keeps the credentials of a connection out of every text of its server: results, errors, progress and lists
//! of tools. It searches for every spelling in which a server may repeat a credential.
//!
//! Found: the text itself, as JSON writes it (also in JSON within JSON), its base64 (also inside of a longer text), its hex and its URL
//! encoding. Not found: what a server has turned into something else on purpose.

mod carried;

pub use self::carried::carries_credential;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use serde_json::value::RawValue;

use super::{secret::Secret, server::ServerSpec};

/// What stands in the place of a secret.
pub const MASK: &str = "••••";
/// Shorter ones would blank ordinary words.
const SHORTEST: usize = 4;
/// JSON in the text of a JSON text, as servers like to answer, is escaped as often as it is wrapped.
const NESTED: usize = 3;

/// Finds the secrets of one connection. Without any it does nothing and costs nothing.
#[derive(Clone, Default)]
pub struct Scrubber(Option<AhoCorasick>);

impl Scrubber {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let secrets = secrets
            .into_iter()
            .map(Secret::expose)
            .filter(|secret| secret.len() >= SHORTEST);
        let mut spellings: Vec<String> = secrets.flat_map(spellings).collect();
        spellings.sort_unstable();
        spellings.dedup();
        if spellings.is_empty() {
            return Self(None);
        }
        // There is one automaton for each connection. The faster kind would be ten times as large and no
        // faster here.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let build = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(kind)
            .build(spellings);
        Self(Some(
            build.expect("a few short patterns fit into one automaton"),
        ))
    }

    /// For the credentials that a connection to this server carries: the user's values, and the operator's, see
    /// `carried`.
    pub fn of(spec: &ServerSpec) -> Self {
        Self::new(spec.entered.iter().chain(&carried::secrets(spec)))
    }

    /// The text without the secrets; `None` when there is none in it.
    pub fn text(&self, text: &str) -> Option<String> {
        let finder = self.0.as_ref()?;
        finder.is_match(text).then(|| {
            let mut clean = String::with_capacity(text.len());
            finder.replace_all_with(text, &mut clean, |_, _, clean| {
                clean.push_str(MASK);
                true
            });
            clean
        })
    }

    /// The same in place.
    pub fn clean(&self, text: &mut String) {
        if let Some(clean) = self.text(text) {
            *text = clean;
        }
    }

    /// JSON without the secrets. A secret that is part of the JSON's own structure leaves only the mask.
    pub fn json(&self, raw: Box<RawValue>) -> Box<RawValue> {
        let Some(clean) = self.text(raw.get()) else {
            return raw;
        };
        RawValue::from_string(clean).unwrap_or_else(|_| {
            let result = serde_json::json!({ "content": [{ "type": "text", "text": MASK }], "isError": true });
            serde_json::value::to_raw_value(&result).expect("plain JSON")
        })
    }
}

/// A secret as it may be written.
fn spellings(secret: &str) -> Vec<String> {
    let mut all = vec![secret.to_owned()];
    let mut json = secret.to_owned();
    for _ in 0..NESTED {
        let quoted = serde_json::to_string(&json).expect("text is JSON");
        quoted[1..quoted.len() - 1].clone_into(&mut json);
        all.extend([json.replace('/', "\\/"), json.clone()]);
    }
    let hex = hex::encode(secret);
    all.extend([hex.to_uppercase(), hex]);
    let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    all.extend([form.replace('+', "%20"), lower_escapes(&form), form]);
    let percent: String = secret.bytes().map(escaped).collect();
    all.extend([lower_escapes(&percent), percent]);
    let every: String = hex::encode_upper(secret)
        .as_bytes()
        .chunks(2)
        .flat_map(|pair| ['%', pair[0].into(), pair[1].into()])
        .collect();
    all.extend([every.to_lowercase(), every]);
    for shift in 0..3 {
        all.extend(inside_base64(secret, shift));
    }
    all
}

/// The part of a longer text's base64 that depends on the secret alone when it starts `shift` bytes behind a
/// group of three.
fn inside_base64(secret: &str, shift: usize) -> Vec<String> {
    let mut bytes = vec![0; shift];
    bytes.extend_from_slice(secret.as_bytes());
    // Characters that the bytes before take part in, and whole characters that the secret fills.
    let (first, end) = ([0, 2, 3][shift], bytes.len() * 8 / 6);
    let cut = |text: String| {
        text.get(first..end)
            .filter(|text| text.len() >= 2 * SHORTEST)
            .map(str::to_owned)
    };
    let spelled = [
        STANDARD_NO_PAD.encode(&bytes),
        URL_SAFE_NO_PAD.encode(&bytes),
    ];
    let whole = (shift == 0).then(|| spelled.clone()).into_iter().flatten();
    whole
        .chain(spelled.clone().into_iter().filter_map(cut))
        .collect()
}

fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// `%2F` as `%2f`.
fn lower_escapes(text: &str) -> String {
    let mut lower = String::with_capacity(text.len());
    let mut left = 0;
    for char in text.chars() {
        left = if char == '%' { 3 } else { left };
        lower.push(if left > 0 {
            char.to_ascii_lowercase()
        } else {
            char
        });
        left = usize::saturating_sub(left, 1);
    }
    lower
}
