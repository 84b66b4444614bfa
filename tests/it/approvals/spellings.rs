//! Members that another reader takes for others: nothing is judged that a server could read differently.

use std::sync::{Arc, Mutex};

use domain::json::Json;
use http::Method;
use uuid::Uuid;

use super::{
    limits::{asking_ledger, until_listed},
    *,
};
use crate::support::{
    fickle::Fickle,
    scripted::{Scripted, Seen, text as answer},
};

/// The rules of the bank that is attacked.
fn rules() -> Value {
    json!({
        "default": "users",
        "approval": [
            { "tools": ["send_money"], "when": "!(args.to in vars.known)", "approvers": ["manager"] },
            { "tools": ["send_money"], "when": "args.amount > 1000", "approvers": ["cfo"], "selfApproval": false },
        ],
        "confirm": [{ "tools": ["send_money"], "when": "args.amount > 20 && !has(args.lines)" }],
        "limits": [{ "tools": ["send_money"], "sum": "args.amount", "per": "user", "over": "24h", "most": 5000,
                     "then": "deny", "reason": "enough" }],
        "deny": [{ "tools": ["send_money"], "when": "has(args.lines) && args.lines.exists(line, line.unit_price > 9)",
                   "reason": "too dear" }],
    })
}

/// A server that reads names without case; of several it takes the first or the last.
async fn lenient_bank(takes_last: bool, ledger: Arc<Mutex<Vec<String>>>) -> Scripted {
    Scripted::modern(move |seen: Seen| {
        let ledger = ledger.clone();
        async move {
            match seen.method() {
                "tools/list" => {
                    let schema = json!({
                        "type": "object", "required": ["amount", "to"],
                        "properties": {
                            "amount": { "type": ["number", "string"] }, "to": { "type": "string" },
                            "meta": { "type": "object", "additionalProperties": { "type": "string" } },
                            "payer": { "$ref": "#/$defs/party" },
                        },
                        "$defs": { "party": { "allOf": [{ "properties": { "accountId": {} } }] } },
                    });
                    let tool = json!({ "name": "send_money", "inputSchema": schema });
                    Some(seen.result(json!({ "tools": [tool] })))
                }
                "tools/call" => {
                    let request = Json::parse(&seen.raw).unwrap();
                    let given = request.get("params").and_then(|it| it.get("arguments"));
                    let mut read = [None, None];
                    for (name, value) in given.and_then(Json::as_object).unwrap().iter() {
                        for (at, wanted) in ["amount", "to"].into_iter().enumerate() {
                            if name.eq_ignore_ascii_case(wanted) && (takes_last || read[at].is_none()) {
                                read[at] = Some(value.to_string());
                            }
                        }
                    }
                    ledger.lock().unwrap().push(format!("{read:?}"));
                    Some(seen.result(answer("paid")))
                }
                _ => None,
            }
        }
    })
    .await
}

async fn call(client: &Client, arguments: &str) -> String {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"lenient__send_money","arguments":{arguments}}}}}"#
    );
    let request = client
        .request(Method::POST, "/mcp/bank")
        .header("mcp-protocol-version", "2025-11-25")
        .header("content-type", "application/json")
        .body(body);
    client.send(request).await.expect(200)["result"].to_string()
}

