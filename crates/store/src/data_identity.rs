//! The row that says which data this is. Every function needs the system role.

use super::Tx;
use domain::{
    data_identity::{Age, DataIdentity, KnownData, Place},
    error::Result,
};

/// What Postgres says now.
pub async fn read(tx: &mut Tx) -> Result<DataIdentity> {
    // The file of the log that is being written names its timeline; the last checkpoint may be older than a switch.
    let row = sqlx::query!(
        r#"select case when has_function_privilege('pg_control_system()', 'execute')
                    then (select system_identifier from pg_control_system()) end as system,
                  (select oid::bigint from pg_database where datname = current_database()) as "database!",
                  'tenants'::regclass::oid::bigint as "table!",
                  case when has_function_privilege('pg_walfile_name(pg_lsn)', 'execute')
                    then ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int end as timeline,
                  (pg_current_wal_flush_lsn() - '0/0')::bigint as "position!""#
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(DataIdentity {
        place: Place {
            system: row.system,
            database: row.database,
            table: row.table,
        },
        timeline: row.timeline,
        position: row.position,
    })
}

/// The row; `None` before the first start.
pub async fn get(tx: &mut Tx) -> Result<Option<KnownData>> {
    let row = sqlx::query!(
        "select system_id, database_oid, table_oid, timeline, position, confirmed_at, beats, is_behind
         from data_identity"
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| KnownData {
        identity: DataIdentity {
            place: Place {
                system: row.system_id,
                database: row.database_oid,
                table: row.table_oid,
            },
            timeline: row.timeline,
            position: row.position,
        },
        age: Age {
            confirmed_at: row.confirmed_at,
            beats: row.beats,
        },
        is_behind: row.is_behind,
    }))
}

/// Keeps others from writing the row until the end of the transaction.
pub async fn lock(tx: &mut Tx) -> Result<()> {
    sqlx::query!("select is_only from data_identity for update")
        .fetch_optional(tx.conn())
        .await?;
    Ok(())
}

/// Writes that a replica works with this data. The commit waits for the disk: what a replica has seen must be there
/// after a crash.
pub async fn put(tx: &mut Tx, now: &DataIdentity) -> Result<Age> {
    sqlx::query!(
        "select set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') = 'off'"
    )
    .fetch_optional(tx.conn())
    .await?;
    let row = sqlx::query!(
        "insert into data_identity as known (system_id, database_oid, table_oid, timeline, position)
         values ($1, $2, $3, $4, $5)
         on conflict (is_only) do update
         set system_id = excluded.system_id, database_oid = excluded.database_oid, table_oid = excluded.table_oid,
             timeline = excluded.timeline, position = excluded.position, beats = known.beats + 1
         returning confirmed_at, beats",
        now.place.system,
        now.place.database,
        now.place.table,
        now.timeline,
        now.position,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(Age {
        confirmed_at: row.confirmed_at,
        beats: row.beats,
    })
}

/// Writes that a replica has seen a later state of the row, so that no other replica works with this one either.
pub async fn mark_behind(tx: &mut Tx) -> Result<()> {
    sqlx::query!("update data_identity set is_behind = true")
        .execute(tx.conn())
        .await?;
    Ok(())
}

/// Writes that this is the data, wherever it is and whatever a replica has seen.
pub async fn confirm(tx: &mut Tx) -> Result<()> {
    let now = read(tx).await?;
    put(tx, &now).await?;
    let at = tx.now().await?;
    sqlx::query!(
        "update data_identity
         set confirmed_at = greatest($1, confirmed_at), beats = 0, is_behind = false",
        at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
