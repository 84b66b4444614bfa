//! What the borders of crates cannot say of the layers that `src/lib.rs` describes: which module of the service may use
//! which, and which words stand in few files only. Read from the sources.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A module of the service uses only layers below its own.
const LAYERS: [(&str, u8); 4] = [("live", 2), ("app", 3), ("api", 4), ("cli", 4)];
/// `cli serve` starts what `api` serves.
const NEIGHBOURS: [(&str, &str); 1] = [("cli", "api")];
/// Crates that the service has, but not all of it: `api` asks `app`.
const NEVER: [(&str, &str); 3] = [("api", "store"), ("api", "mcp"), ("api", "llm")];
/// Each group of `app` uses only the groups further down in this list.
const APP: &[&str] = &["chat", "runs", "tools", "servers", "accounts", "platform"];
/// Files of `app` that still use a group above their own. This list only shrinks.
const KNOWN: &[(&str, &str)] = &[
    ("src/app/tools/approvals/delivery", "runs"),
    ("src/app/tools/skills", "chat"),
    ("src/app/tools/skills", "runs"),
];
/// Words that only the files named (or those below a folder) may write.
const RESERVED: [(&str, &[&str], &str); 16] = [
    (
        "%error",
        &["crates/"],
        "an error in the log says its cause: `error = error.with_cause()`",
    ),
    (
        "mcp.call(",
        &["src/app/tools/gate/send.rs"],
        "tools are called through the gate's send",
    ),
    (
        "mcp.try_tool(",
        &["src/app/servers/credentials/trial.rs"],
        "a tool is called outside of the gate only where its pack names it as the test of a credential",
    ),
    (
        "mcp.get_prompt(",
        &["src/app/tools/gate/send.rs"],
        "prompts are read through the gate's send",
    ),
    (
        "mcp.complete(",
        &["src/app/tools/gate/send.rs"],
        "prompts are completed through the gate's send",
    ),
    (
        "mcp.read_resource(",
        &["src/app/tools/gate/send.rs"],
        "resources are read through the gate's send",
    ),
    (
        "PgPool",
        &["crates/store/src/pool.rs"],
        "the pool is named where it is opened",
    ),
    (
        "sqlx::",
        &[
            "crates/store/",
            "crates/domain/",
            "src/cli/private_postgres.rs",
        ],
        "SQL lives in store",
    ),
    (
        "SystemTime::now",
        &["crates/domain/src/clock.rs"],
        "only domain::clock asks the time",
    ),
    (
        "OffsetDateTime::now",
        &["crates/domain/src/clock.rs"],
        "only domain::clock asks the time",
    ),
    (
        "env::var",
        &["crates/domain/src/config.rs"],
        "only domain::config reads the environment",
    ),
    (
        "env::temp_dir",
        &["crates/domain/src/config.rs"],
        "only domain::config reads the environment",
    ),
    (
        "utoipa::openapi",
        &["src/api"],
        "only api writes the OpenAPI document; other types derive their schema",
    ),
    ("utoipa_axum", &["src/api"], "only api has routes"),
    (
        "opentelemetry",
        &["crates/telemetry"],
        "only telemetry knows OpenTelemetry; others make spans of `tracing`",
    ),
    (
        "http::",
        &[
            "src/api",
            "crates/egress",
            "crates/mcp",
            "crates/llm",
            "crates/telemetry",
            "crates/terminal",
            "src/cli/demo/model.rs",
            "src/cli/doctor/address.rs",
        ],
        "app and domain know nothing of HTTP",
    ),
];
const NO_NAMES: [&str; 10] = [
    "mod", "util", "utils", "helper", "helpers", "common", "service", "services", "manager",
    "types",
];

#[test]
fn every_module_uses_only_what_is_below_it() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|(file, text)| offences(file, text))
        .collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn every_module_of_app_has_a_place_in_its_order() {
    let modules = sources().into_iter().filter_map(|(file, _)| {
        let module = file.with_extension("").iter().nth(2)?.to_str()?.to_owned();
        file.starts_with("src/app").then_some(module)
    });
    let without: Vec<String> = modules.filter(|module| !APP.contains(&&**module)).collect();
    assert!(without.is_empty(), "give them one: {without:?}");
}

