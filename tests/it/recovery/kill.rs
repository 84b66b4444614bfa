use std::{sync::Arc, time::Duration};

use chatelaine::app::tools::{
    gate::{self, Call, CallTarget},
    toolset,
};
use domain::{
    ids::{AgentId, AuditId, RunId, UserId},
    json::Json,
    policy::Origin,
    principal::{Audience, Principal},
};
use http::Method;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::world_with;
use crate::support::{
    bank::{Bank, pair, payment, start_slow_bank},
    client::{Client, plain, roles, tool_results},
    has::Has,
    model::{Gate, calls, results, text},
    replica::Replica,
    wait::{ended, eventually},
    world::World,
};

/// Two replicas: one to be killed, and the world's, which takes over. The bank lingers over its answers.
struct Two {
    world: World,
    doomed: Replica,
    bank: Bank,
    /// Somebody at each.
    here: Client,
    there: Client,
    id: String,
}

impl Two {
    async fn start(delay: Duration) -> Self {
        let bank = start_slow_bank(None, delay).await;
        let world =
            world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", bank.url.clone()))
                .await;
        let doomed = world.replica().await;
        while doomed.app.connections.count().0 < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let here = world.user("fin", &["finance"]).await;
        let there = here.at(&doomed.url);
        let id = here.open("bank").await;
        Self {
            world,
            doomed,
            bank,
            here,
            there,
            id,
        }
    }

    async fn end_of(&self, run: &str) -> Value {
        ended(&self.here, run).await
    }
}

