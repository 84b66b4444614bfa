//! The audit trail: who did what, when, and how it ended. Content is in it as hashes only; ids, names and
//! counts say what was concerned, never an argument, a result, a value or a token.
//!
//! A tool call is an `AuditRow` of the gate, written in batches. Everything else is a [`Fact`], written in
//! the transaction of the change that it describes. Facts that concern no single tenant (the keys of the
//! ring), or that outlive the tenant (its removal), are in the operator's own trail.

use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::ids::{AuditId, RunId};

/// The actor for the command line and for the operator's token. No user has this id.
pub const OPERATOR: &str = "operator";
/// The actor for the program itself. No user has this id.
pub const SYSTEM: &str = "system";

/// Something that was done, as it is written down.
#[derive(Clone, Copy, Debug)]
pub struct Fact<'a> {
    /// A user's id, [`OPERATOR`] or [`SYSTEM`].
    pub actor: &'a str,
    /// `noun.verb`, as `credential.stored`.
    pub action: &'static str,
    pub agent: Option<&'a str>,
    pub server: Option<&'a str>,
    /// What was concerned, by id, name or number.
    pub detail: Option<&'a str>,
}

impl<'a> Fact<'a> {
    pub fn new(actor: &'a str, action: &'static str) -> Self {
        Self {
            actor,
            action,
            agent: None,
            server: None,
            detail: None,
        }
    }

    #[must_use]
    pub fn at(self, agent: &'a str, server: &'a str) -> Self {
        Self {
            agent: Some(agent),
            server: Some(server),
            ..self
        }
    }

    #[must_use]
    pub fn detail(self, detail: &'a str) -> Self {
        Self {
            detail: Some(detail),
            ..self
        }
    }
}

/// A line of a tenant's trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AuditLine))]
pub struct Line {
    pub id: AuditId,
    /// When it was done; of a call, when it was sent.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// A user's id, `operator` for whoever runs the installation, `system` for the program itself.
    pub actor: String,
    /// What was done: `tool.call`, `credential.stored`, `key.revoked` …
    pub action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// SHA-256 of the arguments, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args_sha256: Option<String>,
    /// `succeeded`, or of a call also `failed`, `denied`, `outcome_unknown` and `cancelled`.
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A line of the operator's trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperatorLine {
    pub id: AuditId,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub actor: String,
    pub action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Selects lines. An absent field selects every line.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub actor: Option<String>,
    /// An action, or with a dot at its end all that begin so.
    pub action: Option<String>,
    pub server: Option<String>,
    pub tool: Option<String>,
    pub run: Option<RunId>,
    pub outcome: Option<String>,
    pub args_sha256: Option<Vec<u8>>,
    pub since: Option<OffsetDateTime>,
    pub until: Option<OffsetDateTime>,
}

/// How far the time in a line's id may be from the line's own time: the clocks of processes and of the
/// database differ.
const SLACK: time::Duration = time::Duration::minutes(10);

impl Filter {
    /// The smallest and the largest id that a line of the filter's time can have, so that the query reads
    /// only these.
    pub fn ids(&self) -> (Uuid, Uuid) {
        let first = self
            .since
            .map_or(Uuid::nil(), |since| first_id(since.saturating_sub(SLACK)));
        let last = self.until.map_or(Uuid::max(), id_after);
        (first, last)
    }
}

/// An id that is larger than those of all rows that were made before a time.
pub fn id_after(at: OffsetDateTime) -> Uuid {
    first_id(at.saturating_add(SLACK))
}

/// The smallest `UUIDv7` of a time.
fn first_id(at: OffsetDateTime) -> Uuid {
    let millis = u128::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// SHA-256 as people write it: 64 hex digits.
pub fn parse_sha256(text: &str) -> Result<Vec<u8>, String> {
    let bytes = hex::decode(text).ok().filter(|bytes| bytes.len() == 32);
    bytes.ok_or_else(|| "must be a SHA-256 of 64 hex digits".to_owned())
}
