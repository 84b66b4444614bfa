//! An MCP server as a pack defines it. Everything here is resolved: no `${NAME}` is left, and what
//! came from the environment is a [`Secret`].

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    credential::CredentialRef,
    ids::ServerId,
    oauth::{ClientProof, OAuthConfig},
    pin::{HeldTool, Pin},
    policy::{OtherPolicies, ToolAccess, ToolPattern},
    secret::Secret,
    tool::Tool,
};

/// One server of one agent.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own in a pack"
)]
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    pub id: ServerId,
    pub endpoint: Endpoint,
    pub access_mode: AccessMode,
    /// Who may call which tool. Absent: nobody may.
    pub tool_access: Option<ToolAccess>,
    /// The allowlist `tools`. Absent: every discovered tool; empty: none.
    pub tools: Option<Vec<ToolPattern>>,
    /// What becomes of a tool that is not as somebody accepted it.
    pub pin: Pin,
    /// The tools that are not as somebody accepted them, for one tenant and one list of the server; no pack says them.
    pub held: BTreeMap<String, HeldTool>,
    /// What other replicas say of it that have another policy; no pack says it.
    pub elsewhere: OtherPolicies,
    /// Tool → language tag → what a call of it means, in a sentence with `{argument}`s, for people.
    pub summaries: BTreeMap<String, BTreeMap<String, String>>,
    /// Start fails when the server is down.
    pub required: bool,
    /// Each tenant has a connection of its own. Otherwise one serves every tenant and agent that reaches the server in the
    /// same way.
    pub per_tenant: bool,
    /// A shared server is connected at the start, not when it is used for the first time.
    pub at_start: bool,
    pub timeouts: Timeouts,
    /// The fields a user fills in to configure a personal server.
    pub user_config: Vec<UserField>,
    /// The tool that shows whether a user's credential is good.
    pub credential_test: Option<CredentialTest>,
    /// Who shares the list of a personal server's tools.
    pub catalog: CatalogScope,
    /// Of a personal server: what the operator sends to discover its tools, and never with a user's call.
    pub operator_headers: Vec<(String, Secret)>,
    /// What came from variables into headers, the address, the environment or the arguments. It counts as a credential
    /// wherever the server repeats it.
    pub from_variables: Vec<Secret>,
    /// The secret values that a user entered, in a spec that was made for this user's connection. They are
    /// removed from every text of the server; see [`super::scrub`].
    pub entered: Vec<Secret>,
    /// It was made for one user's connection and holds what this user entered, secret or not.
    pub has_user_values: bool,
    /// It is asked how its users sign in: a 401 is about that, whatever the pack's headers carry.
    pub asks_for_sign_in: bool,
    /// The program gets tokens for it.
    pub auth: Option<ServerAuth>,
    /// Its users may sign in at it.
    pub oauth: Option<OAuthConfig>,
    /// For a shared server whose address or headers hold values of a run: a digest of what is sent to the
    /// server.
    pub run_config: Option<[u8; 16]>,
    /// A tenant wrote its address.
    pub of_tenant: bool,
    /// Whether its tools are discovered. With `false` no user has any of them.
    pub load_tools: bool,
    /// Its prompts are discovered, as commands.
    pub load_prompts: bool,
    /// A session of streamable HTTP is ended with a request when it is closed.
    pub terminate_on_close: bool,
}

/// A call that fails with a credential that is not good. It changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct CredentialTest {
    pub tool: String,
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// Whose access tokens the program sends to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAuth {
    /// Its own, by client credentials.
    Client(ClientCredentials),
    /// Those of the user who signed in, in a spec that was made for this user's connection.
    User(UserSignIn),
}

/// The sign-in of a user, kept as a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSignIn {
    pub credential: CredentialRef,
    /// What the pack says today of the client that it names.
    pub client_secret: Option<Secret>,
}

