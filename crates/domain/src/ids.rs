//! Identifiers. Rows carry UUIDv7 newtypes, so that one kind of id cannot be passed for another;
//! things an author names (agents, servers) carry checked text.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::hidden::clean_name;

macro_rules! uuid_id {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh, time-ordered id.
            #[expect(clippy::new_without_default, reason = "a default id would be a different one each time")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )+};
}

uuid_id! {
    /// An organisation; nothing crosses from one to another.
    TenantId,
    /// A chat between one user and one agent.
    ConversationId,
    /// One message of a conversation.
    MessageId,
    /// One turn of the agent in a conversation.
    RunId,
    /// Somebody who vouches for users of a tenant.
    IssuerId,
    /// A key that a frontend or a program authenticates with.
    ApiKeyId,
    /// A process of this program; new at every start.
    ReplicaId,
    /// A definition of a tool that its server lists and somebody may have to accept.
    DefinitionId,
    /// One line of the audit trail.
    AuditId,
    /// What a user entered for one personal server.
    CredentialId,
    /// Where a tenant wants to be told what happens.
    WebhookId,
    /// One message to a webhook; the same however often it is sent.
    DeliveryId,
    /// A request that a tool call be made.
    ApprovalId,
    /// An image or a text file in a conversation.
    AttachmentId,
}

/// `[A-Za-z0-9][A-Za-z0-9_-]{0,63}`: the shape of every id that an author chooses.
fn is_author_id(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= 64
        && bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

macro_rules! author_id {
    ($($(#[$doc:meta])* $name:ident, $what:literal);+ $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the shape; the error is a sentence for the author.
            pub fn parse(text: &str) -> Result<Self, String> {
                if is_author_id(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(format!(
                        concat!("{:?} is not a valid ", $what, " id: use 1 to 64 letters, digits, `_` or `-`, starting with a letter or digit"),
                        text
                    ))
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "sqlx")]
        impl sqlx::Type<sqlx::Postgres> for $name {
            fn type_info() -> sqlx::postgres::PgTypeInfo {
                <str as sqlx::Type<sqlx::Postgres>>::type_info()
            }

            fn compatible(given: &sqlx::postgres::PgTypeInfo) -> bool {
                <str as sqlx::Type<sqlx::Postgres>>::compatible(given)
            }
        }

        /// The shape is checked again: the error names the column.
        #[cfg(feature = "sqlx")]
        impl sqlx::Decode<'_, sqlx::Postgres> for $name {
            fn decode(value: sqlx::postgres::PgValueRef<'_>) -> Result<Self, sqlx::error::BoxDynError> {
                Ok(Self::parse(value.as_str()?)?)
            }
        }
    )+};
}

author_id! {
    /// A pack's id; the agent that serves it to a tenant has the same.
    AgentId, "agent";
    /// An MCP server's id, unique in its pack ignoring case.
    ServerId, "server";
    /// A key of the ring, such as `k1`.
    KekId, "key";
}

/// The immutable id of a user within a tenant: the `sub` of their token, or what a frontend key says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent, no_pg_array))]
#[serde(transparent)]
pub struct UserId(pub Arc<str>);

impl UserId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id in a text for people; its bytes when nothing of it can be shown.
    pub fn display_name(&self) -> String {
        clean_name(&self.0).unwrap_or_else(|| {
            let start = &self.0.as_bytes()[..self.0.len().min(16)];
            format!("user {}", hex::encode(start))
        })
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
