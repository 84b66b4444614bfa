//! The schema, and how a database is brought up to date.

mod schema;
