//! Floor 2: use cases.

pub mod accounts;
