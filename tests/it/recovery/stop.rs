use std::time::Duration;

use serde_json::json;

use super::world_with;
use crate::support::{
    bank::{payment, start_slow_bank},
    client::{plain, roles, tool_results},
    model::{Gate, calls, results, text},
    wait::{ended, eventually},
    world::World,
};

#[tokio::test]
async fn an_answer_that_a_stop_interrupts_is_given_whole_after_the_start() {
    let world = world_with(|_| {}).await;
    let gate = Gate::new();
    world.model.reply(text("I was about to").gate(3, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.say(&id, "hi").await;
    gate.reached().await;
    let stopped = world.stop().await;
    stopped.model.wait_for_hangups(1).await;
    stopped.model.reply(text("I was about to say this."));
    let world = stopped.start().await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let said: Vec<_> = ann.messages(&id).await.iter().skip(1).map(plain).collect();
    assert_eq!(said, ["hi", "I was about to say this."]);
}

#[tokio::test]
async fn a_call_under_way_may_end_before_the_process_does() {
    let slow = start_slow_bank(None, Duration::from_secs(2)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", slow.url.clone())).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("6.00"))]));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "pay").await;
    eventually(async || slow.executions("send_money") == 1).await;
    let stopped = world.stop().await;
    stopped.model.reply(text("Paid."));
    let world = stopped.start().await;
    let fin = world.user("fin", &["finance"]).await;
    assert_eq!(ended(&fin, &run).await["status"], "succeeded");
    assert_eq!(
        tool_results(&fin, &id).await[0]["status"],
        "succeeded",
        "its answer was waited for"
    );
    assert_eq!(plain(fin.messages(&id).await.last().unwrap()), "Paid.");
    assert_eq!(slow.executions("send_money"), 1);
}

#[tokio::test]
async fn a_call_that_does_not_end_in_time_is_unknown_after_the_start_and_not_repeated() {
    let slow = start_slow_bank(None, Duration::from_secs(60)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", slow.url.clone())).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("6.00"))]));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "pay").await;
    eventually(async || slow.executions("send_money") == 1).await;
    let stopped = world.stop().await;
    let audited: Vec<String> =
        sqlx::query_scalar("select outcome from audit where action = 'tool.call'")
            .fetch_all(&mut stopped.db.as_tenant(stopped.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(
        audited,
        ["outcome_unknown"],
        "the trail does not miss a call whose caller was stopped"
    );
    stopped.model.reply(text("Please check."));
    let world = stopped.start().await;
    let fin = world.user("fin", &["finance"]).await;
    assert_eq!(ended(&fin, &run).await["status"], "succeeded");
    let told = results(&world.model.last_request());
    assert!(
        told[0].contains("outcome unknown") && told[0].contains("was not repeated"),
        "{told:?}"
    );
    assert_eq!(slow.executions("send_money"), 1);
}

#[tokio::test]
async fn what_waited_at_a_stop_is_answered_after_the_start() {
    let world = world_with(|_| {}).await;
    let gate = Gate::new();
    world.model.reply(text("One.").gate(0, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let first = ann.say(&id, "one").await;
    gate.reached().await;
    let second = ann.say(&id, "two").await;
    let stopped = world.stop().await;
    stopped.model.reply(text("One.")).reply(text("Two."));
    let world = stopped.start().await;
    let ann = world.user("ann", &[]).await;
    ended(&ann, &first).await;
    ended(&ann, &second).await;
    let said: Vec<_> = ann.messages(&id).await.iter().skip(1).map(plain).collect();
    assert_eq!(said, ["one", "two", "One.", "Two."]);
}

#[tokio::test]
async fn a_stop_hands_a_run_to_the_other_replica_without_waiting_for_its_lease() {
    let world = World::with(|setup| setup.config.run_lease = Duration::from_secs(3600)).await;
    world.tools_ready().await;
    let other = world.replica().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("never heard").gate(1, &gate))
        .reply(text("From the other one."));
    let ann = world.user("ann", &[]).await;
    let there = ann.at(&other.url);
    let id = ann.open("bank").await;
    let mut events = there.listen(&id, None).await;
    let run = ann.say(&id, "hi").await;
    gate.reached().await;
    let stopped = world.stop().await;
    let heard = events.until_run_ends(&run).await;
    assert_eq!(heard.last().unwrap().data["status"], "succeeded");
    assert_eq!(roles(&there, &id).await, ["system", "user", "assistant"]);
    assert_eq!(
        there.get(&format!("/v1/runs/{run}")).await.expect(200)["usage"]["input_tokens"],
        json!(11)
    );
    drop(stopped);
}
