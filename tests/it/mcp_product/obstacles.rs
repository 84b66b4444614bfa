//! A tool that cannot be called, in the sentences of the AOS document; and to whom nothing is told.

use serde_json::json;

use super::write_agent;
use crate::support::{
    client::{Client, plain},
    many::connections_of,
    model::{calls, results, text, text_of, tool_names},
    offer::audited,
    scripted::{Scripted, Seen},
    wait::eventually,
    world::World,
};

async fn called(client: &Client, agent: &str, line: &str) -> String {
    let chat = client.open(agent).await;
    client.say_and_wait(&chat, line).await;
    plain(client.messages(&chat).await.last().unwrap())
}

/// A server with more tools than are sanctioned.
async fn search() -> Scripted {
    Scripted::modern(async |seen: Seen| {
        let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let tools = ["web_search", "web_fetch"].map(tool);
        (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": tools })))
    })
    .await
}

/// An AOS project with that server, one where nobody listens, and a skill of each.
async fn project(search: &Scripted) -> World {
    let server = format!(
        "id: search\ntransport: http\nurl: {}\ntool_allowlist: [\"web_search\"]\n",
        search.url
    );
    let gone = "id: gone\ntransport: http\nurl: http://127.0.0.1:9/mcp\n";
    let skill = |id: &str, server: &str| {
        format!(
            "id: {id}\nname: {id}\nmcp_binding: {{ server: {server}, tools: [\"web_search\"] }}\n"
        )
    };
    let (found, lost) = (skill("web-search", "search"), skill("lost", "gone"));
    World::with(|setup| {
        let files = [
            ("core/mcp/search.yaml", server.as_str()),
            ("core/mcp/gone.yaml", gone),
            ("core/skills/web-search/skill.yaml", &found),
            ("core/skills/lost/skill.yaml", &lost),
        ];
        write_agent(setup, "aos", &files);
    })
    .await
}

#[tokio::test]
async fn a_tool_outside_the_allowlist_is_refused_by_name_before_anything_is_sent() {
    let server = search().await;
    let world = project(&server).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("search", "ready"), ("gone", "down")]).await;
    // One that the server has, and one that may come later.
    for tool in ["web_fetch", "web_search_2"] {
        let sentence = format!("Tool \"{tool}\" is not allowlisted for MCP server \"search\"");
        assert_eq!(
            called(&ann, "aos", &format!("/call search {tool}")).await,
            format!("not executed: {sentence}")
        );
    }
    world
        .model
        .reply(calls([("search__web_fetch", json!({}))]))
        .reply(text("I may not."));
    assert_eq!(ann.ask("aos", "fetch it").await, "I may not.");
    assert_eq!(
        tool_names(&world.model.requests()[0].body),
        ["search__web_search"]
    );
    let told = results(&world.model.last_request()).remove(0);
    assert_eq!(
        told,
        "not executed: Tool \"web_fetch\" is not allowlisted for MCP server \"search\""
    );
    assert_eq!(server.requests("tools/call").len(), 0);
    eventually(async || {
        let lines = audited(&world, "tool.call").await;
        lines
            .iter()
            .filter(|line| *line == "search web_fetch denied")
            .count()
            == 2
    })
    .await;
    assert_eq!(
        called(&ann, "aos", "/web-search rust").await,
        r#"{"input":"rust"}"#
    );
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_not_to_be_available() {
    let server = search().await;
    let world = project(&server).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("search", "ready"), ("gone", "down")]).await;
    for name in ["gone", "nowhere", "No \"such\" server"] {
        let line = format!("/call {} web_search", name.replace(' ', "-"));
        let sentence = format!("MCP server {:?} is not available", name.replace(' ', "-"));
        assert_eq!(
            called(&ann, "aos", &line).await,
            format!("not executed: {sentence}")
        );
    }
    let ran = ann
        .post(
            "/v1/agents/aos/skills/lost",
            json!({ "arguments": { "input": "x" } }),
        )
        .await
        .expect(502);
    let said = ran["detail"].as_str().unwrap();
    assert!(
        said.starts_with("MCP server \"gone\" is not available"),
        "{ran}"
    );
    assert_eq!(server.requests("tools/call").len(), 0);
}

/// A server that is down is not said to be on its way.
#[tokio::test]
async fn a_model_is_told_of_servers_that_cannot_be_used_now() {
    let server = search().await;
    let world = project(&server).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("search", "ready"), ("gone", "down")]).await;
    world.model.on(|_| Some(text("Hm.")));
    ann.ask("aos", "What can you do?").await;
    let request = world.model.last_request();
    let [system, asked] = [0, 1].map(|at| text_of(&request["messages"][at]));
    assert!(
        asked.contains("cannot be used now: gone (") && system.contains("search: web_search"),
        "{system} {asked}"
    );
    ann.ask("office", "What can you do?").await;
    assert!(text_of(&world.model.last_request()["messages"][0]).contains("You have no tools"));
}

#[tokio::test]
async fn where_roles_decide_an_answer_tells_nothing_of_what_others_may_call() {
    let tools = json!({ "tools": ["get_exchange_rate", "send_money"] });
    let world = World::with(|setup| setup.change_server(tools)).await;
    world.tools_ready().await;
    let (ann, alice) = (
        world.user("ann", &["employee"]).await,
        world.user("alice", &[]).await,
    );
    // Somebody else's, outside the allowlist, and never heard of.
    for tool in ["send_money", "get_balances", "nonsense"] {
        let said = called(&ann, "bank", &format!("/call bank {tool}")).await;
        let unknown = format!(
            "not executed: there is no tool \"bank {tool}\" for you; /tools lists those that there are"
        );
        assert_eq!(said, unknown);
    }
    let said = called(&alice, "bank", "/call bank get_balances").await;
    let sentence = "Tool \"get_balances\" is not allowlisted for MCP server \"bank\"";
    assert_eq!(
        said,
        format!("not executed: {sentence}"),
        "she sees everything of this agent"
    );
    assert!(world.bank.books.entries().is_empty());
}

/// Each level of the arguments doubles the work of the level above.
#[tokio::test]
async fn arguments_that_take_too_long_to_check_are_refused_and_nothing_is_sent() {
    let server = Scripted::modern(async |seen: Seen| {
        let level = json!({"properties": {"a": {"$ref": "#/$defs/d"}}});
        let schema = json!({"type": "object", "$ref": "#/$defs/d", "$defs": {"d": {"allOf": [level, level]}}});
        let tools = json!([{"name": "odd", "inputSchema": schema}]);
        (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": tools })))
    })
    .await;
    let world = World::with(|setup| {
        setup
            .packs
            .push(crate::support::many::pack(&crate::support::many::entry(
                "odd",
                &server.url,
                "",
            )));
    })
    .await;
    let ann = world.user("ann", &[]).await;
    super::connections(&ann, &[("odd", "ready")]).await;
    let nested = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let refused = called(&ann, "many", &format!("/call odd odd {}", nested(60))).await;
    assert!(
        refused.contains("they take too long to check against the tool's schema"),
        "{refused}"
    );
    assert_eq!(server.requests("tools/call").len(), 0);
    assert_eq!(
        called(&ann, "many", &format!("/call odd odd {}", nested(5))).await,
        nested(5)
    );
}