/// How tokens are got by OAuth 2.0 client credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCredentials {
    pub issued_by: TokenIssuer,
    pub client_id: Secret,
    pub proof: ClientProof,
    pub scope: Option<String>,
    /// A tenant wrote the address.
    pub of_tenant: bool,
}

impl ClientCredentials {
    /// What tells these credentials from others, without what only the client knows.
    pub fn identity(&self) -> [&str; 3] {
        let (TokenIssuer::Endpoint(url) | TokenIssuer::OfServer(url)) = &self.issued_by;
        let scope = self.scope.as_deref().unwrap_or_default();
        [url.as_str(), self.client_id.expose(), scope]
    }

    pub(crate) fn add_to<'a>(&self, parts: &'a mut Parts) -> &'a mut Parts {
        let (issuer, proof) = match (&self.issued_by, &self.proof) {
            (TokenIssuer::Endpoint(_), ClientProof::Secret(_)) => ("endpoint", "secret"),
            (TokenIssuer::Endpoint(_), ClientProof::Key { .. }) => ("endpoint", "key"),
            (TokenIssuer::OfServer(_), ClientProof::Secret(_)) => ("server", "secret"),
            (TokenIssuer::OfServer(_), ClientProof::Key { .. }) => ("server", "key"),
        };
        parts.add(issuer).add(proof);
        for part in self.identity() {
            parts.add(part);
        }
        parts
            .add(self.secret().expose())
            .add([u8::from(self.of_tenant)])
    }

    /// What only the client knows.
    pub fn secret(&self) -> &Secret {
        match &self.proof {
            ClientProof::Secret(secret) => secret,
            ClientProof::Key { pem, .. } => pem,
        }
    }
}

/// Where tokens are got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenIssuer {
    /// At this endpoint.
    Endpoint(Url),
    /// At the authorization server that the server at this address names in its metadata.
    OfServer(Url),
}

/// The header that carries an access token.
const AUTHORIZATION: &str = "Authorization";

impl ServerSpec {
    /// Whether its users may sign in at it, be it instead of entering something or because there is nothing to enter.
    pub fn takes_sign_in(&self) -> bool {
        let is_remote = matches!(self.endpoint, Endpoint::Remote { .. });
        self.access_mode == AccessMode::UserControlled
            && is_remote
            && (self.oauth.is_some() || self.user_config.is_empty())
    }

    /// The address, of a server that has one.
    pub fn url(&self) -> Option<&Url> {
        match &self.endpoint {
            Endpoint::Remote { url, .. } => Some(url),
            Endpoint::Stdio { .. } => None,
        }
    }

    /// The server as it is asked how its users sign in.
    #[must_use]
    pub fn asking_for_sign_in(&self) -> Self {
        Self {
            asks_for_sign_in: true,
            ..self.clone()
        }
    }

    /// A personal server as the program reaches it to discover its tools, where the operator said with what.
    pub fn for_discovery(&self) -> Option<Self> {
        let is_personal = self.access_mode == AccessMode::UserControlled;
        if !is_personal || self.catalog == CatalogScope::PerUser || self.operator_headers.is_empty()
        {
            return None;
        }
        let mut spec = Self {
            at_start: true,
            ..self.clone()
        };
        let Endpoint::Remote { headers, .. } = &mut spec.endpoint else {
            return None;
        };
        let own = &self.operator_headers;
        headers.retain(|(name, _)| {
            !own.iter()
                .any(|(other, _)| other.eq_ignore_ascii_case(name))
        });
        headers.extend(own.iter().cloned());
        Some(spec)
    }

