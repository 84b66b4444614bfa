//! More tools than a request to a model takes.

use serde_json::{Value, json};

use super::connections;
use crate::support::{
    client::Client,
    many::{entry, pack},
    model::{calls, results, text, text_of, tool_names},
    scripted::{Scripted, Seen},
    world::World,
};

/// An agent with 40 tools, of which a request takes 8, and a tool that only its admin may call.
async fn many() -> (World, Client, Scripted) {
    let server = Scripted::modern(async |seen: Seen| {
        let mut tools: Vec<Value> = (0..39)
            .map(|n| json!({"name": format!("tool_{n}"), "description": format!("Does thing number {n}")}))
            .collect();
        tools.push(json!({"name": "exchange_rate", "description": "Tells what a euro is worth"}));
        tools.push(json!({"name": "purge_rates", "description": "Deletes every exchange rate"}));
        (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": tools })))
    })
    .await;
    let entries = entry("desk", &server.url, "").replace(
        "{ default: public }",
        "{ default: all, roles: { chief: [purge_rates] } }",
    );
    let world = World::with(|setup| {
        setup.packs.push(pack(&entries));
        setup.config.tools_per_request = 8;
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections(&ann, &[("desk", "ready")]).await;
    (world, ann, server)
}

#[tokio::test]
async fn a_model_finds_the_tool_that_it_needs_and_calls_it() {
    let (world, ann, server) = many().await;
    world
        .model
        .reply(calls([("search_tools", json!({"query": "exchange rate"}))]))
        .reply(calls([("desk__exchange_rate", json!({"of": "EUR"}))]))
        .reply(text("It is 1."));
    let chat = ann.open("many").await;
    ann.say_and_wait(&chat, "What is a euro worth?").await;
    let requests = world.model.requests();
    assert_eq!(tool_names(&requests[0].body), ["search_tools"]);
    assert!(text_of(&requests[0].body["messages"][0]).contains("`search_tools`"));
    assert_eq!(
        tool_names(&requests[1].body),
        ["search_tools", "desk__exchange_rate"],
        "and not the tool that is not hers"
    );
    assert_eq!(
        results(&requests[1].body),
        ["These tools can be called now:\ndesk__exchange_rate: Tells what a euro is worth"]
    );
    assert_eq!(results(&requests[2].body)[1], r#"{"of":"EUR"}"#);
    assert_eq!(server.requests("tools/call").len(), 1);

    world.model.reply(text("You are welcome."));
    ann.say_and_wait(&chat, "Thanks").await;
    assert_eq!(
        tool_names(&world.model.last_request()),
        ["search_tools", "desk__exchange_rate"],
        "what was found stays for the conversation"
    );
}

#[tokio::test]
async fn a_request_never_has_more_tools_than_it_takes() {
    let (world, ann, _server) = many().await;
    world
        .model
        .reply(calls([
            ("search_tools", json!({"query": "thing"})),
            ("search_tools", json!({"query": "nothing like this 77"})),
            ("search_tools", json!({"words": 7})),
        ]))
        .reply(text("Well."));
    ann.ask("many", "What can you do?").await;
    let last = world.model.last_request();
    assert_eq!(tool_names(&last).len(), 8);
    assert_eq!(tool_names(&last)[0], "search_tools");
    let told = results(&last);
    assert!(
        told[0].starts_with("These tools can be called now:\ndesk__tool_0: "),
        "{}",
        told[0]
    );
    assert_eq!(told[1], "No tool fits these words; try others.");
    assert_eq!(
        told[2],
        "not executed: search_tools needs the argument `query`"
    );
}
