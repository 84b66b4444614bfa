//! `/connect` in a conversation: list, pick, answer, test, result.

use std::time::Duration;

use domain::message::Role;
use serde_json::{Value, json};

use super::{connection, tools};
use crate::support::{
    client::Client,
    has::Has,
    model::{Gate, text},
    notes::{Notes, ring},
    wait::ended,
    world::World,
};

/// Says something; the parts that came back.
async fn say(client: &Client, chat: &str, text: &str) -> Vec<Value> {
    let run = client.say_and_wait(chat, text).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let messages = client.messages(chat).await;
    let answers = messages
        .iter()
        .filter(|message| message["run_id"] == run["id"] && message["role"] != "user");
    answers
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .collect()
}

fn texts(parts: &[Value]) -> String {
    parts
        .iter()
        .map(|part| part["text"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn a_user_connects_a_server_step_by_step() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    let list = say(&ann, &chat, "/connect").await;
    assert_eq!(list[0]["type"], "choices");
    assert_eq!(
        list[0]["choices"],
        json!([{ "value": "notes", "label": "⚠️ notes – not connected" }])
    );
    let asked = say(&ann, &chat, "1").await;
    asked[0].has(json!({ "type": "prompt", "secret": true }));
    assert!(
        texts(&asked).starts_with("notes: Your token of Notes?"),
        "{asked:?}"
    );
    let done = say(&ann, &chat, "reader-token-1").await;
    assert!(texts(&done).starts_with("✅"), "{done:?}");
    assert!(
        tools(&ann, "notes").await.contains(&"whoami".to_owned()),
        "in the very next toolset"
    );
    let list = say(&ann, &chat, "/connect").await;
    assert_eq!(list[0]["choices"][0]["label"], "✅ notes – connected");
}

#[tokio::test]
async fn a_typed_secret_is_kept_nowhere_but_sealed() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world
        .model
        .forbid("reader-token-1")
        .on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    let mut events = ann.listen(&chat, None).await;
    say(&ann, &chat, "/connect notes").await;
    let posted = ann
        .post(
            &format!("/v1/conversations/{chat}/messages"),
            json!({ "text": "reader-token-1" }),
        )
        .await;
    assert!(!posted.text.contains("reader-token-1"), "{}", posted.text);
    let run = posted.expect(202)["run"]["id"].as_str().unwrap().to_owned();
    let heard = events.until_run_ends(&run).await;
    assert!(
        heard
            .iter()
            .all(|event| !event.text.contains("reader-token-1"))
    );
    let messages = ann.messages(&chat).await;
    let said: Vec<_> = messages
        .iter()
        .filter(|message| message["role"] == "user")
        .collect();
    assert_eq!(
        said[1]["parts"],
        json!([{ "type": "text", "text": "••••" }])
    );
    ann.say_and_wait(&chat, "hello").await;
    let stored = crate::support::canary::everything_stored(&world.db).await;
    assert!(stored.contains("••••") && !stored.contains("reader-token-1"));
}

#[tokio::test]
async fn a_wrong_token_is_answered_with_the_reason_and_the_old_one_stays() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    say(&ann, &chat, "/connect notes").await;
    let failed = texts(&say(&ann, &chat, "not-a-token").await);
    assert!(
        failed.starts_with("⚠️ notes is not connected (unauthorized)"),
        "{failed}"
    );
    assert_eq!(connection(&ann, "notes").await["state"], "not_configured");
    say(&ann, &chat, "/connect notes").await;
    say(&ann, &chat, "reader-token-1").await;
    say(&ann, &chat, "/connect notes").await;
    let failed = texts(&say(&ann, &chat, "not-a-token").await);
    assert!(failed.contains("stays in force"), "{failed}");
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
}

#[tokio::test]
async fn cancel_ends_a_flow_at_every_step() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world.model.on(|_| Some(text("Hello.")));
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    for beginning in ["/connect", "/connect notes"] {
        say(&ann, &chat, beginning).await;
        assert_eq!(
            texts(&say(&ann, &chat, "/cancel").await),
            "Cancelled. Nothing was changed."
        );
        assert_eq!(
            texts(&say(&ann, &chat, "1").await),
            "Hello.",
            "said to the agent"
        );
    }
    assert_eq!(
        texts(&say(&ann, &chat, "/cancel").await),
        "There is nothing to cancel."
    );
}

