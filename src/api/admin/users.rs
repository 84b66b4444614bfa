//! The users of a tenant, for its admins: lists them, signs them out, blocks them, and deletes their credentials.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        extract::{MAX_USER, Path, Query, check_text},
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
    },
    Admin,
};
use crate::app::{self, App, servers::agents::AgentRoles};
use domain::account::SeenUser;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct UsersQuery {
    /// Only those whose id starts with this.
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    prefix: Option<String>,
    /// Only those after this page: its `next`.
    #[serde(alias = "after")]
    #[param(min_length = 1, max_length = 330, pattern = r"\S")]
    cursor: Option<String>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UserPage {
    items: Vec<SeenUser>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Who has talked to an agent, configured a server or asked for approval, by id.
///
/// For admins. `key:<name>` is a key that speaks for itself, `guest:<id>` a guest.
#[utoipa::path(get, path = "/v1/admin/users", operation_id = "listUsers", tag = "users", params(UsersQuery),
    responses((status = 200, body = UserPage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<UsersQuery>,
) -> Result<axum::Json<UserPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    for (field, text) in [("prefix", &which.prefix), ("cursor", &which.cursor)] {
        if let Some(text) = text {
            check_text(field, text, MAX_USER)?;
        }
    }
    let (prefix, after) = (which.prefix.unwrap_or_default(), which.cursor);
    let items =
        app::accounts::users::list(&app, &admin, &prefix, after.as_deref(), limit + 1).await?;
    let (items, next) = split_page(items, limit, |user| user.id.clone());
    Ok(axum::Json(UserPage { items, next }))
}

/// A user with what they are to each agent.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct UserView {
    #[serde(flatten)]
    user: SeenUser,
    /// The user's roles by the newest token that was seen of them; empty where none was seen.
    agents: Vec<AgentRoles>,
}

/// One user, with what they are to each agent.
///
/// For admins. The roles are those of the newest token that was seen.
#[utoipa::path(get, path = "/v1/admin/users/{user}", operation_id = "getUser", tag = "users",
    params(("user" = String, Path)), responses((status = 200, body = UserView)))]
pub(in crate::api) async fn get(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<axum::Json<UserView>, Problem> {
    let seen = app::accounts::users::get(&app, &admin, &user).await?;
    let agents = app::servers::agents::roles_of_user(&app, &admin, &user).await?;
    Ok(axum::Json(UserView { user: seen, agents }))
}

/// End a user's sessions, on every replica.
///
/// For admins. Tokens of until now are taken no more (of those that do not say when they were issued, such as end
/// within a day), a guest's key is revoked, what runs is stopped, personal connections are closed. What they
/// entered is kept. They may sign in again after a minute, unless their issuer says no; a frontend's key goes on
/// speaking for them.
#[utoipa::path(post, path = "/v1/admin/users/{user}/sign-out", operation_id = "signOutUser", tag = "users",
    params(("user" = String, Path)), responses((status = 204)))]
pub(in crate::api) async fn sign_out(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<StatusCode, Problem> {
    app::runs::sign_outs::end_by_id(&app, &admin, &user).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Block a user, on every replica within a second.
///
/// For admins. What is theirs ends as with a sign-out, and no token and no key that speaks for them is taken until
/// they are unblocked (403 `user_blocked`). Votes of theirs do not count any more.
#[utoipa::path(post, path = "/v1/admin/users/{user}/block", operation_id = "blockUser", tag = "users",
    params(("user" = String, Path)), responses((status = 204)))]
pub(in crate::api) async fn block(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<StatusCode, Problem> {
    app::runs::sign_outs::block(&app, &admin, &user).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End the block of a user.
///
/// For admins. The user signs in again: the tokens that the block ended stay so.
#[utoipa::path(delete, path = "/v1/admin/users/{user}/block", operation_id = "unblockUser", tag = "users",
    params(("user" = String, Path)), responses((status = 204)))]
pub(in crate::api) async fn unblock(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<StatusCode, Problem> {
    app::runs::sign_outs::unblock(&app, &admin, &user).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct Removed {
    /// How many there were.
    removed: usize,
}

/// Delete what a user entered for personal servers, and close the connections made with it.
///
/// For admins. The answer says how many there were.
#[utoipa::path(delete, path = "/v1/admin/users/{user}/credentials", operation_id = "removeCredentialsOfUser",
    tag = "users", params(("user" = String, Path)), responses((status = 200, body = Removed)))]
pub(in crate::api) async fn remove_credentials(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(user): Path<String>,
) -> Result<axum::Json<Removed>, Problem> {
    let removed = app::servers::credentials::remove_by_id(&app, &admin, &user).await?;
    Ok(axum::Json(Removed { removed }))
}
