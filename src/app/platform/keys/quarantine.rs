//! A credential that its key cannot open is set aside.

use super::{Keys, OpenError, context};
use crate::{
    domain::{
        audit::{Fact, SYSTEM},
        credential::{CredentialRef, CredentialState},
        error::{Error, ErrorCode, Result},
        secret::Secret,
    },
    store::{self, Db},
    vault::Unopenable,
};

/// Marks a credential that needs its user's attention. `false` when it is another generation by now, or was marked
/// before.
pub async fn mark_credential(
    db: &Db,
    credential: &CredentialRef,
    state: CredentialState,
    reason: &str,
) -> Result<bool> {
    let CredentialRef {
        tenant,
        user,
        agent,
        server,
        id,
        generation,
    } = credential;
    let mut tx = db.tenant(*tenant).await?;
    // A candidate goes, and what was there before it stays.
    let dropped = store::credentials::drop_candidate(&mut tx, *id, *generation).await?;
    let marked =
        dropped || store::credentials::mark(&mut tx, *id, *generation, state, reason).await?;
    if marked {
        let fact = match state {
            _ if dropped => Fact::new(user.as_str(), "credential.refused"),
            CredentialState::Rejected => Fact::new(user.as_str(), "credential.rejected"),
            _ => Fact::new(SYSTEM, "credential.quarantined"),
        };
        let fact = fact.at(agent.as_str(), server.as_str()).detail(reason);
        store::audit::record(&mut tx, *tenant, &fact).await?;
    }
    tx.commit().await?;
    if marked {
        tracing::warn!(%agent, %server, reason, "a user's credential needs their attention");
        metrics::counter!("chatelaine_credentials_marked_total", "state" => state.as_str())
            .increment(1);
    }
    Ok(marked)
}

impl Keys {
    /// Opens what is stored of a credential. One that cannot be opened is quarantined: it stays, and its user is asked
    /// to enter it again.
    pub async fn open_credential(&self, credential: &CredentialRef) -> Result<Secret, OpenError> {
        let mut tx = self.db.tenant(credential.tenant).await?;
        let (id, generation) = (credential.id, credential.generation);
        let sealed = store::credentials::sealed(&mut tx, id, generation).await?;
        drop(tx);
        let gone = || {
            Error::conflict(
                ErrorCode::Conflict,
                "the credential has changed meanwhile; try again",
            )
        };
        let sealed = sealed.ok_or_else(gone)?;
        let opened = self
            .open(credential.tenant, &context(credential), &sealed)
            .await;
        if let Err(OpenError::Unopenable(why)) = &opened {
            self.quarantine(credential, why).await?;
        }
        opened
    }

    pub(super) async fn quarantine(
        &self,
        credential: &CredentialRef,
        why: &Unopenable,
    ) -> Result<()> {
        let (tenant, id) = (credential.tenant, credential.id);
        tracing::error!(%tenant, credential = %id, %why, "a credential cannot be opened; it is put aside");
        let state = CredentialState::Quarantined;
        mark_credential(&self.db, credential, state, &why.to_string()).await?;
        Ok(())
    }
}
