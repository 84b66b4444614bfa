//! After a database was restored to an earlier time, what was done since then is not done again.

use chatelaine::cli::{restored, serve::Service};
use clap::Parser;
use domain::config::DirectAddress;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{Staff, approve, asked, becomes, world_with};
use crate::support::{
    model::text,
    own_postgres::OwnPostgres,
    program::{self, Program, chatelaine},
    replica,
    wait::eventually,
    world::{Stopped, World},
};

const KEY: &str = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e";

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

/// A world whose settings name its database: one of the operator's, and no private one.
async fn world_on(postgres: &OwnPostgres) -> World {
    world_with(|setup| {
        setup.config.database_url = Some(postgres.url.clone());
        setup.config.direct_database = DirectAddress::Same;
    })
    .await
}

/// Why a replica does not start with what a world has left.
async fn refusal(stopped: &Stopped) -> String {
    let db = replica::open(&stopped.config, &stopped.db.url).await;
    let started = Service::start(stopped.config.clone(), &stopped.env, db).await;
    let refused = started.err().expect("it starts");
    format!("{refused:#}")
}

/// What the doctor finds in the database, as JSON.
async fn diagnose(stopped: &Stopped) -> String {
    let mut doctor = chatelaine(&["doctor", "--json"]);
    let url = stopped.config.database_url.as_ref().unwrap();
    doctor
        .env("DATABASE_URL", url.expose())
        .env("CHATELAINE_DATA", &stopped.config.data);
    String::from_utf8(doctor.output().await.unwrap().stdout).unwrap()
}

