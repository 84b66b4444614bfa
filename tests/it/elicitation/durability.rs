//! A question outlives the process that asked it; an answer counts once.

use serde_json::{Value, json};

use super::{OPEN, answer, asked_user, asking, name, parts, responses, scripted, texts};
use crate::support::{
    canary::everything_stored,
    offer::{again, world},
    wait::eventually,
};

#[tokio::test]
async fn a_question_outlives_a_restart() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    let world = world.stop().await.start().await;
    eventually(async || world.app().connections.count().0 == 1).await;
    let ann = again(&world, &ann);
    assert!(texts(&answer(&ann, &chat, "Ann").await).ends_with("It is done."));
    assert_eq!(
        responses(&server)[1]["ask"]["content"],
        json!({"name": "Ann"})
    );
}

#[tokio::test]
async fn an_answer_may_be_given_at_another_replica() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    let replica = world.replica().await;
    let there = ann.at(&replica.url);
    eventually(async || {
        let listed = there.get("/v1/agents/desk/tools").await.expect(200);
        listed["items"][0]["tools"]
            .as_array()
            .is_some_and(|tools| !tools.is_empty())
    })
    .await;
    assert!(texts(&answer(&there, &chat, "Ann").await).ends_with("It is done."));
    assert_eq!(responses(&server).len(), 2);
}

#[tokio::test]
async fn a_question_that_nobody_answers_ends_and_its_user_is_told() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query("update elicitations set expires_at = now() - interval '1 second'")
        .execute(&mut db)
        .await
        .unwrap();
    assert_eq!(
        texts(&answer(&ann, &chat, "Ann").await),
        "Hello.",
        "said to the agent"
    );
    chatelaine::app::tools::elicitations::expire_overdue(world.app())
        .await
        .unwrap();
    let told = parts(&ann, &chat, "notice").await;
    assert_eq!(told[0]["code"], "input_expired", "{told:?}");
    let left: i64 = sqlx::query_scalar("select count(*) from elicitations")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!((left, responses(&server).len()), (0, 1));
}

#[tokio::test]
async fn a_call_that_may_have_been_sent_is_not_sent_again() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    // As if a replica had marked it and then died: what it marks it for is this run.
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(
        "create function mark() returns trigger language plpgsql as $$ begin
           if new.state = 'answered' then new.state = 'sent'; end if; return new; end $$",
    )
    .execute(&mut world.db.as_owner().await)
    .await
    .unwrap();
    sqlx::query(
        "create trigger mark before update on elicitations for each row execute function mark()",
    )
    .execute(&mut world.db.as_owner().await)
    .await
    .unwrap();
    let told = answer(&ann, &chat, "Ann").await;
    assert_eq!(told[0]["status"], "outcome_unknown", "{told:?}");
    assert_eq!(responses(&server).len(), 1);
    let left: i64 = sqlx::query_scalar("select count(*) from elicitations")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn the_servers_state_and_the_answers_are_kept_sealed() {
    let server = asking(
        1,
        super::form(&json!({"first": {"type": "string"}, "last": {"type": "string"}})),
    )
    .await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    answer(&ann, &chat, "Ann").await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let rows: Vec<String> =
        sqlx::query_scalar("select encode(sealed || entered, 'escape') from elicitations")
            .fetch_all(&mut db)
            .await
            .unwrap();
    assert_eq!(rows.len(), 1);
    assert!(!rows[0].contains("state-1") && !rows[0].contains("Ann"));
    assert!(!everything_stored(&world.db).await.contains("state-1"));
}

#[tokio::test]
async fn a_server_that_is_gone_fails_the_call_and_the_model_is_told() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    drop(server);
    let told = answer(&ann, &chat, "Ann").await;
    let status: &Value = &told[0]["status"];
    assert!(
        *status == "failed" || *status == "outcome_unknown",
        "{told:?}"
    );
    assert_eq!(
        texts(&told[1..]),
        "It is done.",
        "what the scripted model says of any outcome"
    );
}
