use serde_json::json;

use super::*;
use crate::support::{
    client::plain,
    has::Has,
    notes::{Notes, pack},
};

/// Notes that an approver must agree to, over everybody's own connection.
async fn notes_world(notes: &Notes) -> World {
    let (id, yaml) = pack("notes", "shared");
    let access =
        "toolAccess: { default: public, approval: [{ tools: [write_note], approvers: [editor] }] }";
    let yaml = yaml.replace("toolAccess: { default: public }", access);
    let yaml = yaml.replace(
        "adminUsers: [root]",
        "rolesAttribute: roles, adminUsers: [root]",
    );
    assert!(yaml.contains(access) && yaml.contains("rolesAttribute"));
    notes
        .world_with(|setup| setup.packs = vec![(id, yaml)])
        .await
}

async fn enter(client: &Client, token: &str) {
    let request = client.request(http::Method::PUT, "/v1/agents/notes/connections/notes");
    client
        .send(request.json(&json!({ "fields": { "token": token } })))
        .await
        .expect(200);
}

/// Asks by a command, without a model.
async fn write(client: &Client, text: &str) -> (String, Value) {
    let conversation = client.open("notes").await;
    client
        .say_and_wait(
            &conversation,
            &format!("/call notes write_note {}", json!({ "text": text })),
        )
        .await;
    let mine = client
        .get("/v1/approvals?role=requester&limit=1")
        .await
        .expect(200);
    (conversation, mine["items"][0].clone())
}

#[tokio::test]
async fn an_approved_call_goes_out_with_the_requesters_own_credential() {
    let notes = Notes::start().await;
    let world = notes_world(&notes).await;
    let (ann, eve) = (
        world.user("ann", &[]).await,
        world.user("eve", &["editor"]).await,
    );
    enter(&ann, "writer-token-1").await;
    let (conversation, request) = write(&ann, "hello").await;
    approve(&eve, &request).await.expect(200);
    becomes(&ann, &request, "succeeded").await;
    assert_eq!(notes.count("tools/call"), 1);
    // A command asked, so the outcome is for the person alone.
    assert_eq!(
        notes_of(&ann, &conversation).await,
        ["pending", "succeeded"]
    );
    assert!(world.model.requests().is_empty());
}

#[tokio::test]
async fn a_credential_that_was_replaced_meanwhile_is_not_used_for_what_was_approved() {
    let notes = Notes::start().await;
    let world = notes_world(&notes).await;
    let (ann, eve) = (
        world.user("ann", &[]).await,
        world.user("eve", &["editor"]).await,
    );
    notes.grant("writer-token-2", "writer2", &["read", "write"]);
    enter(&ann, "writer-token-1").await;
    let (_, request) = write(&ann, "hello").await;
    enter(&ann, "writer-token-2").await;
    approve(&eve, &request).await.expect(409);
    let view = becomes(&ann, &request, "revoked").await;
    view["reason"].says("credential has changed");
    assert_eq!(notes.count("tools/call"), 0);
}

#[tokio::test]
async fn without_a_credential_nothing_is_asked_for() {
    let notes = Notes::start().await;
    let world = notes_world(&notes).await;
    let ann = world.user("ann", &[]).await;
    let (conversation, request) = write(&ann, "hello").await;
    assert_eq!(request, Value::Null);
    assert!(
        plain(ann.messages(&conversation).await.last().unwrap()).contains("type /connect notes")
    );
}

async fn notes_of(client: &Client, conversation: &str) -> Vec<String> {
    let notes = notes(client, conversation).await;
    notes
        .iter()
        .map(|note| note["state"].as_str().unwrap().to_owned())
        .collect()
}
