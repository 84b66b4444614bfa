//! Why a server cannot be resolved, and how an API says so.

use crate::{
    error::{Error, ErrorCode, Reason},
    ids::ServerId,
    registry::EntryId,
};

/// Why the server cannot be resolved. Never holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("Failed to resolve MCP server '{alias}' (ref: {entry}): Not found in registry")]
    UnknownEntry { alias: ServerId, entry: EntryId },
    #[error("Missing required value: {what} for config key '{key}'")]
    Missing {
        alias: ServerId,
        what: String,
        key: String,
    },
    #[error("config key '{key}' of MCP server '{alias}': {reason}")]
    Key {
        alias: ServerId,
        key: String,
        reason: String,
    },
    #[error("{field} of MCP server '{alias}': {reason}")]
    Field {
        alias: ServerId,
        field: &'static str,
        reason: String,
    },
}

impl From<ResolveError> for Error {
    fn from(error: ResolveError) -> Self {
        let field = match &error {
            ResolveError::UnknownEntry { alias, .. } => format!("mcpServers.{alias}.ref"),
            ResolveError::Missing { what, .. } => what.clone(),
            ResolveError::Key { alias, key, .. } => format!("mcpServers.{alias}.config.{key}"),
            ResolveError::Field { alias, field, .. } => format!("mcpServers.{alias}.{field}"),
        };
        let code = match &error {
            ResolveError::UnknownEntry { .. } => ErrorCode::UnknownReference,
            ResolveError::Missing { .. } => ErrorCode::MissingField,
            ResolveError::Key { .. } | ResolveError::Field { .. } => ErrorCode::Invalid,
        };
        let text = error.to_string();
        let reason = match error {
            ResolveError::UnknownEntry { .. } | ResolveError::Missing { .. } => {
                Reason::Sentence(text)
            }
            ResolveError::Key { .. } | ResolveError::Field { .. } => Reason::Clause(text),
        };
        Self::unfit(code, field, reason)
    }
}
