//! Packs that a test writes, loads and looks into.

use std::{fs, path::Path};

use domain::{
    config::Environment,
    json::Json,
    pack::Pack,
    policy::{CallFacts, Decision, EffectiveAccess, Offer, Origin, Vars, decide, offer},
    secret::Secret,
    server::{Endpoint, ServerSpec},
};
use packs::{LoadError, PackStore, Report, Severity};
use serde_json::Map;
use tempfile::TempDir;
use time::OffsetDateTime;

/// The least that loads.
pub const MINIMAL: &str =
    "metadata: { id: demo }\nlanguages: { en: {} }\nllm: { provider: none }\n";

pub fn env(variables: &[(&str, &str)]) -> Environment {
    variables
        .iter()
        .fold(Environment::default(), |env, (name, value)| {
            env.with(*name, *value)
        })
}

/// Writes `<root>/<folder>/agent-pack.yaml`.
pub fn write_pack(root: &Path, folder: &str, text: &str) {
    fs::create_dir_all(root.join(folder)).unwrap();
    fs::write(root.join(folder).join("agent-pack.yaml"), text).unwrap();
}

pub fn load_with(text: &str, env: &Environment) -> Result<Pack, LoadError> {
    let root = tempfile::tempdir().unwrap();
    write_pack(root.path(), "demo", text);
    let library = PackStore::load(root.path(), env, None)?;
    let snapshot = library.snapshot();
    Ok(Pack::clone(snapshot.packs().next().unwrap()))
}

/// Writes files into a folder `demo`, by their paths in it.
pub fn folder_of(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let file = root.path().join("demo").join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    root
}

/// What `check` says about such a folder, which is called `packs` there.
pub fn checked(files: &[(&str, &str)], env: &Environment) -> Report {
    let root = folder_of(files);
    let mut report = packs::check(root.path(), env, None);
    let name = root.path().display().to_string();
    for problem in &mut report.problems {
        problem.file = problem.file.replace(&name, "packs");
    }
    report
}

/// The errors as `path: message`.
pub fn errors(files: &[(&str, &str)], env: &Environment) -> Vec<String> {
    said(files, env, Severity::Error)
}

pub fn warnings(files: &[(&str, &str)], env: &Environment) -> Vec<String> {
    said(files, env, Severity::Warning)
}

fn said(files: &[(&str, &str)], env: &Environment, severity: Severity) -> Vec<String> {
    let problems = checked(files, env)
        .problems
        .into_iter()
        .filter(|problem| problem.severity == severity);
    problems
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect()
}

/// A pack in some files that must load.
pub fn load_files(files: &[(&str, &str)], env: &Environment) -> Pack {
    let root = folder_of(files);
    let library = PackStore::load(root.path(), env, None).unwrap();
    let snapshot = library.snapshot();
    Pack::clone(snapshot.packs().next().unwrap())
}

/// A child's command, arguments and variables.
pub fn child(server: &ServerSpec) -> (&str, Vec<&str>, Vec<(&str, &str)>) {
    let Endpoint::Stdio {
        command, args, env, ..
    } = &server.endpoint
    else {
        panic!("not a child")
    };
    let env = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()));
    (
        command,
        args.iter().map(Secret::expose).collect(),
        env.collect(),
    )
}

pub fn tools(server: &ServerSpec) -> Option<Vec<&str>> {
    Some(
        server
            .tools
            .as_ref()?
            .iter()
            .map(|tool| tool.0.as_str())
            .collect(),
    )
}

/// The decision about a call without arguments.
pub fn decide_plain<'a>(
    server: &'a ServerSpec,
    who: &EffectiveAccess,
    tool: &'a str,
) -> Decision<'a> {
    let (arguments, claims, vars) = (Json::Null, Map::new(), Vars::default());
    let facts = CallFacts {
        arguments: &arguments,
        claims: &claims,
        origin: Origin::Chat,
        now: OffsetDateTime::UNIX_EPOCH,
        vars: &vars,
        exceeded: &[],
        only_reads: false,
    };
    decide(server, who, tool, &facts)
}

/// Whether anybody of the tenant may call a tool.
pub fn open(server: &ServerSpec, tool: &str) -> bool {
    offer(server, &EffectiveAccess::default(), tool) == Offer::Call
}

/// A pack that must load.
pub fn load(text: &str) -> Pack {
    load_with(text, &env(&[("TOKEN", "t0ken"), ("EMPTY", "")])).unwrap()
}

/// A server that must load, from the lines below `- name: docs`.
pub fn server_with(lines: &str, env: &Environment) -> ServerSpec {
    let lines = lines.trim().replace('\n', "\n      ");
    let text = format!("{MINIMAL}mcp:\n  servers:\n    - name: docs\n      {lines}\n");
    load_with(&text, env).unwrap().servers.remove(0)
}

pub fn server(lines: &str) -> ServerSpec {
    server_with(lines, &env(&[("TOKEN", "t0ken")]))
}

pub fn headers(server: &ServerSpec) -> Vec<(&str, &str)> {
    let Endpoint::Remote { headers, .. } = &server.endpoint else {
        panic!("not over HTTP")
    };
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect()
}
