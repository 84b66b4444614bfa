//! `chatelaine smoke` for a personal server, as an operator runs it.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::support::{
    notes::{Notes, pack},
    packs::write_pack,
    program::chatelaine,
};

/// What it prints when these lines are piped in, and whether it ended well.
async fn smoke(url: &str, server: Option<&str>, lines: &str) -> (bool, String) {
    let packs = tempfile::tempdir().unwrap();
    let (id, yaml) = pack("notes", "per-user");
    write_pack(packs.path(), &id, &yaml);
    let mut command = chatelaine(&["smoke", "notes"]);
    command
        .args(server)
        .env("CHATELAINE_PACKS", packs.path())
        .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1");
    command
        .env("NOTES_URL", url)
        .env("MODEL_URL", "http://127.0.0.1:1/v1")
        .env("CHATELAINE_LOG", "trace");
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .await
        .unwrap();
    let done = process.wait_with_output().await.unwrap();
    let said = [
        String::from_utf8(done.stdout).unwrap(),
        String::from_utf8(done.stderr).unwrap(),
    ];
    for line in lines.lines().filter(|line| !line.is_empty()) {
        assert!(
            !said.iter().any(|said| said.contains(line)),
            "it repeats {line:?}: {said:?}"
        );
    }
    let [out, err] = said;
    let complaint: String = err
        .lines()
        .filter(|line| line.starts_with("chatelaine: "))
        .collect();
    (done.status.success(), out + &complaint)
}

#[tokio::test]
async fn a_token_that_is_entered_shows_what_each_role_sees_with_it() {
    let notes = Notes::start().await;
    let (well, said) = smoke(notes.server.url.as_str(), Some("notes"), "writer-token-1\n").await;
    assert!(
        well && said.starts_with("notes notes: reachable in "),
        "{said}"
    );
    let row = said
        .lines()
        .find(|line| line.trim_start().starts_with("write_note"))
        .expect("its own tool is listed");
    assert_eq!(
        row.split_whitespace().skip(1).collect::<Vec<_>>(),
        ["yes", "yes"],
        "every user and admins: {said}"
    );
    let (_, said) = smoke(notes.server.url.as_str(), Some("notes"), "reader-token-1\n").await;
    assert!(
        said.contains("whoami") && !said.contains("write_note"),
        "{said}"
    );
}

#[tokio::test]
async fn a_failure_is_named_by_its_reason() {
    let notes = Notes::start().await;
    let nowhere = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let nowhere = format!("http://{nowhere}/mcp");
    let url = notes.server.url.as_str();
    for (url, entered, reason) in [
        (
            url,
            "not-a-token\n",
            "notes notes: unauthorized: the server does not accept",
        ),
        (
            nowhere.as_str(),
            "reader-token-1\n",
            "notes notes: unreachable: the server cannot be reached",
        ),
        (
            url,
            "tokén-of-ann\n",
            "notes notes: bad_template: what was entered does not fit",
        ),
        (
            url,
            "",
            "chatelaine: token: nothing was entered; a line is needed for each of: token",
        ),
        (url, "\n", "chatelaine: token is missing; enter a value"),
    ] {
        let (well, said) = smoke(url, Some("notes"), entered).await;
        assert!(!well && said.starts_with(reason), "{reason:?}: {said}");
    }
}

#[tokio::test]
async fn without_a_name_nobody_is_asked_for_anything() {
    let notes = Notes::start().await;
    let (well, said) = smoke(notes.server.url.as_str(), None, "").await;
    assert!(
        well && said.contains("`chatelaine smoke notes notes` asks for a credential"),
        "{said}"
    );
    assert_eq!(notes.count("tools/list"), 0);
}
