//! Which handshake is made with a server, and what a failed one means.

use rmcp::{
    model::ProtocolVersion,
    service::{ClientInitializeError, ClientLifecycleMode},
};

use super::{Era, error::Failure, interceptor::clipped};

/// How to shake hands with a server of this era.
pub(super) fn mode(era: Option<Era>) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match era {
        Some(Era::Legacy) => ClientLifecycleMode::Initialize,
        Some(Era::Modern) => ClientLifecycleMode::Discover { preferred_versions },
        None => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: None,
        },
    }
}

pub(super) fn failure_of(error: ClientInitializeError) -> Failure {
    match error {
        ClientInitializeError::JsonRpcError(error) => Failure::Refused {
            code: Some(error.code.0.into()),
            message: clipped(&error.message),
        },
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => failure_of(*fallback),
        ClientInitializeError::NoCompatibleProtocolVersion {
            server_supported, ..
        } => {
            let theirs: Vec<_> = server_supported
                .iter()
                .take(8)
                .map(|version| clipped(version.as_str()))
                .collect();
            Failure::Lost(format!(
                "the server speaks no revision that we speak, only {}",
                theirs.join(", ")
            ))
        }
        ClientInitializeError::ConnectionClosed(_)
        | ClientInitializeError::TransportError { .. } => {
            Failure::Lost("the connection was closed during the handshake".to_owned())
        }
        ClientInitializeError::ExpectedInitResult(_) => Failure::Lost(
            "the server's answer to the handshake lacks one of protocolVersion, capabilities and serverInfo".to_owned(),
        ),
        other => Failure::Lost(format!(
            "the server's answer to the handshake cannot be used: {}",
            clipped(&other.to_string())
        )),
    }
}
