//! Limits over time: exact to the cent, whoever calls at once and at whichever replica.

use futures_util::future::join_all;
use http::{Method, StatusCode};

use super::*;
use crate::{
    elicitation::form,
    support::{
        bank::start_slow_bank,
        has::Has,
        scripted::{Reply, Scripted, text as answer},
    },
};

/// The change of the bank's entry after which transfers are limited, and need no approval.
fn limited(limits: &Value) -> Value {
    json!({ "toolAccess": { "approval": null, "limits": limits } })
}

/// Calls a tool as a client of the MCP endpoint; the answer.
pub(super) async fn call(client: &Client, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = client
        .request(Method::POST, "/mcp/bank")
        .header("mcp-protocol-version", "2025-11-25")
        .json(&body);
    client.send(request).await.expect(200)["result"].clone()
}

pub(super) async fn pay(client: &Client, amount: &str) -> Value {
    call(client, "bank__send_money", payment(amount)).await
}

#[tokio::test]
async fn sixty_four_calls_at_once_at_two_replicas_take_what_there_is_to_the_cent() {
    // Thirty of them: as doubles, thirty times 10.01 is more than 300.30.
    let limits = json!([{ "tools": ["send_money"], "sum": "args.amount", "per": "tenant", "over": "24h",
                          "most": 300.30, "then": "deny", "reason": "that is all for today" }]);
    let world = world_with(|setup| setup.change_server(limited(&limits))).await;
    let replica = world.replica().await;
    let mut people = Vec::new();
    for at in 0..8 {
        people.push(world.user(&format!("ann-{at}"), &["employee"]).await);
    }
    let calls = (0..64).map(|at| {
        let person = &people[at % 8];
        let client = if at % 2 == 0 {
            person.at(&replica.url)
        } else {
            person.at(&world.url)
        };
        async move { pay(&client, "10.01").await }
    });
    let answers = join_all(calls).await;
    let made = answers.iter().filter(|answer| answer["isError"] != true);
    assert_eq!(made.count(), 30);
    let refused = answers.iter().filter(|answer| {
        answer
            .to_string()
            .contains("a rule forbids this call: that is all for today")
    });
    assert_eq!(refused.count(), 34);
    assert_eq!(world.bank.executions("send_money"), 30);
    // Nothing is left, and what cannot be added up is too much.
    for amount in ["0.01", "-5.00"] {
        assert_eq!(pay(&people[0], amount).await["isError"], true, "{amount}");
    }
    assert_eq!(world.bank.executions("send_money"), 30);
}

#[tokio::test]
async fn what_is_too_much_waits_for_approval_and_counts_when_it_is_carried_out() {
    let limits = json!([
        { "tools": ["send_money"], "sum": "args.amount", "per": "user", "over": "24h", "most": 100,
          "then": "approve", "approvers": ["cfo"], "selfApproval": false },
        { "tools": ["send_money"], "per": "tool", "over": "7d", "most": 3, "then": "deny" },
    ]);
    let world = world_with(|setup| setup.change_server(limited(&limits))).await;
    let staff = Staff::of(&world).await;
    let ben = world.user("ben", &["employee"]).await;
    pay(&staff.ann, "60.00")
        .await
        .has(json!({ "isError": false }));
    pay(&ben, "60.00").await.has(json!({ "isError": false }));
    let waits = pay(&staff.ann, "40.01").await;
    assert!(waits.to_string().contains("cfo"), "{waits}");
    let queue = staff
        .carl
        .get("/v1/approvals?role=approver")
        .await
        .expect(200);
    let request = queue["items"][0].clone();
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 3);
    // Four calls in a week are one too many, whoever would approve.
    let refused = pay(&ben, "1.00").await;
    assert!(
        refused.to_string().contains("a limit is reached"),
        "{refused}"
    );
    assert_eq!(world.bank.executions("send_money"), 3);
}

/// A call that may be lost with its replica: whether it was made, if anybody answered.
async fn try_to_pay(client: Client, amount: &str) -> Option<bool> {
    let params = json!({ "name": "bank__send_money", "arguments": payment(amount) });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = client
        .request(Method::POST, "/mcp/bank")
        .header("mcp-protocol-version", "2025-11-25")
        .json(&body);
    let answer: Value = request.send().await.ok()?.json().await.ok()?;
    Some(answer["result"]["isError"] == false)
}

