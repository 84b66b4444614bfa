//! The usage of a tenant's users, for its admins.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use time::{Date, format_description::well_known::Iso8601};

use super::{
    super::{
        extract::{MAX_USER, Query, check_text},
        paging::check_limit,
        problem::Problem,
    },
    Admin,
};
use crate::app::{self, App};
use domain::{
    ids::UserId,
    usage::{DayLine, Line},
};

/// The most days of one request.
const MAX_DAYS: i64 = 366;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct UsageQuery {
    /// Only from this day on (UTC), as `2026-01-31`.
    #[param(format = Date)]
    since: Option<String>,
    /// Only before this day (UTC).
    #[param(format = Date)]
    until: Option<String>,
    /// 1 to 1000; those who used the most come first.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000)]
    limit: i64,
}

fn default_limit() -> i64 {
    100
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UsagePage {
    items: Vec<Line>,
}

fn read_day(field: &str, text: &str) -> Result<Date, Problem> {
    Date::parse(text, &Iso8601::DATE)
        .map_err(|_| Problem::invalid(field, "is not a day; write one such as 2026-01-31"))
}

/// Runs, tokens and tool calls by user and agent.
///
/// For admins. They stay when a conversation is deleted.
#[utoipa::path(get, path = "/v1/admin/usage", operation_id = "listUsage", tag = "usage", params(UsageQuery),
    responses((status = 200, body = UsagePage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<UsageQuery>,
) -> Result<axum::Json<UsagePage>, Problem> {
    let since = which
        .since
        .map(|text| read_day("since", &text))
        .transpose()?;
    let until = which
        .until
        .map(|text| read_day("until", &text))
        .transpose()?;
    let items =
        app::accounts::usage::list(&app, &admin, since, until, check_limit(which.limit, 1000)?)
            .await?;
    Ok(axum::Json(UsagePage { items }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct DaysQuery {
    /// The first day (UTC), as `2026-01-31`.
    #[param(format = Date)]
    since: String,
    /// The day after the last one (UTC); at most 366 days later.
    #[param(format = Date)]
    until: String,
    /// Only of this user.
    #[param(value_type = Option<String>)]
    user: Option<UserId>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UsageDays {
    items: Vec<DayLine>,
}

/// Runs, tokens and tool calls by day, of all users or of one, the oldest day first.
///
/// For admins. A day begins at 00:00 UTC.
#[utoipa::path(get, path = "/v1/admin/usage/days", operation_id = "listUsageByDay", tag = "usage",
    params(DaysQuery), responses((status = 200, body = UsageDays)))]
pub(in crate::api) async fn list_days(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<DaysQuery>,
) -> Result<axum::Json<UsageDays>, Problem> {
    let (since, until) = (
        read_day("since", &which.since)?,
        read_day("until", &which.until)?,
    );
    if until <= since || (until - since).whole_days() > MAX_DAYS {
        let why = format!("must be 1 to {MAX_DAYS} days after `since`");
        return Err(Problem::invalid("until", why));
    }
    if let Some(user) = &which.user {
        check_text("user", user.as_str(), MAX_USER)?;
    }
    let items =
        app::accounts::usage::list_days(&app, &admin, which.user.as_ref(), since, until).await?;
    Ok(axum::Json(UsageDays { items }))
}
