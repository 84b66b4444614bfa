//! A credential: what one user entered for one personal server of an agent, sealed. Its plaintext is not
//! here; it exists while a connection is being made and nowhere else.

use time::OffsetDateTime;

use super::ids::{AgentId, CredentialId, ServerId, TenantId, UserId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub tenant: TenantId,
    pub id: CredentialId,
    pub agent: AgentId,
    pub server: ServerId,
    pub user: UserId,
    /// 1 for a new one, one higher with each replacement.
    pub generation: u64,
    pub state: CredentialState,
    /// Why it is not active.
    pub reason: Option<String>,
    /// `CV1`; see [`crate::vault`].
    pub sealed: Vec<u8>,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
    /// When the server last accepted it.
    pub verified_at: Option<OffsetDateTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialState {
    Active,
    /// The server answered a definite 401 or 403.
    Rejected,
    /// It cannot be opened. Kept: a key may come back, or the user enters it again.
    Quarantined,
}

impl CredentialState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Rejected => "rejected",
            Self::Quarantined => "quarantined",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Active, Self::Rejected, Self::Quarantined]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}
