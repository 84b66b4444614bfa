//! Who may sign in: tenants, the issuers that vouch for their users, and API keys. These are the rows as the
//! layers above see them; they hold no secret.

mod frontend;
mod source;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

pub use self::{
    frontend::{Frontend, FrontendHeaders, FrontendSettings},
    source::{FRONTEND_USER, ISSUER_USER, SourceName, SourceSettings, UserSource},
};
use super::{
    error::{Error, Result},
    ids::{AgentId, ApiKeyId, IssuerId, TenantId},
    principal::Scopes,
    retention::Retention,
    usage::Limits,
};

/// An organisation. Nothing crosses from one to another.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub id: TenantId,
    /// Lower-case letters, digits and `-`.
    pub name: String,
    /// What people call it; absent: by its name.
    pub display_name: Option<String>,
    /// The agents that serve it; absent: every one.
    pub agents: Option<Vec<String>>,
    /// Whether a caller without a token may ask for a guest's token.
    pub guests: bool,
    /// Since then its tokens and keys are refused.
    pub suspended_at: Option<OffsetDateTime>,
    /// In place of the installation's limits of a day.
    pub limits: Limits,
    /// In place of the installation's days.
    pub retention: Retention,
    pub created_at: OffsetDateTime,
}

impl Tenant {
    pub fn serves(&self, agent: &AgentId) -> bool {
        self.agents
            .as_ref()
            .is_none_or(|agents| agents.iter().any(|name| name == agent.as_str()))
    }

    /// Fails when the tenant is suspended.
    pub fn require_active(&self) -> Result<()> {
        if self.suspended_at.is_none() {
            return Ok(());
        }
        Err(Error::Suspended(format!(
            "the tenant {} is suspended; ask whoever runs this installation",
            self.name
        )))
    }
}

/// An issuer whose tokens a tenant accepts: exactly this `iss`, `aud` and algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    pub id: IssuerId,
    pub tenant: TenantId,
    pub issuer: String,
    pub audience: String,
    /// As in a token's header: `RS256`, `ES256`, `EdDSA`, `HS256` …
    pub algorithm: String,
    pub keys: IssuerKeys,
    pub source: UserSource,
    /// Whether an admin of the tenant wrote it, rather than the operator; absent: an earlier release did not note it.
    pub of_tenant: Option<bool>,
}

/// Where the key is that verifies an issuer's signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssuerKeys {
    /// URL of a JSON Web Key Set.
    Jwks(String),
    /// A public key in PEM.
    PublicKey(String),
    /// Name of the environment variable that holds an HMAC secret.
    SecretEnv(String),
}

/// A key that a program or a frontend authenticates with. The key itself is known only to its holder.
#[derive(Clone, Debug)]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub tenant: TenantId,
    pub name: String,
    /// The public part of the key, to recognise it by.
    pub prefix: String,
    pub scopes: Scopes,
    pub speaker: KeyKind,
    /// Of a frontend's users; of other keys it says nothing.
    pub source: UserSource,
    pub chat: ChatSettings,
    pub created_at: OffsetDateTime,
    pub expires_at: Option<OffsetDateTime>,
    pub revoked_at: Option<OffsetDateTime>,
}

impl ApiKey {
    pub fn is_live(&self, now: OffsetDateTime) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expiry| now < expiry)
    }
}

/// How OpenAI clients that use a key are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ChatSettings {
    /// A run goes on when its client closes the connection. Otherwise it is stopped.
    pub keep_running: bool,
    pub tool_calls: ShownCalls,
}

/// How tool calls are shown in the text of an answer.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ShownCalls {
    #[default]
    None,
    /// A line for each call.
    Text,
    /// The element `<details type="tool_calls">`, which Open WebUI draws as a box that can be opened.
    Details,
}

/// Whose requests a key makes.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyKind {
    /// For itself, with these claims.
    Service(Map<String, Value>),
    /// For the users that its requests name.
    Frontend(FrontendHeaders),
    /// For one guest.
    Guest,
}

impl KeyKind {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "service",
            Self::Frontend(_) => "frontend",
            Self::Guest => "guest",
        }
    }
}

/// A user of a tenant, as known from rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeenUser {
    pub id: String,
    /// When the user last did something that left a row. Where only the day is known, the beginning of that
    /// day (UTC).
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub last_seen: Option<OffsetDateTime>,
    pub conversations: i64,
    /// The personal servers that they configured.
    pub credentials: Vec<UserCredential>,
    /// Their calls that wait for approval, or for being made.
    pub open_approvals: i64,
    /// Since 00:00 UTC.
    pub runs_today: i64,
    pub tokens_today: i64,
    pub tool_calls_today: i64,
    /// Since when no credential of theirs is taken; absent: they are not blocked.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub blocked_at: Option<OffsetDateTime>,
    /// Who blocked them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

/// The state of a credential that a user has. Never its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserCredential {
    pub agent: String,
    pub server: String,
    /// `active`, `rejected` by the server, or `quarantined`: it cannot be opened.
    pub state: String,
    /// The user's sign-in at the server; absent when the user filled in fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_in: Option<ServerSignIn>,
}

/// A sign-in of a user at a server. Never its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerSignIn {
    pub issuer: String,
    /// What the user allowed.
    pub scopes: Vec<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
}
