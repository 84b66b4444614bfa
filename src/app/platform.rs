//! The services that every use case needs: the audit trail, webhooks, encryption keys, health, retention.

pub mod audit; // the audit trail
pub mod data_identity; // whether the database has the data with which replicas worked last
pub mod health; // whether the process can serve
pub mod keys; // encryption keys of the installation and its tenants
pub mod leases; // an owner of work prolongs its lease while the work goes on
pub mod measurements; // what is a state, for the metrics
pub mod polls; // repeated work: what no hint announced, and old rows
pub mod rate_limit; // requests for each key, user and address
pub mod replicas; // which replicas are alive
pub mod request_answers; // answers of the admin API, kept under their request's key
pub mod request_id; // which request a task works for
pub mod retention; // what is deleted after its days
pub mod webhooks; // events sent to the addresses of tenants
