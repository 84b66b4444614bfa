//! Schemas of tenants, their users, keys, usage and webhooks.

use time::OffsetDateTime;

use crate::app::{
    accounts::{self, LimitsChange, RetentionChange},
    runs::tenant_admin::{self, InForce},
};
use domain::{
    ids::TenantId,
    retention::{Days, Retention},
    schemas,
    usage::{Limit, Limits, Used},
};

schemas! {
    /// A tenant as the operator sees it.
    struct TenantView for tenant_admin::TenantView {
        id: TenantId,
        name: String,
        display_name: String,
        /// Absent: every agent.
        agents: Option<Vec<String>>,
        guests: bool,
        suspended: bool,
        suspended_at: Option<OffsetDateTime>,
        /// Its own limits of a day.
        limits: Limits,
        /// Those that are in force, with the installation's settings. Absent: no limit.
        in_force: InForce,
        /// How long its things are kept, in place of the installation's days.
        retention: Retention,
        /// The days in force. Absent: kept for ever.
        retention_in_force: Days,
        /// What its users have used since 00:00 UTC; only when one tenant is read.
        used_today: Option<Used>,
        created_at: OffsetDateTime,
    }
    /// A tenant to be made.
    #[schema(as = TenantRequest)]
    #[serde(deny_unknown_fields)]
    struct NewTenant for accounts::NewTenant {
        /// 1 to 63 lower-case letters, digits or `-`. It does not change.
        name: String,
        /// What people call it; absent: by its name.
        display_name: Option<String>,
        /// The agents that serve it; absent: every one.
        agents: Option<Vec<String>>,
        /// Whether somebody without a token may ask for a guest's.
        #[schema(required = false)]
        guests: bool,
        /// In place of the installation's limits of a day.
        #[schema(required = false)]
        limits: LimitsChange,
        /// In place of the installation's days.
        #[schema(required = false)]
        retention: RetentionChange,
    }
    /// What is to be different. What is absent stays; `null` goes back to what it is when nothing is said.
    #[serde(deny_unknown_fields)]
    struct TenantChange for accounts::TenantChange {
        display_name: Option<Option<String>>,
        /// `true`: its tokens and keys are refused, what runs is stopped. `false`: as before.
        suspended: Option<bool>,
        agents: Option<Option<Vec<String>>>,
        guests: Option<bool>,
        #[schema(required = false)]
        limits: LimitsChange,
        #[schema(required = false)]
        retention: RetentionChange,
    }
    /// The same for how long things are kept: a number of days, `unlimited`, or `null` for the installation's.
    #[serde(deny_unknown_fields)]
    struct RetentionChange for accounts::RetentionChange {
        conversations: Option<Option<Limit>>,
        guest_conversations: Option<Option<Limit>>,
        runs: Option<Option<Limit>>,
        approval_arguments: Option<Option<Limit>>,
        audit: Option<Option<Limit>>,
    }
}
