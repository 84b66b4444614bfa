//! Limits over time. What a call adds to their sums is taken in one transaction with the look at them, and committed
//! before anything is sent: two calls at two replicas cannot both take what is left. It is given back only when the
//! call was certainly not sent; a process that dies in between leaves it taken.

use uuid::Uuid;

use crate::app::App;
use domain::{error::Result, ids::TenantId};
use store::call_limits;

pub(in crate::app::tools) async fn give_back(app: &App, tenant: TenantId, call: Uuid) {
    let given = async {
        let mut tx = app.db.tenant(tenant).await?;
        call_limits::give_back(&mut tx, call).await?;
        tx.commit().await
    };
    let given: Result<()> = given.await;
    if let Err(error) = given {
        let error = error.with_cause();
        tracing::warn!(
            error,
            "what a call took from limits could not be given back; it ends with their time"
        );
    }
}
