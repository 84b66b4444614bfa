//! How a server wants to be signed in to (OAuth), for whoever writes its pack.

use std::collections::BTreeMap;

use crate::{
    cli::{loopback::Loopback, print_line},
    domain::{
        oauth::{Authorization, OAuthConfig},
        server::ServerSpec,
    },
    egress::Egress,
    mcp::{
        McpError, McpErrorKind,
        oauth::{
            self, AuthorizationServer, ClientChoice, OAuthError, ProtectedServer, SignInRequest,
        },
    },
};

/// Where the users of a server sign in, if it answered that they have to.
pub(super) async fn find(
    egress: &Egress,
    spec: &ServerSpec,
    error: &McpError,
) -> Option<Result<ProtectedServer, OAuthError>> {
    if error.kind != McpErrorKind::SignInRequired {
        return None;
    }
    let challenge = error.challenge.as_deref().cloned().unwrap_or_default();
    Some(oauth::discover(egress, spec.url()?, &challenge).await)
}

/// What the metadata of a server says of signing in.
pub(super) fn describe(spec: &ServerSpec, found: &Result<ProtectedServer, OAuthError>) -> String {
    match found {
        Ok(found) => of_server(spec, found),
        Err(error) => format!("  signing in (OAuth) does not work: {error}"),
    }
}

/// Signs in as a user of the service would, with a browser of this machine. The tokens are for this trial only.
pub(super) async fn sign_in(
    egress: &Egress,
    spec: &ServerSpec,
    found: &ProtectedServer,
) -> anyhow::Result<Authorization> {
    let loopback = Loopback::open().await?;
    let config = OAuthConfig {
        // The document names the service's own callback, to which no browser could bring an answer here.
        client_metadata_url: None,
        ..spec.oauth.clone().unwrap_or_default()
    };
    let found = &found.for_sign_in(&config)?;
    let scopes = found.scopes_to_request(&config.scopes, &[]);
    let choice = ClientChoice {
        config: &config,
        redirect_uri: loopback.redirect_uri(),
        document: None,
        registered: None,
        scopes: &scopes,
    };
    let client = oauth::choose_client(egress, &found.authorization_server, choice).await?;
    if client.is_of_pack {
        print_line(&format!(
            "  the client of the pack must allow the callback {}",
            loopback.redirect_uri()
        ));
    }
    let request = SignInRequest {
        at: found,
        client,
        redirect_uri: loopback.redirect_uri(),
        scopes,
        parameters: &BTreeMap::new(),
    };
    let started = oauth::start(egress, request).await?;
    print_line(&format!("  to try it, sign in at:\n\n{}\n", started.url));
    let params = loopback.wait(&started.state).await?;
    let tokens = oauth::redeem(egress, &started.pending, &params).await?;
    let pending = started.pending;
    Ok(tokens.into_authorization(pending.service, pending.scopes, None))
}

fn of_server(spec: &ServerSpec, found: &ProtectedServer) -> String {
    let server = &found.authorization_server;
    let config = spec.oauth.clone().unwrap_or_default();
    let scopes = found.scopes_to_request(&config.scopes, &[]).join(" ");
    let scopes = if scopes.is_empty() { "none" } else { &scopes };
    let pkce = match server.sign_in_endpoint() {
        Ok(_) => "users can sign in".to_owned(),
        Err(_) if config.assumes_pkce && server.endpoint_without_pkce.is_some() => {
            "users can sign in; PKCE is assumed".to_owned()
        }
        Err(error) => format!("users cannot sign in: {error}"),
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
