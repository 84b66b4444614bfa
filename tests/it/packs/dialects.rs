//! What holds for every format but the native one.

use std::fs;

use domain::{
    config::Environment,
    pack::{Pack, Provider},
    policy::{EffectiveAccess, Offer, offer},
};
use packs::PackStore;

use crate::support::packs::{MINIMAL, checked, env, errors, folder_of, load_files, open};

const WORKSPACE: &str =
    "mcp_registry:\n  servers:\n    a: { type: remote, url: \"https://a.example.org/mcp\" }\n";
const AGENT: &str =
    "tools:\n  - { type: mcp, name: a, description: d, server: s, command: uvx, args: [s] }\n";
const AOS: &str = "id: a\ntransport: http\nurl: https://a.example.org/mcp\n";
/// One pack of each, with one server `a`.
const ALL: [(&str, &str); 3] = [
    ("workspace.yaml", WORKSPACE),
    ("agent.yaml", AGENT),
    ("core/mcp/a.yaml", AOS),
];

#[test]
fn a_folder_holds_one_pack() {
    let native = ("agent-pack.yaml", MINIMAL);
    let told = |files: &[(&str, &str)]| {
        checked(files, &env(&[]))
            .to_string()
            .lines()
            .next()
            .unwrap()
            .to_owned()
    };
    let hint = "; keep one of them, or give each a folder of its own";
    for (files, names) in [
        (
            [native, ALL[0]],
            "agent-pack.yaml (agent-pack) and workspace.yaml (holaOS)",
        ),
        (
            [ALL[0], ALL[1]],
            "workspace.yaml (holaOS) and agent.yaml (HoloDeck)",
        ),
        (
            [ALL[1], ALL[2]],
            "core/mcp/a.yaml (AOS) and agent.yaml (HoloDeck)",
        ),
    ] {
        let expected = format!("error: there are two packs in this folder: {names}{hint}");
        assert!(told(&files).ends_with(&expected), "{}", told(&files));
    }
}

#[test]
fn the_folder_gives_the_id_and_the_words_are_neutral() {
    for file in ALL {
        let pack = load_files(&[file], &env(&[]));
        assert_eq!(
            (pack.id().as_str(), pack.metadata.display_name.as_str()),
            ("demo", "demo")
        );
        assert_eq!(pack.metadata.default_language, "en");
        assert!(
            pack.flows.authentication.required
                && pack.flows.authentication.roles_attribute.is_none()
        );
        assert!(
            open(&pack.servers[0], "anything"),
            "every tool for every user of the tenant"
        );
    }
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("my agent")).unwrap();
    fs::write(root.path().join("my agent/agent.yaml"), AGENT).unwrap();
    let report = packs::check(root.path(), &env(&[]), None).to_string();
    assert!(
        report.contains(
            "the name of the folder is the id of the pack: \"my agent\" is not a valid agent id"
        ),
        "{report}"
    );
}

#[test]
fn one_file_is_enough_to_name_a_pack() {
    for file in &ALL[..2] {
        let root = folder_of(&[*file]);
        let store =
            PackStore::load(&root.path().join("demo").join(file.0), &env(&[]), None).unwrap();
        assert_eq!(
            store.snapshot().packs().next().unwrap().id().as_str(),
            "demo"
        );
    }
}

fn model(variables: &[(&str, &str)]) -> Pack {
    load_files(&[ALL[0]], &env(variables))
}

#[test]
fn the_model_is_the_environments_or_none() {
    assert_eq!(model(&[]).llm.provider, Provider::None);
    assert_eq!(
        model(&[("LLM_PROVIDER", "none"), ("OPENAI_API_KEY", "sk")])
            .llm
            .provider,
        Provider::None
    );
    let llm = model(&[("OPENAI_API_KEY", "sk")]).llm;
    assert_eq!(
        (llm.provider, llm.model.as_str()),
        (Provider::Openai, "gpt-5-mini")
    );
    assert_eq!(llm.api_key.unwrap().expose(), "sk");
    let llm = model(&[
        ("LLM_PROVIDER", "anthropic"),
        ("LLM_MODEL", "m"),
        ("ANTHROPIC_API_KEY", "ak"),
    ])
    .llm;
    assert_eq!(
        (
            llm.provider,
            llm.model.as_str(),
            llm.api_key.unwrap().expose()
        ),
        (Provider::Anthropic, "m", "ak")
    );
    let url = "http://localhost:1234/v1";
    let llm = model(&[
        ("LLM_PROVIDER", "openai"),
        ("LLM_MODEL", "m"),
        ("OPENAI_BASE_URL", url),
    ])
    .llm;
    assert_eq!((llm.base_url.unwrap().as_str(), llm.api_key), (url, None));
}