#[tokio::test]
async fn members_that_a_lenient_server_takes_for_others_are_refused() {
    for takes_last in [true, false] {
        let ledger = Arc::default();
        let server = lenient_bank(takes_last, Arc::clone(&ledger)).await;
        let entry = json!({ "name": "lenient", "transport": "streamable-http", "url": server.url.to_string(),
                            "toolAccess": rules() });
        let world = world_with(|setup| {
            setup.change_pack(json!({ "vars": { "known": ["acme", "globex"] } }));
            setup.add_server(entry);
        })
        .await;
        let ann = world.user("ann", &["employee"]).await;
        eventually(async || {
            call(&ann, r#"{"to":"acme","amount":5}"#)
                .await
                .contains("paid")
        })
        .await;
        let made = || ledger.lock().unwrap().len();
        for (arguments, right) in [
            (r#"{"to":"acme","amount":5}"#, "paid"),
            (r#"{"to":"acme","amount":21}"#, "confirm"),
            (r#"{"to":"acme","amount":2000}"#, "cfo"),
            (r#"{"to":"acme","amount":5,"Amount":2000}"#, "Amount"),
            (r#"{"to":"acme","Amount":2000,"amount":5}"#, "Amount"),
            (r#"{"to":"acme","amount":"5","AMOUNT":"2000"}"#, "AMOUNT"),
            (r#"{"to":"acme","amount":5,"TO":"stranger"}"#, "TO"),
            (r#"{"to":"acme","amount":5,"\u0041mount":2000}"#, "Amount"),
            (r#"{"to":"acme","Amount":2000}"#, "Amount"),
            (r#"{"to":"acme","amount":5,"a-mount":2000}"#, "a-mount"),
            (r#"{"to":"acme","amount":5,"\uff41mount":2000}"#, "mount"),
            (
                r#"{"to":"acme","amount":5,"memo":{"line":1,"Line":2}}"#,
                "Line",
            ),
            (
                r#"{"to":"acme","amount":5,"list":[{"a":1,"A":2}]}"#,
                "one object for one",
            ),
            (r#"{"to":"acme","amount":5,"kind":1,"Kind":2}"#, "Kind"),
            (r#"{"to":"acme","amount":5,"size":1,"\u017fize":2}"#, "size"),
            // For a reader in C a text ends at NUL.
            (r#"{"to":"acme","amount\u0000":2000,"amount":5}"#, "amount"),
            (r#"{"to":"acme","amount\u0000x":2000,"amount":5}"#, "amount"),
            (r#"{"to":"acme","amount\t":2000,"amount":5}"#, "amount"),
            (r#"{"to":"acme","__proto__":{"amount":2000}}"#, "__proto__"),
            (r#"{"to":"acme","meta":{"__proto__":{"a":1}}}"#, "__proto__"),
            // At the place of which the rule, or the schema behind a reference, speaks.
            (
                r#"{"to":"acme","amount":5,"lines":[{"unitPrice":99}]}"#,
                "unit_price",
            ),
            (
                r#"{"to":"acme","amount":5,"payer":{"account_id":"x"}}"#,
                "accountId",
            ),
            // Free maps and other names stay free.
            (r#"{"to":"acme","amount":5,"note":"x"}"#, "paid"),
            (r#"{"to":"acme","amount":5,"amount ":2000}"#, "paid"),
            (
                r#"{"to":"acme","amount":5,"meta":{"Amount":"x","TO":"y"}}"#,
                "paid",
            ),
            (
                r#"{"to":"acme","amount":5,"note":"{\"a\":1,\"A\":2}"}"#,
                "paid",
            ),
            (
                r#"{"to":"acme","amount":5,"lines":[{"unit_price":1}]}"#,
                "paid",
            ),
        ] {
            let before = made();
            let said = call(&ann, arguments).await;
            assert!(said.contains(right), "{arguments}: {said}");
            assert_eq!(made() - before, usize::from(right == "paid"), "{arguments}");
            let is_refused = !["paid", "confirm", "cfo"].contains(&right);
            assert_eq!(
                said.contains("clear beyond doubt"),
                is_refused,
                "{arguments}: {said}"
            );
        }
    }
}

/// A tool with a free member beside those that its schema names.
fn paying(named: &Value) -> Value {
    json!([{ "name": "pay", "description": "Pays.", "inputSchema": { "type": "object", "properties": named } }])
}

/// Nobody has spelt anything twice when it was asked for, and consent was given for it.
#[tokio::test]
async fn an_approved_call_is_not_sent_when_its_members_can_be_taken_for_others_by_now() {
    for by_rule in [true, false] {
        let server = Fickle::start(paying(&json!({ "amount": {} }))).await;
        let access = |deny: Value| json!({ "default": "users", "approval": [{ "tools": ["pay"], "approvers": ["cfo"] }], "deny": deny });
        let entry = json!({ "name": "shop", "transport": "streamable-http", "url": server.server.url.to_string(),
                            "pin": "off", "toolAccess": access(json!([])) });
        let world = world_with(|setup| setup.add_server(entry)).await;
        let staff = Staff::of(&world).await;
        until_listed(&staff.ann, "shop__pay").await;
        staff
            .ann
            .ask("bank", r#"/call shop pay {"amount":5,"Note":"x"}"#)
            .await;
        let mine = staff.ann.get("/v1/approvals?role=requester").await;
        let request = mine.expect(200)["items"][0].clone();
        if by_rule {
            // It is no rule about this call, though it names `note` at that place.
            let rule = json!([{ "tools": ["pay"], "when": "has(args.note) && args.note == 'no'", "reason": "no" }]);
            world.change_server(json!({ "toolAccess": access(rule) }));
            world.app().packs.reload();
        } else {
            server.list(paying(&json!({ "amount": {}, "note": {} })));
        }
        approve(&staff.carl, &request).await;
        let ended = becomes(&staff.ann, &request, "revoked").await;
        if by_rule {
            assert!(
                ended.to_string().contains("not clear beyond doubt"),
                "{ended}"
            );
        }
        assert_eq!(server.calls(), [] as [Value; 0], "{by_rule}");
    }
}

#[tokio::test]
async fn an_answered_call_is_not_sent_when_its_members_can_be_taken_for_others_by_now() {
    let server = asking_ledger(json!({})).await;
    let renamed = asking_ledger(json!({ "properties": { "noteText": {} } })).await;
    let limit =
        json!({ "tools": ["enter"], "per": "user", "over": "30m", "most": 100, "then": "deny" });
    let entry = json!({ "name": "ledger", "transport": "streamable-http", "url": server.url.to_string(),
                        "pin": "off", "toolAccess": { "default": "users", "limits": [limit] } });
    let world = world_with(|setup| setup.add_server(entry)).await;
    let ann = world.user("ann", &["employee"]).await;
    let chat = ann.open("bank").await;
    ann.say_and_wait(&chat, r#"/call ledger enter {"amount":1,"note_text":"x"}"#)
        .await;
    assert_eq!(server.requests("tools/call").len(), 1);
    world.change_server(json!({ "url": renamed.url.to_string() }));
    world.app().packs.reload();
    until_listed(&ann, "noteText").await;
    ann.say_and_wait(&chat, "Ann").await;
    let messages = json!(ann.messages(&chat).await).to_string();
    assert!(messages.contains("clear beyond doubt"), "{messages}");
    assert_eq!(server.requests("tools/call").len(), 1);
    assert_eq!(renamed.requests("tools/call").len(), 0);
}

#[tokio::test]
async fn such_members_are_refused_on_every_way_on_which_a_call_comes() {
    let world = world_with(|setup| {
        setup.change_pack(json!({
            "skills": [{ "id": "pay", "mcpBinding": { "server": "bank", "tools": ["send_money"] } }],
        }));
        setup.change_server(policy(json!({ "when": "double(args.amount) > 100.0" })));
    })
    .await;
    let mut spelt = payment("1.00");
    spelt["Amount"] = "9000.00".into();
    let by_model = spelt.clone();
    world.model.on(move |request| {
        let is_asked = last_words(request) == "spell";
        is_asked.then(|| calls([("bank__send_money", by_model.clone())]))
    });
    let ann = world.user("ann", &["employee"]).await;
    let user = json!({ "role": "user", "content": "spell" });
    let ui = json!({ "id": "1", "role": "user", "parts": [{ "type": "text", "text": "spell" }] });
    let agui = json!({ "id": "1", "role": "user", "content": "spell" });
    let skill =
        json!({ "messageId": Uuid::new_v4(), "role": "ROLE_USER", "parts": [{ "data": spelt }] });
    let send = json!({ "message": skill, "metadata": { "skillId": "pay" } });
    let tool = json!({ "name": "bank__send_money", "arguments": spelt });
    let rpc = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": "bank", "messages": [user] }),
        ),
        (
            "/v1/responses",
            json!({ "model": "bank", "input": "spell" }),
        ),
        (
            "/v1/ui/chat",
            json!({ "id": "ui", "agent": "bank", "messages": [ui] }),
        ),
        (
            "/v1/agui/bank",
            json!({ "threadId": "t", "runId": "r", "messages": [agui], "tools": [], "context": [], "state": {},
                    "forwardedProps": {} }),
        ),
        (
            "/v1/runs",
            json!({ "agent_name": "bank", "prompt": "spell", "mode": "sync" }),
        ),
        ("/v1/agents/bank/skills/pay", json!({ "arguments": spelt })),
        ("/a2a/bank", rpc("SendMessage", send)),
        ("/mcp/bank", rpc("tools/call", tool)),
    ] {
        let asked = world.model.requests().len();
        let request = ann.request(Method::POST, path).json(&body);
        let request = if path == "/mcp/bank" {
            request.header("mcp-protocol-version", "2025-11-25")
        } else {
            request
        };
        let said = ann.send(request).await.text;
        let heard = if world.model.requests().len() > asked {
            world.model.last_request().to_string()
        } else {
            said
        };
        // A skill says it of its own schema, before the gate is asked.
        let is_skill = path.ends_with("/skills/pay") || path == "/a2a/bank";
        let is_refused = heard.contains("clear beyond doubt")
            || is_skill && heard.contains("do not fit the tool");
        assert!(heard.contains("Amount") && is_refused, "{path}: {heard}");
    }
    ann.ask("bank", "spell").await;
    let heard = world.model.last_request().to_string();
    assert!(heard.contains("clear beyond doubt"), "chat: {heard}");
    for line in [
        format!("/call bank send_money {spelt}"),
        format!("/pay {spelt}"),
    ] {
        let said = ann.ask("bank", &line).await;
        assert!(said.contains("clear beyond doubt"), "{line}: {said}");
    }
    assert_eq!(world.bank.executions("send_money"), 0);
}
