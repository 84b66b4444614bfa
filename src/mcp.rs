//! Floor 1: talk to MCP servers.
