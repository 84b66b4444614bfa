//! Editing and asking again: branches, what the model reads in them, and what becomes of approvals.

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    bank,
    client::{Answer, Client, plain},
    has::Has,
    model::{Gate, calls, last_user, text},
    world::{TIME_LIMIT, World},
};

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, wait)
        .await
        .expect("it never became true");
}

fn path(conversation: &str) -> String {
    format!("/v1/conversations/{conversation}/messages")
}

/// What was said in a branch, absent: the active one.
async fn texts(client: &Client, conversation: &str, branch: &str) -> Vec<String> {
    let page = client
        .get(&format!("{}?after=0{branch}", path(conversation)))
        .await
        .expect(200);
    let items = page["items"].as_array().unwrap().iter();
    let shown = items.filter(|message| message["role"] != "system");
    shown.map(plain).collect()
}

/// The id of the user's message with this text.
async fn message(client: &Client, conversation: &str, text: &str) -> String {
    let all = client.messages(conversation).await;
    let found = all
        .iter()
        .find(|message| message["role"] == "user" && plain(message) == text);
    found.unwrap()["id"].as_str().unwrap().to_owned()
}

/// Replaces a message and waits for the answer.
async fn replace(client: &Client, conversation: &str, body: Value) -> Value {
    let mut events = client.listen(conversation, None).await;
    let posted = client.post(&path(conversation), body).await.expect(202);
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
    posted
}

async fn switch(client: &Client, conversation: &str, branch: i64) -> Answer {
    let path = format!("/v1/conversations/{conversation}");
    let request = client.request(Method::PATCH, &path);
    client
        .send(request.json(&json!({ "branch": branch })))
        .await
}

fn echoing(world: &World) {
    world
        .model
        .on(|request| Some(text(format!("re {}", last_user(request)))));
}

#[tokio::test]
async fn an_edit_makes_a_branch_and_the_model_reads_only_that() {
    let world = World::shared().await;
    echoing(&world);
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    for said in ["kiwi", "plum", "pear"] {
        ann.say_and_wait(&id, said).await;
    }
    let plum = message(&ann, &id, "plum").await;
    let posted = replace(&ann, &id, json!({ "replaces": plum, "text": "zwei" })).await;
    assert_eq!(posted["message"]["branch"], 1);
    assert_eq!(
        texts(&ann, &id, "").await,
        ["kiwi", "re kiwi", "zwei", "re zwei"]
    );
    let first = ["kiwi", "re kiwi", "plum", "re plum", "pear", "re pear"];
    assert_eq!(texts(&ann, &id, "&branch=0").await, first);
    let request = world.model.last_request().to_string();
    let is_read = ["re kiwi", "zwei", "plum", "pear"].map(|words| request.contains(words));
    assert_eq!(is_read, [true, true, false, false], "{request}");

    // What follows belongs to the branch, and so does what is asked after a switch back.
    ann.say_and_wait(&id, "more").await;
    assert_eq!(texts(&ann, &id, "").await.last().unwrap(), "re more");
    assert_eq!(switch(&ann, &id, 0).await.expect(200)["branch"], 0);
    assert_eq!(texts(&ann, &id, "").await, first);
    ann.say_and_wait(&id, "four").await;
    assert!(!world.model.last_request().to_string().contains("zwei"));

    let branches = ann
        .get(&format!("/v1/conversations/{id}/branches"))
        .await
        .expect(200);
    let list = branches["items"].as_array().unwrap();
    let seq = posted["message"]["seq"].as_i64().unwrap();
    list[0].has(json!({ "number": 0, "active": true }));
    list[1].has(json!({ "number": 1, "parent": 0 }));
    assert!(list[1]["from_seq"].as_i64().unwrap() < seq);
}

