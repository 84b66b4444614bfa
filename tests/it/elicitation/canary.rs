//! What a user answers to a server is between the two: it is planted in every answer, by the real program at its most
//! talkative, and everything that is kept for operators is searched.

use serde_json::json;

use super::{OPEN, asking, form, responses, scripted};
use crate::support::{
    canary::{everything_stored, spellings},
    client::Client,
    offer::{answer, texts, world},
    program::Program,
    wait::eventually,
};

/// Its length is a multiple of three, so that its base64 is found in that of a longer text, too.
const CANARY: &str = "answer-canary-8f31";

fn assert_searched(place: &str, found: &str, control: &str) {
    assert!(
        found.contains(control),
        "{place} was not read; {control:?} is not in it:\n{found:.2000}"
    );
    for spelling in spellings(CANARY) {
        let at = found.find(&spelling);
        let around = at.map(|at| {
            found[at.saturating_sub(200)..]
                .chars()
                .take(500)
                .collect::<String>()
        });
        assert!(
            around.is_none(),
            "{place} holds the answer as {spelling:?}: {around:?}"
        );
    }
}

/// What is refused, with the answer in it.
async fn refused(ann: &Client, path: &str) {
    for answer in [
        json!({"field": "other", "value": CANARY}),
        json!({"field": "mail", "value": [CANARY]}),
        json!({"field": "mail", "value": CANARY, "else": CANARY}),
        json!(CANARY),
    ] {
        let refused = ann.post(path, json!({ "answer": answer })).await;
        assert!(
            (400..500).contains(&refused.status),
            "{answer}: {}",
            refused.text
        );
    }
}

/// Answers a field as a frontend does.
async fn fill(ann: &Client, chat: &str, field: &str, value: &str) {
    let mut events = ann.listen(chat, None).await;
    let path = format!("/v1/conversations/{chat}/messages");
    let posted = ann
        .post(&path, json!({"answer": {"field": field, "value": value}}))
        .await
        .expect(202);
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
}

#[tokio::test]
async fn an_answer_is_in_no_line_of_the_log_and_in_no_row_of_the_audit_trail_even_at_trace() {
    let fields = json!({"mail": {"type": "string", "format": "email"}, "name": {"type": "string"}});
    let server = asking(3, form(&fields)).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let ann = world.user("ann", &[]).await;
    let world = world.stop().await;
    let program = Program::serve(&world, &"5e".repeat(32), &["MODEL_URL", "DESK_URL"]).await;
    let ann = ann.at(&program.url);
    eventually(async || {
        let list = ann.get("/v1/agents/desk/connections").await.expect(200);
        list["items"][0]["state"] == "ready"
    })
    .await;
    let chat = ann.open("desk").await;
    let path = format!("/v1/conversations/{chat}/messages");
    assert!(texts(&answer(&ann, &chat, "Go").await).contains("Waiting: true"));
    refused(&ann, &path).await;

    let mail = format!("{CANARY}@example.org");
    assert!(texts(&answer(&ann, &chat, CANARY).await).contains("That does not fit."));
    answer(&ann, &chat, &mail).await;
    assert_eq!(
        answer(&ann, &chat, CANARY).await[0]["type"],
        "prompt",
        "it asks a second time"
    );
    fill(&ann, &chat, "mail", &mail).await;
    fill(&ann, &chat, "name", CANARY).await;
    // A third time, half answered when everything is searched.
    fill(&ann, &chat, "mail", &mail).await;
    refused(&ann, &path).await;
    let content = json!({"ask": {"action": "accept", "content": {"mail": mail, "name": CANARY}}});
    assert_eq!(
        responses(&server)[1..],
        [content.clone(), content],
        "the server does know"
    );

    assert_searched(
        "the metrics",
        &ann.get("/metrics").await.text,
        "chatelaine_elicitations_total",
    );
    let log = program.stop().await;
    assert_searched("the log", &log, " TRACE ");
    assert!(log.contains("desk"), "the log is of this server");
    let stored = everything_stored(&world.db).await;
    assert!(
        stored.contains(CANARY),
        "it stands in the conversation, so it would be found"
    );
    let of = |table: &str| {
        stored
            .lines()
            .find(|line| line.starts_with(table))
            .expect("the table was read")
            .to_owned()
    };
    assert_searched("the audit trail", &of("audit: "), "with the user's answer");
    assert_searched("the questions", &of("elicitations: "), "desk");
}
