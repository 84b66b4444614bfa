//! Layer 0: the words of the program and its pure rules.
//!
//! Nothing here does I/O. Only [`clock`] asks the time and only [`config`] reads the environment, so
//! that everything above can be tested by passing values in.

pub mod account;
pub mod answer_format;
pub mod approval;
pub mod attachment;
pub mod audit;
pub mod backoff;
pub mod canonical;
pub mod clock;
#[cfg(feature = "sqlx")]
mod columns;
pub mod command;
pub mod config;
pub mod connection;
pub mod credential;
pub mod elicitation;
pub mod encoding;
pub mod error;
pub mod event;
pub mod flow;
pub mod header;
pub mod hidden;
pub mod ids;
pub mod json;
pub mod lookalike;
pub mod menu;
pub mod message;
pub mod names;
pub mod oauth;
pub mod orchestrator;
pub mod owner;
pub mod pack;
pub mod params;
pub mod personal;
pub mod policy;
pub mod principal;
pub mod prompt;
pub mod registry;
pub mod replica;
pub mod request_key;
pub mod resource;
pub mod response;
pub mod retention;
pub mod ring;
pub mod run;
pub mod scrub;
pub mod secret;
pub mod server;
pub mod session;
pub mod sign_in;
pub mod skill;
pub mod template;
pub mod texts;
pub mod tool;
pub mod tool_schema;
pub mod usage;
pub mod webhook;
