//! Signing out: the user's tokens are taken no more, what runs for them is stopped, and the connections that
//! carry their credentials are closed, on every replica. What they entered stays sealed for the next time.

use super::{App, credentials, runs};
use crate::{
    domain::{
        error::{Error, Result},
        ids::RunId,
        principal::Principal,
    },
    store::{self, hints::Hint},
};

/// Ends the principal's sessions; `but` is the run that asks for it. Whether their tokens ended, too: a key is
/// its holder's to put away.
pub async fn end(app: &App, principal: &Principal, but: RunId) -> Result<bool> {
    let ended = app.accounts.sign_out(principal).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let open = store::runs::open_of_user(&mut tx, &principal.user).await?;
    let open: Vec<RunId> = open.into_iter().filter(|run| *run != but).collect();
    // Nobody is called back: the session that would go on with it is the user's as well.
    store::trees::stop(&mut tx, &open).await?;
    tx.commit().await?;
    for run in open {
        match runs::cancel(app, principal, run).await {
            // It ended by itself meanwhile.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if ended {
        app.accounts.signed_out(principal.tenant, &principal.user).await;
    }
    credentials::close_all(app, principal.tenant, &principal.user).await?;
    let _ = app.hints.send(Hint::SignedOut { tenant: principal.tenant, user: principal.user.clone() });
    Ok(ended)
}
