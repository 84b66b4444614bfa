//! Where people sign in to the web client and from the terminal. Nobody is signed in yet who asks for it.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::State;
use serde::Serialize;

use super::extract::Anonymous;
use crate::{
    app::App,
    domain::sign_in::{SignInProvider, SignInToken},
};

/// An OpenID Connect provider at which the web client is a public client.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct SignInProviderView {
    name: String,
    issuer: String,
    client_id: String,
    /// The terminal client, where it is another one.
    terminal_client_id: Option<String>,
    scope: String,
    token: SignInTokenName,
    /// Further parameters of the authorization request.
    parameters: BTreeMap<String, String>,
}

/// Which of the provider's tokens the API receives.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum SignInTokenName {
    AccessToken,
    IdToken,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct SignInProviders {
    items: Vec<SignInProviderView>,
}

impl From<&SignInProvider> for SignInProviderView {
    fn from(from: &SignInProvider) -> Self {
        Self {
            name: from.name.clone(),
            issuer: from.issuer.clone(),
            client_id: from.client_id.clone(),
            terminal_client_id: from.terminal_client_id.clone(),
            scope: from.scope.clone(),
            token: match from.token {
                SignInToken::AccessToken => SignInTokenName::AccessToken,
                SignInToken::IdToken => SignInTokenName::IdToken,
            },
            parameters: from.parameters.clone(),
        }
    }
}

/// The providers at which people may sign in to the web client and from the terminal.
#[utoipa::path(get, path = "/v1/sign-in", tag = "accounts", security(()),
    responses((status = 200, body = SignInProviders)))]
pub(super) async fn providers(
    State(app): State<Arc<App>>,
    _: Anonymous,
) -> axum::Json<SignInProviders> {
    let items = app.config.sign_in.iter().map(Into::into).collect();
    axum::Json(SignInProviders { items })
}
