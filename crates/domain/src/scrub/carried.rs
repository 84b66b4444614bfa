//! The credentials of the operator that a connection carries. A value that came from a variable is one, whatever carries
//! it. What an author wrote as it stands is known by the name under which it travels: a header, a word of an address, a
//! variable, an option of a command, a member of a configuration.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    secret::Secret,
    server::{Endpoint, ServerSpec},
};

/// Shorter values of variables are words such as `true` and `EU`, without which no result can be read.
const SHORTEST_OF_VARIABLES: usize = 6;

/// What is sent to a server, or given to a child, and is a credential.
pub(super) fn secrets(spec: &ServerSpec) -> Vec<Secret> {
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
