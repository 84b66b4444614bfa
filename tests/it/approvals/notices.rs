use std::collections::HashSet;

use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
};
use serde_json::Map;

use super::*;
use crate::support::client::Events;

/// A world whose model answers a greeting with "Hello.".
fn greets(world: &World) {
    let reply = |request: &Value| teller(request).or_else(|| Some(text("Hello.")));
    world.model.on(reply);
}

/// The answer to a text in a new chat of an OpenAI client.
async fn hello(client: &Client) -> String {
    say(client, &mut Vec::new(), "hello").await
}

/// The next notice of an open conversation.
async fn notice(events: &mut Events) -> Value {
    loop {
        let event = events.next().await.expect("a notice");
        if event.name == "notice" {
            return event.data;
        }
    }
}

#[tokio::test]
async fn an_approver_behind_an_openai_client_hears_once_of_what_waits_and_of_how_it_ended() {
    let world = world().await;
    greets(&world);
    let replica = world.replica().await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    let code = code(&request);
    // At another replica than the request.
    let bob = staff.bob.at(&replica.url);
    let mut chat = Vec::new();
    let told = say(&bob, &mut chat, "hello").await;
    let begins = format!("⏳ {code}: ann asks for bank send_money, until ");
    assert!(told.starts_with(&begins), "{told}");
    let link = format!("/#/approvals/{}\n\nHello.", request["id"].as_str().unwrap());
    assert!(
        told.contains("(in 1 h). The agent is bank.") && told.ends_with(&link),
        "{told}"
    );
    assert!(!told.contains("10.00"), "{told}");
    // Once for each person, in whatever chat.
    assert_eq!(say(&bob, &mut chat, "hello again").await, "Hello.");
    assert_eq!(hello(&staff.bob).await, "Hello.");
    assert!(hello(&staff.carl).await.starts_with(&begins));
    // The requester is told nothing of this kind, nor is who may not decide, nor another tenant.
    let eve = world.user("eve", &["employee"]).await;
    for other in [&staff.ann, &eve] {
        assert_eq!(hello(other).await, "Hello.");
    }
    // A notice has not shown the arguments.
    let approve = format!("/approve {code}");
    let shown = say(&bob, &mut chat, &approve).await;
    assert!(
        shown.contains("Nothing is decided yet") && shown.contains("10.00"),
        "{shown}"
    );
    assert_eq!(state(&staff.bob, &request).await, "pending");
    see().await;
    say(&bob, &mut chat, &approve).await;
    becomes(&staff.ann, &request, "succeeded").await;
    let ended = format!("✅ {code}: bank send_money was approved by bob and carried out.");
    let told = say(&bob, &mut chat, "and now?").await;
    assert!(
        told.starts_with(&ended) && told.ends_with("\n\nHello."),
        "{told}"
    );
    for approver in [&staff.bob, &staff.carl] {
        assert_eq!(hello(approver).await, "Hello.");
    }
    // No notice became a title or reached a model.
    for request in world.model.requests() {
        let seen = request.body.to_string();
        assert!(
            !seen.contains("asks for bank") && !seen.contains("The agent is"),
            "{seen}"
        );
    }
    let conversations = staff.bob.get("/v1/conversations").await.expect(200);
    let titles = conversations["items"].as_array().unwrap().iter();
    let titles: HashSet<_> = titles.map(|one| one["title"].as_str().unwrap()).collect();
    assert_eq!(titles, HashSet::from(["hello"]));
}

#[tokio::test]
async fn many_requests_are_one_notice_with_a_number() {
    let world = shared_world().await;
    greets(&world);
    let staff = Staff::of(&world).await;
    let mut requests = Vec::new();
    for amount in ["10.00", "11.00", "12.00", "13.00"] {
        requests.push(asked(&staff.ann, amount).await.1);
    }
    for (language, begins) in [
        (
            "en",
            "⏳ 4 requests wait for your decision. /approvals shows them.\n",
        ),
        (
            "es",
            "⏳ 4 solicitudes esperan tu decisión. /approvals las muestra.\n",
        ),
        (
            "fr",
            "⏳ 4 demandes attendent votre décision. /approvals les montre.\n",
        ),
    ] {
        let user = format!("manager-{language}");
        let approver = someone(&world, &user, "finance-manager", language).await;
        let told = hello(&approver).await;
        assert!(
            told.starts_with(begins) && told.ends_with("/#/approvals\n\nHello."),
            "{told}"
        );
        let chat = approver.open("bank").await;
        let live = notice(&mut approver.listen(&chat, None).await).await;
        assert_eq!(live["count"], 4, "{live}");
    }
    for request in &requests {
        approve(&staff.bob, request).await.expect(200);
    }
    for request in &requests {
        becomes(&staff.ann, request, "succeeded").await;
    }
    let told = hello(&staff.bob).await;
    assert!(
        told.starts_with("📌 4 calls that you approved have ended: "),
        "{told}"
    );
    for request in &requests {
        assert!(told.contains(code(request)), "{told}");
    }
}

