//! Keeps the credentials of a connection out of every text of its server: results, errors, progress and lists
//! of tools. It searches for every spelling in which a server may repeat a credential.
//!
//! Found: the text itself, as JSON writes it (also in JSON within JSON), its base64 (also inside of a longer text), its hex and its URL
//! encoding. Not found: what a server has turned into something else on purpose.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, value::RawValue};

use super::{
    secret::Secret,
    server::{Endpoint, ServerSpec},
};

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
        Self::new(spec.entered.iter().chain(&carried_secrets(spec)))
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

/// Shorter values of variables are words such as `true` and `EU`, without which no result can be read.
const SHORTEST_OF_VARIABLES: usize = 6;

/// The credentials of the operator that a connection carries: what is sent to a server, or given to a child. A value that
/// came from a variable is one, whatever carries it. What an author wrote as it stands is known by the name under which it
/// travels: a header, a word of an address, a variable, an option of a command, a member of a configuration.
fn carried_secrets(spec: &ServerSpec) -> Vec<Secret> {
    let operators = spec.operator_headers.iter();
    let operators = operators.flat_map(|(_, value)| of_header(value.expose()));
    let named = of_endpoint(spec).into_iter();
    named
        .chain(operators)
        .chain(of_variables(spec).cloned())
        .collect()
}

/// Whether requests to a server, or its environment, hold a credential of the operator.
pub fn carries_credential(spec: &ServerSpec) -> bool {
    let is_in = |carried: &str| of_variables(spec).any(|value| carried.contains(value.expose()));
    let holds_variable = match &spec.endpoint {
        Endpoint::Remote { headers, url, .. } => {
            is_in(url.as_str()) || headers.iter().any(|(_, value)| is_in(value.expose()))
        }
        Endpoint::Stdio { .. } => of_variables(spec).next().is_some(),
    };
    holds_variable || !of_endpoint(spec).is_empty()
}

fn of_variables(spec: &ServerSpec) -> impl Iterator<Item = &Secret> {
    let all = spec.from_variables.iter();
    all.filter(|value| value.expose().len() >= SHORTEST_OF_VARIABLES)
}

/// What stands behind the scheme of a header that is one, and what is known by its name.
fn of_endpoint(spec: &ServerSpec) -> Vec<Secret> {
    let is_of_variable =
        |value: &Secret| of_variables(spec).any(|it| value.expose().contains(it.expose()));
    match &spec.endpoint {
        Endpoint::Remote { headers, url, .. } => {
            let headers = headers.iter();
            let headers =
                headers.filter(|(name, value)| is_sensitive_name(name) || is_of_variable(value));
            let query = url.query_pairs();
            let query = query.filter(|(name, _)| is_sensitive_name(name));
            headers
                .flat_map(|(_, value)| of_header(value.expose()))
                .chain(query.map(|(_, value)| Secret::new(value)))
                .collect()
        }
        Endpoint::Stdio { env, args, .. } => {
            let variables = env.iter();
            let variables = variables.flat_map(|(name, value)| of_variable(name, value));
            variables.chain(of_arguments(args)).collect()
        }
    }
}

/// Whether what has this name is a credential.
fn is_sensitive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "token", "key", "secret", "password", "cookie"]
        .iter()
        .any(|word| name.contains(word))
}

/// The credential behind its scheme; of `Basic`, the password, too.
fn of_header(value: &str) -> Vec<Secret> {
    let (scheme, credential) = value.rsplit_once(' ').unwrap_or(("", value));
    let decoded = STANDARD.decode(credential).ok();
    let decoded = decoded.filter(|_| scheme.trim().eq_ignore_ascii_case("basic"));
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let password = text.as_deref().and_then(|text| text.split_once(':'));
    let password = password.map(|(_, password)| Secret::new(password));
    [Secret::new(credential)]
        .into_iter()
        .chain(password)
        .collect()
}

fn of_variable(name: &str, value: &Secret) -> Vec<Secret> {
    if is_sensitive_name(name) {
        return vec![value.clone()];
    }
    let mut found = Vec::new();
    if let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(value.expose()) {
        collect(&json, &mut found);
    }
    found
}

/// The texts of a configuration whose names say what they are.
fn collect(json: &Value, found: &mut Vec<Secret>) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) if is_sensitive_name(name) => found.push(Secret::new(text)),
                    value => collect(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

/// `--token VALUE` and `--token=VALUE`.
fn of_arguments(args: &[Secret]) -> impl Iterator<Item = Secret> {
    let option = |arg: &str| arg.starts_with('-') && is_sensitive_name(arg);
    args.iter().enumerate().filter_map(move |(at, arg)| {
        let text = arg.expose();
        if let Some((name, value)) = text.split_once('=') {
            return option(name).then(|| Secret::new(value));
        }
        let before = at.checked_sub(1).map(|at| args[at].expose());
        let follows = before.is_some_and(|before| option(before) && !before.contains('='));
        (follows && !text.starts_with('-')).then(|| arg.clone())
    })
}
