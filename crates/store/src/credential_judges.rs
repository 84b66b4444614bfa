//! Rows that say whether a server notices a false credential, which the program tests by sending a false one. There
//! is one row for each server of an agent, so that a server is tested once for all users and replicas.

use std::time::Duration;

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, ServerId},
};

/// How long a result of the test is valid. `unknown` also prevents two tests at once.
#[derive(Clone, Copy)]
pub struct ResultLives {
    pub judges: Duration,
    pub is_blind: Duration,
    pub unknown: Duration,
}

/// The result of the test of a server. `asked` identifies the request of the test. `None` if there is no valid result.
pub async fn get(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    asked: &[u8],
    lives: ResultLives,
) -> Result<Option<bool>> {
    let known = sqlx::query_scalar!(
        "select judges from credential_judges
         where tenant_id = $1 and agent = $2 and server = $3 and asked = $4 and judges is not null
           and asked_at > now() - make_interval(secs => case when judges then $5::float8 else $6::float8 end)",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        asked,
        lives.judges.as_secs_f64(),
        lives.is_blind.as_secs_f64(),
    );
    Ok(known.fetch_optional(tx.conn()).await?.flatten())
}

/// Claims the right to test a server. `false` if there is a valid result, or a test is running.
pub async fn claim(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    asked: &[u8],
    lives: ResultLives,
) -> Result<bool> {
    let done = sqlx::query!(
        "insert into credential_judges as j (tenant_id, id, agent, server, asked, asked_at)
         values ($1, $2, $3, $4, $5, now())
         on conflict (tenant_id, agent, server) do update
         set asked = excluded.asked, judges = null, asked_at = excluded.asked_at
         where j.asked <> excluded.asked
           or excluded.asked_at - j.asked_at > make_interval(secs =>
             case when j.judges is null then $6::float8 when j.judges then $7::float8 else $8::float8 end)",
        tx.tenant()?.0,
        Uuid::now_v7(),
        agent.as_str(),
        server.as_str(),
        asked,
        lives.unknown.as_secs_f64(),
        lives.judges.as_secs_f64(),
        lives.is_blind.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Stores the result of the test.
pub async fn put(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    asked: &[u8],
    judges: bool,
) -> Result<()> {
    sqlx::query!(
        "update credential_judges set judges = $5, asked_at = now()
         where tenant_id = $1 and agent = $2 and server = $3 and asked = $4",
        tx.tenant()?.0,
        agent.as_str(),
        server.as_str(),
        asked,
        judges,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
