//! `chatelaine login` and `chatelaine logout`: people sign in to a service from the terminal, at the OpenID Connect
//! provider that the service publishes for its web client. With a browser on this machine, the provider sends the
//! browser back to a loopback address (RFC 8252). Elsewhere people type a code on another device (RFC 8628).

mod saved;

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use url::Url;

use self::saved::{SavedSignIn, SignInFile};
use super::{
    answer::clean,
    client::Client,
    loopback::{self, Loopback},
    print_line, service_address,
};
use domain::{
    config::{Config, Environment},
    oauth::{ClientAuthMethod, OAuthClient, TokenService},
    secret::Secret,
    sign_in::{SignInProvider, SignInToken},
};
use egress::{Egress, operator_client};
use mcp::oauth::{self, AuthorizationServer, ProtectedServer, SignInRequest, TokenSet};

/// The parameter with the resource of a token (RFC 8707).
const RESOURCE: &str = "resource";

#[derive(clap::Args)]
pub struct Args {
    /// Where the API is; the demo's address unless given.
    #[arg(long, env = "CHATELAINE_URL")]
    url: Option<Url>,
    /// The name of the provider, where the service has more than one.
    #[arg(long)]
    provider: Option<String>,
    /// The name of your tenant, where tenants have providers of their own.
    #[arg(long)]
    tenant: Option<String>,
    /// Type a code on another device instead of opening a browser here.
    #[arg(long)]
    device: bool,
}

#[derive(clap::Args)]
pub struct LogoutArgs {
    /// Where the API is; the demo's address unless given.
    #[arg(long, env = "CHATELAINE_URL")]
    url: Option<Url>,
}

/// A provider as the service publishes it.
#[derive(Deserialize)]
struct PublishedProvider {
    name: String,
    issuer: String,
    client_id: String,
    terminal_client_id: Option<String>,
    scope: String,
    token: SignInToken,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct PublishedProviders {
    items: Vec<PublishedProvider>,
}

/// Signs a person in, and stores the sign-in for `chatelaine chat`.
pub async fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<()> {
    let url = service_address(args.url.as_ref(), config)?;
    let provider = choose_provider(&url, args).await?;
    let egress = egress_to(&provider.issuer, config)?;
    let server = oauth::discover_issuer(&egress, &provider.issuer).await?;
    let browser = loopback::browser(env);
    let uses_device = args.device || (browser.is_none() && server.device_endpoint.is_some());
    let (service, tokens) = if uses_device {
        sign_in_by_device(&egress, server, &provider).await?
    } else {
        sign_in_by_browser(&egress, server, &provider, browser.as_deref()).await?
    };
    let saved = SavedSignIn::new(service, tokens, provider.token)?;
    let me = Client::new(url.clone(), saved.token())?
        .get_me()
        .await
        .with_context(|| {
            format!(
                "{} let you in, but {url} does not take its token; ask whoever runs the service",
                provider.name
            )
        })?;
    SignInFile::open(env).await?.put(&url, &saved)?;
    print_line(&format!(
        "Signed in at {} as {}.",
        clean(&provider.name),
        clean(&me.name)
    ));
    Ok(())
}

/// Ends the sign-in at a service: its tokens are revoked at the provider and deleted here.
pub async fn run_logout(
    args: &LogoutArgs,
    config: &Config,
    env: &Environment,
) -> anyhow::Result<()> {
    let url = service_address(args.url.as_ref(), config)?;
    let Some(saved) = SignInFile::open(env).await?.remove(&url)? else {
        print_line(&format!("You are not signed in at {url}."));
        return Ok(());
    };
    match saved.revoke(&egress_to(saved.issuer(), config)?).await {
        Ok(()) => print_line("Signed out."),
        Err(error) => print_line(&format!(
            "Signed out here. The provider did not end the sign-in on its side: {error}"
        )),
    }
    Ok(())
}

/// The stored sign-in of a person at a service.
pub(super) struct SignedIn {
    url: Url,
    env: Environment,
    egress: Egress,
    saved: SavedSignIn,
}

impl SignedIn {
    /// Finds the sign-in at a service, if there is one.
    pub(super) async fn find(
        url: &Url,
        config: &Config,
        env: &Environment,
    ) -> anyhow::Result<Option<Self>> {
        let Some(saved) = SignInFile::open(env).await?.get(url)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            url: url.clone(),
            env: env.clone(),
            egress: egress_to(saved.issuer(), config)?,
            saved,
        }))
    }

    /// Returns a token that is valid now. It is refreshed before it ends, by one process at a time.
    pub(super) async fn token(&mut self) -> anyhow::Result<Secret> {
        if !self.saved.is_due() {
            return Ok(self.saved.token());
        }
        let ended = || {
            format!(
                "your sign-in at {} has ended; run `chatelaine login`",
                self.url
            )
        };
        let file = SignInFile::open(&self.env).await?;
        let mut saved = file.get(&self.url)?.with_context(ended)?;
        if saved.is_due() {
            match saved.refresh(&self.egress).await {
                Ok(()) => file.put(&self.url, &saved)?,
                Err(error) if error.is_refusal("invalid_grant") => {
                    file.remove(&self.url)?;
                    bail!(ended());
                }
                Err(_) if saved.is_valid() => {}
                Err(error) => {
                    return Err(error).context("the provider does not refresh your sign-in");
                }
            }
        }
        self.saved = saved;
        Ok(self.saved.token())
    }
}

