//! A secret is planted, everything is done with it, and everything that was written anywhere is searched.

use serde_json::json;

use super::enter;
use crate::support::{
    canary::{everything_stored, spellings},
    client::{Client, Event},
    model::{calls, text},
    notes::{KEY, Notes},
    program::Program,
    servers::everything_script,
};

const CANARY: &str = "canary+T0ken/with=odd\"chars-71c4";

fn assert_clean(place: &str, found: &str) {
    for spelling in spellings(CANARY) {
        assert!(
            !found.contains(&spelling),
            "{place} holds the secret as {spelling:?}"
        );
    }
}

/// A place where something may be written, and something that is surely there.
fn assert_searched(place: &str, found: &str, control: &str) {
    assert!(
        found.contains(control),
        "{place} was not read; {control:?} is not in it:\n{found:.2000}"
    );
    assert_clean(place, found);
}

#[tokio::test]
async fn a_secret_is_in_no_message_model_request_result_or_row() {
    let notes = Notes::start().await;
    notes.grant(CANARY, "ann", &["read", "write"]);
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", CANARY).await.expect(200);
    enter(&ann, "notes", &format!("{CANARY}-wrong"))
        .await
        .expect(422);
    let chat = ann.open("notes").await;
    for spelling in ["raw", "base64", "hex", "url", "inside"] {
        world
            .model
            .reply(calls([(
                "notes__echo_token",
                json!({ "spelling": spelling }),
            )]))
            .reply(text("Done."));
        ann.say_and_wait(&chat, "go").await;
    }
    world
        .model
        .reply(calls([("notes__fail_with_token", json!({}))]))
        .reply(text("It failed."));
    ann.say_and_wait(&chat, "go").await;
    notes.revoke(CANARY);
    world
        .model
        .reply(calls([("notes__whoami", json!({}))]))
        .reply(text("Refused."));
    ann.say_and_wait(&chat, "go").await;
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert!(
        messages.matches("••••").count() >= 6,
        "the server did give it back: {messages}"
    );
    assert_clean("the conversation", &messages);
    for request in world.model.requests() {
        assert_clean("a model request", &request.body.to_string());
    }
    let stored = everything_stored(&world.db).await;
    assert!(
        stored.contains("sealed") || stored.contains("credentials: [\""),
        "the rows were read"
    );
    assert!(stored.contains("fail_with_token"), "the rows were read");
    assert_clean("the database", &stored);
    assert_clean("the metrics", &world.nobody().get("/metrics").await.text);
}

#[test]
fn every_spelling_is_found() {
    for spelling in spellings(CANARY) {
        let found =
            std::panic::catch_unwind(|| assert_clean("a text", &format!("before{spelling}after")));
        assert!(found.is_err(), "{spelling:?} is not found");
    }
}

/// A published server as a child of each user's own, with their secret in its environment.
const CHILD: &str = r#"
metadata: { id: child, displayName: Child, description: Everything, defaultLanguage: en }
languages: { en: { systemPrompt: "You have everything." } }
llm: { provider: none }
flows: { authentication: { required: true } }
mcp:
  servers:
    - name: notes
      transport: stdio
      command: node
      args: ["SCRIPT", stdio]
      accessMode: user-controlled
      userConfig: { fields: [{ name: token, type: secret, envName: CHILD_TOKEN }] }
      toolAccess: { default: public }
"#;

/// Somebody at the program, with every event of their conversation.
struct Talk {
    client: Client,
    chat: String,
    heard: Vec<Event>,
}

impl Talk {
    async fn open(client: &Client) -> Self {
        Self {
            client: client.clone(),
            chat: client.open("notes").await,
            heard: Vec::new(),
        }
    }

    async fn say(&mut self, text: &str) {
        let mut events = self.client.listen(&self.chat, None).await;
        let run = self.client.say(&self.chat, text).await;
        self.heard.extend(events.until_run_ends(&run).await);
    }
}

/// Everything that is refused, with the secret in it.
async fn errors(client: &Client) -> String {
    let put = |path: &str, body: String| {
        let request = client
            .request(http::Method::PUT, path)
            .header("content-type", "application/json");
        client.send(request.body(body))
    };
    let fields = |value: serde_json::Value| json!({ "fields": { "token": value } }).to_string();
    let path = "/v1/agents/notes/connections/notes";
    let mut bodies = String::new();
    for (path, body, status) in [
        (path, fields(json!(format!("{CANARY}-wrong"))), 422),
        (path, fields(json!(format!("{CANARY}é"))), 422),
        (path, fields(json!(format!("{CANARY}\nmore"))), 400),
        (path, fields(json!([CANARY])), 400),
        (path, json!({ "fields": CANARY }).to_string(), 400),
        (
            path,
            json!({ "fields": { "token": "a" }, "extra": CANARY }).to_string(),
            400,
        ),
        (path, fields(json!(CANARY)).replace('}', ""), 400),
        (
            "/v1/agents/notes/connections/nowhere",
            fields(json!(CANARY)),
            404,
        ),
    ] {
        let refused = put(path, body).await;
        assert_eq!(refused.status, status, "{}", refused.text);
        bodies += &refused.text;
    }
    bodies
}

