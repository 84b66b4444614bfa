//! Chatelaine: a multi-tenant chat backend that keeps the keys of a chat household.
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
