//! Everything that is sealed, wherever it lies: how much of it with which version of its tenant's key, and what is
//! to be sealed anew. Credentials are counted here and sealed anew on their own ([`super::credentials`]), since one
//! that cannot be opened is put aside.
//!
//! A new column that holds something sealed belongs into [`Kind`] and all four queries here; `tests/it/keys` looks
//! for columns of that kind in the catalog.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Tx;
use crate::domain::error::{Error, Result};

/// What a sealed value is, in the order in which they are sealed anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Webhook = 1,
    /// The sensitive values of a server's definition.
    Entry,
    /// A tenant's secret.
    Secret,
    /// The arguments of a call that waits for approval.
    Approval,
    /// The scope of a tree of runs.
    Scope,
    /// What was entered so far in a flow.
    Entered,
    /// An answer of a flow on its way.
    Answer,
    /// A call that waits for its user's answers.
    Asked,
    /// What they answered so far.
    Answered,
}

impl Kind {
    fn of(number: i32) -> Result<Self> {
        let of_tenants = [Self::Webhook, Self::Entry, Self::Secret];
        let of_runs = [
            Self::Approval,
            Self::Scope,
            Self::Entered,
            Self::Answer,
            Self::Asked,
            Self::Answered,
        ];
        let found = of_tenants
            .into_iter()
            .chain(of_runs)
            .find(|kind| *kind as i32 == number);
        found.ok_or_else(|| {
            Error::Internal(anyhow::anyhow!(
                "no kind of sealed value has the number {number}"
            ))
        })
    }
}

/// A sealed value, with what it was sealed for; what does not belong to its kind is empty.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub kind: Kind,
    pub id: Uuid,
    pub user: String,
    pub agent: String,
    /// Of an approval or an elicitation its server, else the name of what it is.
    pub name: String,
    pub version: i64,
    pub sealed: Vec<u8>,
}

/// How many values are sealed with each version of the tenant's key.
pub async fn by_version(tx: &mut Tx) -> Result<BTreeMap<u32, u64>> {
    let rows = sqlx::query!(
        r#"
        select version as "version!", count(*) as "count!" from (
          select tenant_key_version as version from credentials where tenant_id = $1
          union all select tenant_key_version from webhooks where tenant_id = $1
          union all select tenant_key_version from mcp_servers where tenant_id = $1
          union all select tenant_key_version from secrets where tenant_id = $1
          union all select tenant_key_version from approvals where tenant_id = $1
          union all select scope_key_version from runs where tenant_id = $1 and scope is not null
          union all select entered_key_version from flows where tenant_id = $1
          union all select answer_key_version from flows where tenant_id = $1
          union all select tenant_key_version from elicitations where tenant_id = $1
          union all select entered_key_version from elicitations where tenant_id = $1
        ) used
        where version is not null
        group by version
        "#,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.version.cast_unsigned(), row.count.cast_unsigned()))
        .collect())
}

/// Some of the tenant's values, credentials left out, that are not sealed with this version of its key, in the order
/// of kind and id, those after `after` only.
pub async fn not_sealed_with(
    tx: &mut Tx,
    version: u32,
    after: Option<(Kind, Uuid)>,
    limit: i64,
) -> Result<Vec<Sealed>> {
    let rows = sqlx::query!(
        r#"
        select kind as "kind!", id as "id!", user_id as "user!", agent as "agent!", name as "name!",
               version as "version!", sealed as "sealed!"
        from (
          select 1 as kind, id, '' as user_id, '' as agent, '' as name, 1::bigint as version, sealed
          from webhooks where tenant_id = $5 and tenant_key_version <> $1
          union all
          select 2, id, '', '', entry, version, sealed from mcp_servers
          where tenant_id = $5 and tenant_key_version <> $1
          union all
          select 3, id, '', '', name, version, sealed from secrets
          where tenant_id = $5 and tenant_key_version <> $1
          union all
          select 4, id, requester, agent, server, 1, sealed from approvals
          where tenant_id = $5 and tenant_key_version <> $1
          union all
          select 5, id, '', '', '', 1, scope from runs
          where tenant_id = $5 and scope is not null and scope_key_version <> $1
          union all
          select 6, id, user_id, agent, '', 1, entered from flows
          where tenant_id = $5 and entered_key_version <> $1
          union all
          select 7, id, user_id, agent, '', 1, answer from flows
          where tenant_id = $5 and answer_key_version <> $1
          union all
          select 8, id, user_id, agent, server, 1, sealed from elicitations
          where tenant_id = $5 and tenant_key_version <> $1
          union all
          select 9, id, user_id, agent, server, 1, entered from elicitations
          where tenant_id = $5 and entered_key_version <> $1
        ) old
        where $2::int is null or (kind, id) > ($2, $3::uuid)
        order by kind, id
        limit $4
        "#,
        version.cast_signed(),
        after.map(|(kind, _)| kind as i32),
        after.map(|(_, id)| id),
        limit,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter()
        .map(|row| {
            let (id, user, agent, name, version) =
                (row.id, row.user, row.agent, row.name, row.version);
            Ok(Sealed {
                kind: Kind::of(row.kind)?,
                id,
                user,
                agent,
                name,
                version,
                sealed: row.sealed,
            })
        })
        .collect()
}

/// Puts the same value, sealed anew, in the place of what was read; `false` when that is not there any more.
pub async fn reseal(tx: &mut Tx, read: &Sealed, resealed: &[u8]) -> Result<bool> {
    let (id, before) = (read.id, &read.sealed);
    let query = match read.kind {
        Kind::Webhook => {
            sqlx::query!(
                "update webhooks set sealed = $3 where tenant_id = $4 and id = $1 and sealed = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Entry => {
            sqlx::query!(
                "update mcp_servers set sealed = $3 where tenant_id = $4 and id = $1 and sealed = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Secret => {
            sqlx::query!(
                "update secrets set sealed = $3 where tenant_id = $4 and id = $1 and sealed = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Approval => {
            sqlx::query!(
                "update approvals set sealed = $3 where tenant_id = $4 and id = $1 and sealed = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Scope => sqlx::query!(
            "update runs set scope = $3 where tenant_id = $4 and id = $1 and scope = $2",
            id,
            before,
            resealed,
            tx.tenant()?.0,
        ),
        Kind::Entered => {
            sqlx::query!(
                "update flows set entered = $3 where tenant_id = $4 and id = $1 and entered = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Answer => {
            sqlx::query!(
                "update flows set answer = $3 where tenant_id = $4 and id = $1 and answer = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Asked => {
            sqlx::query!(
                "update elicitations set sealed = $3 where tenant_id = $4 and id = $1 and sealed = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
        Kind::Answered => {
            sqlx::query!(
                "update elicitations set entered = $3 where tenant_id = $4 and id = $1 and entered = $2",
                id,
                before,
                resealed,
                tx.tenant()?.0,
            )
        }
    };
    Ok(query.execute(tx.conn()).await?.rows_affected() == 1)
}
