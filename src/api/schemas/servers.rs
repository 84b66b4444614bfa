//! Schemas of agents, servers and the registry.

use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::servers::{
    agent_servers::{self, KeyView, ScopeView, ServerDetails},
    agents,
    connections::{self, ConnectionView, State},
    credentials::{self, FieldView},
    oauth,
};
use domain::{
    connection::{ConnectionTestError as Trouble, DownCause},
    message::Choice,
    registry::{KeySchema, Kind},
    schemas,
    server::FieldKind,
};

schemas! {
    /// A client that the program registered at an authorization server.
    struct RegisteredClient for oauth::RegisteredClient {
        id: Uuid,
        issuer: String,
        /// Where users come back to.
        redirect_uri: String,
        registered_at: OffsetDateTime,
        /// When a user came back last.
        came_back_at: Option<OffsetDateTime>,
        /// Since when the authorization server does not know it any more.
        unknown_since: Option<OffsetDateTime>,
    }
    /// One server that an agent takes from the registry.
    struct ServerView for agent_servers::ServerView {
        /// What the agent calls it.
        server: String,
        /// The entry of the registry.
        r#ref: String,
        name: String,
        description: String,
        /// It is another one for each run, and there only within runs.
        per_run: bool,
        /// The keys of a run's scope that it is told of.
        #[schema(required = false)]
        scope: Vec<ScopeView>,
        /// How its connection is, where it is the same for every run.
        connection: Option<State>,
        explained: Option<ServerDetails>,
    }
    /// A key of a run's scope, for whoever starts runs.
    struct ScopeView for agent_servers::ScopeView {
        key: String,
        /// Without it no run of the agent is created.
        required: bool,
        /// As the definition's `scope_schema` has it.
        #[serde(rename = "type")]
        kind: Option<Kind>,
        #[schema(required = false)]
        description: String,
    }
    /// What only those see who run the agent.
    struct Explained for agent_servers::ServerDetails {
        /// With its placeholders; absent when the entry is not there.
        url: Option<String>,
        /// Why it cannot be used.
        problem: Option<String>,
        /// Every key that the server takes.
        config: Vec<KeyView>,
    }
    /// A key of a server's configuration and where its value comes from.
    #[schema(as = ConfigKey)]
    struct KeyView for agent_servers::KeyView {
        key: String,
        /// As it was written; `••••` when it is sensitive, absent when there is none.
        #[schema(value_type = Option<Object>)]
        value: Option<Value>,
        /// `registry default`, `capability <name>`, `agent` or `framework`.
        origin: Option<String>,
        /// The origin in a sentence: `overrides registry default (default)`, `from registry default`.
        note: String,
        /// The header that carries it.
        header: String,
        #[serde(flatten)]
        schema: KeySchema,
    }
    /// What the caller is to an agent.
    struct AgentRoles for agents::AgentRoles {
        agent: String,
        /// The roles that the agent's pack names and the caller has.
        roles: Vec<String>,
        /// One of the pack's `adminUsers`.
        admin: bool,
        /// Why roles may be missing: their issuer has left the claim with the roles out of the token.
        left_out: Option<String>,
    }
    /// An agent as a frontend lists it.
    struct AgentView for agents::AgentView {
        id: String,
        display_name: String,
        description: String,
        tags: Vec<String>,
        /// Languages that the agent has texts in; the first is its default.
        languages: Vec<String>,
        /// Guests may not talk to it.
        requires_authentication: bool,
    }
    /// How a server is, as people see it.
    #[serde(tag = "state", rename_all = "snake_case")]
    #[schema(as = ServerState)]
    enum State for connections::State {
        Connecting,
        /// Connected at least once and not known to be down. `protocol`: the revision, such as `2026-07-28`.
        Ready {
            protocol: String,
        },
        /// Could not be reached; tried again by itself. Known tools stay listed.
        Down {
            cause: DownCause,
            reason: String,
        },
        /// Personal, and the user has not entered a credential.
        NotConfigured,
        /// Personal, and the server has accepted the user's credential.
        Configured,
        /// Personal, and the first call will show whether the server accepts what the user entered.
        Saved,
        /// Personal, and what the user entered is no longer good. `reason`: `rejected` by the server, or
        /// `quarantined` because it cannot be opened.
        NeedsAttention {
            reason: String,
        },
    }
    /// One server of an agent, for `GET …/connections`.
    struct ConnectionView for connections::ConnectionView {
        server: String,
        /// `shared` or `personal`.
        kind: &'static str,
        #[serde(flatten)]
        state: State,
        /// Tools that the caller may use; all of them for whoever runs the agent.
        tools: usize,
        /// What discovery left out, and why; only for whoever runs the agent.
        dropped: Vec<String>,
        /// What the pack's allowlist names and the server does not have; only for whoever runs the agent.
        missing: Vec<String>,
        /// Names in the pack's rules for this server that fit none of its tools, each as a sentence; only for whoever
        /// runs the agent.
        unmatched: Vec<String>,
    }
    /// How a test went.
    struct Tested for credentials::TestOutcome {
        /// The server has accepted it in a request in which it refuses a false one.
        ok: bool,
        /// Why it does not work. Absent without `ok`: the test shows nothing, and the first call will.
        reason: Option<Trouble>,
        /// For people.
        message: &'static str,
    }
    /// One server of an agent, with what a user enters for it.
    struct ServerConnection for credentials::ServerConnection {
        #[serde(flatten)]
        connection: ConnectionView,
        /// What to enter; empty for a shared server. Values never come back.
        fields: Vec<FieldView>,
        /// The user can sign in at the server, instead of entering something or because there is nothing to enter.
        sign_in: bool,
    }
    /// One thing that a user enters.
    struct FieldView for credentials::FieldView {
        name: String,
        /// `text`, `secret`, `url`, `boolean` or `select`.
        #[serde(rename = "type")]
        kind: FieldKind,
        /// In the caller's language.
        label: String,
        required: bool,
        #[schema(required = false)]
        options: Vec<Choice>,
    }
}
