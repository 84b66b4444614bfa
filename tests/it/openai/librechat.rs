//! What LibreChat sends as a custom endpoint, as its sources build it: the whole chat with each question, a list of
//! parts where there is an image, an option for usage, the user's id, and a title prompt after the first answer.

use domain::{
    account::{FrontendHeaders, KeyKind},
    principal::{Scope, Scopes},
};
use serde_json::{Value, json};

use super::{PATH, content, stream};
use crate::support::{
    client::Client,
    model::{results, text, tool_names},
    world::World,
};

/// Of LibreChat's `titleMethod: completion`.
const TITLE: &str = "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only \
                     return the title itself.\n\nConversation:\nUser: What is a euro?\nAI: Fine.";

/// The key that `librechat.yaml` names, speaking for a user in one of their chats.
async fn librechat(world: &World, user: &str, chat: &str) -> Client {
    let speaker = KeyKind::Frontend(FrontendHeaders::librechat());
    let name = format!("librechat-{}", user.len());
    let key = world.key(&name, Scopes::new([Scope::Chat]), speaker).await;
    world
        .client(&key)
        .with_header("x-librechat-user-id", user)
        .with_header("x-librechat-user-name", "b64:xYF1a2Fzeg==")
        .with_header("x-librechat-user-email", "lukasz@example.org")
        .with_header("x-librechat-user-role", "USER")
        .with_header("x-librechat-conversation-id", chat)
}

fn question(messages: &[Value]) -> Value {
    json!({
        "model": "office", "user": "65a1", "stream": true, "stream_options": { "include_usage": true },
        "temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "messages": messages,
    })
}

fn said(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

#[tokio::test]
async fn a_chat_with_a_title_an_image_a_regenerated_answer_and_a_client_tool() {
    let world = World::shared().await;
    world.model.on(|request| {
        assert!(results(request).is_empty());
        Some(text("Fine.").usage(5, 1))
    });
    let user = librechat(&world, "65a1", "c-1").await;
    let system = said("system", "You answer in short sentences.");
    let mut chat = vec![system, said("user", "What is a euro?")];
    let (chunks, done) = stream(&user, question(&chat)).await;
    assert!(done && content(&chunks) == "Fine.");
    assert_eq!(chunks.last().unwrap()["usage"]["total_tokens"], 6);

    // The title is asked for without a chat, and is no run.
    let title = json!({ "model": "office", "user": "65a1", "messages": [said("user", TITLE)] });
    user.post(PATH, title).await.expect(200);
    assert!(tool_names(&world.model.last_request()).is_empty());

    // The next question brings an image as a part, and what the interface adds to it.
    chat.push(said("assistant", "Fine."));
    let url = "data:image/png;base64,iVBORw0KGgoBAgM=";
    chat.push(json!({ "role": "user", "content": [
        { "type": "text", "text": "And this?" },
        { "type": "image_url", "image_url": { "url": url, "detail": "auto" } },
    ] }));
    let (chunks, _) = stream(&user, question(&chat)).await;
    assert_eq!(content(&chunks), "Fine.");
    assert!(world.model.last_request().to_string().contains(url));

    // Regenerated: the same transcript once more. A tool of the client's own agents builder is no hindrance.
    let mut again = question(&chat);
    let tool =
        json!({ "name": "web_search", "parameters": { "type": "object", "properties": {} } });
    again["tools"] = json!([{ "type": "function", "function": tool }]);
    let (chunks, _) = stream(&user, again).await;
    assert_eq!(content(&chunks), "Fine.");

    // One user, whichever request it was; the chat is one conversation, and the regenerated answer another.
    let me = user.get("/v1/me").await.expect(200);
    assert_eq!(me["name"], "Łukasz");
    let conversations = user.get("/v1/conversations").await.expect(200);
    let titles = conversations["items"].as_array().unwrap();
    assert!(!titles.is_empty() && titles.len() <= 2, "{conversations}");
    let other = librechat(&world, "another", "c-1").await;
    let theirs = other.get("/v1/conversations").await.expect(200);
    assert_eq!(theirs["items"], json!([]));
}

#[tokio::test]
async fn a_header_that_was_not_filled_is_refused_with_its_name() {
    let world = World::shared().await;
    let unfilled = librechat(&world, "{{LIBRECHAT_USER_ID}}", "c-1").await;
    let refused = unfilled.post(PATH, question(&[said("user", "hi")])).await;
    assert!([400, 401].contains(&refused.status), "{}", refused.text);
    assert!(
        refused.text.contains("LIBRECHAT_USER_ID") || refused.text.contains("X-LibreChat-User-Id"),
        "{}",
        refused.text
    );
}
