//! Rows of the replicas that run. Every function needs the system role.

use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;

use super::{Db, Tx, roles};
use domain::{
    error::{Error, Result},
    ids::ReplicaId,
    replica::{Readiness, Replica},
};

/// Writes the state of a replica. Deletes the rows of replicas that have written nothing for an hour.
pub async fn put(
    tx: &mut Tx,
    id: ReplicaId,
    version: &str,
    started_at: OffsetDateTime,
    readiness: &Readiness,
) -> Result<()> {
    sqlx::query!(
        "with old as (
           select id from replicas where seen_at < now() - interval '1 hour' and id <> $1 for update skip locked
         ), forgotten as (delete from replicas using old where replicas.id = old.id)
         insert into replicas (id, version, started_at, readiness) values ($1, $2, $3, $4::text::json)
         on conflict (id) do update set seen_at = now(), readiness = excluded.readiness",
        id.0,
        version,
        started_at,
        serde_json::to_string(readiness).map_err(Error::internal)?,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Deletes the row of a replica that stops.
pub async fn delete(tx: &mut Tx, id: ReplicaId) -> Result<()> {
    sqlx::query!("delete from replicas where id = $1", id.0)
        .execute(tx.conn())
        .await?;
    Ok(())
}

/// As long as this lives, no replica begins: each writes its state before it does anything else.
pub struct NoReplicas(#[expect(dead_code, reason = "its end is the end of the lock")] PgConnection);

/// Keeps replicas from writing their state. Waits for those that are writing it. The connection is one of its own, so that
/// the caller can go on with transactions.
pub async fn keep_out(db: &Db) -> Result<NoReplicas> {
    let mut connection = db.pool.connect_apart().await?;
    let lock = format!(
        "begin; set local role {}; set local lock_timeout = '5s';
         set local idle_in_transaction_session_timeout = 0; lock table replicas in exclusive mode",
        db.layout.roles.name(roles::SYSTEM)
    );
    sqlx::raw_sql(AssertSqlSafe(lock))
        .execute(&mut connection)
        .await?;
    Ok(NoReplicas(connection))
}

/// The replicas that have written their state within the last hour, in the order of their starts.
pub async fn list(tx: &mut Tx) -> Result<Vec<Replica>> {
    let rows = sqlx::query!(
        r#"select id as "id: ReplicaId", version, started_at, seen_at, readiness::text as "readiness!",
                  seen_at < now() - interval '1 minute' as "is_silent!"
           from replicas where seen_at > now() - interval '1 hour' order by started_at, id"#
    )
    .fetch_all(tx.conn())
    .await?;
    let replicas = rows.into_iter().map(|row| {
        Ok(Replica {
            id: row.id,
            version: row.version,
            started_at: row.started_at,
            seen_at: row.seen_at,
            silent: row.is_silent,
            readiness: serde_json::from_str(&row.readiness).map_err(Error::internal)?,
        })
    });
    replicas.collect()
}
