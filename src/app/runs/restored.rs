//! A database that was restored to an earlier time does not know what was done after that time. What was open then may
//! have been decided, sent or answered, so none of it goes on.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{deletions::Deletion, user_data};
use domain::{
    audit::{Fact, OPERATOR},
    error::{Error, ErrorCode, Result},
    ids::{RunId, TenantId, UserId},
    replica::Replica,
};
use store::Db;

/// What was ended and repeated.
#[derive(Debug, Default)]
pub struct Restored {
    pub requests: usize,
    pub runs: usize,
    pub questions: u64,
    /// Users who were deleted once more.
    pub users: usize,
    /// Users who could not be deleted once more, or not wholly, with the reason.
    pub left: Vec<(UserId, Error)>,
    /// Deletions in tenants that the database does not have.
    pub unknown_tenants: usize,
}

/// Ends what was open in a database that was restored to the time `at`, and repeats deletions. Replicas tell the
/// requesters, and mark the calls that were under way as of unknown outcome, when they start: they do not before this. A `Conflict` while a
/// replica is at work; one that starts meanwhile waits.
pub async fn settle(db: &Db, at: OffsetDateTime, deletions: &[Deletion]) -> Result<Restored> {
    let _alone = store::replicas::keep_out(db).await?;
    let mut tx = db.system().await?;
    let replicas = store::replicas::list(&mut tx).await?;
    let tenants = store::tenants::list(&mut tx).await?;
    require_stopped(&replicas)?;
    let time = at.format(&Rfc3339).map_err(Error::internal)?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "database.restored", &time).await?;
    tx.commit().await?;
    let mut done = Restored::default();
    for tenant in &tenants {
        settle_tenant(db, tenant.id, &time, &mut done).await?;
    }
    for Deletion { tenant, user, .. } in deletions {
        if tenants.iter().any(|known| known.id == *tenant) {
            let by = UserId(OPERATOR.into());
            match user_data::delete_in_database(db, None, *tenant, user, &by).await {
                Ok(()) => done.users += 1,
                Err(error) => done.left.push((user.clone(), error)),
            }
        } else {
            done.unknown_tenants += 1;
        }
    }
    let mut tx = db.system().await?;
    store::data_identity::confirm(&mut tx).await?;
    tx.commit().await?;
    Ok(done)
}

/// Says that the database lacks nothing that was done, wherever it is now: replicas start with it. A `Conflict` while a
/// replica is at work.
pub async fn confirm_same_data(db: &Db) -> Result<()> {
    let _alone = store::replicas::keep_out(db).await?;
    let mut tx = db.system().await?;
    require_stopped(&store::replicas::list(&mut tx).await?)?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "database.confirmed", "").await?;
    store::data_identity::confirm(&mut tx).await?;
    tx.commit().await
}

fn require_stopped(replicas: &[Replica]) -> Result<()> {
    if replicas.iter().any(|replica| !replica.silent) {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            "a replica is at work, or was within the last minute; stop all of them before this. A backup has the replicas \
             of its time: if all are stopped, try again after a minute",
        ));
    }
    Ok(())
}

async fn settle_tenant(db: &Db, tenant: TenantId, time: &str, done: &mut Restored) -> Result<()> {
    let by = UserId(OPERATOR.into());
    let mut tx = db.tenant(tenant).await?;
    let requests = store::approvals::withdraw_restored(&mut tx, &by).await?;
    let runs: Vec<RunId> = store::runs::list_open(&mut tx)
        .await?
        .into_iter()
        .map(|(run, _)| run)
        .collect();
    store::trees::stop(&mut tx, &runs).await?;
    store::trees::drop_callbacks(&mut tx).await?;
    let questions = store::elicitations::expire_now(&mut tx).await?;
    let fact = Fact::new(OPERATOR, "database.restored").detail(time);
    store::audit::record(&mut tx, tenant, &fact).await?;
    tx.commit().await?;
    done.requests += requests.len();
    done.runs += runs.len();
    done.questions += questions;
    Ok(())
}
