//! The owner of a connection to a server and of a list of its tools: all users, or one credential.
//!
//! Invariant: the text forms are written and read here and nowhere else.

use std::{fmt, str::FromStr};

use super::ids::{CredentialId, RunId};

/// Whose a connection is. Two owners never use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionOwner {
    /// All who may use the server.
    Shared,
    /// A user's credential. A replaced credential is a new generation, so it never uses a session that was
    /// opened with the old one.
    Credential { id: CredentialId, generation: u64 },
    /// One run.
    Run(RunId),
    /// All runs whose values make the same request headers and address: a digest of these.
    RunConfig([u8; 16]),
}

impl ConnectionOwner {
    /// The credential of a personal connection, with its generation.
    pub fn credential(self) -> Option<(CredentialId, u64)> {
        match self {
            Self::Credential { id, generation } => Some((id, generation)),
            Self::Shared | Self::Run(_) | Self::RunConfig(_) => None,
        }
    }
}

/// As rows of approvals name what a call goes out with.
impl fmt::Display for ConnectionOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("/0"),
            Self::Credential { id, generation } => write!(f, "{id}/{generation}"),
            Self::Run(run) => write!(f, "run:{run}/0"),
            Self::RunConfig(digest) => write!(f, "run-{}/0", hex::encode(digest)),
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
