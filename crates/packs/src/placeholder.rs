//! Translates references to variables from the spellings of other formats to the native `${NAME}`.
//!
//! Text that looks like a reference of another format is refused with a hint, because a server would get it as it
//! stands.

use super::{field::Field, node_builder::escape};
use domain::template::is_variable_name;

/// Translates a text of AOS or HoloDeck, in which only `${NAME}` is a variable. `missing` gives the message for a
/// variable that is not set. `None` after an error.
pub(super) fn translate_dollar(
    field: &Field,
    text: &str,
    missing: impl Fn(&str) -> String,
) -> Option<String> {
    if field.refuse_own_variables(text) {
        return None;
    }
    if let Some(name) = find_braced_name(text) {
        let hint = format!("write `${{{name}}}`");
        field.error(
            format!("`{{env:{name}}}` is not replaced in this format"),
            &hint,
        );
        return None;
    }
    let mut native = String::new();
    let mut rest = text;
    let mut whole = true;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            field.error("`${` is never closed", "write `${NAME}`");
            return None;
        };
        if before.ends_with('$') {
            field.error(
                "a `$` directly before `${…}` cannot be said in a pack",
                "put it into the variable",
            );
            return None;
        }
        if !is_variable_name(name) {
            let parts = [name.rsplit(['.', ':']).next(), name.split(':').next()];
            let part = parts
                .into_iter()
                .flatten()
                .find(|part| is_variable_name(part))
                .unwrap_or("NAME");
            let hint = format!("write `${{{part}}}`");
            field.error(
                format!("`${{{}}}` does not name a variable", clip_name(name)),
                &hint,
            );
            return None;
        }
        if field.context.is_unset(name) {
            field.error(missing(name), &format!("set {name}"));
            whole = false;
        }
        native.push_str(before);
        native.extend(["${", name, "}"]);
        rest = after;
    }
    native.push_str(rest);
    whole.then_some(native)
}

/// Escapes a text in which the format has no variables. Text that looks like a reference is an error if `fatal`. Else
/// it is a warning, because another program may replace it, for example in arguments.
pub(super) fn escape_unreplaced(field: &Field, text: &str, fatal: bool) -> String {
    let dollar = text
        .split("${")
        .skip(1)
        .find_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name);
    let found = match (
        dollar.filter(|name| is_variable_name(name)),
        find_braced_name(text),
    ) {
        (Some(name), _) => Some(format!("`${{{name}}}`")),
        (None, Some(name)) => Some(format!("`{{env:{name}}}`")),
        (None, None) => None,
    };
    match found {
        Some(found) if fatal => {
            field.error(
                format!("{found} is not replaced here in this format"),
                "write the value itself",
            );
        }
        Some(found) => field.warn(
            format!("{found} is not replaced here: it is passed on as it stands"),
            "",
        ),
        None => {}
    }
    escape(text)
}

/// Refuses a reference in the spelling of holaOS in a format that writes `${NAME}`.
pub(super) fn refuse_braces(field: &Field) {
    let Some(text) = field.raw().filter(|text| text.contains("{env:")) else {
        return;
    };
    let (found, wanted) = match find_braced_name(text) {
        Some(name) => (format!("`{{env:{name}}}`"), format!("write `${{{name}}}`")),
        // The text between the braces may be the secret itself.
        None => (
            "`{env:…}`".to_owned(),
            "write `${NAME}`, or the value itself".to_owned(),
        ),
    };
    field.error(format!("{found} is not replaced in this format"), &wanted);
}

/// The name in the first `{env:NAME}`.
fn find_braced_name(text: &str) -> Option<&str> {
    let names = text
        .split("{env:")
        .skip(1)
        .filter_map(|rest| rest.split_once('}'));
    names
        .map(|(name, _)| name)
        .find(|name| is_variable_name(name))
}

/// Translates the value of a header or variable of holaOS, which may hold `{env:NAME}`. `key` is the name of the
/// header or variable. If `required`, each variable must be set. `None` after an error.
pub(super) fn translate_braces(
    field: &Field,
    key: &str,
    text: &str,
    required: bool,
) -> Option<String> {
    if field.refuse_own_variables(text) {
        return None;
    }
    if let Some(name) = find_dollar_name(text) {
        field.error(
            format!("`${{{name}}}` is not replaced in this format"),
            &format!("write `{{env:{name}}}`"),
        );
        return None;
    }
    let trimmed = text.trim();
    let whole = trimmed
        .strip_prefix("{env:")
        .and_then(|rest| rest.strip_suffix('}'));
    if whole.is_some_and(|name| !is_variable_name(name)) {
        refuse_placeholder(field, key);
        return None;
    }
    let mut native = String::new();
    let mut rest = if whole.is_some() { trimmed } else { text };
    let mut complete = true;
    while let Some((before, after)) = rest.split_once("{env:") {
        let Some((name, after)) = after
            .split_once('}')
            .filter(|(name, _)| is_variable_name(name))
        else {
            refuse_placeholder(field, key);
            return None;
        };
        if required && field.context.is_unset(name) {
            let message =
                format!("environment variable '{name}' is required by MCP config for '{key}'");
            field.error(message, &format!("set {name}"));
            complete = false;
        }
        if before.ends_with('$') {
            field.error(
                "a `$` directly before `{env:…}` cannot be said in a pack",
                "put it into the variable",
            );
            return None;
        }
        native.push_str(&escape(before));
        native.extend(["${", name, "}"]);
        rest = after;
    }
    if native.is_empty() {
        field.mask();
    }
    warn_of_literals(field, text);
    native.push_str(&escape(rest));
    complete.then_some(native)
}

/// Warns of text that is a reference in other programs, such as `{ENV:NAME}`, `{env.NAME}` and `${NAME:-default}`.
fn warn_of_literals(field: &Field, text: &str) {
    let mut literals =
        text.split("{env:")
            .enumerate()
            .map(|(at, part)| match part.split_once('}') {
                Some((_, literal)) if at > 0 => literal,
                _ => part,
            });
    if literals.any(|text| text.contains("${") || text.to_ascii_lowercase().contains("{env")) {
        field.warn("is sent as it stands", "write `{env:NAME}`, in lower case");
    }
}

/// The first `${…}`, if it names a variable.
fn find_dollar_name(text: &str) -> Option<&str> {
    let (name, _) = text
        .split("${")
        .skip(1)
        .find_map(|rest| rest.split_once('}'))?;
    is_variable_name(name).then_some(name)
}

fn refuse_placeholder(field: &Field, key: &str) {
    // The text between the braces may be the secret itself.
    let message = format!(
        "invalid MCP env placeholder '{{env:…}}' for '{key}'; use '{{env:ENV_VAR_NAME}}' or provide a literal value"
    );
    field.mask();
    field.error(message, "");
}

/// The part at the beginning of a text that can be a name. The rest may be the secret itself.
fn clip_name(text: &str) -> String {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
        .unwrap_or(text.len());
    let shown: String = text[..end].chars().take(40).collect();
    if shown.len() < text.len() {
        shown + "…"
    } else {
        shown
    }
}
