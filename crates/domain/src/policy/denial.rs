//! Why a call is denied, and what the user can do about it.

use serde::Serialize;

/// Why a tool is denied. `explain` shows it to people; the model never hears of denied tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    /// The server's `tools` list does not name it.
    NotInAllowlist,
    /// The server has no `toolAccess`.
    NoToolAccess,
    /// Other roles have it, none of the principal's.
    RoleLacksTool,
    /// No role lists it and `default` is not `all`.
    NoRoleListsTool,
    /// Legacy access: not public, and the principal is no admin.
    NotPublic,
    /// It is for the tenant's users, and the principal is a guest.
    GuestsExcluded,
    /// Allowed, but the server is personal and the user has no credential for it.
    NoCredential,
    /// Allowed, but the user's credential was refused by the server or cannot be opened.
    CredentialNeedsAttention,
    /// A name in a rule about calls fits no tool and is close to the name of this one.
    ApprovalNameMisspelt,
    /// A rule in `toolAccess.deny` names it without a condition.
    DeniedByRule,
    /// Its server has changed it, or added it, and nobody has accepted that yet.
    Held,
    /// Another replica has another policy for the agent, which does not admit it.
    OtherReplica,
}

impl Denial {
    /// What to check, for a pack author.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NotInAllowlist => {
                "the server's `tools` list does not name it, or its tools are not loaded; add it there"
            }
            Self::NoToolAccess => {
                "the server has no `toolAccess`; `toolAccess: { default: public }` opens it to everyone"
            }
            Self::RoleLacksTool => {
                "it is listed for other roles only; add it under one of the user's roles in `toolAccess.roles`"
            }
            Self::NoRoleListsTool => {
                "no role lists it; add it under a role in `toolAccess.roles`, or set `toolAccess.default: all`"
            }
            Self::NoCredential => {
                "the user has not connected this personal server; `/connect` does it"
            }
            Self::CredentialNeedsAttention => {
                "the user's credential is not accepted any more or cannot be opened; `/connect` enters it again"
            }
            Self::ApprovalNameMisspelt => {
                "a name in `toolAccess.approval`, `deny` or `limits` fits no tool and is close to the name of this one; correct the name there"
            }
            Self::DeniedByRule => {
                "`toolAccess.deny` names it without a condition; remove it there, or write `when`"
            }
            Self::Held => {
                "its server has changed it, or added it, and nobody has accepted that yet; an admin does it under *Changed tools*, the operator with `chatelaine tools`"
            }
            Self::OtherReplica => {
                "another replica has other rules for this agent, which do not allow it; give all replicas the same pack, or settle which rules count with `chatelaine policy settle`"
            }
            Self::GuestsExcluded => {
                "it is for users of the tenant, not for guests; `toolAccess: { default: public }` opens it to guests, too"
            }
            Self::NotPublic => {
                "it is not in `toolAccess.public` and the user is not in `adminUsers`"
            }
        }
    }
}
