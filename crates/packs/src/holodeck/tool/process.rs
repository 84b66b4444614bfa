//! A HoloDeck tool that is a program: its command, its arguments and its variables.

use super::{DETECTED, PLACE, missing, others, settings::map, texts};
use crate::{
    field::Field,
    holodeck::{replaced, replaced_of},
    node_builder::{NodeBuilder, generated, generated_text, literal, text},
    object::Object,
    yaml::Value,
};

const COMMANDS: [&str; 3] = ["npx", "uvx", "docker"];

/// `@scope/name`: a name with nothing else in it could be a package of anybody's.
pub(super) fn is_package(server: &str) -> bool {
    let part = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let scoped = server
        .strip_prefix('@')
        .and_then(|rest| rest.split_once('/'));
    scoped.is_some_and(|(scope, name)| {
        part(scope) && part(name.split('@').next().unwrap_or_default())
    })
}

pub(super) fn stdio(object: &mut Object, made: &mut NodeBuilder, legacy: Option<&Field>) {
    let command = object.nullable("command");
    match (&command, legacy) {
        (Some(field), _) => match field.raw().filter(|word| COMMANDS.contains(word)) {
            Some(word) => made.put("command", text(field, word)),
            None => {
                let word = field.as_written();
                let names = COMMANDS.join(", ");
                let message = format!(
                    "MCPConfigError: Invalid command '{word}'. Supported commands: {names}"
                );
                field.error(message, "");
            }
        },
        (None, Some(server)) => {
            let package = server.raw().unwrap_or_default();
            let hint = format!("write `command: npx` and `args: [\"-y\", {package:?}]`");
            object.field.warn(
                "an entry without `command` is deprecated; npx is taken from `server`",
                &hint,
            );
            made.put("command", generated_text(DETECTED, "npx"));
            if object.is_absent("args") {
                let args = [generated_text(DETECTED, "-y"), literal(server, package)];
                made.put("args", generated(DETECTED, Value::List(args.into())));
            }
        }
        (None, None) => {
            missing(
                &object.field,
                "command",
                "MCPConfigError: 'command' is required for stdio transport",
            );
        }
    }
    let args = object.nullable("args");
    if args.is_none() && command.is_some() {
        object.field.warn(
            "there are no `args`, so the command has nothing to run",
            "write `args: [-y, <package>]`",
        );
    }
    made.put_some("args", args.and_then(|field| texts(&field)));
    made.put_some("env", object.nullable("env").and_then(|field| map(&field)));
    let files = ["envFile", "env_file"].map(|name| object.nullable(name));
    if let [Some(_), Some(second)] = &files {
        second.error("there is an `envFile`, too", "write one of the two");
    }
    made.put_some("envFile", files.iter().flatten().next().and_then(replaced));
    made.put_some("encoding", replaced_of(object, "encoding"));
    made.put("cwd", generated_text(PLACE, "."));
    others(object, ["url", "headers"], "stdio");
}