#[test]
fn files_are_named_after_what_they_hold() {
    let mut found = Vec::new();
    for (file, _) in sources() {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if NO_NAMES.contains(&&*name) {
            found.push(format!(
                "{}: name the file after the noun it holds",
                file.display()
            ));
        }
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn forbidden_paths_are_found_and_named_by_line() {
    for (file, text, wanted) in [
        (
            "src/live.rs",
            "use crate::app::App;",
            "1: live must not use app",
        ),
        (
            "src/app/servers.rs",
            "\nuse crate::{\n    live::Live,\n    api::{self, routes},\n};",
            "4: app must not use api",
        ),
        (
            "src/live.rs",
            "fn f() { crate::app::f() }",
            "1: live must not use app",
        ),
        (
            "src/api/runs.rs",
            "use crate::app;\nuse store::Db;",
            "2: api must not use store",
        ),
        (
            "src/api/runs.rs",
            "use super::mcp::a; use mcp as b;",
            "1: api must not use mcp",
        ),
        (
            "src/api.rs",
            "mod mcp; use self::mcp::a; fn f() { mcp::a(); ::mcp::b() }",
            "1: api must not use mcp",
        ),
        ("src/api.rs", "use crate::cli;", "1: api must not use cli"),
        (
            "src/app/tools.rs",
            "use super::chat::send;",
            "1: app::tools must not use app::chat",
        ),
        (
            "src/app/servers/call.rs",
            "use super::super::runs;",
            "1: app::servers must not use app::runs",
        ),
        (
            "src/app/platform/keys.rs",
            "use crate::app::{platform, accounts::decide};",
            "1: app::platform must not use app::accounts",
        ),
        ("src/attic.rs", "use crate::app;", "1: attic is in no layer"),
        (
            "crates/store/src/runs.rs",
            "struct S(sqlx::PgPool);",
            "1: PgPool: the pool is named where it is opened",
        ),
        (
            "src/app/runs.rs",
            "/* // */ fn f(e: sqlx::Error) {}",
            "1: sqlx::: SQL lives in store",
        ),
        (
            "crates/llm/src/lib.rs",
            "// no\nlet x = std::env::var(\"X\");",
            "2: env::var: only domain::config reads the environment",
        ),
    ] {
        assert_eq!(
            offences(Path::new(file), text),
            [format!("{file}:{wanted}")],
            "{text}"
        );
    }
}

#[test]
fn allowed_paths_pass() {
    for (file, text) in [
        (
            "crates/mcp/src/pool.rs",
            "use domain::{ids::*, tool}; use crate::Key; use super::Mcp;",
        ),
        (
            "src/cli/serve.rs",
            "use crate::{api::router, app::App}; use store::Db;",
        ),
        (
            "src/app/chat.rs",
            "use super::{runs, App, tools as a}; use crate::app::accounts; use store::Tx;",
        ),
        (
            "src/api.rs",
            "mod mcp; use self::mcp::a; fn f() { mcp::a(); crate::api::mcp::b() }",
        ),
        (
            "src/api/turn.rs",
            "use crate::api::{\n    mcp::json_response,\n    problem,\n};",
        ),
        (
            "src/live.rs",
            "//! [`crate::app`]\n/* crate::app */ const S: &str = \"https://crate::app\"; pub(crate) struct X;",
        ),
        ("src/main.rs", "fn main() { chatelaine::cli::main() }"),
        ("src/lib.rs", "pub mod app;"),
    ] {
        assert_eq!(offences(Path::new(file), text), [""; 0], "{text}");
    }
}

/// What a file does that it may not: `file:line: …`.
fn offences(file: &Path, text: &str) -> Vec<String> {
    let code = without_comments_and_strings(text);
    let module: Vec<String> = file
        .with_extension("")
        .iter()
        .skip(1)
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let mut found: Vec<(usize, String)> = Vec::new();
    if file.starts_with("src") {
        for (at, path) in paths(&code, &module) {
            found.extend(forbidden(&module, &path).map(|why| (at, why)));
        }
        for (from, to) in NEVER {
            if module[0] == from {
                let why = || format!("{from} must not use {to}");
                found.extend(uses_of(&code, to).into_iter().map(|at| (at, why())));
            }
        }
    }
    for (word, homes, why) in RESERVED {
        if !homes
            .iter()
            .any(|home| file.to_string_lossy().starts_with(home))
        {
            found.extend(
                code.match_indices(word)
                    .map(|(at, _)| (at, format!("{word}: {why}"))),
            );
        }
    }
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(at, why)| format!("{}:{}: {why}", file.display(), line(at)))
        .collect();
    lines.dedup();
    lines
}

/// Why a module may not use a path, if it may not.
fn forbidden(module: &[String], path: &[String]) -> Option<String> {
    let (from, to) = (module[0].as_str(), path.first()?.as_str());
    if from == "lib" || from == "main" {
        return None;
    }
    let layer = |name: &str| {
        LAYERS
            .iter()
            .find(|(module, _)| *module == name)
            .map(|(_, layer)| *layer)
    };
    let Some(own) = layer(from) else {
        return Some(format!("{from} is in no layer"));
    };
    let other = layer(to)?;
    if from != to {
        let allowed = other < own || NEIGHBOURS.contains(&(from, to));
        return (!allowed).then(|| format!("{from} must not use {to}"));
    }
    let place = |module: Option<&String>| {
        APP.iter()
            .position(|name| Some(*name) == module.map(String::as_str))
    };
    let (own, other) = (place(module.get(1))?, place(path.get(1))?);
    let file = format!("src/{}", module.join("/"));
    let known = |(start, group): &(&str, &str)| file.starts_with(start) && path[1] == *group;
    if KNOWN.iter().any(known) {
        return None;
    }
    (from == "app" && other < own)
        .then(|| format!("app::{} must not use app::{}", module[1], path[1]))
}

/// Where the code names a crate. A module of the same name is not meant.
fn uses_of(code: &str, name: &str) -> Vec<usize> {
    let is_module = code.contains(&format!("mod {name};"));
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let named = |&(at, _): &(usize, &str)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let path = after.starts_with("::");
        // In the group of another path.
        if let Some(group) = before
            .rsplit(';')
            .next()
            .and_then(|it| it.rsplit_once("use "))
            && group.1.contains('{')
        {
            return false;
        }
        match before.strip_suffix("::") {
            Some(before) => path && !before.ends_with(|c: char| in_word(c) || c == '>'),
            None if before.ends_with(in_word) => false,
            None => {
                (path || (before.ends_with("use ") && !after.starts_with(in_word))) && !is_module
            }
        }
    };
    let found = code.match_indices(name).filter(named);
    found.map(|(at, _)| at).collect()
}

