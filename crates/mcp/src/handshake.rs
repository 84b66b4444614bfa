//! Begins a connection: finds out the revision of the server and what it offers.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::time::timeout;

use super::{Lifecycle, error::Failure, peer::Peer, redaction::clip, request::Request};
use domain::{
    jsonrpc::{HEADER_MISMATCH, MISSING_CAPABILITY, object},
    revision::Revision,
};

/// How long a server may take to answer `server/discover` before it counts as an older one.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server says of itself.
pub(super) struct ServerInfo {
    pub(super) revision: Revision,
    pub(super) has_prompts: bool,
    /// The server reports changes of its tools, and of its prompts.
    pub(super) tools_change: bool,
    pub(super) prompts_change: bool,
}

#[derive(Deserialize)]
struct Capabilities {
    #[serde(default)]
    tools: Option<List>,
    #[serde(default)]
    prompts: Option<List>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List {
    #[serde(default)]
    list_changed: Option<bool>,
}

impl ServerInfo {
    fn new(revision: Revision, capabilities: &Capabilities) -> Self {
        let changes =
            |list: &Option<List>| list.as_ref().and_then(|list| list.list_changed) == Some(true);
        Self {
            revision,
            has_prompts: capabilities.prompts.is_some(),
            tools_change: changes(&capabilities.tools),
            prompts_change: changes(&capabilities.prompts),
        }
    }
}

/// Begins a connection with this lifecycle. `None`: asks with `server/discover`, and falls back to the older handshake.
pub(super) async fn begin(
    peer: &Arc<Peer>,
    lifecycle: Option<Lifecycle>,
) -> Result<ServerInfo, Failure> {
    match lifecycle {
        Some(Lifecycle::Handshake) => initialize(peer).await,
        Some(Lifecycle::Stateless) => discover(peer).await,
        None => match timeout(DISCOVER_TIMEOUT, discover(peer)).await {
            Ok(Err(failure)) if is_of_older_server(&failure) => initialize(peer).await,
            Ok(discovered) => discovered,
            Err(_) => initialize(peer).await,
        },
    }
}

/// Whether a failed `server/discover` shows that the server speaks an older revision. Such servers answer an unknown request
/// with any status and any error.
fn is_of_older_server(failure: &Failure) -> bool {
    match failure {
        Failure::Refused { code, .. } => {
            !matches!(code, Some(HEADER_MISMATCH | MISSING_CAPABILITY))
        }
        Failure::Status { status, .. } => *status < 500,
        _ => false,
    }
}

async fn discover(peer: &Arc<Peer>) -> Result<ServerInfo, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
        capabilities: Capabilities,
    }
    let mut answer = peer.request(&Request::Discover, &Arc::default()).await;
    if let Err(Failure::OtherRevision { supported, .. }) = &answer {
        // It may have misread the request; that it speaks the revision is what it says itself.
        if !speaks_ours(supported) {
            return Err(no_common_revision(supported));
        }
        answer = peer.request(&Request::Discover, &Arc::default()).await;
    }
    let found: Discovered = read(&answer?, "supportedVersions and capabilities")?;
    if !speaks_ours(&found.supported_versions) {
        return Err(no_common_revision(&found.supported_versions));
    }
    peer.agree_on(Revision::STATELESS);
    Ok(ServerInfo::new(Revision::STATELESS, &found.capabilities))
}

fn speaks_ours(supported: &[String]) -> bool {
    supported
        .iter()
        .any(|revision| revision == Revision::STATELESS.as_str())
}

fn no_common_revision(supported: &[String]) -> Failure {
    let theirs: Vec<_> = supported
        .iter()
        .take(8)
        .map(|theirs| clip(theirs))
        .collect();
    Failure::Lost(format!(
        "the server speaks no revision that we speak, only {}",
        theirs.join(", ")
    ))
}

async fn initialize(peer: &Arc<Peer>) -> Result<ServerInfo, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Initialized {
        protocol_version: String,
        capabilities: Capabilities,
        #[serde(rename = "serverInfo")]
        _server_info: serde::de::IgnoredAny,
    }
    let answer = peer.request(&Request::Initialize, &Arc::default()).await?;
    let found: Initialized = read(&answer, "protocolVersion, capabilities and serverInfo")?;
    let revision = Revision::parse(&found.protocol_version).ok_or_else(|| Failure::Refused {
        code: None,
        message: format!(
            "the server speaks revision {:?} of the protocol, which this program does not",
            clip(&found.protocol_version)
        ),
    })?;
    peer.agree_on(revision);
    peer.notify("notifications/initialized", &json!({})).await?;
    peer.follow_server();
    Ok(ServerInfo::new(revision, &found.capabilities))
}

/// Reads the answer to a handshake, which must have these members.
fn read<'a, T: Deserialize<'a>>(answer: &'a RawValue, members: &str) -> Result<T, Failure> {
    object(answer.get()).map_err(|_| {
        Failure::Lost(format!(
            "the server's answer to the handshake lacks one of {members}"
        ))
    })
}
