//! Rows of answers to requests that create something. A row is written before the thing is created, so that a request
//! that is sent again creates nothing.

use std::time::Duration;

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::UserId,
    request_key::{REMEMBERED_HOURS, RequestKey},
};

/// An earlier request with the same key, and its answer.
pub struct EarlierAnswer {
    pub id: Uuid,
    pub digest: Vec<u8>,
    /// `None` if the request has not ended, or its answer was not stored.
    pub answer: Option<Vec<u8>>,
    pub age: Duration,
}

/// Claims the right to answer a request. Returns the id of its row, or `None` if a request with the key came first.
/// Also deletes the tenant's rows that are older than a day. `excluded.created_at` is the time now: Citus allows no
/// clock function there.
pub async fn claim(tx: &mut Tx, user: &UserId, key: &RequestKey) -> Result<Option<Uuid>> {
    let id = sqlx::query_scalar!(
        "with old as (
           delete from request_answers
           where tenant_id = $1 and not (user_id = $3 and key = $4)
             and created_at < now() - make_interval(hours => $6)
         )
         insert into request_answers (tenant_id, id, user_id, key, digest)
         values ($1, $2, $3, $4, $5)
         on conflict (tenant_id, user_id, key) do update
         set id = excluded.id, digest = excluded.digest, sealed = null, created_at = excluded.created_at
         where excluded.created_at - request_answers.created_at > make_interval(hours => $6)
         returning id",
        tx.tenant()?.0,
        Uuid::now_v7(),
        user.as_str(),
        key.key,
        &key.digest,
        REMEMBERED_HOURS,
    );
    Ok(id.fetch_optional(tx.conn()).await?)
}

/// The earlier request with a key.
pub async fn get_earlier(tx: &mut Tx, user: &UserId, key: &str) -> Result<Option<EarlierAnswer>> {
    let row = sqlx::query!(
        r#"select id, digest, sealed, extract(epoch from now() - created_at)::float8 as "age!"
           from request_answers where tenant_id = $1 and user_id = $2 and key = $3"#,
        tx.tenant()?.0,
        user.as_str(),
        key,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| EarlierAnswer {
        id: row.id,
        digest: row.digest,
        answer: row.sealed,
        age: Duration::try_from_secs_f64(row.age).unwrap_or_default(),
    }))
}

/// Stores the answer of a request.
pub async fn keep(tx: &mut Tx, id: Uuid, sealed: &[u8]) -> Result<()> {
    sqlx::query!(
        "update request_answers set sealed = $3 where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
        sealed,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Deletes the row of a request that created nothing.
pub async fn forget(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "delete from request_answers where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Like [`claim`], for the operator. Needs the system role, as the functions below do.
pub async fn claim_for_operator(tx: &mut Tx, key: &RequestKey) -> Result<Option<Uuid>> {
    let id = sqlx::query_scalar!(
        "with old as (
           delete from operator_request_answers
           where key <> $1 and created_at < now() - make_interval(hours => $4)
         )
         insert into operator_request_answers (key, id, digest) values ($1, $2, $3)
         on conflict (key) do update
         set id = excluded.id, digest = excluded.digest, answer = null, created_at = excluded.created_at
         where excluded.created_at - operator_request_answers.created_at > make_interval(hours => $4)
         returning id",
        key.key,
        Uuid::now_v7(),
        &key.digest,
        REMEMBERED_HOURS,
    );
    Ok(id.fetch_optional(tx.conn()).await?)
}

/// Like [`get_earlier`], for the operator.
pub async fn get_earlier_of_operator(tx: &mut Tx, key: &str) -> Result<Option<EarlierAnswer>> {
    let row = sqlx::query!(
        r#"select id, digest, answer, extract(epoch from now() - created_at)::float8 as "age!"
           from operator_request_answers where key = $1"#,
        key,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| EarlierAnswer {
        id: row.id,
        digest: row.digest,
        answer: row.answer,
        age: Duration::try_from_secs_f64(row.age).unwrap_or_default(),
    }))
}

/// Like [`keep`], for the operator.
pub async fn keep_for_operator(tx: &mut Tx, id: Uuid, answer: &[u8]) -> Result<()> {
    sqlx::query!(
        "update operator_request_answers set answer = $2 where id = $1",
        id,
        answer,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Like [`forget`], for the operator.
pub async fn forget_for_operator(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!("delete from operator_request_answers where id = $1", id)
        .execute(tx.conn())
        .await?;
    Ok(())
}
