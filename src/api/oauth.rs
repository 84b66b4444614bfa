//! Sign-ins of users at MCP servers (OAuth 2.1): a route that begins one, the callback for browsers, and the document
//! that describes this service as a client. In [`super::sign_in`], in contrast, people sign in to the web client.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use maud::html;
use serde::Serialize;
use url::form_urlencoded;
use uuid::Uuid;

use super::{
    extract::{Anonymous, Caller, Path},
    page::{answer, document, language_of},
    problem::Problem,
    web,
};
use crate::app::{
    self, App,
    chat::flows::sign_in::{self, Callback, SignInStatus},
};
use domain::{error::Error, secret::Secret};

/// The path of the callback. The cookie of a sign-in is sent to this path only.
const CALLBACK: &str = "/oauth/callback";

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct SignInLink {
    /// Where the user's browser goes to sign in, once, within ten minutes.
    url: String,
}

/// Begin to sign in at a personal server.
///
/// A browser that asks for this itself is recognised by a cookie when it comes back, and the server is connected
/// at once. Otherwise the page shows a code, which the user names in the conversation `Connect`.
#[utoipa::path(post, path = "/v1/agents/{agent}/connections/{server}/sign-in", operation_id = "beginSignIn",
    tag = "connections", params(("agent" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = SignInLink), (status = 409, description = "no_sign_in")))]
pub(super) async fn begin(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, server)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let begun = sign_in::begin(&app, caller.principal(), &agent, &server).await?;
    let secure = if app.config.public_url.starts_with("https:") {
        "; Secure"
    } else {
        ""
    };
    let (name, value) = (cookie_name(begun.id), begun.browser.expose());
    let cookie =
        format!("{name}={value}; Path={CALLBACK}; Max-Age=600; HttpOnly; SameSite=Lax{secure}");
    let mut cookie = HeaderValue::from_str(&cookie).expect("hexadecimal digits and words");
    cookie.set_sensitive(true);
    let link = axum::Json(SignInLink {
        url: begun.url.into(),
    });
    Ok(([(header::SET_COOKIE, cookie)], link).into_response())
}

/// Where the browser of a user comes back to after a sign-in at a server.
///
/// The page says how it went, and the connection counts from then on.
#[utoipa::path(get, path = "/oauth/callback", operation_id = "completeSignIn", tag = "connections", security(()),
    responses((status = 200, content_type = "text/html", body = String)))]
pub(super) async fn callback(
    State(app): State<Arc<App>>,
    _: Anonymous,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut callback = Callback {
        state: Secret::new(""),
        code: None,
        issuer: None,
        error: None,
        language: language_of(&headers),
    };
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        match &*name {
            "state" => callback.state = Secret::new(value),
            "code" => callback.code = Some(Secret::new(value)),
            "iss" => callback.issuer = Some(value.into_owned()),
            "error" => callback.error = Some(value.into_owned()),
            _ => {}
        }
    }
    let page = sign_in::finish(&app, callback, |id| cookie(&headers, &cookie_name(id))).await?;
    if page.status == SignInStatus::Gone && !web::accepts(&headers, header::ACCEPT, "text/html") {
        return Err(Error::not_found("this sign-in; it was used already or is too old").into());
    }
    let status = match page.status {
        SignInStatus::Good | SignInStatus::Failed => StatusCode::OK,
        SignInStatus::Gone => StatusCode::NOT_FOUND,
    };
    let body = html! {
        p { (page.text) }
        @if let Some(code) = &page.code { output { (code) } }
    };
    Ok(answer(status, document(&page.language, &page.title, &body)))
}

/// This service as an OAuth client.
///
/// The address of this document is the service's `client_id`.
#[utoipa::path(get, path = "/.well-known/oauth-client/chatelaine.json", operation_id = "getOauthClientMetadata",
    tag = "connections", security(()), responses((status = 200, body = serde_json::Value)))]
pub(super) async fn client_metadata(
    State(app): State<Arc<App>>,
    _: Anonymous,
) -> axum::Json<serde_json::Value> {
    axum::Json(app::servers::oauth::client_document(&app))
}

fn cookie_name(sign_in: Uuid) -> String {
    format!("chatelaine_sign_in_{}", sign_in.simple())
}

fn cookie(headers: &HeaderMap, name: &str) -> Option<Secret> {
    let values = headers.get_all(header::COOKIE).iter();
    let mut pairs = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(known, _)| *known == name)
        .map(|(_, value)| Secret::new(value))
}
