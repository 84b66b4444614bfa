//! Starting, reloading and watching.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use domain::ids::AgentId;
use packs::{Change, PackStore};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::support::packs::{MINIMAL, env, write_pack};

fn pack(id: &str, description: &str) -> String {
    format!(
        "metadata: {{ id: {id}, description: {description} }}\nlanguages: {{ en: {{}} }}\nllm: {{ provider: none }}\n"
    )
}

fn store(packs: &[&str]) -> (TempDir, PackStore) {
    let root = tempfile::tempdir().unwrap();
    for id in packs {
        write_pack(root.path(), id, &pack(id, "old"));
    }
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    (root, store)
}

fn ids(store: &PackStore) -> Vec<String> {
    store
        .snapshot()
        .packs()
        .map(|pack| pack.id().to_string())
        .collect()
}

fn description(store: &PackStore, id: &str) -> String {
    store
        .get(&AgentId::parse(id).unwrap())
        .unwrap()
        .metadata
        .description
        .clone()
}

fn names(ids: &[AgentId]) -> Vec<&str> {
    ids.iter().map(AgentId::as_str).collect()
}

/// What refuses the start, with the temporary folder named `packs`.
fn refused(root: &Path) -> String {
    let error = PackStore::load(root, &env(&[]), None)
        .err()
        .expect("the start is refused");
    error
        .to_string()
        .replace(&root.display().to_string(), "packs")
}

#[test]
fn all_packs_of_a_folder_are_loaded() {
    let (root, _) = store(&["a", "b"]);
    fs::create_dir_all(root.path().join("capabilities")).unwrap();
    fs::create_dir_all(root.path().join("..data")).unwrap();
    fs::rename(
        root.path().join("b/agent-pack.yaml"),
        root.path().join("b/agent-pack.yml"),
    )
    .unwrap();
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    assert_eq!(ids(&store), ["a", "b"]);
    assert_eq!(
        store.get(&AgentId::parse("a").unwrap()).unwrap().folder,
        root.path().join("a")
    );
    assert!(store.get(&AgentId::parse("c").unwrap()).is_none());
}

#[test]
fn one_pack_folder_or_file_is_enough() {
    let (root, _) = store(&["a", "b"]);
    let folder = PackStore::load(&root.path().join("b"), &env(&[]), None).unwrap();
    assert_eq!(ids(&folder), ["b"]);
    let file = PackStore::load(&root.path().join("a/agent-pack.yaml"), &env(&[]), None).unwrap();
    assert_eq!(ids(&file), ["a"]);
}

#[test]
fn every_problem_of_every_pack_refuses_the_start() {
    let (root, _) = store(&["a", "b"]);
    write_pack(root.path(), "a", &pack("a b", "x"));
    write_pack(root.path(), "b", "metadata: { id: b }\n");
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs/a/agent-pack.yaml:1:17: error: metadata.id: "a b" is not a valid agent id: use 1 to 64 letters, digits, `_` or `-`, starting with a letter or digit
      1 | metadata: { id: a b, description: x }
        |                 ^
    packs/b/agent-pack.yaml:1:1: error: languages: missing; write `languages: { en: { systemPrompt: … } }`
      1 | metadata: { id: b }
        | ^
    packs/b/agent-pack.yaml:1:1: error: llm: missing; write `llm: { provider: none }` for an agent without a model
      1 | metadata: { id: b }
        | ^
    2 packs: 3 errors, 0 warnings
    "#);
}

#[test]
fn an_id_belongs_to_one_pack() {
    let (root, _) = store(&["a", "b"]);
    write_pack(root.path(), "b", &pack("a", "x"));
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs/a/agent-pack.yaml: error: `metadata.id` is the same as in packs/b/agent-pack.yaml; give every pack an id of its own
    packs/b/agent-pack.yaml: error: `metadata.id` is the same as in packs/a/agent-pack.yaml; give every pack an id of its own
    packs/b/agent-pack.yaml:1:17: warning: metadata.id: the folder has another name, "b"; give both the same name, so that people find the pack
      1 | metadata: { id: a, description: x }
        |                 ^
    2 packs: 2 errors, 1 warning
    "#);
}