#[tokio::test]
async fn asking_again_makes_versions_of_one_message() {
    let world = World::shared().await;
    world
        .model
        .reply(text("first"))
        .reply(text("second"))
        .reply(text("third"));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "hi").await;
    let asked = message(&ann, &id, "hi").await;
    let again = replace(&ann, &id, json!({ "replaces": asked })).await;
    let newest = again["message"]["id"].as_str().unwrap();
    replace(&ann, &id, json!({ "replaces": newest })).await;
    assert_eq!(texts(&ann, &id, "").await, ["hi", "third"]);
    assert_eq!(texts(&ann, &id, "&branch=1").await, ["hi", "second"]);
    let branches = ann
        .get(&format!("/v1/conversations/{id}/branches"))
        .await
        .expect(200);
    let places: Vec<_> = branches["items"].as_array().unwrap()[1..]
        .iter()
        .map(|branch| (branch["parent"].clone(), branch["from_seq"].clone()))
        .collect();
    assert_eq!(
        places[0], places[1],
        "both stand in the place of one message"
    );
    let page = ann.get("/v1/conversations").await.expect(200);
    assert_eq!(page["items"][0]["title"], "hi");
}

#[tokio::test]
async fn no_branch_is_made_or_left_while_an_answer_is_on_its_way() {
    let world = World::shared().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("one"))
        .reply(text("slow").gate(1, &gate));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "hi").await;
    let hi = message(&ann, &id, "hi").await;
    let mut events = ann.listen(&id, None).await;
    let run = ann.say(&id, "more").await;
    gate.reached().await;
    let edit = json!({ "replaces": hi, "text": "ho" });
    let busy = ann.post(&path(&id), edit.clone()).await.expect(409);
    assert_eq!(busy["code"], "conversation_busy");
    switch(&ann, &id, 0).await.expect(409);
    ann.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    events.until_run_ends(&run).await;
    switch(&ann, &id, 7).await.expect(400);
    bob.post(&path(&id), edit).await.expect(404);
    let all = ann.messages(&id).await;
    let answer = all
        .iter()
        .find(|message| message["role"] == "assistant")
        .unwrap();
    for wrong in [
        json!({ "replaces": answer["id"], "text": "x" }),
        json!({ "replaces": uuid::Uuid::now_v7(), "text": "x" }),
        json!({ "replaces": hi, "menu": "tools" }),
        json!({ "replaces": hi, "text": "" }),
    ] {
        ann.post(&path(&id), wrong).await.expect(400);
    }
    assert_eq!(texts(&ann, &id, "").await[..2], ["hi", "one"]);
}

/// Money that Fred asks for needs the consent of a manager.
const GUARDED: &str = "{
  default: none,
  roles: { finance: [send_money], manager: [send_money] },
  approval: [{ tools: [send_money], approvers: [manager], selfApproval: false }],
}";

#[tokio::test]
async fn a_request_for_consent_is_taken_back_with_the_message_that_asked_for_it() {
    let world = World::with(|setup| {
        setup.packs.push(bank::pack("guarded", GUARDED));
    })
    .await;
    world.model.on(|request| {
        let asked = last_user(request);
        let wants = asked == "send 100" && crate::support::model::results(request).is_empty();
        let money = json!({ "to": "acme", "amount": "100.00", "currency": "EUR", "from_account": "current" });
        Some(if wants {
            calls([("bank__send_money", money)])
        } else {
            text("Fine.")
        })
    });
    let fred = world.user("fred", &["finance"]).await;
    let ready = async || {
        fred.get("/v1/agents/guarded/tools")
            .await
            .text
            .contains("send_money")
    };
    until(ready).await;
    let id = fred.open("guarded").await;
    fred.say_and_wait(&id, "send 100").await;
    let waiting = fred.get("/v1/approvals?role=requester").await.expect(200);
    assert_eq!(waiting["items"][0]["state"], "pending", "{waiting}");
    let asked = message(&fred, &id, "send 100").await;
    replace(
        &fred,
        &id,
        json!({ "replaces": asked, "text": "never mind" }),
    )
    .await;
    let gone = async || {
        let page = fred.get("/v1/approvals?role=requester").await.expect(200);
        page["items"][0]["state"] == "cancelled"
    };
    until(gone).await;
}