/// A page that was reloaded draws a field for a question that is open, and for no other.
#[tokio::test]
async fn a_history_says_which_questions_are_over() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    let closed = |messages: &[Value]| -> Vec<bool> {
        let parts = messages
            .iter()
            .flat_map(|it| it["parts"].as_array().unwrap());
        let prompts = parts.filter(|part| part["type"] == "prompt");
        prompts.map(|part| part["closed"] == true).collect()
    };
    for (line, expected) in [
        ("/connect notes", vec![false]),
        ("/connect notes", vec![true, false]),
        ("/cancel", vec![true, true]),
    ] {
        say(&ann, &chat, line).await;
        let messages = ann.messages(&chat).await;
        assert_eq!(closed(&messages), expected, "{line}");
        let mut replayed = ann.listen(&chat, Some(0)).await;
        let mut read = Vec::new();
        while read.len() < messages.len() {
            let event = replayed.next().await.unwrap();
            if event.name == "message" {
                read.push(event.data);
            }
        }
        assert_eq!(closed(&read), expected, "{line}");
    }
}

#[tokio::test]
async fn a_second_flow_replaces_the_first_and_other_words_leave_the_list_alone() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world.model.on(|_| Some(text("Hello.")));
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    say(&ann, &chat, "/connect notes").await;
    assert_eq!(say(&ann, &chat, "/connect").await[0]["type"], "choices");
    assert_eq!(texts(&say(&ann, &chat, "what can you do?").await), "Hello.");
    assert_eq!(say(&ann, &chat, "NOTES").await[0]["type"], "prompt");
}

#[tokio::test]
async fn a_flow_survives_a_restart_in_the_middle() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let (token, chat) = {
        let ann = world.user("ann", &[]).await;
        let chat = ann.open("notes").await;
        say(&ann, &chat, "/connect notes").await;
        (ann.token().to_owned(), chat)
    };
    let world = world.stop().await.start().await;
    let ann = world.client(&token.into());
    assert!(texts(&say(&ann, &chat, "reader-token-1").await).starts_with("✅"));
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_neither_used_nor_shown_to_the_model() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world.model.forbid("reader-token-1");
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    say(&ann, &chat, "/connect notes").await;
    sqlx::query("update flows set expires_at = now() - interval '1 minute'")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert!(texts(&say(&ann, &chat, "reader-token-1").await).contains("took too long"));
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert!(!messages.contains("reader-token-1"), "{messages}");
    assert_eq!(connection(&ann, "notes").await["state"], "not_configured");
}

#[tokio::test]
async fn while_an_answer_is_on_its_way_there_is_no_second_one() {
    let notes = Notes::start().await;
    let world = notes
        .world_with(|setup| setup.config.runs_per_user_at_once = 1)
        .await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    say(&ann, &chat, "/connect notes").await;
    // Another run of hers keeps the answer waiting.
    let gate = Gate::new();
    world.model.reply(text("Hello.").gate(0, &gate));
    let other = ann.open("notes").await;
    ann.say(&other, "hello").await;
    gate.reached().await;
    let first = ann.say(&chat, "not-a-token").await;
    let path = format!("/v1/conversations/{chat}/messages");
    let second = json!({ "text": "reader-token-1" });
    let refused = ann.post(&path, second.clone()).await.expect(409);
    let why = refused["detail"].as_str().unwrap();
    assert!(why.contains("has an answer already"), "{refused}");
    ann.post(&format!("/v1/runs/{first}/cancel"), json!({}))
        .await
        .expect(202);
    ended(&ann, &first).await;
    let run = ann.post(&path, second).await.expect(202);
    gate.open();
    ended(&ann, run["run"]["id"].as_str().unwrap()).await;
    assert_eq!(connection(&ann, "notes").await["state"], "configured");
}

#[tokio::test]
async fn what_was_entered_and_never_sent_is_deleted() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let (old, new) = (ann.open("notes").await, ann.open("notes").await);
    for chat in [&old, &new] {
        say(&ann, chat, "/connect notes").await;
    }
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(
        "update flows set expires_at = now() - interval '2 hours' where conversation_id = $1::uuid",
    )
    .bind(&old)
    .execute(&mut db)
    .await
    .unwrap();
    chatelaine::app::chat::flows::purge_ended(world.app())
        .await
        .unwrap();
    let left: Vec<String> = sqlx::query_scalar("select conversation_id::text from flows")
        .fetch_all(&mut db)
        .await
        .unwrap();
    assert_eq!(left, [new]);
}

