//! MCP servers as agents use them: shared connections, users' credentials and sign-ins, the registry, catalogs.

pub mod agent_servers; // the servers that an agent takes from the registry, as people see them
pub mod agents; // which agents a principal may talk to
pub mod connections; // the open connection of each server, shared or personal
pub mod credentials; // users' credentials: stored, tested, resolved for a call
pub mod oauth; // users' sign-ins at servers
pub mod orchestrator; // the server inside the program with which agents start runs
pub mod pins; // what is accepted of the servers' tools, and what waits
pub mod registry; // the tenants' own servers
pub mod run_values; // values of a run for its servers, which no model sees
