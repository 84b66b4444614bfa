//! Why a tool is absent from a toolset, in the sentences of the AOS document, and why a server has no list of tools
//! at all.
//!
//! A restricted tool is not revealed: a tool that the principal may not see gets the same answer as one that does not
//! exist.

use serde::Serialize;

use crate::app::{servers::connections::State, tools::toolset::Toolset};
use domain::{
    connection::DownCause,
    pin::HeldTool,
    policy::{find_held_back, is_offered, may_see_unlisted},
    server::ServerSpec,
};

impl Toolset {
    /// The servers that the principal can reach and whose tools are not known yet, in the pack's order.
    pub(in crate::app) fn awaited(&self) -> impl Iterator<Item = &str> {
        let servers = self
            .all
            .specs
            .iter()
            .zip(&self.all.catalogs)
            .zip(&self.usable);
        let unknown = servers
            .filter(|((spec, catalog), usable)| **usable && catalog.is_none() && spec.load_tools);
        unknown.map(|((spec, _), _)| spec.id.as_str())
    }

    /// Why a tool is absent, by its server and its own name; `None` when that must not be revealed. `cause` says why
    /// the server is down.
    pub(in crate::app) fn obstacle(
        &self,
        server: &str,
        tool: &str,
        cause: impl FnOnce(&ServerSpec) -> Option<DownCause>,
    ) -> Option<String> {
        let Some(at) = self
            .all
            .specs
            .iter()
            .position(|spec| spec.id.as_str() == server)
        else {
            return Some(not_available(server, None));
        };
        let spec = &self.all.specs[at];
        if may_see_unlisted(spec, &self.access, tool) {
            return Some(not_allowlisted(server, tool));
        }
        if !self.usable[at] {
            // The tool is unknown here. Only principals who could call it learn how to connect its server.
            let may = is_offered(spec, &self.access, tool);
            return may.then(|| format!("{server} is not connected; type /connect {server}"));
        }
        if let Some(held) = find_held_back(spec, &self.access, tool) {
            return Some(held_back(server, tool, held));
        }
        self.all.catalogs[at]
            .is_none()
            .then(|| not_available(server, cause(spec)))
    }
}

fn not_allowlisted(server: &str, tool: &str) -> String {
    format!("Tool {tool:?} is not allowlisted for MCP server {server:?}")
}

/// The sentence about a tool that waits. It says which fields of it have changed.
pub(in crate::app::tools) fn held_back(server: &str, tool: &str, held: &HeldTool) -> String {
    if held.is_new {
        return format!(
            "Tool {tool:?} of MCP server {server:?} is new and waits until an admin accepts it"
        );
    }
    let fields = match held.changed.as_slice() {
        [] => String::new(),
        changed => format!(" ({})", changed.join(", ")),
    };
    format!(
        "Tool {tool:?} of MCP server {server:?} was changed by the server{fields} and waits until an admin accepts the change"
    )
}

/// The sentence about a server that does not exist or does not answer. It names a cause that only a person can mend.
pub(in crate::app) fn not_available(server: &str, cause: Option<DownCause>) -> String {
    let lasting = cause.filter(|cause| cause.is_lasting());
    let why = lasting.map(|cause| format!(": {}", cause.sentence()));
    format!(
        "MCP server {server:?} is not available{}",
        why.unwrap_or_default()
    )
}

/// Why a server has no list of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Cause)]
pub enum MissingListReason {
    ServerDown,
    Connecting,
    NoCredential,
    CredentialNeedsAttention,
    /// The server has answered and offers no tools.
    NoTools,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Unlisted)]
pub struct MissingToolList {
    pub reason: MissingListReason,
    /// What to do about this.
    pub remedy: &'static str,
}

impl MissingToolList {
    /// The reason for a server in this state. `empty`: its tools were listed, and the list is empty.
    pub(super) fn from_state(state: &State, empty: bool) -> Self {
        let reason = match state {
            State::Down { .. } => MissingListReason::ServerDown,
            State::NotConfigured => MissingListReason::NoCredential,
            State::NeedsAttention { .. } => MissingListReason::CredentialNeedsAttention,
            _ if empty => MissingListReason::NoTools,
            State::Connecting | State::Ready { .. } | State::Configured | State::Saved => {
                MissingListReason::Connecting
            }
        };
        let remedy = match state {
            State::Down { cause, .. } if cause.is_lasting() => remedy_for(*cause),
            _ => reason.remedy(),
        };
        Self { reason, remedy }
    }
}

/// The advice to the people who run the agent about a server that stays down until they act.
fn remedy_for(cause: DownCause) -> &'static str {
    match cause {
        DownCause::SignInRequired => {
            "the server wants a credential; put a token into a header of it, sign in with \
             `oauth_client_credentials`, or make it `user-controlled` so that users sign in"
        }
        DownCause::CredentialRefused => {
            "the server refuses the credential in the pack; correct it, `chatelaine smoke` says whether that helped"
        }
        DownCause::Redirected | DownCause::WebPage | DownCause::NotMcp => {
            "something else than an MCP server answers at its address; correct the address or the transport"
        }
        _ => "what the pack says of the server cannot work; `chatelaine smoke` says why",
    }
}

impl MissingListReason {
    fn remedy(self) -> &'static str {
        match self {
            Self::ServerDown => {
                "the server cannot be reached and its tools were never listed; start it or correct its address, \
                 `chatelaine smoke` says whether that helped"
            }
            Self::Connecting => "its tools are being listed; look again in a moment",
            Self::NoCredential => {
                "the user has not connected this personal server, and nobody's list is shared; `/connect` does it"
            }
            Self::CredentialNeedsAttention => {
                "the user's credential is not accepted any more or cannot be opened; `/connect` enters it again"
            }
            Self::NoTools => {
                "the server offers no tool that can be used; what was left out is in `dropped`"
            }
        }
    }
}