#[tokio::test]
async fn a_key_that_names_nobody_gets_no_notice() {
    let world = shared_world().await;
    greets(&world);
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "10.00").await;
    let claims = Map::from_iter([("roles".to_owned(), json!(["finance-manager"]))]);
    let speaker = KeyKind::Service(claims);
    let key = world.key("desk", Scopes::new([Scope::Chat]), speaker).await;
    let desk = world.client(&key);
    assert_eq!(hello(&desk).await, "Hello.");
    let chat = desk.open("bank").await;
    let mut events = desk.listen(&chat, None).await;
    let run = desk.say(&chat, "hello").await;
    let heard = events.until_run_ends(&run).await;
    assert!(
        heard.iter().all(|event| event.name != "notice"),
        "{heard:?}"
    );
}

#[tokio::test]
async fn an_open_conversation_hears_of_what_waits_and_of_how_it_ended() {
    let world = world().await;
    greets(&world);
    let replica = world.replica().await;
    let staff = Staff::of(&world).await;
    let bea = someone(&world, "bea", "cfo", "es").await;
    let (there, chat) = (staff.bob.at(&replica.url), staff.bob.open("bank").await);
    let mut bob = there.listen(&chat, None).await;
    let mut spanish = bea.listen(&bea.open("bank").await, None).await;
    let own = staff.ann.open("bank").await;
    let mut ann = staff.ann.listen(&own, None).await;
    let (_, request) = asked(&staff.ann, "999999.00").await;
    let code = code(&request);
    let told = notice(&mut bob).await;
    assert_eq!(told["code"], "approval_waits", "{told}");
    let address = format!("/#/approvals/{}", request["id"].as_str().unwrap());
    assert!(
        told["count"] == 1 && told["link"].as_str().unwrap().ends_with(&address),
        "{told}"
    );
    let begins = format!("⏳ {code}: ann asks for bank send_money, until ");
    assert!(
        told["text"].as_str().unwrap().starts_with(&begins),
        "{told}"
    );
    let told = notice(&mut spanish).await;
    let words = told["text"].as_str().unwrap();
    assert!(
        words.contains("ann solicita bank send_money") && words.contains("El agente es bank."),
        "{words}"
    );
    // A page that is loaded again is told again of what still waits.
    assert_eq!(
        notice(&mut staff.bob.listen(&chat, None).await).await["count"],
        1
    );
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "failed").await;
    let told = notice(&mut bob).await;
    let ended = format!("⚠️ {code}: bank send_money was approved by bob and failed.");
    assert_eq!(told["code"], "approved_call_ended", "{told}");
    assert!(told["text"].as_str().unwrap().starts_with(&ended), "{told}");
    // Nothing is stored, and nothing is told after a reload: nothing waits any more.
    assert_eq!(staff.bob.messages(&chat).await.len(), 0);
    let mut again = staff.bob.listen(&chat, None).await;
    let run = staff.bob.say(&chat, "hello").await;
    let heard = again.until_run_ends(&run).await;
    assert!(
        heard.iter().all(|event| event.name != "notice"),
        "{heard:?}"
    );
    let run = staff.ann.say(&own, "hello").await;
    let heard = ann.until_run_ends(&run).await;
    assert!(
        heard.iter().all(|event| event.name != "notice"),
        "{heard:?}"
    );
}

#[tokio::test]
async fn an_approver_of_another_tenant_gets_no_notice() {
    let world = shared_world().await;
    greets(&world);
    let staff = Staff::of(&world).await;
    // The same name and the same role at the agent of the same name.
    let stranger = world.stranger_with("bob", &["finance-manager"]).await;
    let chat = stranger.open("bank").await;
    let mut theirs = stranger.listen(&chat, None).await;
    let mut own = staff.bob.listen(&staff.bob.open("bank").await, None).await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    assert_eq!(notice(&mut own).await["approval"], request["id"]);
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(notice(&mut own).await["code"], "approved_call_ended");
    // What the stranger hears by then, and a client that begins now.
    let run = stranger.say(&chat, "hello").await;
    let mut heard = theirs.until_run_ends(&run).await;
    let mut again = stranger.listen(&chat, None).await;
    let run = stranger.say(&chat, "hello").await;
    heard.extend(again.until_run_ends(&run).await);
    assert!(
        heard.iter().all(|event| event.name != "notice"),
        "{heard:?}"
    );
    asked(&staff.ann, "11.00").await;
    assert_eq!(hello(&stranger).await, "Hello.");
}
