//! Schemas of usage and of its limits.

use time::{Date, OffsetDateTime};

use super::schemas;
use crate::app::{accounts, runs::tenant_admin};
use domain::usage::{self, Limit, Unlimited};

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

    /// What a user has used with an agent.
    #[schema(as = UsageLine)]
    struct Line for usage::Line {
        user: String,
        agent: String,
        /// Turns: messages that the model was asked about.
        runs: i64,
        /// Calls of tools, those that were refused included.
        tool_calls: i64,
        input_tokens: i64,
        /// Those of the input that came from a provider's cache.
        cached_input_tokens: i64,
        output_tokens: i64,
    }

    /// What a tenant has used on one day.
    #[schema(as = UsageDay)]
    struct DayLine for usage::DayLine {
        /// In UTC, such as `2026-01-31`.
        #[schema(value_type = String, format = Date)]
        day: Date,
        /// Turns: messages that the model was asked about.
        runs: i64,
        /// Calls of tools, those that were refused included.
        tool_calls: i64,
        input_tokens: i64,
        /// Those of the input that came from a provider's cache.
        cached_input_tokens: i64,
        output_tokens: i64,
    }

    /// Of one day.
    struct Used for usage::Used {
        runs: i64,
        tokens: i64,
    }

    /// What the operator says of one limit of a tenant.
    #[serde(untagged)]
    enum Limit for usage::Limit {
        AtMost(u32),
        Unlimited(Unlimited),
    }

    enum Unlimited for usage::Unlimited {
        #[serde(rename = "unlimited")]
        Unlimited,
    }

    /// A tenant's own limits of a day. What is absent is as the installation's settings have it; what a newer version of
    /// the program has written beside them is left out.
    struct Limits for usage::Limits {
        runs_per_user: Option<Limit>,
        tokens_per_user: Option<Limit>,
        runs_per_tenant: Option<Limit>,
        tokens_per_tenant: Option<Limit>,
    }
}
