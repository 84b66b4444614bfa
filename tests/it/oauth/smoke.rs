//! `chatelaine smoke` for a server at which users sign in, as an operator runs it at a terminal.

use super::{PACK, fetch, guarded::Guarded};
use crate::support::{packs::write_pack, program::chatelaine, servers::until, terminal::Terminal};

#[tokio::test]
async fn an_operator_signs_in_and_sees_the_tools_and_nothing_of_it_stays() {
    let guarded = Guarded::start().await;
    let packs = tempfile::tempdir().unwrap();
    write_pack(packs.path(), "desk", &PACK.replace("AUTH", "auth: oauth"));
    let mut command = chatelaine(&["smoke", "desk", "notes"]);
    command
        .env("CHATELAINE_PACKS", packs.path())
        .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
        .env("SERVER_URL", guarded.url.as_str())
        .env("MODEL_URL", "http://127.0.0.1:1/v1")
        .env("CHATELAINE_LOG", "warn");
    let mut terminal = Terminal::of(command, 200);
    terminal.shows("desk notes: reachable").await;
    terminal
        .shows("users can sign in; scopes: notes:read")
        .await;
    terminal.shows("to try it, sign in at:").await;
    terminal.shows("code_challenge_method=S256").await;
    let shown = terminal.all();
    let link = shown
        .split_whitespace()
        .find(|word| word.contains("/authorize?"));
    let page = fetch(link.unwrap()).await;
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()["cache-control"], "no-store");
    assert!(
        page.text()
            .await
            .unwrap()
            .contains("Go back to the terminal")
    );
    terminal.shows("desk notes: reachable in ").await;
    terminal.shows("write").await;
    let shown = terminal.left().await;
    until(|| guarded.seen(|seen| seen.revoked.len() == 1)).await;
    for secret in guarded.seen(|seen| seen.secrets.clone()) {
        assert!(!shown.contains(&secret), "{secret} is shown");
    }
}
