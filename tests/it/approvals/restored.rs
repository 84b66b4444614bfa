//! After a database was restored to an earlier time, what was done since then is not done again.

use chatelaine::cli::restored;
use clap::Parser;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{Staff, approve, asked, becomes, state, world_with};
use crate::support::{
    model::text,
    replica,
    wait::eventually,
    world::{Stopped, World},
};

#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    args: restored::Args,
}

async fn restore(stopped: &Stopped, line: &[&str]) -> anyhow::Result<String> {
    let typed = Typed::try_parse_from([&["restored"], line].concat())?;
    let db = replica::open(&stopped.config, &stopped.db.url).await;
    let mut out = Vec::new();
    let done = restored::run(typed.args, &db, &mut out).await;
    db.close().await;
    done?;
    Ok(String::from_utf8(out)?)
}

fn now() -> String {
    let now: OffsetDateTime = domain::clock::Clock::System.now();
    now.format(&Rfc3339).unwrap()
}

#[tokio::test]
async fn what_was_carried_out_after_a_backup_is_never_carried_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("deletions.jsonl");
    let world = world_with(|setup| setup.config.deletions_file = Some(list.clone())).await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "8.00").await;
    let zoe = world.user("zoe", &["employee"]).await;
    world.model.reply(text("Hello."));
    zoe.ask("bank", "hello").await;
    let yan = world.user("yan", &["employee"]).await;
    world.model.reply(text("Hello."));
    yan.ask("bank", "hello").await;
    let admin = world.admin().await;
    admin.delete("/v1/admin/users/yan").await.expect(204);
    let stopped = world.stop().await;
    let backup = stopped.db.copy().await;
    let at = now();

    let world = stopped.start().await;
    let staff = Staff::of(&world).await;
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    world
        .admin()
        .await
        .delete("/v1/admin/users/zoe")
        .await
        .expect(204);
    let mut stopped = world.stop().await;
    assert_eq!(stopped.bank.executions("send_money"), 1);

    stopped.db = backup;
    let said = restore(
        &stopped,
        &["--at", &at, "--deletions", list.to_str().unwrap()],
    )
    .await
    .unwrap();
    assert!(
        said.starts_with("requests for approval that cannot be approved any more: 1\n"),
        "{said}"
    );
    assert!(
        said.contains("users who were deleted once more: 2\n"),
        "{said}"
    );
    let asked_before = stopped.model.requests().len();
    let world = stopped.start().await;
    let staff = Staff::of(&world).await;
    approve(&staff.bob, &request).await.expect(409);
    let view = becomes(&staff.ann, &request, "revoked").await;
    assert!(
        view["reason"]
            .as_str()
            .unwrap()
            .contains("was restored to an earlier time"),
        "{view:#}"
    );
    assert_eq!(world.bank.executions("send_money"), 1);
    // No model asks for it again by itself.
    assert_eq!(world.model.requests().len(), asked_before);
    let of_zoe: i64 =
        sqlx::query_scalar("select count(*) from conversations where user_id = 'zoe'")
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert_eq!(of_zoe, 0);
    let admin = world.admin().await;
    let trail = admin
        .get("/v1/admin/audit?action=database.restored")
        .await
        .expect(200);
    assert_eq!(trail["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn without_the_command_a_restored_request_would_be_carried_out_again() {
    let world = world_with(|_| {}).await;
    let staff = Staff::of(&world).await;
    let (_, request) = asked(&staff.ann, "8.00").await;
    let mut stopped = world.stop().await;
    stopped.db = stopped.db.copy().await;
    let world = stopped.start().await;
    let staff = Staff::of(&world).await;
    assert_eq!(state(&staff.ann, &request).await, "pending");
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
}

#[tokio::test]
async fn runs_that_were_open_do_not_go_on_after_a_restore() {
    let world = world_with(|_| {}).await;
    let staff = Staff::of(&world).await;
    let conversation = staff.ann.open("bank").await;
    world.model.reply(text("Hello."));
    let run = staff.ann.say_and_wait(&conversation, "hello").await;
    let run = run["id"].as_str().unwrap().to_owned();
    let mut stopped = world.stop().await;
    stopped.db = stopped.db.copy().await;
    // As it was while the run waited.
    let waiting = "update runs set status = 'queued', finished_at = null";
    let mut tenant = stopped.db.as_tenant(stopped.tenant.id).await;
    sqlx::query(waiting).execute(&mut tenant).await.unwrap();
    drop(tenant);
    let said = restore(&stopped, &["--at", &now()]).await.unwrap();
    assert!(
        said.contains("runs that end at the next start: 1\n"),
        "{said}"
    );
    let before = stopped.model.requests().len();
    let world = stopped.start().await;
    let ann = world.user("ann", &["employee"]).await;
    eventually(async || ann.get(&format!("/v1/runs/{run}")).await.json()["status"] == "cancelled")
        .await;
    assert_eq!(world.model.requests().len(), before);
}

#[tokio::test]
async fn the_command_is_refused_while_a_replica_is_at_work() {
    let world: World = world_with(|_| {}).await;
    let working = "select count(*) from replicas";
    eventually(async || {
        let count: i64 = sqlx::query_scalar(working)
            .fetch_one(&mut world.db.as_system().await)
            .await
            .unwrap();
        count > 0
    })
    .await;
    let typed = Typed::try_parse_from(["restored", "--at", &now()]).unwrap();
    let refused = restored::run(typed.args, &world.db.db, &mut Vec::new()).await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("stop all of them")
    );
    assert!(Typed::try_parse_from(["restored", "--at", "yesterday"]).is_err());
}

#[tokio::test]
async fn a_replica_that_starts_meanwhile_waits() {
    let stopped = World::start().await.stop().await;
    let db = replica::open(&stopped.config, &stopped.db.url).await;
    let alone = store::replicas::keep_out(&db).await.unwrap();
    let mut owner = stopped.db.as_owner().await;
    let starting = tokio::spawn(stopped.start());
    eventually(async || {
        let waits =
            "select count(*) from pg_locks where relation = 'replicas'::regclass and not granted";
        let waiting: i64 = sqlx::query_scalar(waits)
            .fetch_one(&mut owner)
            .await
            .unwrap();
        waiting > 0
    })
    .await;
    assert!(!starting.is_finished());
    drop(alone);
    let world = starting.await.unwrap();
    // And once it has begun, nothing is settled.
    let refused =
        chatelaine::app::runs::restored::settle(&db, OffsetDateTime::UNIX_EPOCH, &[]).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a replica is at work"), "{refused}");
    drop(world);
}
