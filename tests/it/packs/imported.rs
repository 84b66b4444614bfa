//! `import`: the written pack does the same as the original.

use std::{fs, path::Path};

use domain::{config::Environment, pack::Pack};
use packs::PackStore;
use proptest::prelude::*;

use crate::support::packs::{MINIMAL, env, folder_of};

fn variables() -> Environment {
    let names = [
        "TOKEN",
        "API_TOKEN",
        "MY_TOKEN",
        "SEARCH_TOKEN",
        "CONTEXT7_API_KEY",
        "GITHUB_TOKEN",
        "DATABASE_URL",
        "CUSTOM_CONFIG",
        "API_KEY",
        "CLOUD_API_KEY",
    ];
    names.iter().fold(env(&[]), |env, name| {
        env.with(*name, format!("value-of-{name}"))
    })
}

fn load(path: &Path, env: &Environment) -> Pack {
    Pack::clone(
        PackStore::load(path, env, None)
            .unwrap()
            .snapshot()
            .packs()
            .next()
            .unwrap(),
    )
}

/// Imports a folder, puts the native pack in the place of the original and compares. Answers what was written.
fn round(files: &[(&str, &str)], env: &Environment) -> String {
    let root = folder_of(files);
    let folder = root.path().join("demo");
    let original = load(&folder, env);
    let imported = packs::import(&folder, env).unwrap();
    assert!(
        imported.compared && !imported.text.contains("value-of-"),
        "{}",
        imported.text
    );
    let moved = root.path().join("elsewhere/demo");
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(&folder, &moved).unwrap();
    let written = imported.write_to(&folder).unwrap();
    assert_eq!(written, folder.join("agent-pack.yaml"));
    for needed in &imported.needs {
        fs::copy(moved.join(needed), folder.join(needed)).unwrap();
    }
    let copy = load(&folder, env);
    assert!(
        copy.same_as(&original),
        "{}\n{copy:#?}\n{original:#?}",
        imported.text
    );
    imported.text
}

#[test]
fn every_snippet_of_the_documents_comes_out_the_same() {
    let folder = Path::new("tests/it/documents");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    for snippet in ["01", "03", "04"] {
        round(
            &[("workspace.yaml", &read(&format!("holaos/{snippet}.yaml")))],
            &variables(),
        );
    }
    for number in (2..=13).filter(|number| *number != 6) {
        let text = read(&format!("holodeck/{number:02}.yaml"));
        round(
            &[("agent.yaml", &text), (".env", "A=secret\n")],
            &variables(),
        );
    }
    let servers = read("aos/01.yaml");
    let (files, search) = servers.split_once("# http server").unwrap();
    let skill = read("aos/02.yaml");
    let files = [
        ("core/mcp/files.yaml", files),
        ("core/mcp/search.yaml", search),
        ("core/skills/s/skill.yaml", &skill),
    ];
    round(&files, &variables());
}

