//! The audit trail of a tenant, for its admins.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{
    super::{
        extract::{MAX_USER, Query, check_text},
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
    },
    Admin,
};
use crate::app::{self, App};
use domain::{
    audit::{Filter, Line, parse_sha256},
    ids::{AuditId, RunId},
};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct AuditQuery {
    /// Who did it: a user's id, `operator` for the command line, `system` for the program itself.
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    actor: Option<String>,
    /// What was done, as `key.revoked`; with a dot at the end all that begin so, as `credential.`
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    action: Option<String>,
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    server: Option<String>,
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    tool: Option<String>,
    run: Option<RunId>,
    /// `succeeded`, `failed`, `denied`, `outcome_unknown` or `cancelled`.
    #[param(pattern = "^(succeeded|failed|denied|outcome_unknown|cancelled)$")]
    outcome: Option<String>,
    /// SHA-256 of a call's arguments, in hex.
    #[param(pattern = "^[0-9a-f]{64}$")]
    args_sha256: Option<String>,
    /// Only from this time on (RFC 3339).
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Only before this time (RFC 3339).
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
    /// Only those before this one: the `next` of the page before.
    #[serde(alias = "before")]
    cursor: Option<AuditId>,
    /// 1 to 200.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 200)]
    limit: i64,
}

/// How what was done can end.
const OUTCOMES: [&str; 5] = [
    "succeeded",
    "failed",
    "denied",
    "outcome_unknown",
    "cancelled",
];

impl AuditQuery {
    fn filter(self) -> Result<Filter, Problem> {
        let texts = [
            ("actor", &self.actor),
            ("action", &self.action),
            ("server", &self.server),
            ("tool", &self.tool),
        ];
        for (field, text) in texts
            .into_iter()
            .filter_map(|(field, text)| Some((field, text.as_ref()?)))
        {
            check_text(field, text, MAX_USER)?;
        }
        if let Some(outcome) = &self.outcome
            && !OUTCOMES.contains(&outcome.as_str())
        {
            let why = format!("must be one of {}", OUTCOMES.join(", "));
            return Err(Problem::invalid("outcome", why));
        }
        let hash = self.args_sha256.as_deref().map(parse_sha256).transpose();
        Ok(Filter {
            args_sha256: hash.map_err(|reason| Problem::invalid("args_sha256", reason))?,
            actor: self.actor,
            action: self.action,
            server: self.server,
            tool: self.tool,
            run: self.run,
            outcome: self.outcome,
            since: self.since,
            until: self.until,
        })
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct LinePage {
    items: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<AuditId>,
}

/// Who did what in the tenant, the newest first.
///
/// For admins. A line holds ids, names and the hash of a call's arguments, never what was in it. A call is in here
/// when it has ended, with the time at which it began.
#[utoipa::path(get, path = "/v1/admin/audit", operation_id = "listAuditLines", tag = "audit", params(AuditQuery),
    responses((status = 200, body = LinePage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<AuditQuery>,
) -> Result<axum::Json<LinePage>, Problem> {
    let (limit, before) = (check_limit(which.limit, 200)?, which.cursor);
    let items =
        app::platform::audit::list(&app, &admin, &which.filter()?, before, limit + 1).await?;
    let (items, next) = split_page(items, limit, |line| line.id);
    Ok(axum::Json(LinePage { items, next }))
}
