//! What tests share: a database each, real servers, a scripted model.
#![allow(dead_code, clippy::allow_attributes, reason = "each module uses a part")]

pub mod servers; // published MCP servers, and small ones of ours
