//! The settings that all HoloDeck tools share: configuration, timeouts and flags.

use super::TIMEOUT;
use crate::{
    field::Field,
    holodeck::replaced,
    node_builder::{NodeBuilder, copy, generated_plain, list, literal, plain},
    object::Object,
    yaml::Node,
};

/// Headers and variables: secrets, unless they name a variable.
pub(super) fn map(field: &Field) -> Option<Node> {
    let mut made = NodeBuilder::default();
    for (name, value) in field.entries()? {
        match value.raw() {
            Some(written) => {
                if !written.contains("${") {
                    value.mask();
                }
                made.put_some(name, replaced(&value));
            }
            None => value.error("expected text", "put it in quotes"),
        }
    }
    Some(made.into_node(field))
}

/// For the server itself. Its tools can be narrowed there.
pub(super) fn config(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    let Some(field) = object.nullable("config") else {
        return;
    };
    if !field.is_map() {
        return field.error("expected a map", "write one `key: value` a line");
    }
    if let Some(allowed) = field.get_path(&["allowed_tools"])
        && let Some(items) = Some(&allowed)
            .filter(|field| field.is_list())
            .and_then(Field::list)
        && items
            .iter()
            .all(|item| item.raw().is_some_and(|name| !name.contains('*')))
    {
        let names = items
            .iter()
            .filter_map(|item| Some(literal(item, item.raw()?)));
        made.put("tools", list(&allowed, names.collect()));
    }
    if kind == "stdio" {
        made.put_some("config", replaced(&field));
    } else {
        field.warn(format!("`config` has no effect on {kind}"), "");
    }
}

/// Seconds.
pub(super) fn timeouts(object: &mut Object, made: &mut NodeBuilder, kind: &str) {
    let mut timeouts = NodeBuilder::default();
    for (name, native) in [
        ("timeout", "connectSeconds"),
        ("sse_read_timeout", "streamIdleSeconds"),
    ] {
        let Some(field) = object.nullable(name) else {
            continue;
        };
        if kind == "stdio" {
            field.warn(format!("`{name}` has no effect on stdio"), "");
        } else {
            timeouts.put_some(native, positive(&field, name));
        }
    }
    let request = object.nullable("request_timeout").and_then(|field| {
        if field
            .digits()
            .is_some_and(|digits| digits.parse::<i64>().is_err())
        {
            field.error("request_timeout must be an integer", "");
            return None;
        }
        positive(&field, "request_timeout")
    });
    timeouts.put(
        "requestSeconds",
        request.unwrap_or_else(|| generated_plain(TIMEOUT, "60")),
    );
    made.put("timeouts", timeouts.into_node(&object.field));
    if let Some(field) = object.nullable("terminate_on_close") {
        if kind == "http" {
            made.put_some("terminateOnClose", boolean(&field));
        } else {
            field.warn(format!("`terminate_on_close` has no effect on {kind}"), "");
        }
    }
}

fn positive(field: &Field, name: &str) -> Option<Node> {
    match field.digits().and_then(|digits| digits.parse::<f64>().ok()) {
        Some(seconds) if seconds > 0.0 => Some(copy(field)),
        Some(_) => {
            field.error(format!("{name} must be positive"), "");
            None
        }
        None => {
            field.error(
                format!("{name} must be a number"),
                "write it in digits, without quotes",
            );
            None
        }
    }
}

pub(super) fn flag(object: &mut Object, name: &'static str) -> Option<Node> {
    object.nullable(name).and_then(|field| boolean(&field))
}

fn boolean(field: &Field) -> Option<Node> {
    let value = field.flag();
    if value.is_none() {
        field.error("expected true or false", "write it without quotes");
    }
    value.map(|value| plain(field, &value.to_string()))
}
