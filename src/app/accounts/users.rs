//! A tenant's users, for its admins: who has been seen, what they have, and an end to it. Users come from issuers and
//! frontends; nothing here makes one or takes one away.

use super::sessions;
use crate::app::{App, servers::credentials};
use crate::{
    domain::{
        account::SeenUser,
        error::{Error, Result},
        ids::UserId,
        principal::Admin,
    },
    store,
};

/// By id, those whose id starts with `prefix`, those after `after` only.
pub async fn list(
    app: &App,
    admin: &Admin,
    prefix: &str,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<SeenUser>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    store::users::list(&mut tx, prefix, after, limit).await
}

pub async fn get(app: &App, admin: &Admin, user: &str) -> Result<SeenUser> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let unknown = || {
        Error::not_found(format!(
            "user {:?}",
            user.chars().take(80).collect::<String>()
        ))
    };
    // Postgres keeps no such text.
    if user.contains('\0') {
        return Err(unknown());
    }
    store::users::get(&mut tx, &UserId(user.into()))
        .await?
        .ok_or_else(unknown)
}

/// Ends the sessions of a user who has been seen.
pub async fn sign_out(app: &App, admin: &Admin, user: &str) -> Result<()> {
    let user = get(app, admin, user).await?.id;
    sessions::end_for(app, admin, &UserId(user.into())).await
}

/// Removes what a user entered for personal servers; how many that were.
pub async fn remove_credentials(app: &App, admin: &Admin, user: &str) -> Result<usize> {
    let user = get(app, admin, user).await?.id;
    credentials::remove_all(app, admin, &UserId(user.into())).await
}
