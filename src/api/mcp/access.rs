//! Access to the MCP endpoint: the same callers as everywhere, from an allowed origin. The answer to a caller without a
//! credential says where to get one (RFC 9728).

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::{
    api::{
        ApiState,
        extract::{Anonymous, Caller, Path, Query},
        problem::Problem,
        web,
    },
    app::{self, App, accounts},
};
use domain::{config::Config, error::ErrorCode, ids::AgentId};

const METADATA: &str = "/.well-known/oauth-protected-resource";

/// A caller of the MCP endpoint.
pub(in crate::api) struct McpCaller(pub accounts::Caller);

/// A refusal with the header that says where to get a credential.
pub(in crate::api) struct Challenge {
    problem: Problem,
    header: Option<HeaderValue>,
}

impl FromRequestParts<ApiState> for McpCaller {
    type Rejection = Challenge;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Challenge> {
        let found = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(agent)) => Caller::at(parts, state, Some(&agent)).await,
            Err(problem) => Err(problem),
        };
        match found {
            Ok(caller) => Ok(Self(caller.0)),
            Err(problem) => {
                let is_unauthenticated = problem.status == StatusCode::UNAUTHORIZED;
                let header = is_unauthenticated.then(|| challenge(&state.app.config, parts));
                Err(Challenge {
                    problem,
                    header: header.flatten(),
                })
            }
        }
    }
}

impl IntoResponse for Challenge {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if let Some(header) = self.header {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header);
        }
        response
    }
}

/// The value of `WWW-Authenticate` for the agent that the path names.
fn challenge(config: &Config, parts: &Parts) -> Option<HeaderValue> {
    let agent = parts.uri.path().strip_prefix("/mcp/")?;
    let agent = AgentId::parse(agent).ok()?;
    let query: AgentQuery = axum::extract::Query::try_from_uri(&parts.uri)
        .map(|query| query.0)
        .unwrap_or_default();
    let error = if parts.headers.contains_key(header::AUTHORIZATION) {
        r#", error="invalid_token""#
    } else {
        ""
    };
    let metadata = address(config, &format!("{METADATA}/mcp/{agent}"), &query);
    HeaderValue::from_str(&format!(r#"Bearer resource_metadata="{metadata}"{error}"#)).ok()
}

#[derive(Deserialize, Default, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct AgentQuery {
    /// The name of the tenant whose users sign in, where more than one has the agent.
    tenant: Option<String>,
}

/// What a client has to know to sign its user in.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct ProtectedResource {
    /// The address of the endpoint.
    resource: String,
    resource_name: String,
    /// The issuers that the tenant trusts.
    authorization_servers: Vec<String>,
    bearer_methods_supported: [&'static str; 1],
}

/// Where to get a token for the MCP endpoint of an agent (RFC 9728).
///
/// It needs no credential.
#[utoipa::path(get, path = "/.well-known/oauth-protected-resource/mcp/{agent}",
    operation_id = "getMcpResourceMetadata", tag = "mcp", security(()),
    params(("agent" = String, Path), AgentQuery), responses((status = 200, body = ProtectedResource)))]
pub(in crate::api) async fn metadata(
    State(app): State<Arc<App>>,
    _: Anonymous,
    Path(agent): Path<String>,
    Query(query): Query<AgentQuery>,
) -> Result<axum::Json<ProtectedResource>, Problem> {
    let tenant = query.tenant.as_deref();
    let found = app::servers::agents::find_sign_in(&app, &agent, tenant).await?;
    let is_address = |issuer: &String| {
        Url::parse(issuer).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
    };
    let mut issuers: Vec<String> = found.issuers.into_iter().filter(is_address).collect();
    issuers.dedup();
    Ok(axum::Json(ProtectedResource {
        resource: address(&app.config, &format!("/mcp/{agent}"), &query),
        resource_name: found.agent.display_name,
        authorization_servers: issuers,
        bearer_methods_supported: ["header"],
    }))
}

/// An address of this service, with the tenant of the query.
fn address(config: &Config, path: &str, query: &AgentQuery) -> String {
    let mut address = format!("{}{path}", config.public_url.trim_end_matches('/'));
    if let Some(tenant) = &query.tenant {
        let encoded = url::form_urlencoded::byte_serialize(tenant.as_bytes());
        address.push_str("?tenant=");
        address.extend(encoded);
    }
    address
}

/// Checks the origin of a browser: this service, or one of the settings. Other programs send no `Origin`.
pub(super) fn check_origin(config: &Config, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let text = origin.to_str().unwrap_or_default();
    let mut listed = config.cors_origins.iter();
    if listed.any(|allowed| allowed == "*" || allowed == text) || is_own(config, text) {
        return Ok(());
    }
    let detail = "this origin may not call; the operator allows it with CHATELAINE_CORS_ORIGINS";
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        ErrorCode::OriginNotAllowed,
        detail,
    ))
}

/// Whether an origin is this service. A service on the loopback address has several names.
fn is_own(config: &Config, origin: &str) -> bool {
    let (Ok(own), Ok(origin)) = (Url::parse(&config.public_url), Url::parse(origin)) else {
        return false;
    };
    own.origin() == origin.origin() || (is_loopback(&own) && is_loopback(&origin))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Refuses a client whose `Accept` header excludes this media type.
pub(super) fn check_accepts(headers: &HeaderMap, media: &str) -> Result<(), Problem> {
    if !headers.contains_key(header::ACCEPT) || accepts(headers, media) {
        return Ok(());
    }
    let detail = format!("the answer is {media}; send it in the Accept header");
    let status = StatusCode::NOT_ACCEPTABLE;
    Err(Problem::new(status, ErrorCode::NotAcceptable, detail))
}

/// Whether the `Accept` header includes this media type.
pub(super) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let kind = media.split('/').next();
    web::accepts_any(headers, header::ACCEPT, |range| {
        range.eq_ignore_ascii_case(media) || range == "*/*" || range.strip_suffix("/*") == kind
    })
}