#[test]
fn a_folder_with_nothing_to_load_refuses_the_start() {
    let root = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs: error: there are no packs in this folder; put each one in a folder of its own: `<id>/agent-pack.yaml`
    0 packs: 1 error, 0 warnings
    "#);
    insta::assert_snapshot!(refused(&root.path().join("nowhere")).replace(&root.path().display().to_string(), "packs"), @r#"
    the packs do not load
    packs: error: cannot be read: entity not found; name a folder of packs
    0 packs: 1 error, 0 warnings
    "#);
    fs::create_dir(root.path().join("a")).unwrap();
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs: error: there are no packs in this folder; put each one in a folder of its own: `<id>/agent-pack.yaml`
    packs/a: warning: there is no pack in this folder; add agent-pack.yaml (or workspace.yaml, agent.yaml, core/mcp/*.yaml), or remove the folder
    0 packs: 1 error, 1 warning
    "#);
}

#[test]
fn two_files_in_one_folder_and_other_bytes_than_text_are_refused() {
    let (root, _) = store(&["a"]);
    fs::write(root.path().join("a/agent-pack.yml"), MINIMAL).unwrap();
    write_pack(root.path(), "b", "");
    fs::write(
        root.path().join("b/agent-pack.yaml"),
        b"metadata: { id: b }\nlanguages: \xff\n",
    )
    .unwrap();
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs/a: error: there are both agent-pack.yaml and agent-pack.yml; remove one of them
    packs/b/agent-pack.yaml: error: is not UTF-8 text (line 2); save it as UTF-8
    1 pack: 2 errors, 0 warnings
    "#);
}

#[test]
fn a_folder_with_another_name_than_the_pack_is_only_odd() {
    let root = tempfile::tempdir().unwrap();
    write_pack(root.path(), "somewhere", MINIMAL);
    let report = packs::check(root.path(), &env(&[]), None);
    let told = report
        .to_string()
        .replace(&root.path().display().to_string(), "packs");
    insta::assert_snapshot!(told, @r#"
    packs/somewhere/agent-pack.yaml:1:17: warning: metadata.id: the folder has another name, "somewhere"; give both the same name, so that people find the pack
      1 | metadata: { id: demo }
        |                 ^
    1 pack: 0 errors, 1 warning
    "#);
}

#[test]
fn the_version_changes_with_the_file_its_variables_and_its_env_files() {
    let root = tempfile::tempdir().unwrap();
    let text = format!(
        "{MINIMAL}mcp: {{ servers: [{{ name: x, transport: stdio, command: x, args: [\"${{A}}\"], envFile: x.env, toolAccess: {{}} }}] }}\n"
    );
    write_pack(root.path(), "demo", &text);
    let variables = |content: &str| fs::write(root.path().join("demo/x.env"), content).unwrap();
    let version = |a: &str, b: &str| {
        let store = PackStore::load(root.path(), &env(&[("A", a), ("B", b)]), None).unwrap();
        store.snapshot().packs().next().unwrap().version.clone()
    };
    variables("N=1\n");
    let first = version("1", "1");
    assert_eq!(first.len(), 64);
    assert_eq!(first, version("1", "2"), "a variable that is not used");
    assert_ne!(first, version("2", "1"));
    variables("N=2\n");
    let second = version("1", "1");
    assert_ne!(first, second);
    write_pack(root.path(), "demo", &format!("{text}# a comment\n"));
    assert_ne!(second, version("1", "1"));
}

#[test]
fn a_changed_pack_is_served_from_the_next_snapshot_on() {
    let (root, store) = store(&["a", "b"]);
    let before = store.snapshot();
    write_pack(root.path(), "a", &pack("a", "new"));
    let change = store.reload();
    assert_eq!(names(&change.changed), ["a"]);
    assert_eq!(description(&store, "a"), "new");
    assert_eq!(
        before
            .get(&AgentId::parse("a").unwrap())
            .unwrap()
            .metadata
            .description,
        "old"
    );
}

#[test]
fn a_broken_new_version_is_told_and_the_last_good_one_stays() {
    let (root, store) = store(&["a", "b"]);
    write_pack(root.path(), "a", "metadata: { id: a }\n");
    write_pack(root.path(), "b", &pack("b", "new"));
    let change = store.reload();
    assert_eq!(change.report.errors(), 2);
    assert_eq!(
        (description(&store, "a"), description(&store, "b")),
        ("old".to_owned(), "new".to_owned())
    );
    write_pack(root.path(), "a", &pack("a", "mended"));
    assert!(store.reload().report.is_ok());
    assert_eq!(description(&store, "a"), "mended");
}

#[test]
fn packs_come_and_go_with_their_folders() {
    let (root, store) = store(&["a", "b"]);
    write_pack(root.path(), "c", &pack("c", "new"));
    fs::remove_dir_all(root.path().join("a")).unwrap();
    let change = store.reload();
    assert_eq!(
        (names(&change.added), names(&change.removed)),
        (vec!["c"], vec!["a"])
    );
    assert_eq!(ids(&store), ["b", "c"]);
}

#[test]
fn a_newcomer_cannot_take_the_id_of_a_pack_that_serves() {
    let (root, store) = store(&["b"]);
    write_pack(root.path(), "a", &pack("b", "impostor"));
    let change = store.reload();
    assert_eq!(change.report.errors(), 2);
    assert_eq!(
        (ids(&store), description(&store, "b")),
        (vec!["b".to_owned()], "old".to_owned())
    );
}

#[test]
fn nothing_is_lost_when_the_folder_cannot_be_read() {
    let (root, store) = store(&["a"]);
    fs::remove_dir_all(root.path()).unwrap();
    let change = store.reload();
    assert!(!change.report.is_ok());
    assert_eq!(ids(&store), ["a"]);
}

#[test]
fn fifty_packs_load() {
    let root = tempfile::tempdir().unwrap();
    let bank = fs::read_to_string("packs/bank/agent-pack.yaml").unwrap();
    for number in 0..50 {
        let id = format!("bank-{number}");
        write_pack(
            root.path(),
            &id,
            &bank.replacen("id: bank", &format!("id: {id}"), 1),
        );
    }
    let env = env(&[
        ("BANK_MCP_URL", "http://127.0.0.1:9000/mcp"),
        ("BANK_TOKEN", "token"),
        ("LLM_MODEL", ""),
        ("LLM_PROVIDER", "none"),
        ("MCP_TIME_COMMAND", "python3"),
        ("NOTES_MCP_URL", "http://127.0.0.1:9001/mcp"),
        ("OPENAI_API_KEY", ""),
        ("OPENAI_BASE_URL", ""),
    ]);
    let store = PackStore::load(root.path(), &env, None).unwrap();
    assert_eq!(ids(&store).len(), 50);
}

async fn next(
    changes: &mut tokio::sync::broadcast::Receiver<std::sync::Arc<Change>>,
) -> std::sync::Arc<Change> {
    tokio::time::timeout(Duration::from_secs(20), changes.recv())
        .await
        .expect("a change is noticed")
        .unwrap()
}

#[tokio::test]
async fn watching_notices_a_changed_file_and_stops_when_cancelled() {
    let (root, store) = store(&["a"]);
    let (mut changes, cancel) = (store.changes(), CancellationToken::new());
    let watch = tokio::spawn({
        let (store, cancel) = (store.clone(), cancel.clone());
        async move { store.watch(cancel).await }
    });
    write_pack(root.path(), "a", &pack("a", "new"));
    assert_eq!(names(&next(&mut changes).await.changed), ["a"]);
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(20), watch)
        .await
        .expect("watching stops")
        .unwrap();
}

/// A pack may be several files; a new one is noticed as well.
#[tokio::test]
async fn watching_notices_a_new_file_of_a_pack() {
    let root = crate::support::packs::folder_of(&[(
        "core/mcp/a.yaml",
        "id: a\ntransport: http\nurl: https://a.example.org\n",
    )]);
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    let (mut changes, cancel) = (store.changes(), CancellationToken::new());
    let watched = store.clone();
    let _watch = tokio::spawn({
        let cancel = cancel.clone();
        async move { watched.reload_on_change(cancel).await }
    });
    fs::write(
        root.path().join("demo/core/mcp/b.yaml"),
        "id: b\ntransport: stdio\ncommand: b\n",
    )
    .unwrap();
    assert_eq!(names(&next(&mut changes).await.changed), ["demo"]);
    fs::write(
        root.path().join("demo/access.yaml"),
        "toolAccess: { b: { default: none } }\n",
    )
    .unwrap();
    assert_eq!(names(&next(&mut changes).await.changed), ["demo"]);
    cancel.cancel();
}

/// A `ConfigMap` is mounted as links into a folder that is itself a link, swapped at once.
#[tokio::test]
async fn watching_notices_swapped_links() {
    let root = tempfile::tempdir().unwrap();
    let mount = root.path().join("a");
    for version in ["old", "new"] {
        fs::create_dir_all(mount.join(format!("..{version}"))).unwrap();
        fs::write(
            mount.join(format!("..{version}/agent-pack.yaml")),
            pack("a", version),
        )
        .unwrap();
    }
    symlink("..old", mount.join("..data")).unwrap();
    symlink("..data/agent-pack.yaml", mount.join("agent-pack.yaml")).unwrap();
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    assert_eq!(description(&store, "a"), "old");
    let (mut changes, cancel) = (store.changes(), CancellationToken::new());
    let watched = store.clone();
    let _watch = tokio::spawn({
        let cancel = cancel.clone();
        async move { watched.reload_on_change(cancel).await }
    });
    symlink("..new", mount.join("..swap")).unwrap();
    fs::rename(mount.join("..swap"), mount.join("..data")).unwrap();
    next(&mut changes).await;
    assert_eq!(description(&store, "a"), "new");
    cancel.cancel();
}

#[tokio::test]
async fn a_hangup_reloads() {
    // From here on the signal no longer ends this process, whoever listens.
    let _guard = signal(SignalKind::hangup()).unwrap();
    let (root, store) = store(&["a"]);
    let (mut changes, cancel) = (store.changes(), CancellationToken::new());
    let watched = store.clone();
    let _watch = tokio::spawn({
        let cancel = cancel.clone();
        async move { watched.reload_on_hangup(cancel).await }
    });
    write_pack(root.path(), "a", &pack("a", "new"));
    let hang_up = async {
        loop {
            let kill = Command::new("kill")
                .args(["-HUP", &std::process::id().to_string()])
                .status();
            assert!(kill.unwrap().success());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        change = next(&mut changes) => assert_eq!(names(&change.changed), ["a"]),
        () = hang_up => {}
    }
    cancel.cancel();
}

#[tokio::test]
async fn watching_notices_a_changed_env_file() {
    let root = tempfile::tempdir().unwrap();
    let server = "mcp: { servers: [{ name: x, transport: stdio, command: x, envFile: x.env, toolAccess: {} }] }\n";
    write_pack(root.path(), "demo", &format!("{MINIMAL}{server}"));
    fs::write(root.path().join("demo/x.env"), "A=old\n").unwrap();
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    let (mut changes, cancel) = (store.changes(), CancellationToken::new());
    let watched = store.clone();
    let _watch = tokio::spawn({
        let cancel = cancel.clone();
        async move { watched.reload_on_change(cancel).await }
    });
    fs::write(root.path().join("demo/x.env"), "A=new\n").unwrap();
    assert_eq!(names(&next(&mut changes).await.changed), ["demo"]);
    cancel.cancel();
}

#[test]
fn a_file_that_is_none_refuses_the_start_and_a_name_nearly_right_is_told() {
    let (root, _) = store(&["a"]);
    for (folder, file) in [("b", "workspace.yml"), ("c", "Agent_Pack.yaml")] {
        fs::create_dir(root.path().join(folder)).unwrap();
        fs::write(root.path().join(folder).join(file), MINIMAL).unwrap();
    }
    fs::create_dir(root.path().join("d")).unwrap();
    symlink("nowhere", root.path().join("d/agent-pack.yaml")).unwrap();
    fs::create_dir_all(root.path().join("e/workspace.yaml")).unwrap();
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs/b: warning: there is no pack in this folder; rename workspace.yml to workspace.yaml
    packs/c: warning: there is no pack in this folder; rename Agent_Pack.yaml to agent-pack.yaml
    packs/d: error: agent-pack.yaml in this folder is not a file but a link to nothing; put the file there, or remove it
    packs/e: error: workspace.yaml in this folder is not a file; put the file there, or remove it
    1 pack: 2 errors, 2 warnings
    "#);
}

#[test]
fn a_file_of_any_size_is_refused_without_being_read() {
    let (root, _) = store(&["a"]);
    // Nobody has that much memory; on disk it takes no room.
    fs::File::create(root.path().join("a/agent-pack.yaml"))
        .unwrap()
        .set_len(1 << 42)
        .unwrap();
    insta::assert_snapshot!(refused(root.path()), @r#"
    the packs do not load
    packs/a/agent-pack.yaml: error: is larger than 1 MiB; make it smaller
    1 pack: 1 error, 0 warnings
    "#);
}

/// Its packs `a` (of two files and an `access.yaml`) and `b`.
fn of_files() -> (TempDir, PackStore) {
    let root = crate::support::packs::folder_of(&[
        (
            "core/mcp/a.yaml",
            "id: a\ntransport: http\nurl: https://a.example.org\n",
        ),
        (
            "core/mcp/more/b.yaml",
            "id: b\ntransport: http\nurl: https://b.example.org\n",
        ),
        (
            "access.yaml",
            "toolAccess: { a: { default: none }, b: { default: none } }\n",
        ),
    ]);
    let store = PackStore::load(root.path(), &env(&[]), None).unwrap();
    (root, store)
}

#[test]
fn an_access_file_in_any_broken_form_keeps_the_last_good_pack_and_refuses_the_start() {
    type Case = (&'static str, fn(&Path));
    let broken: [Case; 4] = [
        ("is not a file but a link to nothing", |file| {
            symlink("nowhere", file).unwrap();
        }),
        ("is not a file", |file| fs::create_dir(file).unwrap()),
        ("rename it to access.yaml", |file| {
            fs::write(file.with_extension("yml"), "").unwrap();
        }),
        ("rename it to access.yaml", |file| {
            fs::write(file.with_file_name("Access.yaml"), "").unwrap();
        }),
    ];
    for (said, make) in broken {
        let (root, store) = of_files();
        let before = store.snapshot().packs().next().unwrap().clone();
        fs::remove_file(root.path().join("demo/access.yaml")).unwrap();
        make(&root.path().join("demo/access.yaml"));
        let change = store.reload();
        assert!(
            change.report.to_string().contains(said),
            "{}",
            change.report
        );
        assert!(change.changed.is_empty() && change.removed.is_empty());
        assert_eq!(
            store.snapshot().packs().next().unwrap().version,
            before.version
        );
        assert!(refused(root.path()).contains(said));
    }
}

#[test]
fn a_folder_that_cannot_be_read_keeps_the_last_good_pack_and_is_said() {
    // A link in a circle can be read by nobody, whoever runs the tests.
    let circle = |path: &Path| {
        fs::remove_dir_all(path).unwrap();
        symlink(path, path).unwrap();
    };
    for folder in ["demo", "demo/core/mcp", "demo/core/mcp/more"] {
        let (root, store) = of_files();
        circle(&root.path().join(folder));
        let change = store.reload();
        assert!(
            change.report.to_string().contains("cannot be read"),
            "{}",
            change.report
        );
        assert!(
            change.changed.is_empty() && change.removed.is_empty(),
            "{folder}"
        );
        assert_eq!(store.snapshot().packs().next().unwrap().servers.len(), 2);
    }
    let (root, store) = of_files();
    fs::remove_dir_all(root.path().join("demo")).unwrap();
    symlink("nowhere", root.path().join("demo")).unwrap();
    let change = store.reload();
    assert!(
        change.removed.is_empty() && !change.report.is_ok(),
        "{}",
        change.report
    );
}
