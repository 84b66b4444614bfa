//! What limits over time have let through. Whoever looks at a sum holds its lock to the end of the transaction, so of
//! two calls at two replicas the second sees what the first has taken.

use std::collections::HashMap;

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    json::Decimal,
    policy::{Amount, SumKey, SumUse},
};

/// Locks the sums of a call, in their order.
pub async fn lock(tx: &mut Tx, sums: &[SumUse]) -> Result<()> {
    for sum in sums {
        sqlx::query!(
            "insert into limit_sums (tenant_id, id, looked_at, over_at)
             values ($1, $2, statement_timestamp(), statement_timestamp() + make_interval(secs => $3))
             on conflict (tenant_id, id) do update set looked_at = excluded.looked_at, over_at = excluded.over_at",
            tx.tenant()?.0,
            &sum.key[..],
            sum.over.as_secs_f64(),
        )
        .execute(tx.conn())
        .await?;
    }
    Ok(())
}

/// What calls have added to these sums.
pub async fn read(tx: &mut Tx, sums: &[SumUse]) -> Result<HashMap<SumKey, Amount>> {
    let mut used = HashMap::new();
    for sum in sums {
        let added = sqlx::query_scalar!(
            r#"select coalesce(sum(amount), 0)::text as "sum!"
               from limit_uses
               where tenant_id = $1 and sum_id = $2 and at > statement_timestamp() - make_interval(secs => $3)"#,
            tx.tenant()?.0,
            &sum.key[..],
            sum.over.as_secs_f64(),
        )
        .fetch_one(tx.conn())
        .await?;
        used.insert(sum.key, Amount::of_row(&added));
    }
    Ok(used)
}

/// Adds a call to the sums, and forgets what they do not count any more.
pub async fn take(tx: &mut Tx, call: Uuid, sums: &[SumUse]) -> Result<()> {
    for sum in sums {
        sqlx::query!(
            "delete from limit_uses
             where tenant_id = $1 and sum_id = $2 and at <= statement_timestamp() - make_interval(secs => $3)",
            tx.tenant()?.0,
            &sum.key[..],
            sum.over.as_secs_f64(),
        )
        .execute(tx.conn())
        .await?;
        sqlx::query!(
            "insert into limit_uses (tenant_id, id, sum_id, at, amount)
             values ($1, $2, $3, statement_timestamp(), coalesce($4::text::numeric, 0))",
            tx.tenant()?.0,
            call,
            &sum.key[..],
            sum.amount.as_ref().map(Decimal::canonical),
        )
        .execute(tx.conn())
        .await?;
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
