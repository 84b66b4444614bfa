//! The services that every use case needs: the audit trail, webhooks, encryption keys, health, retention.

pub mod audit;
pub mod health;
pub mod keys;
pub mod leases;
pub mod polls;
pub mod rate_limit;
pub mod replicas;
pub mod request_answers;
pub mod retention;
pub mod webhooks;