/// Enters the secret on the page behind a one-time link; every page and answer on the way.
async fn page(client: &Client, url: &str) -> String {
    let mut seen = String::new();
    let mut messages = Vec::new();
    let mut say = async |text: &str| {
        messages.push(json!({ "role": "user", "content": text }));
        let asked = client
            .post(
                "/v1/chat/completions",
                json!({ "model": "notes", "messages": messages }),
            )
            .await;
        let said = asked.expect(200)["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        messages.push(json!({ "role": "assistant", "content": said }));
        said
    };
    let asked = say("/connect notes").await;
    let link = asked
        .lines()
        .last()
        .unwrap()
        .strip_prefix(url)
        .expect("a link")
        .to_owned();
    let form: String = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("token", CANARY)
        .finish();
    let nobody = Client::new(url, None);
    let request = nobody
        .request(http::Method::POST, &link)
        .header("content-type", "application/x-www-form-urlencoded");
    let sent = nobody.send(request.body(form)).await;
    let code = sent
        .text
        .split_once("<output>")
        .expect("a code")
        .1
        .split_once('<')
        .unwrap()
        .0
        .to_owned();
    seen += &(asked + &sent.text + &say(&code).await);
    seen
}

#[tokio::test]
async fn a_secret_is_in_nothing_that_the_program_writes_even_at_trace() {
    let notes = Notes::start().await;
    notes.grant(CANARY, "ann", &["read", "write"]);
    let child = CHILD.replace("SCRIPT", everything_script().to_str().unwrap());
    let world = notes
        .world_with(|setup| setup.packs.push(("child".to_owned(), child)))
        .await;
    let ann = world.user("ann", &[]).await;
    let world = world.stop().await;
    let program = Program::serve(&world, KEY, &["NOTES_URL", "MODEL_URL"]).await;
    let ann = ann.at(&program.url);
    let mut talk = Talk::open(&ann).await;

    assert_searched("an error", &errors(&ann).await, "\"unauthorized\"");
    for entered in [&format!("{CANARY}-wrong"), CANARY] {
        talk.say("/connect notes").await;
        talk.say(entered).await;
    }
    for spelling in ["raw", "base64", "hex", "url", "inside"] {
        world
            .model
            .reply(calls([(
                "notes__echo_token",
                json!({ "spelling": spelling }),
            )]))
            .reply(text("Done."));
        talk.say("go").await;
    }
    world
        .model
        .reply(calls([("notes__fail_with_token", json!({}))]))
        .reply(text("It failed."));
    talk.say("go").await;
    assert_searched("the page", &page(&ann, &program.url).await, "✅");

    enter(&ann, "child", CANARY).await.expect(200);
    let environment = ann.ask("child", "/call notes get-env").await;
    assert_searched(
        "a child's answer",
        &environment,
        "\"CHILD_TOKEN\": \"••••\"",
    );
    assert_searched(
        "a command line",
        &program.children().await,
        "server-everything",
    );

    notes.revoke(CANARY);
    world
        .model
        .reply(calls([("notes__whoami", json!({}))]))
        .reply(text("Refused."));
    talk.say("go").await;

    let heard: Vec<&str> = talk.heard.iter().map(|event| event.text.as_str()).collect();
    let heard = heard.join("\n");
    assert!(
        heard.matches("••••").count() >= 6,
        "the server did give it back: {heard}"
    );
    assert_searched("an event", &heard, "credential_rejected");
    for request in world.model.requests() {
        assert_searched("a model request", &request.body.to_string(), "\"messages\"");
    }
    let metrics = ann.get("/metrics").await.text;
    assert_searched(
        "the metrics",
        &metrics,
        "chatelaine_credentials_marked_total",
    );
    let log = program.stop().await;
    assert_searched("the log", &log, " TRACE ");
    assert_searched("the log", &log, "a user's credential needs their attention");
    let stored = everything_stored(&world.db).await;
    let audit = stored
        .lines()
        .find(|line| line.starts_with("audit: "))
        .expect("the audit was read");
    assert_searched("the audit", audit, "fail_with_token");
    assert_searched("the database", &stored, "credentials: [\"");
}
