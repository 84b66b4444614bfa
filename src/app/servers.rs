//! MCP servers as agents use them: shared connections, users' credentials and sign-ins, the registry, catalogs.

pub mod agent_servers;
pub mod agents;
pub mod connections;
pub mod credentials;
pub mod oauth;
pub mod orchestrator;
pub mod registry;
pub mod run_values;