#[tokio::test]
async fn a_kill_in_the_middle_of_an_answer_costs_nothing_but_time() {
    let two = Two::start(Duration::ZERO).await;
    let gate = Gate::new();
    two.world
        .model
        .reply(text("Half of it").gate(2, &gate))
        .reply(text("All of it."));
    let mut events = two.here.listen(&two.id, None).await;
    let run = two.there.say(&two.id, "hi").await;
    gate.reached().await;
    let Two {
        doomed,
        world,
        here,
        id,
        ..
    } = two;
    doomed.kill();
    let heard = events.until_run_ends(&run).await;
    let at = |name: &str| heard.iter().position(|event| event.name == name);
    assert!(
        at("reset") < at("delta"),
        "whoever saw half an answer is told to forget it"
    );
    assert_eq!(ended(&here, &run).await["status"], "succeeded");
    let said: Vec<_> = here.messages(&id).await.iter().skip(1).map(plain).collect();
    assert_eq!(said, ["hi", "All of it."]);
    world.model.wait_for_hangups(1).await;
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_call_leaves_it_unknown_and_made_once() {
    let two = Two::start(Duration::from_secs(3)).await;
    two.world
        .model
        .reply(calls([("bank__send_money", payment("8.00"))]))
        .reply(text("Please check."));
    let run = two.there.say(&two.id, "pay").await;
    eventually(async || two.bank.executions("send_money") == 1).await;
    assert_eq!(
        lines(&two.world).await,
        1,
        "the trail has it while it is under way"
    );
    let Two {
        doomed,
        world,
        here,
        id,
        bank,
        ..
    } = two;
    doomed.kill();
    assert_eq!(ended(&here, &run).await["status"], "succeeded");
    assert_eq!(lines(&world).await, 1, "and after the kill");
    let results_kept = tool_results(&here, &id).await;
    json!(results_kept).has(json!([{ "status": "outcome_unknown" }]));
    assert!(results(&world.model.last_request())[0].contains("was not repeated"));
    assert_eq!(bank.executions("send_money"), 1);
}

/// A condition on the time, or another policy, may let a call go that waited when its row was written.
#[tokio::test]
async fn a_call_of_a_run_is_not_sent_before_it_has_a_line_of_its_own() {
    let two = Two::start(Duration::from_secs(3)).await;
    let app = two.world.app();
    let principal = Principal {
        tenant: two.world.tenant.id,
        user: UserId("fin".into()),
        authenticated: true,
        claims: Arc::new(Map::from_iter([("roles".to_owned(), json!(["finance"]))])),
        locale: None,
        key: None,
        audience: Audience::default(),
    };
    let pack = app.packs.get(&AgentId::parse("bank").unwrap()).unwrap();
    let toolset = toolset::select(app, &principal, &pack).await.unwrap();
    let line = AuditId::new();
    let call = Call {
        principal: &principal,
        toolset: &toolset,
        run: Some(RunId::new()),
        call_id: "c1",
        line: Some(line),
        is_recorded: false,
        target: CallTarget::Pair {
            server: "bank",
            tool: "send_money",
        },
        origin: Origin::Chat,
        arguments: Ok(Json::from(&payment("8.00"))),
        ambiguity: None,
        progress: mcp::progress_channel().0,
        cancel: CancellationToken::default(),
        elicitation: None,
        shows_requests: false,
    };
    let look = async {
        eventually(async || two.bank.executions("send_money") == 1).await;
        let count = "select count(*) from audit where id = $1";
        let lines: i64 = sqlx::query_scalar(count)
            .bind(line.0)
            .fetch_one(&mut two.world.db.as_tenant(two.world.tenant.id).await)
            .await
            .unwrap();
        lines
    };
    let (_, lines) = tokio::join!(gate::call(app, call), look);
    assert_eq!(lines, 1, "the line is there while the bank works");
}

/// Eight calls of a step are made at once; the ninth waits for one of them.
#[tokio::test]
async fn the_line_of_a_call_that_waited_has_the_time_at_which_it_was_sent() {
    let two = Two::start(Duration::from_millis(800)).await;
    let payments: [_; 9] =
        std::array::from_fn(|at| ("bank__send_money", payment(&format!("{}.00", at + 1))));
    two.world
        .model
        .reply(calls(payments))
        .reply(text("All is paid."));
    two.here.say_and_wait(&two.id, "pay").await;
    let waited: f64 = sqlx::query_scalar(
        "select extract(epoch from max(at) - min(at))::float8 from audit where action = 'tool.call'",
    )
    .fetch_one(&mut two.world.db.as_tenant(two.world.tenant.id).await)
    .await
    .unwrap();
    assert!(waited >= 0.8, "{waited}");
}

#[tokio::test]
async fn a_kill_in_the_middle_of_several_calls_keeps_what_was_answered() {
    let two = Two::start(Duration::from_secs(3)).await;
    // The first is refused at once; the other two are under way.
    let wanted = [
        ("bank__send_money", json!({})),
        ("bank__send_money", payment("1.00")),
        ("bank__get_balances", json!({})),
    ];
    two.world
        .model
        .reply(calls(wanted))
        .reply(text("Please check."));
    let run = two.there.say(&two.id, "pay").await;
    eventually(async || two.bank.books.entries().len() == 2).await;
    eventually(async || tool_results(&two.here, &two.id).await.len() == 1).await;
    let Two {
        doomed,
        world,
        here,
        id,
        bank,
        ..
    } = two;
    doomed.kill();
    ended(&here, &run).await;
    let mut statuses: Vec<_> = tool_results(&here, &id)
        .await
        .iter()
        .map(|result| result["status"].clone())
        .collect();
    statuses.sort_by_key(ToString::to_string);
    assert_eq!(statuses, ["denied", "outcome_unknown", "outcome_unknown"]);
    assert_eq!(results(&world.model.last_request()).len(), 3);
    assert_eq!(bank.books.entries().len(), 2);
}

/// Calls in the audit trail whose outcome is unknown.
async fn lines(world: &World) -> i64 {
    let sql = "select count(*) from audit a left join audit_outcomes o using (tenant_id, id)
               where action = 'tool.call' and coalesce(o.outcome, a.outcome) = 'outcome_unknown'";
    sqlx::query_scalar(sql)
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn calls_of_a_step_that_had_not_begun_are_said_to_be_never_sent() {
    let two = Two::start(Duration::from_secs(3)).await;
    let wanted: [_; 10] =
        std::array::from_fn(|at| ("bank__send_money", payment(&format!("{}.00", at + 1))));
    two.world
        .model
        .reply(calls(wanted))
        .reply(text("Please check."));
    let run = two.there.say(&two.id, "pay").await;
    eventually(async || two.bank.executions("send_money") > 0).await;
    let Two {
        doomed,
        world,
        here,
        id,
        bank,
        ..
    } = two;
    doomed.kill();
    ended(&here, &run).await;
    let kept = tool_results(&here, &id).await;
    let (unknown, unsent): (Vec<_>, Vec<_>) = kept
        .iter()
        .partition(|result| result["status"] == "outcome_unknown");
    assert_eq!((unknown.len(), unsent.len()), (8, 2), "{kept:?}");
    for result in unsent {
        let words = result["text"].as_str().unwrap();
        assert!(
            result["status"] == "failed" && words.contains("nothing was sent"),
            "{result}"
        );
    }
    assert_eq!(lines(&world).await, 8);
    assert!(bank.executions("send_money") <= 8);
}

#[tokio::test]
async fn a_kill_between_two_steps_goes_on_with_the_second() {
    let two = Two::start(Duration::ZERO).await;
    let gate = Gate::new();
    two.world
        .model
        .reply(calls([("bank__send_money", payment("9.00"))]));
    two.world
        .model
        .reply(text("never heard").gate(0, &gate))
        .reply(text("Sent."));
    let run = two.there.say(&two.id, "pay").await;
    gate.reached().await;
    let Two {
        doomed,
        world,
        here,
        id,
        bank,
        ..
    } = two;
    doomed.kill();
    let run = ended(&here, &run).await;
    // The first step is not taken again.
    run.has(json!({ "status": "succeeded", "steps": 2 }));
    assert_eq!(tool_results(&here, &id).await[0]["status"], "succeeded");
    let requests = world.model.requests();
    assert_eq!(
        requests[1].body["messages"], requests[2].body["messages"],
        "it is asked what it was asked before"
    );
    assert_eq!(bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_kill_during_a_command_does_not_call_again_and_tells_the_user() {
    let two = Two::start(Duration::from_secs(3)).await;
    let run = two
        .there
        .say(
            &two.id,
            &format!("/call bank send_money {}", payment("2.00")),
        )
        .await;
    eventually(async || two.bank.executions("send_money") == 1).await;
    let Two {
        doomed,
        here,
        id,
        bank,
        ..
    } = two;
    doomed.kill();
    assert_eq!(ended(&here, &run).await["status"], "succeeded");
    assert_eq!(
        roles(&here, &id).await,
        ["system", "user", "assistant", "system"]
    );
    assert!(plain(here.messages(&id).await.last().unwrap()).contains("outcome unknown"));
    assert_eq!(bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_run_that_was_cancelled_at_a_dead_replica_is_not_taken_up() {
    let two = Two::start(Duration::ZERO).await;
    let gate = Gate::new();
    two.world.model.reply(text("never heard").gate(1, &gate));
    let run = two.there.say(&two.id, "hi").await;
    gate.reached().await;
    let Two {
        doomed,
        world,
        here,
        ..
    } = two;
    doomed.kill();
    here.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    assert_eq!(ended(&here, &run).await["status"], "cancelled");
    assert_eq!(world.model.requests().len(), 1);
}

#[tokio::test]
async fn what_waited_behind_a_dead_run_is_answered_after_it() {
    let two = Two::start(Duration::ZERO).await;
    let gate = Gate::new();
    two.world
        .model
        .reply(text("never heard").gate(1, &gate))
        .reply(text("One."))
        .reply(text("Two."));
    let first = two.there.say(&two.id, "one").await;
    gate.reached().await;
    let second = two.here.say(&two.id, "two").await;
    let Two {
        doomed, here, id, ..
    } = two;
    doomed.kill();
    ended(&here, &first).await;
    ended(&here, &second).await;
    let said: Vec<_> = here.messages(&id).await.iter().skip(1).map(plain).collect();
    assert_eq!(said, ["one", "two", "One.", "Two."]);
}

#[tokio::test]
async fn a_run_that_breaks_off_again_and_again_is_given_up() {
    let two = Two::start(Duration::ZERO).await;
    let gate = Gate::new();
    two.world.model.on({
        let gate = gate.clone();
        move |_| Some(text("never heard").gate(1, &gate))
    });
    let run = two.there.say(&two.id, "hi").await;
    gate.reached().await;
    // As if five replicas had died of it.
    sqlx::query("update runs set attempt = 5 where id = $1::uuid")
        .bind(&run)
        .execute(&mut two.world.db.as_tenant(two.world.tenant.id).await)
        .await
        .unwrap();
    let Two { doomed, here, .. } = two;
    doomed.kill();
    let run = ended(&here, &run).await;
    run["error"].says("broke off several times");
}

#[tokio::test]
async fn a_replica_that_lost_its_lease_writes_nothing_more() {
    let two = Two::start(Duration::from_secs(2)).await;
    two.world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]))
        .reply(text("From the second."));
    let run = two.there.say(&two.id, "rate?").await;
    eventually(async || two.bank.executions("get_exchange_rate") == 1).await;
    // As if its clock had stood still: the other one takes over while the first still works.
    sqlx::query("update runs set lease_until = now() - interval '1 hour', fence = fence + 1 where id = $1::uuid")
        .bind(&run)
        .execute(&mut two.world.db.as_tenant(two.world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(two.end_of(&run).await["status"], "succeeded");
    let statuses: Vec<_> = tool_results(&two.here, &two.id)
        .await
        .iter()
        .map(|result| result["status"].clone())
        .collect();
    assert_eq!(
        statuses,
        ["outcome_unknown"],
        "the late answer of the first is not written"
    );
    assert_eq!(
        roles(&two.here, &two.id).await,
        ["system", "user", "assistant", "tool", "assistant"]
    );
}

#[tokio::test]
async fn a_client_that_repeats_after_a_kill_calls_the_tool_once() {
    let two = Two::start(Duration::from_secs(2)).await;
    let rate = || calls([("bank__get_exchange_rate", pair())]);
    two.world.model.on(move |request| {
        Some(if results(request).is_empty() {
            rate()
        } else {
            text("It is high.")
        })
    });
    let asked = json!({ "model": "bank", "messages": [{ "role": "user", "content": "rate?" }] });
    let first = {
        let sent = two.there.request(Method::POST, "/v1/chat/completions");
        tokio::spawn(sent.json(&asked).send())
    };
    eventually(async || two.bank.executions("get_exchange_rate") == 1).await;
    two.doomed.kill();
    assert!(first.await.unwrap().is_err(), "its connection is gone");
    // As a client does that does not count its attempts.
    for _ in 0..2 {
        let again = two.here.post("/v1/chat/completions", asked.clone()).await;
        let refused = again.expect(400)["error"].clone();
        assert_eq!(refused["code"], "answer_pending", "{refused}");
    }
    assert_eq!(two.bank.executions("get_exchange_rate"), 1);
}