    /// The server with an access token of a user, as its connections have it.
    #[must_use]
    pub fn with_bearer(&self, token: &Secret) -> Self {
        let mut spec = self.clone();
        if let Endpoint::Remote { headers, .. } = &mut spec.endpoint {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case(AUTHORIZATION));
            let bearer = Secret::new(format!("Bearer {}", token.expose()));
            headers.push((AUTHORIZATION.to_owned(), bearer));
            spec.entered = vec![token.clone()];
            spec.has_user_values = true;
        }
        spec
    }

    /// A digest of how the server is reached: equal for two servers if one connection can serve both, and for no others. It
    /// covers what is sent, what is removed from the answers, and what is listed. It does not reveal what was hashed.
    pub fn digest(&self) -> [u8; 32] {
        // Every field is named, so that a new one is not forgotten.
        let Self {
            endpoint,
            access_mode: _,
            required: _,
            per_tenant: _,
            at_start: _,
            timeouts,
            from_variables,
            entered,
            has_user_values,
            asks_for_sign_in,
            auth,
            of_tenant,
            load_tools,
            load_prompts,
            terminate_on_close,
            // What agents make of the server.
            id: _,
            tool_access: _,
            tools: _,
            pin: _,
            held: _,
            elsewhere: _,
            summaries: _,
            user_config: _,
            credential_test: _,
            catalog: _,
            operator_headers: _,
            oauth: _,
            run_config: _,
        } = self;
        let mut parts = Parts::default();
        endpoint.add_to(&mut parts);
        match auth {
            None => parts.add("none"),
            Some(ServerAuth::Client(client)) => client.add_to(&mut parts),
            Some(ServerAuth::User(user)) => {
                parts.add("user").add(user.credential.id.0.as_bytes());
                parts.add(user.credential.generation.to_be_bytes());
                parts.add_all(user.client_secret.iter().map(Secret::expose))
            }
        };
        let Timeouts {
            connect,
            start,
            request,
            stream_idle,
            idle,
        } = timeouts;
        for time in [Some(*connect), *start, Some(*request), *stream_idle, *idle] {
            parts.add(time.map_or([0xff; 16], |time| time.as_nanos().to_be_bytes()));
        }
        for switch in [
            has_user_values,
            asks_for_sign_in,
            of_tenant,
            load_tools,
            load_prompts,
            terminate_on_close,
        ] {
            parts.add([u8::from(*switch)]);
        }
        parts.add_all(from_variables.iter().map(Secret::expose));
        parts.add_all(entered.iter().map(Secret::expose));
        parts.0.finalize().into()
    }

    /// The tools that the allowlist names and that the server does not have.
    pub fn missing(&self, tools: &[Arc<Tool>]) -> Vec<String> {
        let listed = self.tools.iter().flatten();
        let missing =
            listed.filter(|pattern| !tools.iter().any(|tool| pattern.matches(&tool.name)));
        missing.map(|pattern| pattern.0.clone()).collect()
    }
}

/// What a digest is made of. Each part is written with its length, so that no two lists of parts look alike.
#[derive(Default)]
pub(crate) struct Parts(pub(crate) Sha256);

impl Parts {
    pub(crate) fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
        self
    }

    pub(crate) fn add_all<T: AsRef<[u8]>>(
        &mut self,
        parts: impl ExactSizeIterator<Item = T>,
    ) -> &mut Self {
        self.add((parts.len() as u64).to_be_bytes());
        for part in parts {
            self.add(part);
        }
        self
    }
}

impl Endpoint {
    pub(crate) fn add_to(&self, parts: &mut Parts) {
        parts.add(self.transport());
        match self {
            Self::Remote { url, headers, .. } => {
                parts.add(url.as_str());
                let headers = headers.iter();
                let all: Vec<_> = headers
                    .flat_map(|(name, value)| [name.as_str(), value.expose()])
                    .collect();
                parts.add_all(all.into_iter());
            }
            Self::Stdio {
                command,
                args,
                env,
                cwd,
                encoding,
            } => {
                parts.add(command);
                parts.add_all(args.iter().map(Secret::expose));
                parts.add_all(env.keys());
                parts.add_all(env.values().map(Secret::expose));
                parts.add_all(cwd.iter().map(|cwd| cwd.as_os_str().as_encoded_bytes()));
                parts.add_all(encoding.iter());
            }
        }
    }

