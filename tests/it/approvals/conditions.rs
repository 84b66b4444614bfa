//! Rules about some calls of a tool (`when`, `deny`), on every way on which a call comes, and again when it is approved.

use http::Method;
use uuid::Uuid;

use super::*;
use crate::support::{has::Has, program::chatelaine};

/// Small transfers are made, larger ones wait for somebody, and the largest are refused.
fn rules(setup: &mut Setup) {
    let of_origin = |origin: &str| {
        json!({
            "tools": ["send_*"],
            "when": format!("args.amount == '7.00' && origin == '{origin}'"),
            "reason": format!("it comes from a {origin}"),
        })
    };
    let mut deny: Vec<Value> = ["chat", "command", "skill", "run", "mcp"]
        .map(of_origin)
        .into();
    deny.push(json!({
        "tools": ["send_money"],
        "when": "double(args.amount) > vars.most",
        "reason": "that much is for the treasury",
    }));
    setup.change_pack(json!({
        "vars": { "most": 5000, "known": ["acme"] },
        "skills": [{ "id": "pay", "mcpBinding": { "server": "bank", "tools": ["send_money"] } }],
    }));
    setup.change_server(policy(json!({
        "when": "double(args.amount) > 100.0 || !(args.to in vars.known)",
    })));
    setup.change_server(json!({ "toolAccess": { "deny": deny } }));
}

/// The ways on which a call comes, and what a condition calls them.
const WAYS: [(&str, &str); 6] = [
    ("chat", "chat"),
    ("command", "command"),
    ("skill", "skill"),
    ("a2a", "skill"),
    ("run", "run"),
    ("mcp", "mcp"),
];

