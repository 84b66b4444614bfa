//! Floor 1: read packs from disk.
//!
//! A folder of packs becomes [`domain::pack::Pack`](crate::domain::pack::Pack)s, all at once or not at
//! all: [`Library::load`] refuses a broken one with everything that is wrong with it, and
//! [`Library::reload`] keeps the last good version. [`check`] is the same code, for authors.
//!
//! The way of a value: `yaml` gives every node its place, `field` reads it, fills in `${NAME}` by
//! `sheet` and records problems, `native` and its neighbours know the format. No message holds a
//! value that came from the environment.

mod access;
mod endpoint;
mod env_file;
mod field;
mod folder;
mod library;
mod menu;
mod native;
mod object;
mod overlay;
mod personal;
mod references;
mod report;
mod server;
mod sheet;
mod skills;
mod yaml;

pub use folder::{check, check_allowing_unset};
pub use library::{Change, Library, Shelf};
pub use report::{Excerpt, LoadError, Place, Problem, Report, Severity};
