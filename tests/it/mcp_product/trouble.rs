//! What users and those who run the agent are told of a server that cannot be used.

use http::StatusCode;
use serde_json::{Value, json};

use super::connections;
use crate::support::{
    client::plain,
    many::pack,
    model::{calls, results, text},
    scripted::{Reply, Scripted, Seen, reply, text as said},
    world::World,
};

/// Some way not to be a server that can be used, with its name and what people read of it.
type Odd = (&'static str, fn() -> Reply, &'static str);

const ODD: [Odd; 5] = [
    (
        "sign_in_required",
        || {
            let challenge = "Bearer error=\"invalid_token\", resource_metadata=\"https://example.org/.well-known/x\"";
            reply(
                StatusCode::UNAUTHORIZED,
                &[("www-authenticate", challenge)],
                "",
            )
        },
        "the server wants a sign-in (OAuth) or a token, and none is set up",
    ),
    (
        "rate_limited",
        || reply(StatusCode::TOO_MANY_REQUESTS, &[], ""),
        "busy at the moment",
    ),
    (
        "web_page",
        || reply(StatusCode::OK, &[("content-type", "text/html")], "<html>"),
        "a web page answers where the server should be",
    ),
    (
        "redirected",
        || {
            let to = [("location", "https://elsewhere.example.org/mcp")];
            reply(StatusCode::TEMPORARY_REDIRECT, &to, "")
        },
        "the server leads to another address",
    ),
    (
        "credential_refused",
        || reply(StatusCode::FORBIDDEN, &[], ""),
        "the server refuses the credential of this service",
    ),
];

#[tokio::test]
async fn people_read_what_is_wrong_with_a_server() {
    let (mut entries, mut servers) = (String::new(), Vec::new());
    for (name, answer, _) in ODD {
        let server = Scripted::start(move |_| async move { answer() }).await;
        entries += &crate::support::many::entry(&name.replace('_', "-"), &server.url, "");
        servers.push(server);
    }
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    let names: Vec<String> = ODD.iter().map(|odd| odd.0.replace('_', "-")).collect();
    let down: Vec<_> = names.iter().map(|name| (name.as_str(), "down")).collect();
    let views = connections(&ann, &down).await;
    let causes: Vec<&Value> = views.iter().map(|view| &view["cause"]).collect();
    assert_eq!(causes, ODD.map(|odd| odd.0));
    let chat = ann.open("many").await;
    for command in ["/connections", "/tools"] {
        ann.say_and_wait(&chat, command).await;
        let shown = plain(ann.messages(&chat).await.last().unwrap());
        for (name, _, words) in ODD {
            let name = name.replace('_', "-");
            let line = shown.lines().find(|line| line.starts_with(&name));
            assert!(
                line.is_some_and(|line| line.contains(words)),
                "{command}: {name}: {shown}"
            );
        }
    }
}

#[tokio::test]
async fn the_model_and_a_direct_call_hear_that_a_server_refuses_its_credential() {
    let server = Scripted::start(|_| async { reply(StatusCode::FORBIDDEN, &[], "") }).await;
    let entries = crate::support::many::entry("desk", &server.url, "");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    connections(&ann, &[("desk", "down")]).await;
    world.model.reply(text("It cannot be used."));
    let chat = ann.open("many").await;
    ann.say_and_wait(&chat, "What can you do?").await;
    let refused = "the server refuses the credential of this service";
    let asked = world.model.last_request()["messages"][1].to_string();
    assert!(
        asked.contains(&format!("cannot be used now: desk ({refused}")),
        "{asked}"
    );
    assert!(!asked.contains("being connected"), "{asked}");
    ann.say_and_wait(&chat, "/call desk echo").await;
    let said = plain(ann.messages(&chat).await.last().unwrap());
    assert!(
        said.contains("MCP server \"desk\" is not available: ") && said.contains(refused),
        "{said}"
    );
}

#[tokio::test]
async fn an_error_of_a_tool_reaches_the_model_as_one() {
    let server = Scripted::modern(async |seen: Seen| {
        let mut result = said("the account is closed");
        result["isError"] = json!(true);
        (seen.method() == "tools/call").then(|| seen.result(result))
    })
    .await;
    let entries = crate::support::many::entry("desk", &server.url, "");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    connections(&ann, &[("desk", "ready")]).await;
    world
        .model
        .reply(calls([("desk__echo", json!({}))]))
        .reply(text("It failed."));
    ann.ask("many", "go").await;
    assert_eq!(
        results(&world.model.last_request()),
        ["failed: the account is closed"]
    );
}
