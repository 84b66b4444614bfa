//! The one integration-test binary: a module per subject.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support; // a database each, real servers, a scripted model

mod a2a; // agents called by other agents
mod access; // every route and who may
mod accounts; // tokens, keys, guests
mod admin; // tenants, keys, issuers and users over the API
mod alerts; // the alert rules and the dashboard
mod api; // REST and SSE
mod approvals; // calls that wait for somebody's consent
mod audit; // who did what
mod canonical; // the spelling of JSON that is hashed
mod chat; // the terminal client
mod database; // trouble with Postgres
mod demo; // the demo model
mod docs; // what the README and the pages say
mod doctor; // what is wrong with an installation
mod documents; // the packs that the public documents describe
mod egress; // where requests may go
mod elicitation; // what servers ask the user
mod hostile; // what strangers may do without others noticing
mod keys; // the key ring, its rotation, and what it seals
mod layers; // which module may use which
mod llm; // models and their misbehaviour
mod logs; // what the log says of a run
mod mcp_endpoint; // an agent's tools for clients of the protocol
mod mcp_http; // servers over HTTP
mod mcp_product; // what an agent has of its servers
mod mcp_stdio; // servers as children
mod mcp_transports; // servers over SSE and WebSocket
mod menu; // what is offered besides talking, and signing out
mod migrations; // the schema, and how it is brought up to date
mod names; // what the model calls a tool
mod oauth; // users who sign in at servers
mod openai; // an unchanged OpenAI client
mod packs; // good and broken packs
mod personal; // every user's own token
mod plans; // what is read by which index
mod policy; // who may call what
mod pooler; // replicas behind a pooler
mod private_postgres; // our own Postgres
mod prompts; // servers' prompts as commands
mod recovery; // stopping between any two steps
mod registry; // servers defined once and referred to
mod resources; // what tool results link to
mod retention; // what is deleted when it is old
mod rls; // one tenant never sees another
mod runs; // what programs and agents start
mod skills; // named shortcuts to a tool
mod soak; // floods of every kind, for minutes
mod streams; // the streams of the AI SDK and of AG-UI
mod torture; // processes killed, frozen and cut off while people decide
mod traces; // what OpenTelemetry hears of a run
mod turn; // a message answered
mod user_data; // all that is one user's, copied and deleted
mod vault; // sealing and opening
mod web; // the web client
mod webhooks; // telling other programs what happens