/// Asks for a transfer; all that came back of it, to the client or to the model.
async fn pay(world: &World, client: &Client, way: &str, amount: &str) -> String {
    let model_read = || world.model.last_request().to_string();
    match way {
        "chat" => {
            client.ask("bank", &format!("pay {amount}")).await;
            model_read()
        }
        "command" => {
            let line = format!("/call bank send_money {}", payment(amount));
            client.ask("bank", &line).await
        }
        "skill" => {
            let body = json!({ "arguments": payment(amount) });
            let answer = client.post("/v1/agents/bank/skills/pay", body).await;
            answer.json().to_string()
        }
        "a2a" => {
            let message = json!({ "messageId": Uuid::new_v4(), "role": "ROLE_USER",
                                  "parts": [{ "data": payment(amount) }] });
            let params = json!({ "message": message, "metadata": { "skillId": "pay" } });
            let body =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params });
            client.post("/a2a/bank", body).await.expect(200).to_string()
        }
        "run" => {
            let body =
                json!({ "agent_name": "bank", "prompt": format!("pay {amount}"), "mode": "sync" });
            client.post("/v1/runs", body).await.expect(200);
            model_read()
        }
        "mcp" => {
            let params = json!({ "name": "bank__send_money", "arguments": payment(amount) });
            let body =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            let request = client
                .request(Method::POST, "/mcp/bank")
                .header("mcp-protocol-version", "2025-11-25")
                .json(&body);
            client.send(request).await.expect(200).to_string()
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_rule_holds_on_every_way_on_which_a_call_comes() {
    let world = world_with(rules).await;
    let ann = world.user("ann", &["employee"]).await;
    for (at, (way, origin)) in WAYS.into_iter().enumerate() {
        pay(&world, &ann, way, "10.00").await;
        assert_eq!(world.bank.executions("send_money"), at + 1, "{way}");
        let refused = pay(&world, &ann, way, "9000.00").await;
        assert!(
            refused.contains("that much is for the treasury"),
            "{way}: {refused}"
        );
        let refused = pay(&world, &ann, way, "7.00").await;
        let reason = format!("it comes from a {origin}");
        assert!(refused.contains(&reason), "{way}: {refused}");
        pay(&world, &ann, way, "500.00").await;
        let open = ann
            .get("/v1/approvals?role=requester&state=pending")
            .await
            .expect(200);
        assert_eq!(
            open["items"].as_array().unwrap().len(),
            at + 1,
            "{way}: {open:#}"
        );
        assert_eq!(world.bank.executions("send_money"), at + 1, "{way}");
    }
}

#[tokio::test]
async fn the_check_of_packs_compares_rules_with_the_tools_that_a_database_has_seen() {
    let world = World::with(|setup| {
        setup.change_server(policy(json!({ "when": "args.currency == 'EUR' && args.amount > 100" })));
        setup.change_server(json!({ "toolAccess": {
            "deny": [{ "tools": ["send_*"], "when": "args.recipient == 'x'", "reason": "not to them" }],
            "confirm": [{ "tools": ["create_invoice"], "when": "double(args.amount) > 10.0" }],
            "limits": [{ "tools": ["send_money"], "sum": "args.amont", "per": "user", "over": "1h", "most": 1,
                         "then": "deny" }],
        } }));
    })
    .await;
    let check = async |database: Option<&str>| {
        let mut command = chatelaine(&["check", world.config.packs.to_str().unwrap()]);
        command
            .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
            .envs(["MODEL_URL", "BANK_URL"].map(|name| (name, world.env.get(name).unwrap())));
        if let Some(database) = database {
            command.env("DATABASE_URL", database);
        }
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let alone = check(None).await;
    assert!(
        alone.contains("the rules of bank bank are not compared with its tools")
            && !alone.contains("cannot be evaluated"),
        "{alone}"
    );
    let database = world.db.url.expose();
    eventually(async || !check(Some(database)).await.contains("are not compared")).await;
    let told = check(Some(database)).await;
    for (place, problem) in [
        ("approval[0].when", "no matching overload"),
        ("deny[0].when", "the tool has no argument `recipient`"),
        ("limits[0].sum", "the tool has no argument `amont`"),
    ] {
        let line = told.lines().find(|line| line.contains(place));
        let line = line.unwrap_or_else(|| panic!("{place} is not in {told}"));
        assert!(
            line.contains("agent-pack") && line.contains(": warning: mcp.servers[0].toolAccess."),
            "{line}"
        );
        assert!(line.contains(problem), "{line}");
        assert!(
            told.contains("the tool takes: from_account, to, amount, currency"),
            "{told}"
        );
    }
    assert!(!told.contains("confirm[0].when"), "{told}");
    // The bank's schemas say `additionalProperties: false`.
    assert!(!told.contains("takes unknown members"), "{told}");
}

#[tokio::test]
async fn what_a_condition_cannot_read_needs_approval() {
    let world = world_with(|setup| {
        setup.change_server(policy(json!({ "when": "args.amount > 100" })));
    })
    .await;
    let staff = Staff::of(&world).await;
    // The amount is a text.
    let (_, request) = asked(&staff.ann, "1.00").await;
    request.has(json!({ "state": "pending" }));
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_approved_call_is_judged_again_by_its_arguments() {
    let world = world_with(rules).await;
    let staff = Staff::of(&world).await;
    let (_, smaller) = asked(&staff.ann, "500.00").await;
    let (_, larger) = asked(&staff.ann, "900.00").await;
    world.change_pack(json!({ "vars": { "most": 800 } }));
    world.app().packs.reload();
    let refused = approve(&staff.bob, &larger).await;
    refused.expect(409)["detail"]
        .says("a rule forbids the call now: that much is for the treasury");
    becomes(&staff.ann, &larger, "revoked").await;
    approve(&staff.bob, &smaller).await.expect(200);
    becomes(&staff.ann, &smaller, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_model_is_told_which_tools_may_need_approval() {
    let world = world_with(rules).await;
    let ann = world.user("ann", &["employee"]).await;
    ann.ask("bank", "pay 10.00").await;
    let request = world.model.last_request().to_string();
    assert!(
        request.contains("send_money (may need approval)"),
        "{request}"
    );
    let tools = ann.get("/v1/agents/bank/tools").await.expect(200);
    let tools = tools["items"][0]["tools"].as_array().unwrap();
    let tool = tools
        .iter()
        .find(|tool| tool["tool"] == "send_money")
        .unwrap();
    tool.has(json!({ "needs_approval_by": ["finance-manager", "cfo"] }));
}

/// Readers that take the first of two members and readers that take the last would read two amounts.
#[tokio::test]
async fn arguments_that_two_readers_could_understand_differently_are_refused() {
    let world = world_with(rules).await;
    let ann = world.user("ann", &["employee"]).await;
    let twice = r#"{"amount":"9000.00","from_account":"current","to":"acme","amount":"1.00","currency":"EUR"}"#;
    let said = ann
        .ask("bank", &format!("/call bank send_money {twice}"))
        .await;
    assert!(said.contains("clear beyond doubt"), "{said}");
    assert_eq!(world.bank.executions("send_money"), 0);
}