#[tokio::test]
async fn a_conversation_of_somebody_elses_flow_is_left_alone() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world.model.on(|_| Some(text("Hello.")));
    let ann = world.user("ann", &[]).await;
    let (first, second) = (ann.open("notes").await, ann.open("notes").await);
    say(&ann, &first, "/connect notes").await;
    assert_eq!(
        texts(&say(&ann, &second, "hi").await),
        "Hello.",
        "the other tab is not asked anything"
    );
    assert!(texts(&say(&ann, &first, "reader-token-1").await).starts_with("✅"));
}

#[tokio::test]
async fn disconnect_forgets_what_was_entered() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    say(&ann, &chat, "/connect notes").await;
    say(&ann, &chat, "reader-token-1").await;
    assert!(texts(&say(&ann, &chat, "/disconnect notes").await).contains("is disconnected"));
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    assert!(texts(&say(&ann, &chat, "/disconnect notes").await).contains("have not connected"));
    assert_eq!(
        say(&ann, &chat, "/connect nowhere").await[1]["type"],
        "choices"
    );
}

/// Several fields of every kind, in Spanish with a region; a header of two of them.
const MANY: &str = r#"
metadata: { id: many, displayName: Many, description: Many, defaultLanguage: fr }
languages: { fr: { strings: { MCP_CONFIG_MISSING: "Rien ?" } }, en: {} }
llm: { provider: none }
flows: { authentication: { required: true } }
mcp:
  servers:
    - name: many
      transport: streamable-http
      url: "${NOTES_URL}"
      accessMode: user-controlled
      userConfig:
        fields:
          - { name: region, type: select, label: { en: Region, fr: Région }, options: [{ value: eu, label: { en: Europe } }, us], headerName: X-Region }
          - { name: beta, type: boolean, label: { en: Beta }, headerName: X-Beta }
          - { name: page, type: url, label: { en: Page }, headerName: X-Page, required: false }
          - { name: token, type: secret, headerTemplate: "Bearer {value}" }
      toolAccess: { default: public }
"#;

#[tokio::test]
async fn several_fields_are_asked_one_by_one_and_each_is_checked() {
    let notes = Notes::start().await;
    let world = World::with(|setup| {
        setup.env = setup
            .env
            .clone()
            .with("NOTES_URL", notes.server.url.as_str());
        setup.config.ring = ring();
        setup.packs = vec![("many".to_owned(), MANY.to_owned())];
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("many").await;
    let region = say(&ann, &chat, "/connect many").await;
    assert_eq!(
        texts(&region),
        "many : Région\nAu choix : Europe, us",
        "the pack's language"
    );
    let again = say(&ann, &chat, "Asia").await;
    assert!(
        texts(&again).contains("Ce n'est aucune des options."),
        "{again:?}"
    );
    assert!(texts(&say(&ann, &chat, "europe").await).contains("Beta"));
    assert!(texts(&say(&ann, &chat, "peut-être").await).contains("oui ou non"));
    assert!(texts(&say(&ann, &chat, "oui").await).contains("Page"));
    assert!(texts(&say(&ann, &chat, "nowhere").await).contains("https://"));
    let token = say(&ann, &chat, "-").await;
    assert!(
        texts(&token).starts_with("many : token"),
        "the name of a field without a label: {token:?}"
    );
    let done = texts(&say(&ann, &chat, "reader-token-1").await);
    assert!(done.contains("est connecté"), "{done}");
    let messages = ann.messages(&chat).await;
    let typed: Vec<_> = messages
        .iter()
        .filter(|m| m["role"] == json!(Role::User))
        .map(|m| m["parts"][0]["text"].clone())
        .collect();
    assert_eq!(typed.last().unwrap(), "••••");
    assert!(
        typed.contains(&json!("oui")),
        "what is no secret is kept as it was said"
    );
    tokio::time::timeout(Duration::from_secs(5), async { world.stop().await })
        .await
        .expect("it stops in time");
}
