//! The end of a sign-in: its tokens are revoked where they came from (RFC 7009). What is deleted here stays deleted,
//! whether the authorization server answers or not.

use futures_util::{StreamExt as _, stream};

use crate::{
    app::{App, platform::keys},
    domain::{
        credential::CredentialRef,
        oauth::{Authorization, from_sealable},
    },
    egress::Egress,
    mcp::oauth,
};

/// Requests to revoke that are under way at once, when the sign-ins of many end.
const AT_ONCE: usize = 8;

/// Revokes tokens that were never put in force.
pub fn revoke_unused(app: &App, tokens: Authorization) {
    let egress = app.egress.clone();
    app.tasks
        .spawn(async move { revoke(&egress, &tokens).await });
}

/// Revokes the tokens of credentials that were deleted. They are opened before this returns: their tenant's key may be
/// gone a moment later.
pub async fn revoke_in_background(app: &App, deleted: Vec<(CredentialRef, Vec<u8>)>) {
    let mut opened: Vec<Authorization> = Vec::new();
    for (credential, sealed) in deleted {
        let context = keys::context(&credential);
        let text = app.keys.open(credential.tenant, &context, &sealed).await;
        opened.extend(text.ok().and_then(|text| from_sealable(&text).ok()));
    }
    if opened.is_empty() {
        return;
    }
    let egress = app.egress.clone();
    app.tasks.spawn(async move {
        let each = |tokens| async { revoke(&egress, &{ tokens }).await };
        stream::iter(opened)
            .for_each_concurrent(AT_ONCE, each)
            .await;
    });
}

pub(super) async fn revoke(egress: &Egress, tokens: &Authorization) {
    if let Err(error) = oauth::revoke(egress, tokens).await {
        let issuer = &tokens.service.issuer;
        tracing::warn!(issuer, %error, "tokens that were deleted here are not revoked at their authorization server");
    }
}
