//! The bank.
