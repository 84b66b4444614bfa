//! Why nothing is known of a server's tools, for a user who asks why they are missing: without a list there
//! is no single tool to explain.

use serde::Serialize;

use crate::{app::servers::connections::State, domain::connection::DownCause};

/// Why there is no list of a server's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingListReason {
    ServerDown,
    Connecting,
    NoCredential,
    CredentialNeedsAttention,
    /// The server has answered, and has none.
    NoTools,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MissingToolList {
    pub reason: MissingListReason,
    /// What to do about it.
    pub remedy: &'static str,
}

impl MissingToolList {
    /// For a server in this state. `empty`: it was listed, and the list is empty.
    pub(super) fn of(state: &State, empty: bool) -> Self {
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
            State::Down { cause, .. } if cause.is_lasting() => remedy_of(*cause),
            _ => reason.remedy(),
        };
        Self { reason, remedy }
    }
}

/// What whoever runs the agent can do about a server that will not be there by itself.
fn remedy_of(cause: DownCause) -> &'static str {
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
