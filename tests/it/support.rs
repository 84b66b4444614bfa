//! What tests share: a database each, real servers, a scripted model, the whole product and its users.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each module uses a part"
)]
pub mod bank; // the demo's MCP server
pub mod canary; // a secret that must be nowhere
pub mod client; // somebody who uses the API
pub mod collector; // a collector of traces
pub mod db; // a database per test
pub mod fickle; // an MCP server whose tools change
pub mod forks; // the small fastmcp servers
pub mod has; // a part of an answer
pub mod many; // an agent with many servers
pub mod model; // a model that says what a test tells it to
pub mod node; // programs for Node
pub mod notebook; // the demo's notes
pub mod notes; // a server where everybody has a token of their own
pub mod offer; // an agent with one scripted server
pub mod origin; // a server that counts connections and remembers requests
pub mod own_postgres; // a Postgres whose files a test copies and puts back
pub mod packs; // packs that a test writes and loads
pub mod pooler; // a pooler before Postgres
pub mod program; // the real program, and everything it says
pub mod replica; // another process of the product, which can be killed
pub mod scripted; // an MCP server over HTTP that does what a test says
pub mod seed; // what random tests draw from
pub mod servers; // published MCP servers, and small ones of ours
pub mod shared; // worlds that serve one test after the other
pub mod terminal; // somebody who chats in a process of their own
pub mod wait; // until something is so
pub mod world; // the whole product in this process
