//! Chatelaine is a multi-tenant chat backend. Operators give it *agent packs* that name MCP servers. Users talk to
//! the agents. The model is shown only the tools that a user's roles allow. (A chatelaine kept the keys of a
//! household.)
//!
//! # Layers
//!
//! The layers below [`app`] are crates (`crates/`), so that each can use only the crates that its `Cargo.toml` names.
//! The modules of this crate use only modules of the layers below their own. A test (`tests/it/layers.rs`) reads the
//! paths in the source and prints each line that breaks this.
//!
//! | layer | module | what it does |
//! |---|---|---|
//! | 4 | [`cli`] | the commands of the program, the private Postgres, the demo |
//! | 4 | [`api`] | every route: HTTP in, one call into `app`, JSON out |
//! | 3 | [`app`] | the use cases, in six groups |
//! | 2 | [`live`] | the event streams that are open in this process |
//!
//! | layer | crate | what it does |
//! |---|---|---|
//! | 2 | [`store`] | Postgres: a transaction that knows its tenant, one file for each table; seals and opens ([`store::vault`]) |
//! | 2 | [`mcp`] | MCP servers: transports, connections, discovery, calls |
//! | 2 | [`llm`] | one step of a model: messages and tools in, a stream of deltas out |
//! | 2 | [`packs`] | packs from disk, with errors that name file, line and path |
//! | 2 | [`telemetry`] | traces by OpenTelemetry: which spans are exported, and what of them |
//! | 2 | [`terminal`] | the chat in a terminal, which is a client of the public API |
//! | 1 | [`egress`] | the one guarded HTTP client |
//! | 0 | [`domain`] | the words and the pure rules |
//!
//! # How a message is answered
//!
//! 1. `POST /v1/conversations/{id}/messages` reaches a handler in `api`. The handler authenticates the principal and
//!    calls [`app::chat::conversations::post`].
//! 2. One transaction writes the message and its run. The replica that received the message claims the run in the same
//!    transaction, with a lease and a fence.
//! 3. `app::runs::scheduler` hands the run to `app::chat::agent_loop`. The agent loop asks the model, with the user's
//!    toolset, and streams the answer to the event streams that are open. The answer is a row before any of its tool calls is made.
//! 4. Each tool call goes through [`app::tools::gate`]: it decides again as the listing did, checks the schema and
//!    sends one request. Its audit line was committed before. The result is a row, and the model is asked again.
//! 5. When the model calls no more tools, the run ends with a row and an event. Listeners on this replica get the
//!    event from [`live`]. Listeners on another replica get it by a hint and a query.
//!
//! The command of a skill (`/web-search rust`, or its request by REST or A2A) is such a message, too. Its run makes one
//! call as in step 4 and ends. No model is asked, not even when the call fails.
//!
//! A client of MCP calls tools itself, at `/mcp/{agent}`: [`app::tools::client_tools`] finds the tools of its user, and
//! each call goes through the gate as in step 4, without a run.
//!
//! # How a tool reaches the model
//!
//! 1. `app::servers::connections` keeps each shared server connected. It pages through `tools/list`, stores the
//!    catalog, and listens for changes.
//! 2. `app::tools::toolset` names all tools of an agent once and selects, for each set of roles, the tools that
//!    [`domain::policy::decide`] does not deny. The model's request has this selection and no other list.
//!
//! # Invariants
//!
//! - **One gate, one send.** Every call of a tool, whoever asks for it, and every read of a prompt or a resource ends in
//!   one private `send` of [`app::tools::gate`]. The permit for a call is made by [`domain::policy::decide`] or by a
//!   claimed approval, and by nothing else. The permit for a prompt or a resource is made from the user's toolset,
//!   which the same function selected. One call does not pass the gate: the test of a credential calls the tool that
//!   the pack names for this test. That tool may not need approval ([`app::servers::credentials`]).
//! - **No rule means no.** A rule that cannot be understood is refused when its pack loads; a call without a rule is
//!   denied.
//! - **Nothing in memory waits for a person**, but for one bounded case: a server of an older protocol revision asks
//!   its user while its call is open, for five minutes at most. That question is a row like any other
//!   ([`app::tools::elicitations`]).
//! - **No transaction is open across a network call.** Work is claimed with a lease and fenced.
//! - **A call of unknown outcome is never repeated** by the program. It is a row before it is sent. The replica that
//!   takes over a broken run marks the call and goes on.
//! - **Tenancy belongs to the transaction.** [`store::Db::tenant`] sets the tenant, and every query names it
//!   (`tests/it/rls/queries.rs`). Row-level security is the second lock.
//! - **Secrets have a type** ([`domain::secret::Secret`]) that cannot be printed or serialised. Arguments,
//!   results, prompts and headers are never logged.
//! - **A sealed value opens where it belongs**: for its tenant, user, server and generation, or not at all
//!   ([`store::vault`]). Keys are rotated while replicas serve ([`app::platform::keys`]).
//! - **Every change is in the audit trail**, written in the same transaction ([`domain::audit`]). The database lets
//!   nobody change a line, and only lines that are older than the configured age are deleted
//!   ([`app::platform::retention`]). Webhook messages wait in an outbox, written in the same transaction
//!   ([`app::platform::webhooks`]).
//! - **Nothing crosses an origin** with a credential on it; see [`egress`].

pub mod api;
pub mod app;
pub mod cli;
pub mod live;
