//! For clients that keep what is typed: a page of ours behind a one-time link, and a code.

use serde_json::{Value, json};

use super::{connection, tools};
use crate::support::{client::Client, notes::Notes, world::World};

/// An unchanged OpenAI client: it sends the whole transcript each time.
struct OpenAi {
    client: Client,
    messages: Vec<Value>,
}

impl OpenAi {
    async fn new(world: &World, user: &str) -> Self {
        Self {
            client: world.user(user, &[]).await,
            messages: Vec::new(),
        }
    }

    async fn say(&mut self, text: &str) -> String {
        self.messages
            .push(json!({ "role": "user", "content": text }));
        let body = json!({ "model": "notes", "messages": self.messages });
        let answer = self
            .client
            .post("/v1/chat/completions", body)
            .await
            .expect(200);
        let said = answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
        self.messages
            .push(json!({ "role": "assistant", "content": said }));
        said
    }
}

/// The path of the link in a text.
fn link(text: &str, world: &World) -> String {
    let address = text.lines().last().unwrap();
    address
        .strip_prefix(&world.url)
        .unwrap_or_else(|| panic!("no link in {text:?}"))
        .to_owned()
}

async fn send(world: &World, path: &str, form: &str) -> (u16, String) {
    let request = world.nobody().request(http::Method::POST, path);
    let request = request
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form.to_owned());
    let answer = world.nobody().send(request).await;
    (answer.status, answer.text)
}

fn code(page: &str) -> String {
    let (_, rest) = page
        .split_once("<output>")
        .unwrap_or_else(|| panic!("no code in {page}"));
    rest.split_once('<').unwrap().0.to_owned()
}

#[tokio::test]
async fn a_client_that_keeps_what_is_typed_gets_a_page() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let mut ann = OpenAi::new(&world, "ann").await;
    assert!(ann.say("/connect").await.contains("1. ⚠️ notes"));
    let path = link(&ann.say("notes").await, &world);
    let page = world.nobody().get(&path).await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-")
            && policy.contains("form-action 'self'"),
        "{policy}"
    );
    for forbidden in ["<script", "http://", "https://", "<img", "<link"] {
        assert!(!page.text.contains(forbidden), "{forbidden}: {}", page.text);
    }
    assert!(
        page.text
            .contains("<label for=\"f0\">Your token of Notes?</label><input type=\"password\""),
        "{}",
        page.text
    );
    for said in [
        "asks for this because you typed /connect",
        "stored encrypted",
        "/cancel",
    ] {
        assert!(page.text.contains(said), "{said}: {}", page.text);
    }
    let (status, sent) = send(&world, &path, "token=reader-token-1").await;
    assert_eq!(status, 200, "{sent}");
    assert!(!sent.contains("reader-token-1"));
    assert_eq!(
        connection(&ann.client, "notes").await["state"],
        "not_configured",
        "not before the code is named"
    );
    assert!(ann.say(&code(&sent)).await.starts_with("✅"));
    assert!(
        tools(&ann.client, "notes")
            .await
            .contains(&"whoami".to_owned())
    );
}

#[tokio::test]
async fn a_page_marks_what_may_be_left_out_and_chooses_nothing_for_its_user() {
    let notes = Notes::start().await;
    let more = "\n          - { name: region, type: text, required: false, label: { en: Region, es: Región }, headerName: X-R }\
                \n          - { name: beta, type: boolean, label: { en: Beta }, headerName: X-B }\n";
    let world = notes
        .world_with(|setup| {
            let yaml = &mut setup.packs[0].1;
            let template = "headerTemplate: \"Bearer {value}\"";
            *yaml = yaml.replace(template, &format!("{template}{more}"));
        })
        .await;
    let mut ann = OpenAi::new(&world, "ann").await;
    let path = link(&ann.say("/connect notes").await, &world);
    let page = world.nobody().get(&path).await.text;
    for part in [
        "<label for=\"f1\">Region (optional)</label>",
        "<select id=\"f2\" name=\"beta\" required><option value=\"\"></option><option value=\"true\">Yes</option>\
         <option value=\"false\">No</option></select>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn a_link_works_once() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let mut ann = OpenAi::new(&world, "ann").await;
    let path = link(&ann.say("/connect notes").await, &world);
    let (status, again) = send(&world, &path, "token=").await;
    assert_eq!(status, 422);
    assert!(
        again.contains("role=\"alert\""),
        "an empty field does not use it up: {again}"
    );
    assert_eq!(send(&world, &path, "token=reader-token-1").await.0, 200);
    assert_eq!(send(&world, &path, "token=reader-token-2").await.0, 404);
    world.nobody().get(&path).await.expect(404);
    let browser = world.nobody().request(http::Method::GET, &path);
    let browser = browser
        .header("accept", "text/html")
        .header("accept-language", "fr-CA,fr;q=0.9");
    let dead = world.nobody().send(browser).await;
    assert_eq!(dead.status, 404);
    assert_eq!(dead.header("content-type"), "text/html; charset=utf-8");
    assert!(dead.text.contains("lang=\"fr\"") && dead.text.contains("Tapez /connect"));
}

#[tokio::test]
async fn a_link_is_good_for_ten_minutes_and_until_the_flow_is_cancelled() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let mut ann = OpenAi::new(&world, "ann").await;
    let path = link(&ann.say("/connect notes").await, &world);
    sqlx::query("update flows set expires_at = now() - interval '1 second'")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    world.nobody().get(&path).await.expect(404);
    assert_eq!(send(&world, &path, "token=reader-token-1").await.0, 404);
    let path = link(&ann.say("/connect notes").await, &world);
    world.nobody().get(&path).await;
    assert!(ann.say("/cancel").await.starts_with("Cancelled"));
    world.nobody().get(&path).await.expect(404);
}

