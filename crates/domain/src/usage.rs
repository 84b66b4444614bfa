//! What was used in a day, and how much may be used.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use time::{Date, OffsetDateTime};

use super::{
    config::Daily,
    error::{Error, ErrorCode, Result},
};

/// What a user has used with an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = UsageLine))]
pub struct Line {
    pub user: String,
    pub agent: String,
    /// Turns: messages that the model was asked about.
    pub runs: i64,
    /// Calls of tools, those that were refused included.
    pub tool_calls: i64,
    pub input_tokens: i64,
    /// Those of the input that came from a provider's cache.
    pub cached_input_tokens: i64,
    pub output_tokens: i64,
}

/// What a tenant has used on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = UsageDay))]
pub struct DayLine {
    /// In UTC, such as `2026-01-31`.
    #[serde(serialize_with = "write_day")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = Date))]
    pub day: Date,
    /// Turns: messages that the model was asked about.
    pub runs: i64,
    /// Calls of tools, those that were refused included.
    pub tool_calls: i64,
    pub input_tokens: i64,
    /// Those of the input that came from a provider's cache.
    pub cached_input_tokens: i64,
    pub output_tokens: i64,
}

/// Such as `2026-01-31`.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn write_day<S: Serializer>(day: &Date, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(day)
}

/// Of one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Used {
    pub runs: i64,
    pub tokens: i64,
}

/// Whose stored bytes count together with those of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    Nobody,
    Guests,
    Tenant,
}

/// How many bytes may be stored in a day (UTC). `None`: as many as they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    pub user: Option<i64>,
    pub guest: Option<i64>,
    pub guests: Option<i64>,
    pub tenant: Option<i64>,
}

impl Storage {
    /// What a user may store, and who shares which limit with them.
    pub fn limits_for(&self, is_guest: bool) -> (Option<i64>, Together, Option<i64>) {
        match (is_guest, self.guests, self.tenant) {
            (true, Some(guests), _) => (self.guest, Together::Guests, Some(guests)),
            (true, None, None) => (self.guest, Together::Nobody, None),
            (false, _, None) => (self.user, Together::Nobody, None),
            (_, _, tenant) => {
                let own = if is_guest { self.guest } else { self.user };
                (own, Together::Tenant, tenant)
            }
        }
    }
}

/// Whether `bytes` more may be stored within a limit, of which `stored` are used today.
pub fn require_space(limit: i64, stored: i64, bytes: i64, now: OffsetDateTime) -> Result<()> {
    let left = limit.saturating_sub(stored).max(0);
    if bytes <= left {
        return Ok(());
    }
    Err(Error::Limited {
        code: ErrorCode::QuotaExceeded,
        reason: format!(
            "{} are left of the {} that may be stored today, and this takes {}; there is more at 00:00 UTC",
            size(left),
            size(limit),
            size(bytes),
        ),
        retry_after: until_tomorrow(now),
    })
}

/// Such as `12.5 MiB`.
fn size(bytes: i64) -> String {
    const MIB: i64 = 1 << 20;
    match bytes {
        ..MIB => format!("{} KiB", bytes.div_euclid(1024)),
        _ => format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB),
    }
}

fn until_tomorrow(now: OffsetDateTime) -> Duration {
    let today = now.date();
    let tomorrow = today.next_day().unwrap_or(today).midnight().assume_utc();
    let left = (tomorrow - now).whole_seconds().max(1);
    Duration::from_secs(left.cast_unsigned())
}

/// The operator's setting for one limit of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(
    untagged,
    expecting = "expected a whole number from 0 to 4294967295, or `unlimited`"
)]
pub enum Limit {
    AtMost(u32),
    Unlimited(Unlimited),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Unlimited {
    #[serde(rename = "unlimited")]
    Unlimited,
}

/// A tenant's own limits of a day. An absent limit is the installation's. A limit that only a newer version
/// of the program knows is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_user: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_user: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_tenant: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_tenant: Option<Limit>,
}

/// From its column.
#[cfg(feature = "sqlx")]
impl From<sqlx::types::Json<Limits>> for Limits {
    fn from(column: sqlx::types::Json<Self>) -> Self {
        column.0
    }
}

impl Limits {
    /// The limits in force, where `daily` are the installation's limits.
    pub fn effective(&self, daily: &Daily) -> Daily {
        let either = |own: Option<Limit>, general: Option<i64>| match own {
            None => general,
            Some(Limit::Unlimited(_)) => None,
            Some(Limit::AtMost(most)) => Some(most.into()),
        };
        Daily {
            user_runs: either(self.runs_per_user, daily.user_runs),
            user_tokens: either(self.tokens_per_user, daily.user_tokens),
            tenant_runs: either(self.runs_per_tenant, daily.tenant_runs),
            tenant_tokens: either(self.tokens_per_tenant, daily.tenant_tokens),
        }
    }
}

impl Daily {
    /// Whether anything is limited at all.
    pub fn is_any(&self) -> bool {
        [
            self.user_runs,
            self.user_tokens,
            self.tenant_runs,
            self.tenant_tokens,
        ]
        .iter()
        .any(Option::is_some)
    }

    /// Without the limits of runs.
    #[must_use]
    pub fn of_tokens(self) -> Self {
        Self {
            user_runs: None,
            tenant_runs: None,
            ..self
        }
    }

    /// Whether another turn may begin, after what was used today.
    pub fn check(&self, user: Used, tenant: Used, now: OffsetDateTime) -> Result<()> {
        let limits = [
            (self.user_runs, user.runs, "you have", "runs"),
            (self.user_tokens, user.tokens, "you have", "tokens"),
            (
                self.tenant_runs,
                tenant.runs,
                "your organisation has",
                "runs",
            ),
            (
                self.tenant_tokens,
                tenant.tokens,
                "your organisation has",
                "tokens",
            ),
        ];
        for (limit, used, who, what) in limits {
            let Some(limit) = limit.filter(|limit| used >= *limit) else {
                continue;
            };
            return Err(Error::Limited {
                code: ErrorCode::QuotaExceeded,
                reason: format!(
                    "{who} used all {limit} {what} of today; there is more at 00:00 UTC"
                ),
                retry_after: until_tomorrow(now),
            });
        }
        Ok(())
    }
}