#[tokio::test]
async fn sixty_four_calls_at_once_at_four_replicas_of_which_two_die_take_what_there_is_to_the_cent()
{
    let limits = json!([{ "tools": ["send_money"], "sum": "args.amount", "per": "tenant", "over": "24h",
                          "most": 300.30, "then": "deny", "reason": "that is all for today" }]);
    // It answers a while after it has executed, so that calls are under way when replicas die.
    let bank = start_slow_bank(None, Duration::from_millis(500)).await;
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", bank.url.clone());
        setup.change_server(limited(&limits));
    })
    .await;
    let (one, two, three) = (
        world.replica().await,
        world.replica().await,
        world.replica().await,
    );
    let urls = [&world.url, &one.url, &two.url, &three.url].map(Clone::clone);
    let mut people = Vec::new();
    for at in 0..8 {
        people.push(world.user(&format!("ann-{at}"), &["employee"]).await);
    }
    for url in &urls {
        eventually(async || {
            let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
            let there = people[0].at(url);
            let request = there.request(Method::POST, "/mcp/bank");
            let request = request
                .header("mcp-protocol-version", "2025-11-25")
                .json(&list);
            there.send(request).await.text.contains("send_money")
        })
        .await;
    }
    let calls = (0..64).map(|at| try_to_pay(people[at % 8].at(&urls[at % 4]), "10.01"));
    let die = async {
        eventually(async || bank.executions("send_money") >= 4).await;
        one.kill();
        two.kill();
    };
    let (answers, ()) = tokio::join!(join_all(calls), die);
    let answered = answers.iter().filter(|made| **made == Some(true)).count();
    let lost = answers.iter().filter(|made| made.is_none()).count();
    assert!(
        lost > 0,
        "the replicas died when nothing was under way any more"
    );
    // Those that are left take the rest, and not a cent more.
    let mut later = 0;
    for at in 0..64 {
        let url = if at % 2 == 0 { &world.url } else { &three.url };
        match try_to_pay(people[0].at(url), "10.01").await {
            Some(true) => later += 1,
            Some(false) => break,
            None => panic!("it lives"),
        }
    }
    for url in [&world.url, &three.url] {
        assert_eq!(try_to_pay(people[1].at(url), "0.01").await, Some(false));
    }
    let taken: (String, i64) = sqlx::query_as("select sum(amount)::text, count(*) from limit_uses")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(taken, ("300.30".to_owned(), 30));
    let executed = bank.executions("send_money");
    assert!(executed <= 30, "{executed} calls were made");
    assert!(
        answered + later <= executed,
        "{answered} and {later} of {executed}"
    );
}