#[tokio::test]
async fn a_secret_typed_into_such_a_client_is_refused_and_kept_nowhere() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let mut ann = OpenAi::new(&world, "ann").await;
    ann.say("/connect notes").await;
    let refused = ann.say("reader-token-1").await;
    assert!(refused.contains("replace it at its server"), "{refused}");
    assert_eq!(
        connection(&ann.client, "notes").await["state"],
        "not_configured"
    );
    assert!(
        !crate::support::canary::everything_stored(&world.db)
            .await
            .contains("reader-token-1")
    );
}

#[tokio::test]
async fn a_page_that_waits_for_its_code_swallows_no_message() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    world
        .model
        .on(|_| Some(crate::support::model::text("As you say.")));
    let mut ann = OpenAi::new(&world, "ann").await;
    let path = link(&ann.say("/connect notes").await, &world);
    for message in [
        "What is the balance?",
        "hello",
        "Send 12.50 EUR to acme, please",
        "look at https://docs.example.org/a1b2c3d4e5f6a7b8",
        "in 2026?",
    ] {
        assert_eq!(ann.say(message).await, "As you say.", "{message}");
    }
    let refused = ann.say("token: reader-token-1").await;
    assert!(refused.contains("replace it at its server"), "{refused}");
    let (_, sent) = send(&world, &path, "token=reader-token-1").await;
    assert_eq!(
        ann.say("thanks, and where do I put the code?").await,
        "As you say."
    );
    assert!(ann.say(&code(&sent)).await.starts_with("✅"));
}

#[tokio::test]
async fn a_secret_that_a_client_shows_again_is_masked() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let secret = "reader-token-1";
    let ann = world.user("ann", &[]).await;
    super::enter(&ann, "notes", secret).await.expect(200);
    world.model.forbid(secret);
    world
        .model
        .on(|_| Some(crate::support::model::text("Hello.")));
    let said = |text: &str| json!({ "role": "user", "content": text });
    let answered = json!({ "role": "assistant", "content": format!("I read {secret}.") });
    let messages = json!([
        said(&format!("it is {secret}, I think")),
        answered,
        said("and now?")
    ]);
    let body = json!({ "model": "notes", "messages": messages });
    ann.post("/v1/chat/completions", body).await.expect(200);
    let request = world.model.last_request().to_string();
    assert!(request.contains("it is ••••, I think"), "{request}");
    assert!(
        !crate::support::canary::everything_stored(&world.db)
            .await
            .contains(secret)
    );
}

#[tokio::test]
async fn what_somebody_else_filled_in_does_not_count_without_the_code() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let mut eve = OpenAi::new(&world, "eve").await;
    let mut ann = OpenAi::new(&world, "ann").await;
    let path = link(&eve.say("/connect notes").await, &world);
    // Ann was made to follow Eve's link, and names its code where she was told to: in her own chat.
    let (_, sent) = send(&world, &path, "token=reader-token-1").await;
    world
        .model
        .on(|_| Some(crate::support::model::text("What code?")));
    assert_eq!(ann.say(&code(&sent)).await, "What code?");
    let mut wrong = code(&sent).parse::<u32>().unwrap();
    for _ in 0..5 {
        wrong = (wrong + 1) % 1_000_000;
        eve.say(&format!("{wrong:06}")).await;
    }
    let late = eve.say(&code(&sent)).await;
    assert!(
        !late.starts_with("✅"),
        "after five wrong ones the right one is worth nothing: {late}"
    );
    assert_eq!(
        connection(&eve.client, "notes").await["state"],
        "not_configured"
    );
}
