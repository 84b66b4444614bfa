//! Listeners: each durable event once and in order, however slow they are and wherever the run is.

use std::{collections::HashSet, sync::Arc};

use chatelaine::{
    app::chat::conversations::{self, ConversationEvent},
    live::Live,
};
use domain::{
    ids::{ConversationId, TenantId, UserId},
    principal::{Audience, Principal},
};
use serde_json::json;

use super::{world, world_with};
use crate::support::{
    client::Client,
    model::{Gate, text},
    wait::ended,
    world::World,
};

async fn last_event(client: &Client, conversation: &str) -> i64 {
    client
        .get(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(200)["last_event"]
        .as_i64()
        .unwrap()
}

fn principal(world: &World, user: &str) -> Principal {
    let user = UserId(user.into());
    Principal {
        tenant: world.tenant.id,
        user,
        claims: Arc::default(),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    }
}

#[tokio::test]
async fn a_listener_that_falls_behind_still_hears_every_message_once() {
    let world = world().await;
    world.model.on(|_| Some(text("word ".repeat(300))));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let conversation: ConversationId = id.parse().unwrap();
    let mut slow =
        conversations::listen(world.app(), &principal(&world, "ann"), conversation, None)
            .await
            .unwrap();
    let first = slow.last();
    for turn in ["one", "two"] {
        ann.say_and_wait(&id, turn).await;
    }
    let last = last_event(&ann, &id).await;
    let (mut heard, mut said) = (Vec::new(), HashSet::new());
    while heard.last() != Some(&last) {
        match slow.next().await.unwrap().unwrap() {
            ConversationEvent::Durable(event) => {
                heard.push(event.seq);
                said.extend(event.worker());
            }
            ConversationEvent::Transient(event) => {
                assert!(!said.contains(&event.run()), "said again: {event:?}");
            }
        }
    }
    assert_eq!(heard, (first + 1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_listener_that_reads_rows_in_the_middle_of_an_answer_loses_nothing_of_it() {
    let world = world().await;
    let other = world.replica().await;
    let (first, last) = (Gate::new(), Gate::new());
    world.model.reply(
        text("One two three four five.")
            .gate(2, &first)
            .gate(5, &last),
    );
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut events = ann.listen(&id, None).await;
    let run = ann.say(&id, "count").await;
    first.reached().await;
    // What another replica writes is read from rows.
    ann.at(&other.url).say(&id, "/help").await;
    let mut said = String::new();
    let mut heard = 0;
    while heard < 2 {
        let event = events.next().await.unwrap();
        match event.name.as_str() {
            "message" => heard += 1,
            "delta" => said += event.data["text"].as_str().unwrap(),
            _ => {}
        }
    }
    first.open();
    // The answer is not in a row yet.
    while said != "One two three four " {
        let event = events.next().await.unwrap();
        // The other replica's answer may come only now.
        if event.name == "delta" {
            said += event.data["text"].as_str().unwrap();
        }
    }
    last.open();
    events.until_run_ends(&run).await;
}

#[tokio::test]
async fn a_message_posted_at_one_replica_is_heard_at_another() {
    let world = world().await;
    let other = world.replica().await;
    let gate = Gate::new();
    world.model.reply(text("Heard everywhere.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut there = ann.at(&other.url).listen(&id, None).await;
    let run = ann.say(&id, "hello").await;
    gate.reached().await;
    let said = there.next().await.unwrap();
    // Before the run has ended.
    assert_eq!(said.name, "message");
    assert_eq!(said.data["role"], "user");
    gate.open();
    let heard = there.until_run_ends(&run).await;
    let ids: Vec<_> = heard.iter().filter_map(|event| event.id).collect();
    assert_eq!(
        ids,
        (said.id.unwrap() + 1..=last_event(&ann, &id).await).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_conversation_that_another_replica_deleted_ends_its_listeners() {
    let world = world().await;
    let other = world.replica().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let listening = ann.at(&other.url).listen(&id, None).await;
    assert_eq!(
        ann.delete(&format!("/v1/conversations/{id}")).await.status,
        204
    );
    let rest = listening.rest().await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].data["reason"], "deleted");
}

#[tokio::test]
async fn what_no_hint_told_is_found_by_the_clock() {
    let world = world().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut events = ann.listen(&id, None).await;
    // As a replica would whose hints are lost: rows and no word.
    let seq = last_event(&ann, &id).await + 1;
    let (tenant, conversation) = (world.tenant.id.0, id.parse::<ConversationId>().unwrap().0);
    let mut rows = world.db.as_tenant(world.tenant.id).await;
    let run = uuid::Uuid::now_v7();
    let both = format!(
        "update conversations set last_event = {seq} where id = '{conversation}';
         insert into events (tenant_id, id, conversation_id, seq, kind, run_id, run_status)
         values ('{tenant}', '{run}', '{conversation}', {seq}, 'run', '{run}', 'succeeded')"
    );
    let both = sqlx::raw_sql(sqlx::AssertSqlSafe(both));
    both.execute(&mut rows).await.unwrap();
    assert_eq!(events.next().await.unwrap().id, Some(seq));
}

#[tokio::test]
async fn a_cancel_reaches_a_run_at_another_replica() {
    let world =
        world_with(|setup| setup.config.run_lease = std::time::Duration::from_secs(1)).await;
    let other = world.replica().await;
    let gate = Gate::new();
    world.model.reply(text("never heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.at(&other.url).say(&id, "hello").await;
    gate.reached().await;
    ann.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    assert_eq!(ended(&ann, &run).await["status"], "cancelled");
}

#[tokio::test]
async fn a_conversation_is_forgotten_with_its_last_listener() {
    let live = Live::default();
    let (tenant, conversation) = (TenantId::new(), ConversationId::new());
    let (one, two) = (
        live.listen(tenant, conversation),
        live.listen(tenant, conversation),
    );
    drop(one);
    assert_eq!(live.listened_conversations(), [(tenant, conversation)]);
    drop(two);
    assert!(live.listened_conversations().is_empty());
}
