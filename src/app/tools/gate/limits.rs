//! Limits over time. What a call adds to their sums is taken in one transaction with the look at them, and committed
//! before anything is sent: two calls at two replicas cannot both take what is left. It is given back only when the
//! call was certainly not sent; a process that dies in between leaves it taken.

use uuid::Uuid;

use crate::app::App;
use domain::{
    error::Result,
    ids::TenantId,
    policy::{CallFacts, LimitedCall, limits_of_call},
    server::ServerSpec,
};
use store::call_limits::{self, Usage};

/// What a call adds to the sums of the limits that it counts for.
pub(in crate::app::tools) fn usages(
    server: &ServerSpec,
    call: &LimitedCall<'_>,
    facts: &CallFacts<'_>,
) -> Vec<Usage> {
    let limits = limits_of_call(server, call.who, call.tool, facts).into_iter();
    let usages = limits.map(|(at, limit)| Usage {
        limit: at,
        keys: limit.keys(call),
        amount: limit
            .amount(facts.arguments)
            .map(|amount| amount.canonical()),
        most: limit.most.canonical(),
        over: limit.over,
    });
    usages.collect()
}

pub(in crate::app::tools) async fn give_back(app: &App, tenant: TenantId, call: Uuid) {
    let given = async {
        let mut tx = app.db.tenant(tenant).await?;
        call_limits::give_back(&mut tx, call).await?;
        tx.commit().await
    };
    let given: Result<()> = given.await;
    if let Err(error) = given {
        tracing::warn!(%error, "what a call took from limits could not be given back; it ends with their time");
    }
}
