//! Reads packs from disk.
//!
//! A folder of packs becomes [`domain::pack::Pack`]s, all at once or not at all: [`PackStore::load`] refuses a broken
//! folder with every problem in it, and [`PackStore::reload`] keeps the last good version. [`check`] runs the same
//! code for authors.
//!
//! How a value is read: `yaml` gives every node its position; `field` reads a node, fills `${NAME}` in through
//! `parse_context` and records problems; `native` and the modules beside it know the format. No message holds the
//! value of a variable.
//!
//! The formats of other programs (`dialect`: `holaos`, `aos`, `holodeck`) become the tree of a native pack and are
//! then read like one. `explain` and `import` write that tree out.

mod access;
mod aos;
mod auth;
mod conditions;
mod dialect;
mod endpoint;
mod env_file;
mod examples;
mod explain;
mod field;
mod finding;
mod folder;
mod holaos;
mod holodeck;
mod import;
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

pub use access::{ServerAccess, TriedRules, read_access, read_rules_of_server};
pub use conditions::{ComparedRules, KnownTools, compare_rules};
pub use examples::{Example, Expected, ORIGINS, read_examples};
pub use explain::explain;
pub use field::nearest;
pub use folder::{check, check_allowing_unset};
pub use import::{ImportError, Imported, import};
pub use pack_store::{Change, PackSnapshot, PackStore};
pub use report::{Excerpt, LoadError, Position, Problem, Report, Severity};
pub use summary::{PackSummary, ServerSummary};
