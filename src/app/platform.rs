//! What every use case needs: the audit trail, webhooks, encryption keys, health.

pub mod audit;
pub mod health;
pub mod keys;
pub mod leases;
pub mod polls;
pub mod rate_limit;
pub mod webhooks;
