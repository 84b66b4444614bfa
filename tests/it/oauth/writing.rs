//! Codes, verifiers, access and refresh tokens are in nothing that the program writes.

use super::{code, guarded::Guarded, link, sign_in, world};
use crate::support::{
    canary::{everything_stored, spellings},
    client::Client,
    model::{calls, text},
    program::Program,
    servers::until,
};
use serde_json::json;

/// Says something, and takes down every event of the answer.
async fn hear(client: &Client, chat: &str, said: &str) -> String {
    let mut events = client.listen(chat, None).await;
    let run = client.say(chat, said).await;
    let heard = events.until_run_ends(&run).await;
    heard.into_iter().map(|event| event.text + "\n").collect()
}

#[tokio::test]
async fn nothing_secret_is_in_a_log_an_event_or_a_row_even_at_trace() {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let world = world.stop().await;
    let program = Program::serve(&world, &"5e".repeat(32), &["SERVER_URL", "MODEL_URL"]).await;
    let ann = ann.at(&program.url);
    let chat = ann.open("desk").await;
    let read = async || {
        let (one, model) = (json!({}), &world.model);
        model
            .reply(calls([("notes__read", one)]))
            .reply(text("So it is."));
        hear(&ann, &chat, "go").await
    };
    let mut heard = String::new();
    for _ in 0..2 {
        let back = sign_in(&program.url, &link(&ann, &chat).await).await;
        let page = Client::new(&program.url, None).get(&back).await;
        heard += &hear(&ann, &chat, &code(&page)).await;
    }
    heard += &read().await;
    guarded.end_access_tokens();
    heard += &read().await;
    guarded.turn(|knobs| knobs.away = true);
    guarded.end_access_tokens();
    heard += &read().await;
    guarded.turn(|knobs| knobs.away = false);
    heard += &hear(&ann, &chat, "/disconnect notes").await;
    until(|| guarded.seen(|seen| seen.revoked.len() == 1)).await;
    let back = sign_in(&program.url, &link(&ann, &chat).await).await;
    Client::new(&program.url, None).get(&back).await;
    let begun = guarded.seen(|seen| seen.secrets.clone());
    assert!(
        begun.len() >= 10,
        "codes, verifiers, access and refresh tokens: {begun:?}"
    );
    let metrics = ann.get("/metrics").await.text;
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    let log = program.stop().await;
    let stored = everything_stored(&world.db).await;
    for (place, found, control) in [
        ("an event", &heard, "connection_saved"),
        ("a message", &messages, "connection_saved"),
        ("the metrics", &metrics, "chatelaine_oauth_refreshes_total"),
        ("the log", &log, " TRACE "),
        ("the log", &log, "tokens of a user cannot be refreshed"),
        ("a row", &stored, "oauth_sign_ins: [\""),
    ] {
        assert!(
            found.contains(control),
            "{place} was not read: {found:.2000}"
        );
        for secret in begun
            .iter()
            .map(String::as_str)
            .chain(["client-secret-canary"])
        {
            for spelling in spellings(secret) {
                assert!(
                    !found.contains(&spelling),
                    "{place} holds {secret} as {spelling:?}"
                );
            }
        }
    }
}
