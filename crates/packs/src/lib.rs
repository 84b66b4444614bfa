//! Read packs from disk.
//!
//! A folder of packs becomes [`domain::pack::Pack`]s, all at once or not at
//! all: [`PackStore::load`] refuses a broken one with everything that is wrong with it, and
//! [`PackStore::reload`] keeps the last good version. [`check`] is the same code, for authors.
//!
//! How a value is read: `yaml` gives every node its position; `field` reads it, replaces `${NAME}` through
//! `parse_context` and records problems; `native` and the modules beside it know the format. No message holds
//! a value that came from the environment.
//!
//! Other programs' formats (`dialect`: `holaos`, `aos`, `holodeck`) become the tree of a native pack and go
//! the same way from there. `explain` and `import` write that tree out.

mod access;
mod aos;
mod auth;
mod dialect;
mod endpoint;
mod env_file;
mod explain;
mod field;
mod folder;
mod holaos;
mod holodeck;
mod import;
mod menu;
mod native;
mod node_builder;
mod object;
mod overlay;
mod pack_store;
mod parse_context;
mod personal;
mod placeholder;
mod redact;
mod references;
mod report;
mod server;
mod skills;
mod summary;
mod yaml;
mod yaml_writer;

pub use explain::explain;
pub use folder::{check, check_allowing_unset};
pub use import::{ImportError, Imported, import};
pub use pack_store::{Change, PackSnapshot, PackStore};
pub use report::{Excerpt, LoadError, Position, Problem, Report, Severity};
pub use summary::{PackSummary, ServerSummary};