    /// The transport, as packs write it.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Remote {
                transport: Remote::StreamableHttp,
                ..
            } => "streamable-http",
            Self::Remote {
                transport: Remote::Sse,
                ..
            } => "sse",
            Self::Remote {
                transport: Remote::WebSocket,
                ..
            } => "websocket",
            Self::Stdio { .. } => "stdio",
        }
    }
}

/// Where a server is and what is sent to reach it.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// At an address. Headers are sent with every request to this origin only.
    Remote {
        transport: Remote,
        url: Url,
        headers: Vec<(String, Secret)>,
    },
    /// A child process that speaks over its standard streams.
    Stdio {
        command: String,
        args: Vec<Secret>,
        env: BTreeMap<String, Secret>,
        cwd: Option<PathBuf>,
        /// The label of the text encoding of its streams; UTF-8 unless said otherwise.
        encoding: Option<String>,
    },
}

impl Endpoint {
    /// The host, for log lines; absent for a child. The rest of an address may hold secrets.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Remote { url, .. } => url.host_str(),
            Self::Stdio { .. } => None,
        }
    }
}

/// How to speak with a server that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Streamable HTTP, in the revisions with and without sessions.
    StreamableHttp,
    /// HTTP with SSE as in revision 2024-11-05; streamable HTTP is tried first.
    Sse,
    /// `ws://` and `wss://`, not part of MCP's revisions but spoken by gateways.
    WebSocket,
}

/// The two lifecycles of MCP, by the revision of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// Up to revision 2025-11-25: a handshake (`initialize`) begins a session.
    #[default]
    Handshake,
    /// From revision 2026-07-28 on: no session, every request is complete in itself.
    Stateless,
}

impl Lifecycle {
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Handshake => Self::Stateless,
            Self::Stateless => Self::Handshake,
        }
    }
}

/// Whose credentials the server sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// Shared: the operator's token, one connection for all users of a tenant.
    #[default]
    AdminControlled,
    /// Personal: each user's own credential.
    UserControlled,
}

/// Whether the tools of a personal server depend on who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CatalogScope {
    /// All users with a credential see the same tools. They are listed once, with the credential of the first
    /// user.
    #[default]
    Shared,
    /// Each user's tools are listed with their own credential.
    PerUser,
}

/// How long to wait for a server. A deadline covers the whole answer, body included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// How long a child may take to start, where the pack says how long connecting may take. Absent: as long as a program
    /// that is downloaded first may need.
    pub start: Option<Duration>,
    pub request: Duration,
    /// How long a stream of events may be silent. Absent: as long as the transport bears.
    pub stream_idle: Option<Duration>,
    /// How long a connection is kept that nobody uses. Absent: as long as suits its kind.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    /// 5 s to connect and 60 s for a request.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            start: None,
            request: Duration::from_secs(60),
            stream_idle: None,
            idle: None,
        }
    }
}

/// One field of the configuration flow of a personal server.
///
/// Its value goes where the field says, or only into another field's `header_template`.
#[derive(Clone, Debug, PartialEq)]
pub struct UserField {
    pub name: String,
    pub kind: FieldKind,
    /// Language tag → what the user is asked. Never empty.
    pub label: BTreeMap<String, String>,
    pub required: bool,
    /// What a `select` offers; empty for every other kind.
    pub options: Vec<Choice>,
    /// The header that carries the value, with what it is made of.
    pub header: Option<UserHeader>,
    /// The variable of a stdio server's environment that carries the value.
    pub env_name: Option<String>,
    /// The query parameter of the URL that carries the value.
    pub query_name: Option<String>,
}

/// A header made of what the user entered. It replaces a header of the pack with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserHeader {
    /// `Authorization` unless the pack says otherwise.
    pub name: String,
    /// Literal text with `{value}`, `{fieldName}` or `{base64(user:token)}`.
    pub template: String,
}

/// One option of a `select` field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: String,
    /// Language tag → what the user reads. Never empty.
    pub label: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FieldKind {
    #[default]
    Text,
    Secret,
    Url,
    Boolean,
    Select,
}
