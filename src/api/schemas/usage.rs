//! Schemas of usage and of its limits.

use time::OffsetDateTime;

use crate::app::{accounts, runs::tenant_admin};
use domain::{schemas, usage::Limit};

schemas! {
    /// What a user has used today, and what they may use.
    struct OwnUsage for accounts::usage::OwnUsage {
        /// Turns: messages that the model was asked about.
        runs: i64,
        /// Absent: as many as they like, within what their organisation may use.
        runs_limit: Option<i64>,
        tokens: i64,
        tokens_limit: Option<i64>,
        /// Bytes of messages, results of tools and attachments.
        stored_bytes: i64,
        stored_bytes_limit: Option<i64>,
        /// When the day ends and all is counted from 0.
        resets_at: OffsetDateTime,
    }
    struct InForce for tenant_admin::InForce {
        runs_per_user: Option<i64>,
        tokens_per_user: Option<i64>,
        runs_per_tenant: Option<i64>,
        tokens_per_tenant: Option<i64>,
    }
    /// The same for the limits of a day: a number, `unlimited`, or `null` for the installation's.
    #[serde(deny_unknown_fields)]
    struct LimitsChange for accounts::LimitsChange {
        runs_per_user: Option<Option<Limit>>,
        tokens_per_user: Option<Option<Limit>>,
        runs_per_tenant: Option<Option<Limit>>,
        tokens_per_tenant: Option<Option<Limit>>,
    }
}
