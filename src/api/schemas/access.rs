//! Schemas of the rules that say who may call which tool.

use crate::app::tools::toolset::{
    MissingToolList,
    access_matrix::{self, AccessCell, AccessHolder, ServerAccessRows, ToolAccessRow},
};
use domain::{policy::Denial, schemas};

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
}
