//! Schemas of the rules that say who may call which tool.

use crate::{policy, schemas};

schemas! {
    /// Why a tool is denied. `explain` shows it to people; the model never hears of denied tools.
    #[serde(rename_all = "snake_case")]
    enum Denial for policy::Denial {
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
        GuestsExcluded,
        /// Allowed, but the server is personal and the user has no credential for it.
        NoCredential,
        /// Allowed, but the user's credential was refused by the server or cannot be opened.
        CredentialNeedsAttention,
        /// A name in an approval policy fits no tool and is close to the name of this one.
        ApprovalNameMisspelt,
    }
}
