//! The tenants of the installation, for its operator. Without `CHATELAINE_OPERATOR_TOKEN` these routes answer 404.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        extract::{Json, Path, Query, check_text, created},
        once::make_once,
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
        request_key::Keyed,
    },
    Admin, Operator,
};
use crate::app::{
    self, App,
    platform::request_answers::RequestOwner,
    runs::tenant_admin::{NewTenant, TenantChange, TenantView},
};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct TenantsQuery {
    /// Only those after this page: its `next`.
    #[serde(alias = "after")]
    cursor: Option<String>,
    /// 1 to 200.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 200)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct TenantPage {
    items: Vec<TenantView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Every tenant, by name.
///
/// For the operator of the installation.
#[utoipa::path(get, path = "/v1/admin/tenants", operation_id = "listTenants", tag = "tenants",
    params(TenantsQuery), responses((status = 200, body = TenantPage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Operator(operator): Operator,
    Query(which): Query<TenantsQuery>,
) -> Result<axum::Json<TenantPage>, Problem> {
    if let Some(after) = &which.cursor {
        check_text("cursor", after, 63)?;
    }
    let limit = check_limit(which.limit, 200)?;
    let items =
        app::runs::tenant_admin::list(&app, &operator, which.cursor.as_deref(), limit + 1).await?;
    let (items, next) = split_page(items, limit, |tenant| tenant.name.clone());
    Ok(axum::Json(TenantPage { items, next }))
}

/// Add a tenant.
///
/// For the operator. No two tenants share a name.
#[utoipa::path(post, path = "/v1/admin/tenants", operation_id = "createTenant", tag = "tenants",
    request_body = NewTenant,
    responses((status = 201, body = TenantView), (status = 409, description = "duplicate_name, answer_not_kept")))]
pub(in crate::api) async fn create(
    State(app): State<Arc<App>>,
    Operator(operator): Operator,
    OriginalUri(uri): OriginalUri,
    Keyed(new, key): Keyed<NewTenant>,
) -> Result<Response, Problem> {
    let maker = app.clone();
    let make = async move {
        let tenant = app::runs::tenant_admin::create(&maker, &operator, new).await?;
        Ok(created(&uri, tenant.name.clone(), tenant))
    };
    make_once(&app, RequestOwner::Operator, key, make).await
}

/// One tenant, with the limits in force and what was used today.
///
/// For the operator; admins read their own at `GET /v1/admin/tenant`.
#[utoipa::path(get, path = "/v1/admin/tenants/{tenant}", operation_id = "getTenant", tag = "tenants",
    params(("tenant" = String, Path)), responses((status = 200, body = TenantView)))]
pub(in crate::api) async fn get(
    State(app): State<Arc<App>>,
    Operator(operator): Operator,
    Path(name): Path<String>,
) -> Result<axum::Json<TenantView>, Problem> {
    Ok(axum::Json(
        app::runs::tenant_admin::get(&app, &operator, &name).await?,
    ))
}

/// The tenant of an admin: the limits and retention in force, and what was used today.
///
/// For admins. Only the operator changes them.
#[utoipa::path(get, path = "/v1/admin/tenant", operation_id = "getOwnTenant", tag = "usage",
    responses((status = 200, body = TenantView)))]
pub(in crate::api) async fn own(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
) -> Result<axum::Json<TenantView>, Problem> {
    Ok(axum::Json(
        app::runs::tenant_admin::own(&app, &admin).await?,
    ))
}

/// Change a tenant; what is left out stays.
///
/// For the operator. While it is `suspended` its tokens and keys get 403 `tenant_suspended`, on every replica
/// within seconds, and what runs for it is stopped; everything is kept. A limit of a day is a number, `unlimited`,
/// or `null` for the installation's own.
#[utoipa::path(patch, path = "/v1/admin/tenants/{tenant}", operation_id = "changeTenant", tag = "tenants",
    params(("tenant" = String, Path)), request_body = TenantChange, responses((status = 200, body = TenantView)))]
pub(in crate::api) async fn change(
    State(app): State<Arc<App>>,
    Operator(operator): Operator,
    Path(name): Path<String>,
    Json(change): Json<TenantChange>,
) -> Result<axum::Json<TenantView>, Problem> {
    Ok(axum::Json(
        app::runs::tenant_admin::change(&app, &operator, &name, change).await?,
    ))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct Confirmation {
    /// The tenant's name once more: with it goes all that its users and admins have, for good.
    confirm: Option<String>,
}

/// Remove a tenant with everything that it has.
///
/// For the operator. Only that it was removed stays, in the operator's audit trail.
#[utoipa::path(delete, path = "/v1/admin/tenants/{tenant}", operation_id = "removeTenant", tag = "tenants",
    params(("tenant" = String, Path), Confirmation), responses((status = 204)))]
pub(in crate::api) async fn remove(
    State(app): State<Arc<App>>,
    Operator(operator): Operator,
    Path(name): Path<String>,
    Query(confirmation): Query<Confirmation>,
) -> Result<StatusCode, Problem> {
    app::runs::tenant_admin::remove(&app, &operator, &name, confirmation.confirm.as_deref())
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
