//! A tenant's users, for its admins: who has been seen, and what they have. Users come from issuers and
//! frontends; nothing here makes one or takes one away.

use crate::app::App;
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