/// The provider that the arguments name, or the only one.
async fn choose_provider(url: &Url, args: &Args) -> anyhow::Result<PublishedProvider> {
    let mut items = list_providers(url, args.tenant.as_deref()).await?;
    if items.is_empty() {
        bail!(
            "{url} has no provider at which people sign in; name your tenant with --tenant, or use \
             `chatelaine chat --token TOKEN`"
        );
    }
    let names: Vec<_> = items.iter().map(|one| clean(&one.name)).collect();
    let at = match &args.provider {
        Some(name) => items.iter().position(|one| one.name == *name),
        None => Some(0).filter(|_| items.len() == 1),
    };
    let Some(at) = at else {
        bail!(
            "say at which provider with --provider: {}",
            names.join(", ")
        );
    };
    let one = items.swap_remove(at);
    let checked = SignInProvider {
        name: one.name.clone(),
        tenant: None,
        issuer: one.issuer.clone(),
        client_id: one.client_id.clone(),
        terminal_client_id: None,
        scope: one.scope.clone(),
        token: one.token,
        parameters: BTreeMap::new(),
        origins: Vec::new(),
    };
    checked.connect_origins().map_err(anyhow::Error::msg)?;
    Ok(one)
}

async fn list_providers(url: &Url, tenant: Option<&str>) -> anyhow::Result<Vec<PublishedProvider>> {
    let mut address = url.join("/v1/sign-in")?;
    if let Some(tenant) = tenant {
        address.query_pairs_mut().append_pair("tenant", tenant);
    }
    // The person chooses the address, as an operator chooses an endpoint, so private addresses are allowed.
    let http = operator_client().map_err(anyhow::Error::msg)?;
    let answer = http.get(address).send().await;
    let answer = answer.with_context(|| format!("cannot reach {url}; is the server running?"))?;
    let list: PublishedProviders = serde_json::from_slice(&answer.bytes().await?)
        .with_context(|| format!("{url} is not a Chatelaine service"))?;
    Ok(list.items)
}

/// An HTTP client that may also call the provider at a private address.
fn egress_to(issuer: &str, config: &Config) -> anyhow::Result<Egress> {
    let mut allow = config.egress_allow.clone();
    let host = Url::parse(issuer)?;
    allow.extend(host.host_str().map(str::to_owned));
    Egress::new(&allow).map_err(anyhow::Error::msg)
}

/// The server to sign in at, and the parameters. The `resource` is taken out of the parameters, because tokens are issued
/// for it.
fn sign_in_server(
    server: AuthorizationServer,
    provider: &PublishedProvider,
) -> (ProtectedServer, BTreeMap<String, String>) {
    let mut parameters = provider.parameters.clone();
    let at = ProtectedServer {
        resource: parameters.remove(RESOURCE).unwrap_or_default(),
        authorization_server: server,
        scopes: domain::oauth::scopes_of(&provider.scope),
    };
    (at, parameters)
}

fn oauth_client(provider: &PublishedProvider) -> OAuthClient {
    let id = provider.terminal_client_id.as_ref();
    OAuthClient {
        id: id.unwrap_or(&provider.client_id).clone(),
        proof: None,
        method: ClientAuthMethod::None,
        is_of_pack: false,
        secret_ends_at: None,
    }
}

async fn sign_in_by_browser(
    egress: &Egress,
    server: AuthorizationServer,
    provider: &PublishedProvider,
    browser: Option<&str>,
) -> anyhow::Result<(TokenService, TokenSet)> {
    let (at, parameters) = sign_in_server(server, provider);
    let loopback = Loopback::open().await?;
    let request = SignInRequest {
        at: &at,
        client: oauth_client(provider),
        redirect_uri: loopback.redirect_uri(),
        scopes: at.scopes_to_request(&[], &[]),
        parameters: &parameters,
    };
    let started = oauth::start(egress, request).await?;
    print_line(&format!(
        "Sign in with your browser at this address:\n\n  {}\n",
        started.url
    ));
    if let Some(browser) = browser {
        loopback::open_link(browser, &started.url);
    }
    let params = loopback.wait(&started.state).await?;
    let tokens = oauth::redeem(egress, &started.pending, &params).await?;
    Ok((started.pending.service, tokens))
}

async fn sign_in_by_device(
    egress: &Egress,
    server: AuthorizationServer,
    provider: &PublishedProvider,
) -> anyhow::Result<(TokenService, TokenSet)> {
    let (at, _) = sign_in_server(server, provider);
    let scopes = at.scopes_to_request(&[], &[]);
    let server = &at.authorization_server;
    let begun = oauth::start_device(
        egress,
        server,
        oauth_client(provider),
        &scopes,
        &at.resource,
    )
    .await?;
    let address = clean(&begun.address);
    print_line(&format!(
        "Open this address on any device and type the code {}:\n\n  {address}\n",
        clean(&begun.user_code)
    ));
    if let Some(whole) = &begun.whole_address {
        print_line(&format!(
            "or this one, which has the code in it:\n\n  {}\n",
            clean(whole)
        ));
    }
    let tokens = oauth::wait_for_user(egress, &begun).await?;
    Ok((begun.service, tokens))
}
