//! Rows of the replicas that run. Every function needs the system role.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Tx, roles};
use domain::{
    error::{Error, Result},
    ids::{AgentId, ReplicaId},
    policy::{AgentPolicy, PolicyDigest},
    replica::{Readiness, Replica},
};

/// What a replica writes of itself.
pub struct ReplicaState<'a> {
    pub id: ReplicaId,
    pub version: &'a str,
    pub started_at: OffsetDateTime,
    pub readiness: &'a Readiness,
    /// Agent → its policy there.
    pub policies: &'a BTreeMap<AgentId, AgentPolicy>,
    /// Of each group of settings that must be the same everywhere, a digest.
    pub settings: &'a BTreeMap<String, String>,
}

/// Writes the state of a replica. Deletes the rows of replicas that have written nothing for an hour.
pub async fn put(tx: &mut Tx, state: &ReplicaState<'_>) -> Result<()> {
    let policies = serde_json::to_string(state.policies).map_err(Error::internal)?;
    let digest = Sha256::digest(&policies).to_vec();
    sqlx::query!(
        "with old as (
           select id from replicas where seen_at < now() - interval '1 hour' and id <> $1 for update skip locked
         ), forgotten as (delete from replicas using old where replicas.id = old.id)
         insert into replicas (id, version, started_at, readiness, policies, policies_sha256, policies_since, settings)
         values ($1, $2, $3, $4::text::json, $5::text::json, $6, now(), $7::text::json)
         on conflict (id) do update set
           seen_at = now(), readiness = excluded.readiness, settings = excluded.settings,
           policies_since = case when replicas.policies_sha256 = excluded.policies_sha256
                                 then replicas.policies_since else excluded.policies_since end,
           policies = case when replicas.policies_sha256 = excluded.policies_sha256
                           then replicas.policies else excluded.policies end,
           policies_sha256 = excluded.policies_sha256",
        state.id.0,
        state.version,
        state.started_at,
        serde_json::to_string(state.readiness).map_err(Error::internal)?,
        policies,
        digest,
        serde_json::to_string(state.settings).map_err(Error::internal)?,
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
                  settings::text, seen_at < now() - interval '1 minute' as "is_silent!"
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
            policies: BTreeMap::new(),
            settings: match &row.settings {
                Some(settings) => serde_json::from_str(settings).map_err(Error::internal)?,
                None => BTreeMap::new(),
            },
            readiness: serde_json::from_str(&row.readiness).map_err(Error::internal)?,
        })
    });
    replicas.collect()
}

/// What is compared each second: which policies the replicas have that live, and what is settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoliciesStamp {
    replicas: Vec<(Uuid, Vec<u8>)>,
    settled: Vec<(String, Vec<u8>)>,
}

/// The stamp of the policies of all replicas that live.
pub async fn stamp_policies(tx: &mut Tx) -> Result<PoliciesStamp> {
    let replicas = sqlx::query!(
        r#"select id, policies_sha256 as "sha256!" from replicas
           where seen_at > now() - interval '1 minute' and policies_sha256 is not null order by id"#
    );
    let replicas = replicas.fetch_all(tx.conn()).await?;
    let settled = sqlx::query!("select agent, sha256 from settled_policies order by agent");
    let settled = settled.fetch_all(tx.conn()).await?;
    Ok(PoliciesStamp {
        replicas: replicas
            .into_iter()
            .map(|row| (row.id, row.sha256))
            .collect(),
        settled: settled
            .into_iter()
            .map(|row| (row.agent, row.sha256))
            .collect(),
    })
}

impl PoliciesStamp {
    fn digest(&self) -> Vec<u8> {
        Sha256::digest(format!("{self:?}")).to_vec()
    }
}

/// Says that a replica goes by the policies of this stamp.
pub async fn put_seen(tx: &mut Tx, id: ReplicaId, stamp: &PoliciesStamp) -> Result<()> {
    let digest = stamp.digest();
    sqlx::query!(
        "update replicas set policies_seen = $2 where id = $1",
        id.0,
        digest,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// How many replicas that live do not go by the policies of this stamp. A release that says none is not counted.
pub async fn count_behind(tx: &mut Tx, stamp: &PoliciesStamp) -> Result<i64> {
    let behind = sqlx::query_scalar!(
        r#"select count(*) as "count!" from replicas
           where seen_at > now() - interval '1 minute' and policies_sha256 is not null
             and policies_seen is distinct from $1"#,
        stamp.digest(),
    );
    Ok(behind.fetch_one(tx.conn()).await?)
}

/// The policies of a replica that lives.
pub struct ReplicaPolicies {
    pub id: ReplicaId,
    pub since: OffsetDateTime,
    /// Agent → its policy; `None` for one that this release cannot read, with a digest of what was written.
    pub policies: BTreeMap<AgentId, (PolicyDigest, Option<Arc<AgentPolicy>>)>,
}

/// The policies of all replicas that live, the oldest replica first. A release that says none is not among them.
pub async fn list_policies(tx: &mut Tx) -> Result<Vec<ReplicaPolicies>> {
    let rows = sqlx::query!(
        r#"select id as "id: ReplicaId", policies::text as "policies!", policies_since as "since!"
           from replicas
           where seen_at > now() - interval '1 minute' and policies is not null and policies_since is not null
           order by started_at, id"#
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    let replicas = rows.into_iter().map(|row| {
        let written: BTreeMap<AgentId, Box<RawValue>> =
            serde_json::from_str(&row.policies).map_err(Error::internal)?;
        let policies = written.into_iter().map(|(agent, written)| {
            let policy: Option<AgentPolicy> = serde_json::from_str(written.get()).ok();
            let unread = || PolicyDigest(Sha256::digest(written.get()).into());
            let digest = policy.as_ref().map_or_else(unread, AgentPolicy::digest);
            (agent, (digest, policy.map(Arc::new)))
        });
        Ok(ReplicaPolicies {
            id: row.id,
            since: row.since,
            policies: policies.collect(),
        })
    });
    replicas.collect()
}

/// Says that this policy of an agent decides alone, while a replica has it.
pub async fn settle_policy(tx: &mut Tx, agent: &AgentId, digest: PolicyDigest) -> Result<()> {
    sqlx::query!(
        "insert into settled_policies (agent, sha256, settled_at) values ($1, $2, now())
         on conflict (agent) do update set sha256 = excluded.sha256, settled_at = excluded.settled_at",
        agent.as_str(),
        &digest.0[..],
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Ends what was settled for an agent, if it is still this policy.
pub async fn end_settlement(tx: &mut Tx, agent: &AgentId, digest: PolicyDigest) -> Result<()> {
    sqlx::query!(
        "delete from settled_policies where agent = $1 and sha256 = $2",
        agent.as_str(),
        &digest.0[..],
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Which policies the operator has settled.
pub async fn list_settled(tx: &mut Tx) -> Result<BTreeMap<AgentId, PolicyDigest>> {
    let rows = sqlx::query!("select agent, sha256 from settled_policies");
    let rows = rows.fetch_all(tx.conn()).await?;
    let settled = rows.into_iter().filter_map(|row| {
        let digest = row.sha256.try_into().ok().map(PolicyDigest)?;
        Some((AgentId::parse(&row.agent).ok()?, digest))
    });
    Ok(settled.collect())
}
