//! Rows of the key ring: the keys that the database knows, the one that seals, and the keys that each replica has. A
//! row never has a key itself, only its check value. Every function needs the system role.

use time::OffsetDateTime;

use super::Tx;
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{KekId, ReplicaId},
};

/// A key of the ring as the database knows it.
#[derive(Clone, Debug)]
pub struct KekRecord {
    pub id: KekId,
    pub check_value: Vec<u8>,
    pub state: KekState,
    pub promoted_at: Option<OffsetDateTime>,
    pub retired_at: Option<OffsetDateTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, sqlx::Type)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum KekState {
    /// The key was never used.
    Added,
    /// The key wraps new keys of tenants. At most one key is in this state.
    Sealing,
    /// The key has wrapped keys of tenants before.
    Opening,
    /// The key is not needed any more.
    Retired,
}

/// A query for keys. The SQL after it may lock the rows.
macro_rules! keks {
    ($after:literal) => {
        sqlx::query_as!(
            KekRecord,
            r#"select id as "id: _", check_value, state as "state: _", promoted_at, retired_at from keks order by id"#
                + $after
        )
    };
}

/// All keys.
pub async fn list(tx: &mut Tx) -> Result<Vec<KekRecord>> {
    Ok(keks!("").fetch_all(tx.conn()).await?)
}

/// All keys, locked, so that starts, promotions and retirements happen one after the other. Keys of tenants can still
/// be added.
pub async fn lock(tx: &mut Tx) -> Result<Vec<KekRecord>> {
    Ok(keks!(" for no key update").fetch_all(tx.conn()).await?)
}

/// Adds a key. `false` if the database has it already; its row stays as it is.
pub async fn add(tx: &mut Tx, id: &KekId, check_value: &[u8; 16]) -> Result<bool> {
    let added = sqlx::query!(
        "insert into keks (id, check_value, state) values ($1, $2, 'added') on conflict (id) do nothing",
        id.as_str(),
        check_value,
    )
    .execute(tx.conn())
    .await?;
    Ok(added.rows_affected() == 1)
}

/// Makes a key the sealing one, in place of the sealing one so far.
pub async fn promote(tx: &mut Tx, id: &KekId) -> Result<()> {
    sqlx::query!(
        "update keks set state = 'opening' where state = 'sealing' and id <> $1",
        id.as_str()
    )
    .execute(tx.conn())
    .await?;
    let promoted = sqlx::query!(
        "update keks set state = 'sealing', promoted_at = now() where id = $1 and state in ('added', 'opening')",
        id.as_str(),
    )
    .execute(tx.conn())
    .await?;
    if promoted.rows_affected() == 0 {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!("key {id} cannot seal; see `chatelaine keys list`"),
        ));
    }
    Ok(())
}

/// Marks a key as no longer needed. `Conflict` if a key of a tenant still uses it: the row is deleted and inserted
/// again, so that the foreign key of the tenants' keys finds such a use, also one in an open transaction.
pub async fn retire(tx: &mut Tx, id: &KekId) -> Result<()> {
    let taken = sqlx::query!(
        "delete from keks where id = $1 and state in ('added', 'opening') returning check_value, created_at, promoted_at",
        id.as_str(),
    )
    .fetch_optional(tx.conn())
    .await;
    let taken = match taken {
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => {
            return Err(Error::conflict(
                ErrorCode::Conflict,
                format!("key {id} still wraps tenants' keys; run `chatelaine keys rewrap`"),
            ));
        }
        taken => taken?,
    };
    let row = taken.ok_or_else(|| {
        Error::conflict(
            ErrorCode::Conflict,
            format!("key {id} seals, or is retired already"),
        )
    })?;
    sqlx::query!(
        "
        insert into keks (id, check_value, state, created_at, promoted_at, retired_at)
        values ($1, $2, 'retired', $3, $4, now())
        ",
        id.as_str(),
        row.check_value,
        row.created_at,
        row.promoted_at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that a replica runs and which keys it has. Deletes the rows of replicas that were not seen for an hour.
pub async fn record_replica(tx: &mut Tx, replica: ReplicaId, keks: &[String]) -> Result<()> {
    sqlx::query!("delete from key_holders where seen_at < now() - interval '1 hour'")
        .execute(tx.conn())
        .await?;
    sqlx::query!(
        "
        insert into key_holders (replica, keks, seen_at) values ($1, $2, now())
        on conflict (replica) do update set keks = excluded.keks, seen_at = excluded.seen_at
        ",
        replica.0,
        keks,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Deletes the row of a replica that stops.
pub async fn remove_replica(tx: &mut Tx, replica: ReplicaId) -> Result<()> {
    sqlx::query!("delete from key_holders where replica = $1", replica.0)
        .execute(tx.conn())
        .await?;
    Ok(())
}

/// The replicas that were seen in the last minute and do not have this key.
pub async fn list_replicas_without(tx: &mut Tx, id: &KekId) -> Result<Vec<ReplicaId>> {
    let replicas = sqlx::query_scalar!(
        r#"
        select replica as "id: ReplicaId" from key_holders
        where seen_at > now() - interval '1 minute' and not $1 = any (keks)
        order by replica
        "#,
        id.as_str(),
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(replicas)
}
