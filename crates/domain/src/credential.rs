//! A credential: what one user entered for one personal server of an agent, sealed. Its plaintext is not
//! here; it exists while a connection is being made and nowhere else.

use time::OffsetDateTime;

use super::ids::{AgentId, CredentialId, ServerId, TenantId, UserId};

/// One generation of a credential: its user, agent and server. Its content is sealed for exactly these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CredentialRef {
    pub tenant: TenantId,
    pub user: UserId,
    pub agent: AgentId,
    pub server: ServerId,
    pub id: CredentialId,
    /// 1 for a new one, one higher with each replacement.
    pub generation: u64,
}

/// A credential without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialMeta {
    pub id: CredentialId,
    pub server: String,
    pub generation: u64,
    pub state: CredentialState,
    /// What the user entered last, of which the server's first call will say whether it is good. Until then this
    /// generation stays, and the candidate is what calls are made with.
    pub candidate: Option<u64>,
    /// The highest generation that was ever given.
    pub last_generation: u64,
    /// The server has accepted this generation in a request that it judges.
    pub is_proven: bool,
    /// A candidate was refused, and the user was not told yet.
    pub candidate_refused: bool,
    /// The user was told of the state of this generation.
    pub notified: bool,
    pub updated_at: OffsetDateTime,
}

impl CredentialMeta {
    /// The generation that calls are made with.
    pub fn current(&self) -> u64 {
        self.candidate.unwrap_or(self.generation)
    }

    /// Whether the next call shows if the server accepts what the user entered last.
    pub fn awaits_first_call(&self) -> bool {
        self.state == CredentialState::Active && (self.candidate.is_some() || !self.is_proven)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CredentialState {
    Active,
    /// The server answered a definite 401 or 403.
    Rejected,
    /// It cannot be opened. The row is kept: a key may come back, or the user enters the values again.
    Quarantined,
}
