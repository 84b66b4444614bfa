//! What tests share: a database each, real servers, a scripted model.
#![allow(dead_code, clippy::allow_attributes, reason = "each module uses a part")]

pub mod bank; // the demo's MCP server
pub mod db; // a database per test
