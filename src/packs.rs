//! Floor 1: read packs from disk.
//!
//! A folder of packs becomes [`domain::pack::Pack`](crate::domain::pack::Pack)s, all at once or not at
//! all: [`Library::load`] refuses a broken one with everything that is wrong with it, and
//! [`Library::reload`] keeps the last good version. [`check`] is the same code, for authors.
//!
//! The way of a value: `yaml` gives every node its place, `field` reads it, fills in `${NAME}` by
//! `sheet` and records problems, `native` and its neighbours know the format. No message holds a
//! value that came from the environment.
//!
//! Other programs' formats (`dialect`: `holaos`, `aos`, `holodeck`) become the tree of a native pack and go
//! the same way from there. `explain` and `import` write that tree out.

mod access;
mod aos;
mod dialect;
mod endpoint;
mod env_file;
mod explain;
mod field;
mod folder;
mod holaos;
mod holodeck;
mod import;
mod library;
mod made;
mod menu;
mod native;
mod object;
mod overlay;
mod personal;
mod placeholder;
mod references;
mod report;
mod server;
mod shade;
mod sheet;
mod skills;
mod summary;
mod written;
mod yaml;

pub use explain::explain;
pub use folder::{check, check_allowing_unset};
pub use import::{ImportError, Imported, import};
pub use library::{Change, Library, Shelf};
pub use report::{Excerpt, LoadError, Place, Problem, Report, Severity};
pub use summary::Understood;