/// The paths of this crate that the code names, in full, each with where its last name stands.
fn paths(code: &str, module: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (word, up) in [("crate::", false), ("super::", true)] {
        for (at, _) in code.match_indices(word) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let (mut start, mut base) = (at + word.len(), Vec::new());
            if up {
                base = module[..module.len() - 1].to_vec();
                while code[start..].starts_with("super::") {
                    base.pop();
                    start += "super::".len();
                }
            }
            tree(code, start, &base, &mut found);
        }
    }
    found
}

/// Reads one path, or a group of them, from `at`; returns where it ends.
fn tree(
    code: &str,
    mut at: usize,
    base: &[String],
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut path = base.to_vec();
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if code[at..].starts_with('{') {
            loop {
                at = tree(code, at + 1, &path, found);
                at += code[at..].find([',', '}']).unwrap_or(code.len() - at);
                if !code[at..].starts_with(',') {
                    return (at + 1).min(code.len());
                }
            }
        }
        let name: String = code[at..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if !name.is_empty() && name != "self" {
            path.push(name.clone());
        }
        if !code[at + name.len()..].starts_with("::") {
            found.push((at, path));
            return at + name.len();
        }
        at += name.len() + 2;
    }
}

/// The text with comments and the insides of strings blanked, so that offsets and lines stay.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, keep) = match () {
            () if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), false),
            () if rest.starts_with("/*") => {
                (rest.find("*/").map_or(rest.len(), |end| end + 2), false)
            }
            () if rest.starts_with("r#\"") => {
                (rest.find("\"#").map_or(rest.len(), |end| end + 2), false)
            }
            () if rest.starts_with("'\"'") => (3, false),
            () if first == '"' => (string(rest), false),
            () => (first.len_utf8(), true),
        };
        let (part, after) = rest.split_at(length);
        if keep {
            code.push_str(part);
        } else {
            code.extend(
                part.bytes()
                    .map(|byte| if byte == b'\n' { '\n' } else { ' ' }),
            );
        }
        rest = after;
    }
    code
}

/// The length of a string literal, quotes included.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Every source file of the service and of the crates below it, by its path from the root.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let mut folders: Vec<PathBuf> = crates
        .map(|entry| entry.unwrap().path().join("src"))
        .collect();
    folders.push(root.join("src"));
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 10, "the sources were not found");
    found.sort();
    found
}
