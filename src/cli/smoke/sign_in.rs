//! How a server wants to be signed in to (OAuth), for whoever writes its pack.

use crate::{
    domain::server::ServerSpec,
    egress::Egress,
    mcp::{
        McpError, McpErrorKind,
        oauth::{self, AuthorizationServer, ProtectedServer},
    },
};

/// What the metadata of a server says of signing in, if that is what it answered with.
pub(super) async fn describe(
    egress: &Egress,
    spec: &ServerSpec,
    error: &McpError,
) -> Option<String> {
    if error.kind != McpErrorKind::SignInRequired {
        return None;
    }
    let challenge = error.challenge.as_deref().cloned().unwrap_or_default();
    Some(
        match oauth::discover(egress, spec.url()?, &challenge).await {
            Ok(found) => of_server(spec, &found),
            Err(error) => format!("  signing in (OAuth) does not work: {error}"),
        },
    )
}

fn of_server(spec: &ServerSpec, found: &ProtectedServer) -> String {
    let server = &found.authorization_server;
    let config = spec.oauth.clone().unwrap_or_default();
    let scopes = found.scopes_to_request(&config.scopes, &[]).join(" ");
    let scopes = if scopes.is_empty() { "none" } else { &scopes };
    let pkce = if server.authorization_endpoint.is_some() {
        "users can sign in"
    } else {
        "users cannot sign in: there is no PKCE with S256"
    };
    format!(
        "  sign-in (OAuth) at {}\n  {pkce}; scopes: {scopes}\n  client: {}",
        server.issuer,
        client(server, config.client_id.is_some())
    )
}

/// As whom the service will come.
fn client(server: &AuthorizationServer, is_in_pack: bool) -> &'static str {
    if is_in_pack {
        "the one in the pack"
    } else if server.takes_metadata_documents {
        "the metadata document of this service, where its public URL is https"
    } else if server.registration_endpoint.is_some() {
        "this service registers itself"
    } else {
        "register one by hand, with the callback https://your-service/oauth/callback, and write its `clientId`"
    }
}
