//! What limits over time have let through. Whoever looks at a sum holds its lock to the end of the transaction, so of
//! two calls at two replicas the second sees what the first has taken.

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use super::Tx;
use domain::error::Result;

/// What one call adds to the sums of one limit.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The place of the limit among those of its server.
    pub limit: usize,
    pub keys: Vec<[u8; 32]>,
    /// A decimal; `None` for one that nobody can add up.
    pub amount: Option<String>,
    pub most: String,
    pub over: Duration,
}

/// Locks the sums of a call, in one order.
pub async fn lock(tx: &mut Tx, usages: &[Usage]) -> Result<()> {
    let times = usages
        .iter()
        .flat_map(|usage| usage.keys.iter().map(|key| (key, usage.over)));
    // What the last limit of a key says of its time holds for all: the key is made of it.
    for (key, over) in times.collect::<BTreeMap<_, _>>() {
        sqlx::query!(
            "insert into limit_sums (tenant_id, id, looked_at, over_at)
             values ($1, $2, statement_timestamp(), statement_timestamp() + make_interval(secs => $3))
             on conflict (tenant_id, id) do update set looked_at = excluded.looked_at, over_at = excluded.over_at",
            tx.tenant()?.0,
            &key[..],
            over.as_secs_f64(),
        )
        .execute(tx.conn())
        .await?;
    }
    Ok(())
}

/// The limits that a call would exceed.
pub async fn list_exceeded(tx: &mut Tx, usages: &[Usage]) -> Result<Vec<usize>> {
    let mut exceeded = Vec::new();
    for usage in usages {
        if is_exceeded(tx, usage).await? {
            exceeded.push(usage.limit);
        }
    }
    Ok(exceeded)
}

async fn is_exceeded(tx: &mut Tx, usage: &Usage) -> Result<bool> {
    let Some(amount) = &usage.amount else {
        return Ok(true);
    };
    for key in &usage.keys {
        let exceeded = sqlx::query_scalar!(
            r#"select coalesce(sum(amount), 0) + $3::text::numeric > $4::text::numeric as "exceeded!"
               from limit_uses
               where tenant_id = $1 and sum_id = $2 and at > statement_timestamp() - make_interval(secs => $5)"#,
            tx.tenant()?.0,
            &key[..],
            amount,
            usage.most,
            usage.over.as_secs_f64(),
        )
        .fetch_one(tx.conn())
        .await?;
        if exceeded {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds a call to the sums, and forgets what they do not count any more.
pub async fn take(tx: &mut Tx, call: Uuid, usages: &[Usage]) -> Result<()> {
    for usage in usages {
        for key in &usage.keys {
            sqlx::query!(
                "delete from limit_uses
                 where tenant_id = $1 and sum_id = $2 and at <= statement_timestamp() - make_interval(secs => $3)",
                tx.tenant()?.0,
                &key[..],
                usage.over.as_secs_f64(),
            )
            .execute(tx.conn())
            .await?;
            sqlx::query!(
                "insert into limit_uses (tenant_id, id, sum_id, at, amount)
                 values ($1, $2, $3, statement_timestamp(), coalesce($4::text::numeric, 0))",
                tx.tenant()?.0,
                call,
                &key[..],
                usage.amount,
            )
            .execute(tx.conn())
            .await?;
        }
    }
    Ok(())
}

/// Takes a call out of the sums, because it was certainly not sent.
pub async fn give_back(tx: &mut Tx, call: Uuid) -> Result<()> {
    sqlx::query!(
        "delete from limit_uses where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        call,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