/// A request of ann's is approved and paid.
async fn pay(stopped: Stopped, request: &Value) -> Stopped {
    let world = stopped.start().await;
    let staff = Staff::of(&world).await;
    approve(&staff.bob, request).await.expect(200);
    becomes(&staff.ann, request, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    world.stop().await
}

/// Nobody starts with the backup before the command, and afterwards the request is not paid again.
async fn is_never_paid_twice(stopped: Stopped, request: &Value, at: &str, why: &str) {
    let refused = refusal(&stopped).await;
    assert!(
        refused.contains(why)
            && refused.contains("`chatelaine restored --at TIME`")
            && refused.contains("`chatelaine restored --same-data`"),
        "{refused}"
    );
    let found = diagnose(&stopped).await;
    assert!(
        found.contains("database.restored") && found.contains(why),
        "{found}"
    );
    restore(&stopped, &["--at", at]).await.unwrap();
    let world = stopped.start().await;
    let staff = Staff::of(&world).await;
    approve(&staff.bob, request).await.expect(409);
    becomes(&staff.ann, request, "revoked").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    let stopped = world.stop().await;
    assert!(!diagnose(&stopped).await.contains("database.restored"));
}

#[tokio::test]
async fn a_backup_in_another_database_of_the_server_is_not_served_before_the_command() {
    let world = world_with(|setup| {
        setup.config.database_url = Some(setup.database.clone());
        setup.config.direct_database = DirectAddress::Same;
    })
    .await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let stopped = world.stop().await;
    let (backup, at) = (stopped.db.copy().await, now());
    let mut stopped = Box::pin(pay(stopped, &request)).await;
    stopped.config.database_url = Some(backup.url.clone());
    stopped.db = backup;
    Box::pin(is_never_paid_twice(
        stopped,
        &request,
        &at,
        "in another database of the server",
    ))
    .await;
}

#[tokio::test]
async fn a_dump_that_was_restored_into_the_same_database_is_not_served_before_the_command() {
    let postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let stopped = world.stop().await;
    let (dump, at) = (postgres.dump().await, now());
    let stopped = Box::pin(pay(stopped, &request)).await;
    postgres.restore(&dump).await;
    Box::pin(is_never_paid_twice(
        stopped,
        &request,
        &at,
        "its tables were made anew",
    ))
    .await;
}

#[tokio::test]
async fn a_volume_that_was_put_back_is_served_by_no_replica_before_the_command() {
    let mut postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let mut stopped = world.stop().await;
    postgres.stop().await;
    let (backup, at) = (postgres.copy("backup").await, now());
    postgres.start_again().await;
    stopped = Box::pin(pay(stopped, &request)).await;
    postgres.stop().await;
    postgres.put_back(&backup);
    postgres.start_again().await;
    let why = "does not have what a replica has seen";
    assert!(refusal(&stopped).await.contains(why));
    // Nor by one that has seen nothing.
    let seen = stopped.config.data.join("database.json");
    std::fs::remove_file(&seen).unwrap();
    Box::pin(is_never_paid_twice(stopped, &request, &at, why)).await;
}

#[tokio::test]
async fn a_crash_of_postgres_is_no_restore() {
    let mut postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    postgres.crash().await;
    postgres.start_again().await;
    eventually(async || world.nobody().get("/readyz").await.status == 200).await;
    let stopped = world.stop().await;
    postgres.crash().await;
    postgres.start_again().await;
    Box::pin(pay(stopped, &request)).await;
}

#[tokio::test]
async fn a_standby_that_takes_over_is_followed_by_a_replica_at_work_and_asked_about_by_others() {
    let mut postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    postgres.stop().await;
    postgres.fail_over().await;
    eventually(async || world.nobody().get("/readyz").await.status == 200).await;
    // And it vouches for the database to those that start.
    let other = Service::start(world.config.clone(), &world.env, {
        replica::open(&world.config, &postgres.url).await
    });
    other.await.unwrap().stop().await.unwrap();
    assert!(!world.app().shutdown.is_cancelled());
    let stopped = world.stop().await;

    postgres.stop().await;
    postgres.fail_over().await;
    let refused = refusal(&stopped).await;
    assert!(
        refused.contains("its log is on a later timeline"),
        "{refused}"
    );
    let said = restore(&stopped, &["--same-data"]).await.unwrap();
    assert_eq!(said, "replicas can start with this database\n");
    Box::pin(pay(stopped, &request)).await;
}

#[tokio::test]
async fn a_replica_at_work_ends_when_a_standby_takes_over_that_was_behind() {
    let mut postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let mut stopped = world.stop().await;
    postgres.stop().await;
    let (behind, at) = (postgres.copy("behind").await, now());
    postgres.start_again().await;
    stopped = Box::pin(pay(stopped, &request)).await;
    let mut command = program::serve(&stopped.config, &stopped.db, KEY);
    command.env("DATABASE_URL", postgres.url.expose());
    for name in ["MODEL_URL", "BANK_URL"] {
        command.env(name, stopped.env.get(name).unwrap());
    }
    let replica = Program::start(command).await;
    postgres.stop().await;
    postgres.put_back(&behind);
    postgres.fail_over().await;
    let said = replica.end().await;
    assert!(
        said.contains("does not have what a replica has seen"),
        "{said}"
    );
    Box::pin(is_never_paid_twice(
        stopped,
        &request,
        &at,
        "does not have what a replica has seen",
    ))
    .await;
}

#[tokio::test]
async fn a_database_that_was_upgraded_goes_on_as_it_was_once_the_operator_has_said_so() {
    let mut postgres = OwnPostgres::start().await;
    let world = world_on(&postgres).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let stopped = world.stop().await;
    postgres.stop().await;
    postgres.upgrade().await;
    postgres.start_again().await;
    let refused = refusal(&stopped).await;
    assert!(
        refused.contains("in another cluster of Postgres"),
        "{refused}"
    );
    restore(&stopped, &["--same-data"]).await.unwrap();
    Box::pin(pay(stopped, &request)).await;
}

#[tokio::test]
async fn a_private_postgres_may_be_moved_and_upgraded_unasked() {
    let world = world_with(|setup| setup.config.database_url = None).await;
    let (_, request) = asked(&Staff::of(&world).await.ann, "8.00").await;
    let mut stopped = world.stop().await;
    stopped.db = stopped.db.copy().await;
    Box::pin(pay(stopped, &request)).await;
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
    for wrong in [
        &["restored", "--at", "yesterday"][..],
        &["restored"],
        &["restored", "--same-data", "--at", &now()],
    ] {
        assert!(Typed::try_parse_from(wrong).is_err(), "{wrong:?}");
    }
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