const ACCESS: &str = "authentication: { rolesAttribute: roles, adminUsers: [alice@example.org] }\ntoolAccess:\n  a: { roles: { staff: [read] }, approval: [{ tools: [read], approvers: [boss] }] }\n";

#[test]
fn a_native_file_beside_it_tightens_any_of_them() {
    for file in ALL {
        let pack = load_files(&[file, ("access.yaml", ACCESS)], &env(&[]));
        assert_eq!(
            pack.flows.authentication.roles_attribute.as_deref(),
            Some("roles")
        );
        let staff = EffectiveAccess {
            roles: ["staff".to_owned()].into(),
            ..EffectiveAccess::default()
        };
        assert!(matches!(
            offer(&pack.servers[0], &staff, "read"),
            Offer::Approve { always: true, .. }
        ));
        assert!(!open(&pack.servers[0], "read"));
        assert_eq!(pack.flows.authentication.admin_users, ["alice@example.org"]);
    }
}

#[test]
fn what_is_wrong_with_that_file_is_said_at_its_lines() {
    let report = checked(
        &[
            ALL[0],
            (
                "access.yaml",
                "toolAccess:\n  b: { default: none }\n  a: { default: publik }\nroles: {}\n",
            ),
        ],
        &env(&[]),
    );
    insta::assert_snapshot!(report, @r#"
    packs/demo/access.yaml:2:6: error: toolAccess.b: there is no server "b"; the servers are a
      2 |   b: { default: none }
        |      ^
    packs/demo/access.yaml:4:1: error: roles: unknown field "roles"; valid fields: authentication, toolAccess
      4 | roles: {}
        | ^
    1 pack: 2 errors, 0 warnings
    "#);
    let native = [("agent-pack.yaml", MINIMAL), ("access.yaml", ACCESS)];
    assert_eq!(
        errors(&native, &env(&[])),
        [": this file is for packs of other formats"]
    );
}

/// A problem that only the native rules know is told where the author wrote it.
#[test]
fn rules_of_all_packs_hold_and_name_the_authors_own_line() {
    let workspace = "mcp_registry:\n  servers:\n    a:\n      type: remote\n      url: ftp://a.example.org\n      headers: { Host: x, Good: \"hunter2\" }\n";
    let agent = AGENT.replace("name: a,", "name: \"a b\", env: { \"A-B\": hunter2 },");
    let aos = AOS.replace("https://", "https://me:hunter2@");
    let report = |file: (&str, &str)| {
        let told = checked(&[file], &env(&[])).to_string();
        assert!(!told.contains("hunter2"), "{told}");
        told
    };
    insta::assert_snapshot!(report(("workspace.yaml", workspace)), @r#"
    packs/demo/workspace.yaml:5:12: error: mcp_registry.servers.a.url: "ftp://a.example.org" has another scheme than http or https
      5 |       url: ftp://a.example.org
        |            ^
    packs/demo/workspace.yaml:6:24: error: mcp_registry.servers.a.headers.Host: the header Host is set by the program itself; remove it
      6 |       headers: { Host: ••••, Good: •••• }
        |                        ^
    1 pack: 2 errors, 0 warnings
    "#);
    insta::assert_snapshot!(report(("agent.yaml", &agent)), @r#"
    packs/demo/agent.yaml:2:24: error: tools[0].name: "a b" is not a valid server id: use 1 to 64 letters, digits, `_` or `-`, starting with a letter or digit
      2 |   - { type: mcp, name: "a b", env: { "A-B": •••• }, description: d, server: s, command: uvx, args: [••••] }
        |                        ^
    packs/demo/agent.yaml:2:45: error: tools[0].env.A-B: "A-B" is not the name of a variable; use letters, digits and `_`
      2 |   - { type: mcp, name: "a b", env: { "A-B": •••• }, description: d, server: s, command: uvx, args: [••••] }
        |                                             ^
    1 pack: 2 errors, 0 warnings
    "#);
    insta::assert_snapshot!(report(("core/mcp/a.yaml", &aos)), @r"
    packs/demo/core/mcp/a.yaml:3:6: error: url: the address holds a user or password; send them in a header
      3 | url: ••••
        |      ^
    1 pack: 1 error, 0 warnings
    ");
}

#[test]
fn servers_from_the_environment_stand_in_for_those_of_any_format() {
    let servers = domain::secret::Secret::new(
        r#"{"demo":[{"name":"b","transport":"stdio","command":"x","toolAccess":{"default":"public"}}]}"#,
    );
    for file in ALL {
        let root = folder_of(&[file]);
        let store = PackStore::load(root.path(), &env(&[]), Some(&servers)).unwrap();
        let snapshot = store.snapshot();
        let ids: Vec<_> = snapshot
            .packs()
            .next()
            .unwrap()
            .servers
            .iter()
            .map(|server| server.id.to_string())
            .collect();
        assert_eq!(ids, ["b"]);
    }
}

fn reloaded(files: &[(&str, &str)], changed: (&str, &str), env: &Environment) -> Pack {
    let root = folder_of(files);
    let store = PackStore::load(root.path(), env, None).unwrap();
    let before = store.snapshot().packs().next().unwrap().version.clone();
    let file = root.path().join("demo").join(changed.0);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, changed.1).unwrap();
    let change = store.reload();
    assert_eq!(change.changed.len(), 1, "{}", change.report);
    let pack = Pack::clone(store.snapshot().packs().next().unwrap());
    assert_ne!(pack.version, before);
    pack
}

/// The same for every file of every format.
#[test]
fn a_change_of_any_file_is_a_new_version() {
    let second = AOS.replace("id: a", "id: b");
    assert_eq!(
        reloaded(&[ALL[2]], ("core/mcp/b.yaml", &second), &env(&[]))
            .servers
            .len(),
        2
    );
    let skill = "id: s\nmcp_binding: { server: a, tools: [t] }\n";
    assert_eq!(
        reloaded(&[ALL[2]], ("core/skills/s/skill.yaml", skill), &env(&[]))
            .skills
            .len(),
        1
    );
    for file in ALL {
        let tight = reloaded(
            &[file],
            ("access.yaml", "toolAccess: { a: { default: none } }\n"),
            &env(&[]),
        );
        assert!(!open(&tight.servers[0], "anything"));
    }
    let other = WORKSPACE.replace("a.example.org", "b.example.org");
    assert_eq!(
        reloaded(&[ALL[0]], ("workspace.yaml", &other), &env(&[])).servers[0]
            .url()
            .unwrap()
            .host_str(),
        Some("b.example.org")
    );
}

#[test]
fn a_broken_new_version_leaves_the_last_good_one_in_force() {
    for (file, _) in ALL {
        let root = folder_of(&[*ALL.iter().find(|(name, _)| *name == file).unwrap()]);
        let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
        fs::write(root.path().join("demo").join(file), "a: [").unwrap();
        assert!(!store.reload().report.is_ok());
        assert_eq!(store.snapshot().packs().len(), 1, "{file}");
    }
}

#[test]
fn an_empty_file_is_told_what_its_own_format_starts_with() {
    for (file, hint) in [
        (
            "agent-pack.yaml",
            "a pack starts with `metadata: { id: … }`",
        ),
        ("workspace.yaml", "write `mcp_registry: { servers: … }`"),
        ("agent.yaml", "write `name`, `description` and `tools`"),
        (
            "core/mcp/a.yaml",
            "write `id`, `transport` and `command` or `url`",
        ),
        (
            "core/skills/a/skill.yaml",
            "write `id`, `name` and `mcp_binding`",
        ),
    ] {
        for text in ["", "# nothing\n"] {
            let report = checked(&[(file, text)], &env(&[]));
            assert_eq!(report.problems[0].hint.as_deref(), Some(hint), "{report}");
            assert!(report.problems[0].at.is_some(), "{report}");
        }
    }
}
