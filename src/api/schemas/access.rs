//! Schemas of the rules that say who may call which tool.

use super::schemas;
use crate::app::tools::toolset::{
    MissingToolList,
    access_matrix::{self, AccessCell, AccessHolder, ServerAccessRows, ToolAccessRow},
};
use domain::policy::{self, Denial};

schemas! {
    /// What each role may do with each tool of an agent.
    struct AccessMatrix for access_matrix::AccessMatrix {
        /// What somebody may hold: the columns.
        holders: Vec<AccessHolder>,
        servers: Vec<ServerAccessRows>,
        /// The claim that the pack's `rolesAttribute` names, if none of the last 1000 people who came with a token had it.
        unseen_claim: Option<String>,
    }

    #[serde(tag = "kind", rename_all = "snake_case")]
    enum AccessHolder for access_matrix::AccessHolder {
        /// A user without a role that the agent names.
        NoRole,
        Role { role: String },
        /// One of the pack's `adminUsers`.
        Admin,
    }

    struct ServerAccessRows for access_matrix::ServerAccessRows {
        server: String,
        tools: Vec<ToolAccessRow>,
        /// Only when nothing is known of the server's tools: why.
        unlisted: Option<MissingToolList>,
    }

    struct ToolAccessRow for access_matrix::ToolAccessRow {
        tool: String,
        /// In the order of the holders.
        cells: Vec<AccessCell>,
    }

    #[serde(tag = "decision", rename_all = "snake_case")]
    enum AccessCell for access_matrix::AccessCell {
        Allow,
        /// Calls wait for one of these roles.
        Approve { approvers: Vec<String> },
        Deny {
            reason: Denial,
            /// What to change, for the author of the pack.
            remedy: &'static str,
        },
    }

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
