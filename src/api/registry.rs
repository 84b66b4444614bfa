//! The registry of MCP servers, for the admins of a tenant: at `/v1/mcp-servers` and, as in its public document, at
//! `/mcp-servers`.
//!
//! `If-Match` is optional, as in most APIs. Without it the last change wins. With the `ETag` of an earlier read, a request
//! after somebody else's change gets 412 and changes nothing.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};

use super::{
    extract::{Authenticated, Json, Path, Query, created},
    once::make_once,
    paging::{check_limit, default_limit, split_page},
    problem::Problem,
    request_key::Keyed,
};
use crate::app::{
    self, App,
    platform::request_answers::RequestOwner,
    servers::registry::{ChangeOutcome, EntryView, IfMatch},
};
use domain::{
    error::{Error, ErrorCode},
    registry::Definition,
};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ServersQuery {
    /// Only those after this page: its `next`.
    #[serde(alias = "after")]
    cursor: Option<String>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct EntryPage {
    items: Vec<EntryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// The MCP servers of the registry, by name.
///
/// For admins. Sensitive values are `••••`.
#[utoipa::path(get, path = "/mcp-servers", operation_id = "listMcpServers", tag = "registry", params(ServersQuery),
    responses((status = 200, body = EntryPage)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Query(which): Query<ServersQuery>,
) -> Result<axum::Json<EntryPage>, Problem> {
    let admin = caller.0.admin()?;
    let limit = check_limit(which.limit, 100)?;
    let after = which
        .cursor
        .map(|cursor| read_cursor(&cursor))
        .transpose()?;
    let after = after
        .as_ref()
        .map(|(name, id)| (name.as_str(), id.as_str()));
    let items = app::servers::registry::list(&app, &admin, after, limit + 1).await?;
    let (items, next) = split_page(items, limit, |last| {
        let place = (&last.definition.name, &last.definition.id);
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&place).expect("two texts are JSON"))
    });
    Ok(axum::Json(EntryPage { items, next }))
}

/// Reads a cursor: the name and the id of the last entry of a page.
fn read_cursor(cursor: &str) -> Result<(String, String), Problem> {
    let place = URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.ok_or_else(|| Problem::invalid("cursor", "is not the `next` of a page"))
}

/// Define an MCP server.
///
/// For admins. Agents use it once a pack or an admin refers to it.
#[utoipa::path(post, path = "/mcp-servers", operation_id = "createMcpServer", tag = "registry",
    request_body = Definition,
    responses((status = 201, body = EntryView),
        (status = 409, description = "duplicate_id, limit_reached, answer_not_kept")))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    OriginalUri(uri): OriginalUri,
    Keyed(definition, key): Keyed<Definition>,
) -> Result<Response, Problem> {
    let (maker, admin) = (app.clone(), caller.0.admin()?);
    let owner = RequestOwner::from(&admin);
    let make = async move {
        let entry = app::servers::registry::create(&maker, &admin, definition).await?;
        let etag = [(header::ETAG, entry.etag.clone())];
        Ok((etag, created(&uri, entry.definition.id.clone(), entry)))
    };
    make_once(&app, owner, key, make).await
}

/// One definition.
///
/// For admins. Sensitive values are `••••`. The `ETag` of the answer goes into `If-Match` of a change.
#[utoipa::path(get, path = "/mcp-servers/{id}", operation_id = "getMcpServer", tag = "registry",
    params(("id" = String, Path)), responses((status = 200, body = EntryView)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let entry = app::servers::registry::get(&app, &caller.0.admin()?, &id)
        .await
        .map_err(|error| problem_of(&id, error))?;
    Ok(with_etag(entry).into_response())
}

/// Replace a definition.
///
/// For admins. Sensitive values that are left out or masked stay as they are; `null` takes one away. With another
/// address they must be entered again.
#[utoipa::path(put, path = "/mcp-servers/{id}", operation_id = "replaceMcpServer", tag = "registry",
    request_body = Definition, params(("id" = String, Path),
    ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read")),
    responses((status = 200, body = EntryView), (status = 400, description = "read_only_field, secret_needed"),
        (status = 412, description = "precondition_failed")))]
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(definition): Json<Definition>,
) -> Result<Response, Problem> {
    let updated = app::servers::registry::update(
        &app,
        &caller.0.admin()?,
        &id,
        definition,
        &if_match(&headers)?,
    )
    .await;
    match updated.map_err(|error| problem_of(&id, error))? {
        ChangeOutcome::Done(entry) => Ok(with_etag(entry).into_response()),
        ChangeOutcome::Another => Err(changed(&id)),
    }
}

/// Remove a definition that no agent refers to.
///
/// For admins. An agent that refers to it keeps it.
#[utoipa::path(delete, path = "/mcp-servers/{id}", operation_id = "removeMcpServer", tag = "registry",
    params(("id" = String, Path),
    ("If-Match" = Option<String>, Header, description = "The `ETag` of what was read")),
    responses((status = 204), (status = 409, description = "server_in_use"),
        (status = 412, description = "precondition_failed")))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let removed =
        app::servers::registry::remove(&app, &caller.0.admin()?, &id, &if_match(&headers)?).await;
    match removed.map_err(|error| problem_of(&id, error))? {
        ChangeOutcome::Done(()) => Ok(StatusCode::NO_CONTENT),
        ChangeOutcome::Another => Err(changed(&id)),
    }
}

pub(super) fn if_match(headers: &HeaderMap) -> Result<IfMatch, Problem> {
    let header = headers
        .get(header::IF_MATCH)
        .map(|value| value.to_str())
        .transpose();
    let header =
        header.map_err(|_| Problem::invalid("if-match", "must be the `ETag` of what was read"))?;
    Ok(IfMatch::new(header))
}

/// The problem of an entry that somebody else has changed.
fn changed(id: &str) -> Problem {
    let detail = format!("MCP server '{id}' has changed since it was read; read it again");
    Problem::new(
        StatusCode::PRECONDITION_FAILED,
        ErrorCode::PreconditionFailed,
        detail,
    )
}

/// Words a missing entry as the public document does.
fn problem_of(id: &str, error: Error) -> Problem {
    match error {
        Error::NotFound(_) => {
            let shown: String = id.chars().take(80).collect();
            Problem::new(
                StatusCode::NOT_FOUND,
                ErrorCode::NotFound,
                format!("MCP server not found: {shown}"),
            )
        }
        error => error.into(),
    }
}

fn with_etag(entry: EntryView) -> impl IntoResponse {
    ([(header::ETAG, entry.etag.clone())], axum::Json(entry))
}
