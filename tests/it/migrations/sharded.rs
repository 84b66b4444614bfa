//! A later release comes to a database, which may be sharded by tenant (`CHATELAINE_TEST_CITUS`). What its migrations do
//! is the same in both.

use domain::ids::TenantId;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Postgres, Transaction};
use store::roles::{Roles, SYSTEM, TENANT};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::running::{migrate, with_more};
use crate::support::db::TestDb;

/// What a migration of a later release may have: several statements, a new table that names a tenant and a run, one that
/// is nobody's, columns, grants of columns, checks, foreign keys, policies, functions and triggers.
const LATER: [&str; 4] = [
    "-- A file; with several statements.
     create table notes (
       tenant_id uuid not null, id uuid not null, conversation_id uuid not null,
       words text not null check (words <> 'a; b'), primary key (tenant_id, id)
     );
     create table marks (
       tenant_id uuid not null, note_id uuid not null, primary key (tenant_id, note_id),
       foreign key (tenant_id, note_id) references notes (tenant_id, id) on delete cascade
     );
     alter table notes add foreign key (tenant_id) references tenants (id) on delete cascade;
     alter table notes add foreign key (tenant_id, conversation_id) references conversations (tenant_id, id)
       on delete cascade;
     alter table marks add foreign key (tenant_id) references tenants (id) on delete cascade;
     select lock_by_tenant('marks');
     select lock_by_tenant('notes');
     create index notes_by_conversation on notes (tenant_id, conversation_id);
     create policy system on notes for select to chatelaine_system using (true);
     grant select (tenant_id, id) on notes to chatelaine_system;
     create table notices (name text primary key, at timestamptz not null default now());
     grant select (name), insert (name) on notices to chatelaine_system;",
    "alter table conversations add column noted int not null default 0, add column other uuid;
     alter table conversations add constraint noted check (noted >= 0) not valid;
     alter table conversations add constraint other
       foreign key (tenant_id, other) references conversations (tenant_id, id) not valid;
     grant select (noted) on conversations to chatelaine_system;
     create function note_conversation() returns trigger language plpgsql as $$
     begin
       -- Beside the row; in its shard.
       insert into notes (tenant_id, id, conversation_id, words) values (new.tenant_id, new.id, new.id, 'new');
       return null;
     end
     $$;
     create trigger note_conversation after insert on conversations
       for each row execute function note_conversation();",
    "alter table conversations validate constraint noted",
    "-- no-transaction\n-- Built while people chat.\ncreate index concurrently noted on conversations (tenant_id, noted)",
];

#[tokio::test]
async fn a_later_release_migrates_a_database_that_may_be_sharded() {
    let test = TestDb::new().await;
    let (acme, globex) = (test.tenant("acme").await, test.tenant("globex").await);
    add_conversation(&test, acme).await;
    let later = with_more(&LATER);
    migrate(&test, &later, true).await.unwrap();
    migrate(&test, &later, true).await.unwrap();

    // The trigger writes for the tenant, who sees no other tenant's rows; the program itself sees all.
    for tenant in [acme, globex] {
        add_conversation(&test, tenant).await;
        let seen = "select count(*) from notes n join conversations c on c.tenant_id = n.tenant_id and c.id = n.id";
        assert_eq!(query(&test, Some(tenant), seen).await.unwrap(), 1);
    }
    let all = "select count(tenant_id) from notes";
    assert_eq!(query(&test, None, all).await.unwrap(), 2);
    let columns =
        "select count(*) from (select tenant_id, noted from conversations where noted = 0) c";
    assert_eq!(query(&test, None, columns).await.unwrap(), 3);
    let local = "with put as (insert into notices (name) values ('one') returning 1) select count(*) from put";
    assert_eq!(query(&test, None, local).await.unwrap(), 1);
    let refused = format!(
        "with put as (update conversations set noted = -1 where tenant_id = '{acme}' returning 1) select count(*) from put"
    );
    let error = query(&test, Some(acme), &refused).await.unwrap_err();
    assert!(error.to_string().contains("noted"), "{error}");
    // Where the database is not sharded, no table has a place.
    let plan = store::shards::plan(&test.url).await.unwrap();
    assert_eq!(plan.pending().count(), 0, "{plan:?}");
}

#[tokio::test]
async fn a_new_table_with_keys_ends_nobodys_work() {
    let test = TestDb::new().await;
    let done = CancellationToken::new();
    let mut people: JoinSet<sqlx::Result<()>> = JoinSet::new();
    for number in 0..4 {
        let tenant = test.tenant(&format!("tenant-{number}")).await;
        let (mut connection, done) = (test.as_owner().await, done.clone());
        let roles = test.roles().await;
        people.spawn(async move {
            while !done.is_cancelled() {
                read_and_write(&mut connection, &roles, tenant).await?;
            }
            Ok(())
        });
    }
    let done_at_the_end = done.drop_guard();
    migrate(&test, &with_more(&LATER[..1]), true).await.unwrap();
    drop(done_at_the_end);
    while let Some(ended) = people.join_next().await {
        ended.unwrap().unwrap();
    }
}

/// What most transactions do: they read a table, and then write to it.
pub async fn read_and_write(
    connection: &mut PgConnection,
    roles: &Roles,
    tenant: TenantId,
) -> sqlx::Result<()> {
    let mut tx = begin(connection, roles, Some(tenant)).await?;
    let read = "select count(*) from conversations";
    sqlx::query_scalar::<_, i64>(read)
        .fetch_one(&mut *tx)
        .await?;
    sqlx::query_scalar::<_, i64>(AssertSqlSafe(put_conversation(tenant)))
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await
}

async fn add_conversation(test: &TestDb, tenant: TenantId) {
    let put = put_conversation(tenant);
    assert_eq!(query(test, Some(tenant), &put).await.unwrap(), 1);
}

fn put_conversation(tenant: TenantId) -> String {
    format!(
        "with put as (insert into conversations (tenant_id, id, agent, user_id)
                      values ('{tenant}', gen_random_uuid(), 'bank', 'alice') returning 1)
         select count(*) from put"
    )
}

/// Asks for a number as the service does: as a tenant, or as the program itself.
async fn query(test: &TestDb, tenant: Option<TenantId>, sql: &str) -> sqlx::Result<i64> {
    let mut connection = test.as_owner().await;
    let mut tx = begin(&mut connection, &test.roles().await, tenant).await?;
    let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(number)
}

pub async fn begin<'a>(
    connection: &'a mut PgConnection,
    roles: &Roles,
    tenant: Option<TenantId>,
) -> sqlx::Result<Transaction<'a, Postgres>> {
    let mut tx = connection.begin().await?;
    let role = roles.name(tenant.map_or(SYSTEM, |_| TENANT));
    let settings =
        format!("set local role {role}; set local citus.propagate_set_commands = 'local'");
    tx.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await?;
    if let Some(tenant) = tenant {
        let name = format!("set local app.tenant_id = '{tenant}'");
        tx.execute(sqlx::raw_sql(AssertSqlSafe(name))).await?;
    }
    Ok(tx)
}
