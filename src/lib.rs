//! Chatelaine is a multi-tenant chat backend. Operators give it *agent packs* that name MCP servers; users
//! talk to the agents; the model is shown only the tools that a user's roles allow. A chatelaine kept the
//! keys of a household; this one keeps the keys of a chat household.
//!
//! # The house
//!
//! Each module uses only floors below its own, and nobody on floor 1 uses a neighbour. A test
//! (`tests/it/layers.rs`) reads the paths in the source and prints the line that breaks this.
//!
//! | floor | module | what it does |
//! |---|---|---|
//! | 3 | [`cli`] | the commands of the program |
//! | 3 | [`api`] | every route: HTTP in, one call into `app`, JSON out |
//! | 2 | [`app`] | the use cases |
//! | 1 | [`store`] | Postgres: a transaction that knows its tenant, one file per noun |
//! | 1 | [`vault`] | seal and open |
//! | 1 | [`mcp`] | MCP servers: transports, connections, discovery, calls |
//! | 1 | [`llm`] | one step of a model: messages and tools in, a stream of deltas out |
//! | 1 | [`packs`] | packs from disk, with errors that name file, line and path |
//! | 1 | [`live`] | who is listening in this process |
//! | ½ | [`egress`] | the one guarded HTTP client |
//! | 0 | [`domain`] | the words and the pure rules |
//!
//! # A message, from door to door
//!
//! 1. `POST /v1/conversations/{id}/messages` reaches a handler in `api`, which knows the principal and calls
//!    [`app::chat::conversations::post`].
//! 2. One transaction writes the message and its run; the run is claimed at birth, with a lease and a fence.
//! 3. `app::runs::scheduler` hands it to `app::chat::agent_loop`, which asks the model with the user's toolbox and streams what it
//!    says to whoever listens. The reply becomes a row before anything it asks for is done.
//! 4. Each tool call goes through [`app::tools::gate`]: the same decision as the listing, the schema, the audit line,
//!    one request. The result becomes a row, and the model is asked again.
//! 5. When the model has nothing to call, the run ends: a row and an event. Listeners get both, here by the
//!    fan-out in [`live`], on another replica by a hint and a look at the rows.
//!
//! A skill's command (`/web-search rust`, or the same by REST or A2A) is such a message, too: its run makes one call
//! by 4 and ends. No model is asked, not even when the call fails.
//!
//! # A tool, from server to model
//!
//! 1. `app::servers::connections` keeps each shared server: connects in the background, pages through `tools/list`,
//!    stores the catalog, and listens for changes.
//! 2. `app::tools::toolset` names all tools of an agent once and selects, for each set of roles, those that
//!    [`domain::policy::decide`] does not deny. That selection is the model's request; there is no other list.
//!
//! # Invariants
//!
//! - **One gate, one send.** Every call of a tool, whoever asks for it, and every read of a prompt or a resource ends in
//!   one private `send` of [`app::tools::gate`]. Its permit is made by [`domain::policy::decide`] or by a claimed
//!   approval and by nothing else; the listing asks the same function.
//! - **No rule means no.** What cannot be understood is refused at load, or denied.
//! - **A turn never sleeps.** Nothing in memory waits for a person.
//! - **No transaction is open across a network call.** Work is claimed with a lease and fenced.
//! - **A call of unknown outcome is never repeated** by the program. It is a row before it is sent; whoever
//!   takes over a broken run marks it and goes on.
//! - **Tenancy belongs to the transaction.** [`store::Db::tenant`] sets the tenant; row-level security is the
//!   second lock.
//! - **Secrets have a type** ([`domain::secret::Secret`]) that cannot be printed or serialised. Arguments,
//!   results, prompts and headers are never logged.
//! - **A sealed value opens where it belongs**: for its tenant, user, server and generation, or not at all
//!   ([`vault`]). Keys come and go while replicas serve; what they sealed stays ([`app::platform::keys`]).
//! - **What changes something is in the trail**, written in the same transaction ([`domain::audit`]); nobody can
//!   change the trail. What others are to be told waits in an outbox, written likewise ([`app::platform::webhooks`]).
//! - **Nothing crosses an origin** with a credential on it; see [`egress`].

pub mod api;
pub mod app;
pub mod cli;
pub mod domain;
pub mod egress;
pub mod live;
pub mod llm;
pub mod mcp;
pub mod packs;
pub mod store;
pub mod vault;
