//! The providers where people sign in to the web client and from the terminal. The route needs no credential.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::{
    extract::{Anonymous, Query, check_text},
    problem::Problem,
};
use crate::app::App;
use domain::sign_in::{SignInProvider, SignInToken};

/// An OpenID Connect provider at which the web client is a public client.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct SignInProviderView {
    /// The tenant whose users sign in here. The page's address as the provider knows it names it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    name: String,
    issuer: String,
    client_id: String,
    /// The terminal client, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
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
            tenant: from.tenant.clone(),
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

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SignInQuery {
    /// The name of the caller's tenant, as in the page's address `/?tenant=…`: also the providers of this tenant alone.
    #[param(min_length = 1, max_length = 255, pattern = r"\S")]
    tenant: Option<String>,
}

/// The providers at which people may sign in to the web client and from the terminal.
///
/// It needs no credential.
#[utoipa::path(get, path = "/v1/sign-in", operation_id = "listSignInProviders", tag = "accounts", security(()),
    params(SignInQuery), responses((status = 200, body = SignInProviders)))]
pub(super) async fn providers(
    State(app): State<Arc<App>>,
    _: Anonymous,
    Query(SignInQuery { tenant }): Query<SignInQuery>,
) -> Result<axum::Json<SignInProviders>, Problem> {
    if let Some(tenant) = &tenant {
        check_text("tenant", tenant, 255)?;
    }
    let all = app.config.sign_in.iter();
    let offered = all.filter(|provider| provider.is_for(tenant.as_deref()));
    let items = offered.map(Into::into).collect();
    Ok(axum::Json(SignInProviders { items }))
}