#[test]
fn what_is_written_reads_well_and_keeps_the_comments() {
    let workspace = "# Our servers\nmcp_registry:\n  servers:\n    # Documentation of libraries\n    context7: # shared\n      type: remote\n      url: https://mcp.context7.com/mcp # public\n      headers:\n        # rotate in May\n        CONTEXT7_API_KEY: \"{env:CONTEXT7_API_KEY}\"\n    shell:\n      type: local\n      command: [sh, -c, \"echo ${HOME}\"]\n  allowlist:\n    tool_ids:\n      - context7.lookup # enough\n  catalog:\n    workspace.read: { module_path: tools, symbol: read }\n# the end\n";
    let access = "# only staff\nauthentication: { rolesAttribute: roles }\ntoolAccess:\n  shell: { roles: { staff: [run] } } # not for guests\n";
    let text = round(
        &[("workspace.yaml", workspace), ("access.yaml", access)],
        &variables(),
    );
    insta::assert_snapshot!(text, @r#"
    # Imported from workspace.yaml, access.yaml (holaOS).
    # workspace.yaml:19: the end

    metadata:
      id: demo
      defaultLanguage: en
    languages:
      en: {}
    llm:
      provider: none
    # code that this program does not run: workspace.read
    mcp:
      servers:
        # Our servers
        # Documentation of libraries
        - name: context7 # shared
          transport: streamable-http
          url: https://mcp.context7.com/mcp # public
          headers:
            # rotate in May
            CONTEXT7_API_KEY: "${CONTEXT7_API_KEY}"
          timeouts:
            connectSeconds: 10
            requestSeconds: 10
          tools:
            - lookup # enough
          toolAccess:
            default: public
        - name: shell
          transport: stdio
          command: sh
          args: ["-c", "echo $${HOME}"]
          cwd: "."
          timeouts:
            requestSeconds: 10
          toolAccess: # not for guests
            roles:
              staff: [run]
    # only staff
    flows:
      authentication:
        rolesAttribute: roles
    "#);
}

#[test]
fn nothing_is_overwritten_and_a_native_pack_is_left_alone() {
    let root = folder_of(&[("agent.yaml", "name: x\n")]);
    let folder = root.path().join("demo");
    let imported = packs::import(&folder, &env(&[])).unwrap();
    let error = imported.write_to(&folder).unwrap_err().to_string();
    assert!(
        error.contains("has a pack already") && error.contains("agent.yaml"),
        "{error}"
    );
    let other = root.path().join("other");
    imported.write_to(&other).unwrap();
    assert!(
        imported
            .write_to(&other)
            .unwrap_err()
            .to_string()
            .contains("has a pack already")
    );
    fs::write(other.join("agent-pack.yaml"), MINIMAL).unwrap();
    assert!(
        packs::import(&other, &env(&[]))
            .err()
            .unwrap()
            .to_string()
            .ends_with("is a native pack already")
    );
    assert!(packs::import(&root.path().join("none"), &env(&[])).is_err());
}

#[test]
fn variables_need_not_be_set() {
    let workspace = "mcp_registry: { servers: { a: { type: remote, url: \"https://x.example.org\", headers: { K: \"a {env:NOT_SET} $5\" } } } }\n";
    let root = folder_of(&[("workspace.yaml", workspace)]);
    let imported = packs::import(root.path(), &env(&[])).unwrap();
    assert!(
        !imported.compared && imported.text.contains("K: \"a ${NOT_SET} $5\""),
        "{}",
        imported.text
    );
}

fn program(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chatelaine"));
    let done = command
        .args(arguments)
        .current_dir(folder)
        .env("MCP_TOKEN", "value-of-it")
        .output()
        .unwrap();
    let told = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(!told.contains("value-of-it"), "{told}");
    (done.status.success(), told)
}

#[test]
fn the_program_checks_imports_and_explains() {
    let agent = "tools:\n  - { type: mcp, name: a, description: Does it, server: s, command: uvx, args: [s], envFile: .env, env: { T: \"${MCP_TOKEN}\" } }\n";
    let root = folder_of(&[("agent.yaml", agent), (".env", "K=hunter2\n")]);
    let (good, told) = program(&root.path().join("demo"), &["check", "agent.yaml"]);
    assert!(
        good && told.contains("demo (HoloDeck)\n  a  stdio uvx: all tools; everyone\n"),
        "{told}"
    );
    // What a model is told of tools depends on the servers, which are not asked here.
    assert!(
        told.contains(
            "`chatelaine smoke <pack>` asks the servers, and says what the model is told otherwise"
        ),
        "{told}"
    );
    let (good, told) = program(root.path(), &["import", "demo", "--to", "native/demo"]);
    assert!(
        good && told.contains("written: native/demo/agent-pack.yaml\nit needs .env beside it"),
        "{told}"
    );
    let (good, told) = program(root.path(), &["import", "demo", "--to", "native/demo"]);
    assert!(!good && told.contains("has a pack already"), "{told}");
    fs::copy(
        root.path().join("demo/.env"),
        root.path().join("native/demo/.env"),
    )
    .unwrap();
    let (good, told) = program(root.path(), &["explain", "native/demo"]);
    assert!(
        good && told.contains("T: \"${MCP_TOKEN}\" # agent-pack.yaml:")
            && !told.contains("hunter2"),
        "{told}"
    );
}

#[test]
fn check_names_what_is_not_started_or_called_and_import_what_moves() {
    let workspace = r#"
mcp_registry:
  servers:
    own: { type: local, command: ["./bin/srv", ".", "data.json"] }
    other: { type: local, command: ["my-mcp-server"] }
    packaged: { type: local, command: ["bunx", "a-server"] }
    plain: { type: remote, url: "http://mcp.example.org/mcp" }
    home: { type: remote, url: "https://10.0.0.1/mcp" }
    good: { type: remote, url: "https://mcp.example.org/mcp", headers: { Authorization: "Bearer {env:MCP_EMPTY}" } }
"#;
    let files = [
        ("workspace.yaml", workspace),
        ("bin/srv", "#!/bin/sh\n"),
        ("data.json", "{}"),
    ];
    let root = folder_of(&files);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chatelaine"));
    let done = command
        .args(["check", "demo"])
        .current_dir(root.path())
        .env("MCP_EMPTY", "")
        .output()
        .unwrap();
    let told = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success(), "warnings only: {told}");
    for part in [
        "the command \"my-mcp-server\" will not be started",
        "http://mcp.example.org/mcp will not be called",
        "https://10.0.0.1/mcp will not be called",
        "no credential behind its scheme",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert!(
        !told.contains("https://mcp.example.org/mcp will not"),
        "{told}"
    );
    let env = env(&[("MCP_EMPTY", "")]);
    assert!(!told.contains("the command \"bunx\""), "{told}");
    let imported = packs::import(&root.path().join("demo"), &env).unwrap();
    assert_eq!(imported.needs, ["bin/srv", "data.json"]);
    assert!(imported.names_folder);
}

#[test]
fn check_judges_the_addresses_of_web_sockets_as_a_connection_would() {
    let server = |name: &str, url: &str| {
        format!(
            "    - {{ name: {name}, transport: websocket, url: \"{url}\", toolAccess: {{ default: public }} }}\n"
        )
    };
    let servers = [
        server("good", "wss://mcp.example.com/ws"),
        server("allowed", "ws://127.0.0.1:7001/ws"),
        server("plain", "ws://mcp.example.com/ws"),
        server("inside", "wss://10.0.0.1/ws"),
    ];
    let text = format!("{MINIMAL}mcp:\n  servers:\n{}", servers.concat());
    let root = folder_of(&[("agent-pack.yaml", &text)]);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chatelaine"));
    let done = command
        .args(["check", "demo"])
        .current_dir(root.path())
        .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1:7001")
        .output()
        .unwrap();
    let told = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    let refused: Vec<_> = ["good", "allowed", "plain", "inside"]
        .into_iter()
        .filter(|name| told.contains(&format!("server {name}: ")))
        .collect();
    assert_eq!(refused, ["plain", "inside"], "{told}");
    assert!(told.contains("use a public wss address"), "{told}");
}

/// Text that is hard on YAML.
fn hard() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "[a-z:#&*!|>%@`'\"{}\\[\\],?$ \\-\n\t\\\\]{0,12}",
        Just("true".to_owned()),
        Just("1.10".to_owned()),
        Just("~".to_owned()),
        Just("é\u{85}\u{2028}🗝".to_owned()),
        Just("line one\nline two\n".to_owned()),
        Just("  indented\n first".to_owned()),
        Just("$${X}".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever stands in arguments, descriptions and instructions.
    #[test]
    fn any_text_comes_out_the_same(arguments in prop::collection::vec(hard(), 0..4), instructions in hard(), key in "[ -~]{1,8}") {
        let json = |text: &str| serde_json::to_string(text).unwrap();
        let args: Vec<_> = arguments.iter().map(|text| json(&text.replace('$', "S"))).collect();
        let agent = format!(
            "instructions: {{ file: p.txt }}\ntools: [{{ type: mcp, name: a, description: {}, server: s, command: uvx, args: [{}], config: {{ {}: {} }} }}]\n",
            json(&instructions.replace('$', "S")), args.join(", "), json(&key), json(&instructions.replace('$', "S"))
        );
        if !instructions.trim().is_empty() {
            round(&[("agent.yaml", &agent), ("p.txt", &instructions)], &variables());
        }
        let command: Vec<_> = arguments.iter().filter(|text| !text.trim().is_empty()).map(|text| json(text)).collect();
        let workspace = format!("mcp_registry: {{ servers: {{ a: {{ type: local, command: [{}] }} }} }}\n", [vec!["\"x\"".to_owned()], command].concat().join(", "));
        round(&[("workspace.yaml", &workspace)], &variables());
    }
}
