//! The end of a sign-in: its tokens are revoked where they came from (RFC 7009). What is deleted here stays deleted,
//! whether the authorization server answers or not.

use crate::{
    app::{App, platform::keys},
    domain::{
        credential::CredentialRef,
        oauth::{Authorization, from_sealable},
    },
    egress::Egress,
    mcp::oauth,
};

/// Revokes tokens that were never put in force.
pub fn revoke_unused(app: &App, tokens: Authorization) {
    let egress = app.egress.clone();
    app.tasks
        .spawn(async move { revoke(&egress, &tokens).await });
}

/// Revokes the tokens of a credential that was deleted.
pub fn revoke_in_background(app: &App, credential: CredentialRef, sealed: Vec<u8>) {
    let (keys, egress) = (app.keys.clone(), app.egress.clone());
    app.tasks.spawn(async move {
        let context = keys::context(&credential);
        let opened = keys.open(credential.tenant, &context, &sealed).await;
        let tokens = opened.ok().and_then(|text| from_sealable(&text).ok());
        let Some(tokens): Option<Authorization> = tokens else {
            return;
        };
        revoke(&egress, &tokens).await;
    });
}

async fn revoke(egress: &Egress, tokens: &Authorization) {
    if let Err(error) = oauth::revoke(egress, tokens).await {
        let issuer = &tokens.service.issuer;
        tracing::warn!(issuer, %error, "tokens that were deleted here are not revoked at their authorization server");
    }
}
