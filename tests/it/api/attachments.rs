//! Images and text files: how they are kept, who may read them, and what the model sees of them.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Answer, Client},
    has::Has,
    model::{Request, call, error, last_user, results, text, tool_names},
    world::World,
};

const PNG: &[u8] = &[0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 1, 2, 3];
/// The same in base64.
const PNG_DATA: &str = "iVBORw0KGgoBAgM=";

async fn send(client: &Client, conversation: &str, name: &str, data: &[u8]) -> Answer {
    let path = format!("/v1/conversations/{conversation}/attachments?name={name}");
    let request = client.request(Method::POST, &path);
    client.send(request.body(data.to_vec())).await
}

/// Posts a message and waits for its answer.
async fn ask(client: &Client, conversation: &str, body: Value) {
    let mut events = client.listen(conversation, None).await;
    let path = format!("/v1/conversations/{conversation}/messages");
    let posted = client.post(&path, body).await.expect(202);
    let run = posted["run"]["id"].as_str().unwrap();
    events.until_run_ends(run).await;
}

/// The parts of the user's newest message as the model read it.
fn shown(request: &Value) -> Vec<Value> {
    let messages = request["messages"].as_array().unwrap().iter();
    let newest = messages
        .rev()
        .find(|message| message["role"] == "user")
        .unwrap();
    newest["content"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn an_image_is_kept_shown_to_the_model_and_deleted_with_its_conversation() {
    let world = World::start().await;
    world.model.on(|_| Some(text("A cat.")));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let id = ann.open("office").await;
    let made = send(&ann, &id, "..%2Fmy%20c%C3%A4t.png", PNG).await;
    let file = made.expect(201);
    file.has(json!({ "name": "my cät.png", "media_type": "image/png", "size": PNG.len() }));
    let place = made.header("location").to_owned();
    let read = ann.request(Method::GET, &place).send().await.unwrap();
    let headers = read.headers().clone();
    assert_eq!(headers["content-type"], "image/png");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(
        headers["content-security-policy"],
        "default-src 'none'; sandbox"
    );
    assert_eq!(
        headers["content-disposition"],
        "inline; filename*=UTF-8''my%20c%C3%A4t.png"
    );
    assert_eq!(read.bytes().await.unwrap(), PNG);
    bob.get(&place).await.expect(404);

    ask(
        &ann,
        &id,
        json!({ "text": "What is it?", "attachments": [file["id"]] }),
    )
    .await;
    let parts = shown(&world.model.last_request());
    assert!(
        parts[0]["text"]
            .as_str()
            .unwrap()
            .starts_with("What is it?\n[image: my cät.png")
    );
    let url = format!("data:image/png;base64,{PNG_DATA}");
    assert_eq!(parts[1]["image_url"]["url"], url);
    // The model sees it in later turns, too; an edit keeps it.
    ask(&ann, &id, json!({ "text": "Sure?" })).await;
    assert!(world.model.last_request().to_string().contains(PNG_DATA));
    let messages = ann.messages(&id).await;
    let first = messages
        .iter()
        .find(|message| message["role"] == "user")
        .unwrap();
    assert_eq!(first["parts"][1]["type"], "attachment");
    ask(
        &ann,
        &id,
        json!({ "replaces": first["id"], "text": "And this?" }),
    )
    .await;
    assert_eq!(
        shown(&world.model.last_request())[1]["image_url"]["url"],
        url
    );

    assert_eq!(
        ann.delete(&format!("/v1/conversations/{id}")).await.status,
        204
    );
    let left: i64 = sqlx::query_scalar("select count(*) from attachments")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_text_is_read_by_the_model_with_a_tool() {
    let world = World::start().await;
    world.model.on(|request| {
        if let Some(read) = results(request).pop() {
            return Some(text(format!("It says {read}")));
        }
        assert!(tool_names(request).contains(&"read_resource".to_owned()));
        let asked = last_user(request);
        let uri = asked
            .split("read it as ")
            .nth(1)
            .unwrap()
            .trim_end_matches(']');
        Some(text("").and_call(call("read_resource", json!({ "uri": uri }).to_string())))
    });
    let ann = world.user("ann", &[]).await;
    let id = ann.open("office").await;
    let file = send(&ann, &id, "notes.md", b"# Only 42").await.expect(201);
    assert_eq!(file["media_type"], "text/markdown");
    ask(&ann, &id, json!({ "attachments": [file["id"]] })).await;
    let messages = ann.messages(&id).await;
    assert_eq!(
        messages.last().unwrap()["parts"][0]["text"],
        "It says # Only 42"
    );
    let conversation = ann
        .get(&format!("/v1/conversations/{id}"))
        .await
        .expect(200);
    assert_eq!(conversation["title"], "notes.md");
    // It is never a page.
    let file = send(&ann, &id, "page.html", b"<script>alert(1)</script>").await;
    let read = ann.get(file.header("location")).await;
    assert_eq!(read.header("content-type"), "text/plain; charset=utf-8");
    assert!(
        read.header("content-disposition")
            .starts_with("attachment;")
    );
}

#[tokio::test]
async fn a_model_that_takes_no_images_answers_without_them() {
    let world = World::start().await;
    world.model.on(|request| {
        let has_image = request.to_string().contains("image_url");
        Some(if has_image {
            error(400, "this model does not support image input")
        } else {
            text("I cannot see it.")
        })
    });
    let ann = world.user("ann", &[]).await;
    let id = ann.open("office").await;
    let file = send(&ann, &id, "cat.png", PNG).await.expect(201);
    ask(
        &ann,
        &id,
        json!({ "text": "What is it?", "attachments": [file["id"]] }),
    )
    .await;
    let messages = ann.messages(&id).await;
    assert_eq!(
        messages.last().unwrap()["parts"][0]["text"],
        "I cannot see it."
    );
}

#[tokio::test]
async fn what_is_neither_image_nor_text_is_refused() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let (id, other) = (ann.open("office").await, ann.open("office").await);
    for data in [
        &b"%PDF-1.7\x00\x01"[..],
        b"",
        b"a\x00b",
        &[0xff, 0xfe, b'a'],
        b"  \n",
    ] {
        send(&ann, &id, "x.txt", data).await.expect(400);
    }
    let large = send(&ann, &id, "x.txt", &vec![b'a'; (10 << 20) + 1]).await;
    assert_eq!(large.expect(413)["code"], "body_too_large");
    let file = send(&ann, &id, "x.txt", b"a text").await.expect(201);
    let path = format!("/v1/conversations/{other}/messages");
    ann.post(&path, json!({ "text": "hi", "attachments": [file["id"]] }))
        .await
        .expect(400);
    let path = format!("/v1/conversations/{id}/messages");
    for wrong in [
        json!({ "text": "hi", "attachments": [file["id"], file["id"]] }),
        json!({ "menu": "tools", "attachments": [file["id"]] }),
        json!({ "text": "hi", "attachments": ["x"] }),
        json!({ "attachments": [] }),
    ] {
        ann.post(&path, wrong).await.expect(400);
    }
}

#[tokio::test]
async fn an_image_in_a_chat_completion_reaches_the_model() {
    let world = World::start().await;
    world.model.on(|_| Some(text("A cat.")));
    let ann = world.user("ann", &[]).await;
    let url = format!("data:image/png;base64,{PNG_DATA}");
    let content = json!([
        { "type": "text", "text": "What is it?" },
        { "type": "image_url", "image_url": { "url": url } },
    ]);
    let mut messages = vec![json!({ "role": "user", "content": content })];
    let body = json!({ "model": "office", "messages": messages });
    let first = ann.post("/v1/chat/completions", body).await;
    first.expect(200);
    let parts = shown(&world.model.last_request());
    assert!(
        parts
            .iter()
            .any(|part| part["image_url"]["url"] == url.as_str())
    );

    // The next turn finds the conversation, and with it the image.
    messages.push(json!({ "role": "assistant", "content": "A cat." }));
    messages.push(json!({ "role": "user", "content": "Sure?" }));
    let body = json!({ "model": "office", "messages": messages });
    let second = ann.post("/v1/chat/completions", body).await;
    second.expect(200);
    assert_eq!(
        first.header("x-conversation-id"),
        second.header("x-conversation-id")
    );
    assert!(world.model.last_request().to_string().contains(PNG_DATA));
}

#[tokio::test]
async fn a_large_image_reaches_the_model_over_every_protocol() {
    let world = World::start().await;
    world.model.on(|_| Some(text("A cat.")));
    let ann = world.user("ann", &[]).await;
    // Larger than other requests may be.
    let mut image = PNG.to_vec();
    image.resize(world.config.max_body_bytes + 1000, 0);
    let data = STANDARD.encode(image);
    let url = format!("data:image/png;base64,{data}");
    let said = json!({ "type": "text", "text": "What is it?" });
    let requests = [
        (
            "/v1/chat/completions",
            json!({ "model": "office", "messages": [{ "role": "user", "content":
                [said, { "type": "image_url", "image_url": { "url": url } }] }] }),
        ),
        (
            "/v1/responses",
            json!({ "model": "office", "input": [{ "role": "user", "content":
                [{ "type": "input_text", "text": "What is it?" }, { "type": "input_image", "image_url": url }] }] }),
        ),
        (
            "/v1/ui/chat",
            json!({ "id": "c", "agent": "office", "messages": [{ "id": "m", "role": "user", "parts":
                [said, { "type": "file", "mediaType": "image/png", "url": url }] }] }),
        ),
        (
            "/v1/agui/office",
            json!({ "threadId": "t", "runId": "r", "messages": [{ "id": "m", "role": "user", "content":
                [said, { "type": "image", "source": { "type": "data", "mimeType": "image/png", "value": data } }] }] }),
        ),
    ];
    for (path, body) in requests {
        let asked = world.model.requests().len();
        let answer = ann.post(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let shows = |request: &Request| request.body.to_string().contains(&url);
        assert!(
            world.model.requests()[asked..].iter().any(shows),
            "{path}: no image"
        );
    }
    let body = json!({ "agent": "office", "title": "x".repeat(world.config.max_body_bytes) });
    ann.post("/v1/conversations", body).await.expect(413);
}

/// What a form sends: each part is a name, a file name and a content.
fn form(parts: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, content) in parts {
        let head = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--edge--\r\n");
    body
}

#[tokio::test]
async fn a_form_is_read_as_its_file() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("office").await;
    let path = format!("/v1/conversations/{id}/attachments");
    let post = async |body: Vec<u8>| {
        let request = ann.request(Method::POST, &path);
        let media_type = "multipart/form-data; boundary=edge";
        ann.send(request.header("content-type", media_type).body(body))
            .await
    };
    let kept = post(form(&[("file", "cat.png", PNG)])).await.expect(201);
    kept.has(json!({ "name": "cat.png", "size": PNG.len() }));
    let none = post(form(&[])).await.expect(400);
    none["detail"].says("without a file");
    let two = post(form(&[("a", "a.txt", b"a"), ("b", "b.txt", b"b")])).await;
    two.expect(400)["detail"].says("several files");
}

/// What a day may hold is counted with what is stored, whichever conversation and replica it comes through.
#[tokio::test]
async fn a_guest_stores_so_much_in_a_day_and_hears_what_is_left() {
    let world = World::with(|setup| {
        setup.config.stored_per_guest_per_day = Some(1 << 20);
        setup.config.stored_by_guests_per_day = Some(3 << 19);
    })
    .await;
    let half = vec![b'a'; 600 << 10];
    let guest = world.guest().await;
    let (first, second) = (guest.open("bank").await, guest.open("bank").await);
    send(&guest, &first, "a.txt", &half).await.expect(201);
    let refused = send(&guest, &second, "b.txt", &half).await;
    let detail = refused.expect(429)["detail"].clone();
    let detail = detail.as_str().unwrap();
    assert!(
        detail.contains("of the 1.0 MiB that may be stored today, and this takes 600 KiB"),
        "{detail}"
    );
    assert!(!refused.header("retry-after").is_empty());
    let usage = guest.get("/v1/me").await.expect(200)["usage"].clone();
    assert!(usage["stored_bytes"].as_i64().unwrap() > 600 << 10);
    assert_eq!(usage["stored_bytes_limit"], 1 << 20);
    // Another guest shares what all guests may store.
    let other = world.guest().await;
    let third = other.open("bank").await;
    send(&other, &third, "c.txt", &half).await.expect(201);
    let last = world.guest().await;
    let fourth = last.open("bank").await;
    send(&last, &fourth, "d.txt", &half).await.expect(429);
    // A user is no guest.
    let ann = world.user("ann", &[]).await;
    let hers = ann.open("bank").await;
    send(&ann, &hers, "e.txt", &half).await.expect(201);
}

#[tokio::test]
async fn messages_and_conversations_count_as_stored() {
    let world = World::with(|setup| setup.config.stored_per_user_per_day = Some(20 << 10)).await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let path = format!("/v1/conversations/{id}/messages");
    let say = async |text: String| ann.post(&path, json!({ "text": text })).await;
    let long = format!("/help {}", "x".repeat(9000));
    let mut refused = None;
    for _ in 0..4 {
        let answer = say(long.clone()).await;
        if answer.status != 202 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("the fourth message of 9 KB does not fit into 20 KiB");
    assert_eq!(refused.expect(429)["code"], "quota_exceeded");
}

#[test]
fn a_name_shows_its_letters_in_the_order_in_which_they_are() {
    let name = domain::attachment::clean_name("\u{202e}gnp.e\u{2028}x\u{200b}e", "image/png");
    assert_eq!(name, "gnp.exe");
    let marked = format!("A{}nn", "\u{301}".repeat(64));
    assert_eq!(
        domain::hidden::clean_name(&marked).as_deref(),
        Some("A\u{301}\u{301}nn")
    );
}
