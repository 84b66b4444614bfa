//! A tenant's users, for its admins. Users come from issuers and frontends; nothing here creates or deletes one.

use crate::app::App;
use domain::{
    account::SeenUser,
    error::{Error, Result},
    ids::UserId,
    principal::Admin,
};

/// The users whose id starts with `prefix`, by id, after `after`.
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
    // Postgres cannot hold this character.
    if user.contains('\0') {
        return Err(unknown());
    }
    store::users::get(&mut tx, &UserId(user.into()))
        .await?
        .ok_or_else(unknown)
}
