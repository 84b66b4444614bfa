//! Good and broken packs.

mod broken; // what is said about each mistake
mod fields; // what every field does
mod library; // start, reload, watch
mod overlay; // MCP_SERVERS_CONFIG
mod samples; // the packs that come with the program
mod secrets; // no value is ever told
mod template; // `${NAME}`

use std::{fs, path::Path};

use chatelaine::{
    domain::{
        config::Environment,
        pack::Pack,
        server::{Endpoint, ServerSpec},
    },
    packs::{Library, LoadError},
};

/// The least that loads.
pub(crate) const MINIMAL: &str = "metadata: { id: demo }\nlanguages: { en: {} }\nllm: { provider: none }\n";

pub(crate) fn env(variables: &[(&str, &str)]) -> Environment {
    variables.iter().fold(Environment::default(), |env, (name, value)| env.with(*name, *value))
}

/// Writes `<root>/<folder>/agent-pack.yaml`.
pub(crate) fn write_pack(root: &Path, folder: &str, text: &str) {
    fs::create_dir_all(root.join(folder)).unwrap();
    fs::write(root.join(folder).join("agent-pack.yaml"), text).unwrap();
}

pub(crate) fn load_with(text: &str, env: &Environment) -> Result<Pack, LoadError> {
    let root = tempfile::tempdir().unwrap();
    write_pack(root.path(), "demo", text);
    let library = Library::load(root.path(), env, None)?;
    let shelf = library.snapshot();
    Ok(Pack::clone(shelf.packs().next().unwrap()))
}

/// A pack that must load.
pub(crate) fn load(text: &str) -> Pack {
    load_with(text, &env(&[("TOKEN", "t0ken"), ("EMPTY", "")])).unwrap()
}

/// A server that must load, from the lines below `- name: docs`.
pub(crate) fn server_with(lines: &str, env: &Environment) -> ServerSpec {
    let lines = lines.trim().replace('\n', "\n      ");
    let text = format!("{MINIMAL}mcp:\n  servers:\n    - name: docs\n      {lines}\n");
    load_with(&text, env).unwrap().servers.remove(0)
}

pub(crate) fn server(lines: &str) -> ServerSpec {
    server_with(lines, &env(&[("TOKEN", "t0ken")]))
}

pub(crate) fn headers(server: &ServerSpec) -> Vec<(&str, &str)> {
    let Endpoint::Remote { headers, .. } = &server.endpoint else { panic!("not over HTTP") };
    headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect()
}
