//! Who shares a connection to a shared server, and the owner of a list of a personal server's tools.
//!
//! Invariants: what a tenant or its admins have entered is in no connection that another tenant uses. The text forms of an
//! owner are written and read here and nowhere else.

use std::{fmt, str::FromStr};

use super::{
    ids::{CredentialId, TenantId},
    server::ServerSpec,
};

/// What identifies a connection to a shared server: those who have the same key use the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedKey {
    /// The only tenant that uses it; `None`: every tenant may.
    pub tenant: Option<TenantId>,
    /// [`ServerSpec::digest`]
    pub digest: [u8; 32],
}

impl SharedKey {
    pub fn new(tenant: TenantId, spec: &ServerSpec) -> Self {
        Self {
            tenant: spec.per_tenant.then_some(tenant),
            digest: spec.digest(),
        }
    }
}

/// Whose a list of a server's tools is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CatalogOwner {
    /// All who may use the server.
    Shared,
    /// The holder of one credential, whatever its generation.
    Credential(CredentialId),
}

/// As rows of catalogs and hints name it.
impl fmt::Display for CatalogOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => Ok(()),
            Self::Credential(id) => id.fmt(f),
        }
    }
}

impl FromStr for CatalogOwner {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::Shared);
        }
        text.parse().map(Self::Credential)
    }
}