/// The server of the model: what it does with a call is its argument.
async fn ledger() -> Scripted {
    Scripted::modern(|seen| async move {
        match (
            seen.method(),
            seen.body["params"]["arguments"]["how"].as_str(),
        ) {
            ("tools/list", _) => {
                let schema =
                    json!({ "type": "object", "properties": { "how": { "type": "string" } } });
                Some(seen.result(json!({ "tools": [{ "name": "enter", "inputSchema": schema }] })))
            }
            ("tools/call", Some("refuse")) => {
                Some(seen.error(StatusCode::FORBIDDEN, -32000, "who are you?"))
            }
            ("tools/call", Some("lose")) => Some(Reply::HangUp),
            ("tools/call", _) => Some(seen.result(answer("done"))),
            _ => None,
        }
    })
    .await
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_given_back_and_what_the_server_has_seen_is_not() {
    let server = ledger().await;
    let entry = json!({
        "name": "ledger", "transport": "streamable-http", "url": server.url.to_string(),
        "toolAccess": { "default": "users", "limits": [
            { "tools": ["enter"], "per": "user", "over": "1h", "most": 3, "then": "deny" },
        ] },
    });
    let world = world_with(|setup| setup.add_server(entry)).await;
    let ann = world.user("ann", &["employee"]).await;
    let enter = async |how: &str| {
        call(&ann, "ledger__enter", json!({ "how": how }))
            .await
            .to_string()
    };
    eventually(async || enter("do").await.contains("done")).await;
    let move_to = |url: &str| {
        world.change_server(json!({ "url": url }));
        world.app().packs.reload();
    };
    // Nobody listens there.
    move_to("http://127.0.0.1:1/mcp");
    eventually(async || enter("do").await.contains("nothing was sent")).await;
    for _ in 0..4 {
        let unsent = enter("do").await;
        assert!(unsent.contains("nothing was sent"), "{unsent}");
    }
    move_to(server.url.as_str());
    eventually(async || enter("refuse").await.contains("403")).await;
    let lost = enter("lose").await;
    assert!(lost.contains("may have"), "{lost}");
    let over = enter("do").await;
    assert!(over.contains("a limit is reached"), "{over}");
}

#[tokio::test]
async fn two_tiers_of_one_sum_are_one_sum_with_two_answers() {
    let tier = |most: u32, then: Value| {
        let mut limit = json!({ "tools": ["send_money"], "sum": "args.amount", "per": "user", "over": "24h", "most": most });
        change_pack(&mut limit, then);
        limit
    };
    let limits = json!([
        tier(
            1000,
            json!({ "then": "approve", "approvers": ["cfo"], "selfApproval": false })
        ),
        tier(
            5000,
            json!({ "then": "deny", "reason": "enough for today" })
        ),
    ]);
    let world = world_with(|setup| setup.change_server(limited(&limits))).await;
    let staff = Staff::of(&world).await;
    for _ in 0..2 {
        pay(&staff.ann, "400.00")
            .await
            .has(json!({ "isError": false }));
    }
    let waits = pay(&staff.ann, "400.00").await.to_string();
    assert!(waits.contains("cfo"), "{waits}");
    let queue = staff
        .carl
        .get("/v1/approvals?role=approver")
        .await
        .expect(200);
    let request = queue["items"][0].clone();
    approve(&staff.carl, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    let counted: (String, i64) =
        sqlx::query_as("select sum(amount)::text, count(*) from limit_uses")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(counted, ("1200".to_owned(), 3));
    let refused = pay(&staff.ann, "3800.01").await.to_string();
    assert!(refused.contains("enough for today"), "{refused}");
    let waits = pay(&staff.ann, "3800.00").await.to_string();
    assert!(waits.contains("cfo"), "{waits}");
    assert_eq!(world.bank.executions("send_money"), 3);
}

/// Waits until the endpoint lists a tool with these words.
pub(super) async fn until_listed(client: &Client, words: &str) {
    eventually(async || {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
        let request = client.request(Method::POST, "/mcp/bank");
        let request = request.header("mcp-protocol-version", "2025-11-25");
        let listed = client.send(request.json(&list)).await.text;
        listed.contains(words)
    })
    .await;
}

/// A server whose tool asks its user something before it is done. `more` is what its schema says besides.
pub(super) async fn asking_ledger(more: Value) -> Scripted {
    let mut schema = json!({ "type": "object", "properties": { "amount": { "type": "number" } } });
    change_pack(&mut schema, more);
    Scripted::modern(move |seen| {
        let tool = json!({ "name": "enter", "inputSchema": schema });
        async move {
            let is_answer = seen.body["params"]["inputResponses"].is_object();
            match seen.method() {
                "tools/list" => Some(seen.result(json!({ "tools": [tool] }))),
                "tools/call" if !is_answer => {
                    let form = form(&json!({ "name": { "type": "string", "title": "Your name" } }));
                    Some(
                        seen.result(
                            json!({ "resultType": "input_required", "inputRequests": form }),
                        ),
                    )
                }
                "tools/call" => Some(seen.result(answer("done"))),
                _ => None,
            }
        }
    })
    .await
}

/// The first request of a call is no promise that the second one fits.
#[tokio::test]
async fn a_call_whose_user_has_answered_counts_in_limits_from_then_on() {
    let server = asking_ledger(json!({})).await;
    let limited_to = |most: u32| {
        let limit = json!({ "tools": ["enter"], "sum": "args.amount", "per": "user", "over": "30m", "most": most,
                            "then": "deny", "reason": "that is all for now" });
        json!({ "toolAccess": { "default": "users", "limits": [limit] } })
    };
    let mut entry =
        json!({ "name": "ledger", "transport": "streamable-http", "url": server.url.to_string() });
    change_pack(&mut entry, limited_to(100));
    let world = world_with(|setup| setup.add_server(entry)).await;
    let ann = world.user("ann", &["employee"]).await;
    let made = || {
        let calls = server.requests("tools/call").into_iter();
        calls
            .filter(|seen| seen.body["params"]["inputResponses"].is_object())
            .count()
    };
    let ask = async |person: &Client, amount: u32| {
        let chat = person.open("bank").await;
        person
            .say_and_wait(
                &chat,
                &format!("/call ledger enter {{\"amount\":{amount}}}"),
            )
            .await;
        chat
    };
    // Its own taking is renewed, so that what has been taken once is not too much.
    let chat = ask(&ann, 100).await;
    ann.say_and_wait(&chat, "Ann").await;
    assert_eq!(made(), 1);
    // Less is left when the next one is answered than when it was asked.
    let ben = world.user("ben", &["employee"]).await;
    let chat = ask(&ben, 100).await;
    world.change_server(limited_to(50));
    world.app().packs.reload();
    ben.say_and_wait(&chat, "Ben").await;
    assert_eq!(made(), 1);
    let messages = json!(ben.messages(&chat).await).to_string();
    assert!(messages.contains("that is all for now"), "{messages}");
    // What the server has seen stays taken.
    let counted: (String, i64) =
        sqlx::query_as("select sum(amount)::text, count(*) from limit_uses")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(counted, ("200".to_owned(), 2));
}

/// Puts everything that counts for limits so far 31 minutes back.
async fn let_half_an_hour_pass(world: &World) {
    let moved = sqlx::query("update limit_uses set at = at - interval '31 minutes'")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert!(moved.rows_affected() > 0, "nothing counted");
}

#[tokio::test]
async fn the_time_of_a_limit_is_looked_at_again_when_its_user_answers() {
    let server = asking_ledger(json!({})).await;
    let limit = json!({ "tools": ["enter"], "sum": "args.amount", "per": "tenant", "over": "30m", "most": 100,
                        "then": "deny", "reason": "that is all for now" });
    let entry = json!({ "name": "ledger", "transport": "streamable-http", "url": server.url.to_string(),
                        "toolAccess": { "default": "users", "limits": [limit] } });
    let world = world_with(|setup| setup.add_server(entry)).await;
    let ask = async |user: &str, amount: u32| {
        let person = world.user(user, &["employee"]).await;
        let chat = person.open("bank").await;
        let call = format!("/call ledger enter {{\"amount\":{amount}}}");
        person.say_and_wait(&chat, &call).await;
        (person, chat)
    };
    let is_denied = async |(person, chat): &(Client, String)| {
        let messages = json!(person.messages(chat).await).to_string();
        messages.contains("that is all for now")
    };
    let is_denied_now = async |asked: &(Client, String)| {
        asked.0.say_and_wait(&asked.1, "It is me").await;
        is_denied(asked).await
    };
    let made = || {
        let calls = server.requests("tools/call").into_iter();
        let answered = calls.filter(|seen| seen.body["params"]["inputResponses"].is_object());
        answered.count()
    };
    // There is room for both, and a while later for a third one, since they count no more.
    let (ann, ben) = (ask("ann", 60).await, ask("ben", 30).await);
    assert!(is_denied(&ask("carl", 20).await).await);
    let_half_an_hour_pass(&world).await;
    let carl = ask("carl", 90).await;
    // What was asked about counts from the answer on, and there is no room then.
    assert!(is_denied_now(&ann).await);
    assert_eq!(made(), 0);
    assert!(!is_denied_now(&carl).await);
    assert_eq!(made(), 1);
    let_half_an_hour_pass(&world).await;
    assert!(!is_denied_now(&ben).await);
    assert_eq!(made(), 2);
    assert!(is_denied(&ask("ann", 71).await).await);
}

#[tokio::test]
async fn an_answered_call_that_does_not_fit_the_tool_any_more_is_not_sent() {
    let server = asking_ledger(json!({ "required": ["amount"] })).await;
    let stricter = asking_ledger(json!({ "required": ["amount", "reason"] })).await;
    let entry = json!({ "name": "ledger", "transport": "streamable-http", "url": server.url.to_string(),
                        "pin": "off", "toolAccess": { "default": "users" } });
    let world = world_with(|setup| setup.add_server(entry)).await;
    let ann = world.user("ann", &["employee"]).await;
    let chat = ann.open("bank").await;
    ann.say_and_wait(&chat, "/call ledger enter {\"amount\":1}")
        .await;
    assert_eq!(server.requests("tools/call").len(), 1);
    world.change_server(json!({ "url": stricter.url.to_string() }));
    world.app().packs.reload();
    until_listed(&ann, r#"["amount","reason"]"#).await;
    ann.say_and_wait(&chat, "Ann").await;
    let messages = json!(ann.messages(&chat).await).to_string();
    assert_eq!(
        messages.matches("do not fit the tool").count(),
        1,
        "{messages}"
    );
    assert_eq!(server.requests("tools/call").len(), 1);
    assert_eq!(stricter.requests("tools/call").len(), 0);
}
