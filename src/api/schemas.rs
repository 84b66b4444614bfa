//! The OpenAPI schemas of types that `app` owns. Those of `domain` are described there. Types of other layers do not know
//! OpenAPI.
//!
//! A declaration repeats the fields of its type as serde writes them. One that misses a field or a variant, or
//! has one too many, does not compile.

mod access;
mod accounts;
mod approvals;
mod conversations;
mod registry;
mod runs;
mod servers;
mod tools;
mod usage;
mod webhooks;
