//! Signing in for the suite, whose authorization servers ask nobody: the answer is in the redirect. Tokens are kept in
//! this process; everything else is what the service does, too.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use url::Url;

use super::Context;
use domain::{
    oauth::{Authorization, OAuthClient, OAuthConfig},
    secret::Secret,
};
use egress::{Egress, Limits, Request};
use mcp::oauth::{self, CallbackParams, Challenge, ClientChoice, SignInRequest};

const REDIRECT_URI: &str = "http://127.0.0.1:8080/oauth/callback";
/// The document that the suite takes for the client's own.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

/// What is remembered of sign-ins.
pub(super) struct SignIns {
    egress: Egress,
    server: Url,
    config: OAuthConfig,
    document: Url,
    registered: Mutex<HashMap<String, OAuthClient>>,
    scopes: Mutex<Vec<String>>,
}

impl SignIns {
    pub(super) fn new(egress: Egress, server: Url, context: &Context) -> Self {
        Self {
            egress,
            server,
            config: OAuthConfig {
                client_id: context.client_id.clone(),
                client_secret: context.client_secret.clone().map(Secret::new),
                ..OAuthConfig::default()
            },
            document: Url::parse(DOCUMENT).expect("a fine address"),
            registered: Mutex::default(),
            scopes: Mutex::default(),
        }
    }

    /// Signs in, with all that was asked for before.
    pub(super) async fn sign_in(&self, challenge: &Challenge) -> anyhow::Result<Authorization> {
        let found = oauth::discover(&self.egress, &self.server, challenge).await?;
        let server = &found.authorization_server;
        let registered = locked(&self.registered).get(&server.issuer).cloned();
        let before = locked(&self.scopes).clone();
        let scopes = found.scopes_to_request(&[], &before);
        let choice = ClientChoice {
            config: &self.config,
            redirect_uri: REDIRECT_URI,
            document: Some(&self.document),
            registered,
            scopes: &scopes,
        };
        let client = oauth::choose_client(&self.egress, server, choice).await?;
        locked(&self.registered).insert(server.issuer.clone(), client.clone());
        locked(&self.scopes).clone_from(&scopes);
        let request = SignInRequest {
            at: &found,
            client,
            redirect_uri: REDIRECT_URI,
            scopes,
            parameters: &BTreeMap::new(),
        };
        let started = oauth::start(&self.egress, request).await?;
        let answer = self.visit(started.url, started.state.expose()).await?;
        let tokens = oauth::redeem(&self.egress, &started.pending, &answer).await?;
        let pending = started.pending;
        Ok(tokens.into_authorization(pending.service, pending.scopes, None))
    }

    /// What a browser would bring back.
    async fn visit(&self, url: Url, state: &str) -> anyhow::Result<CallbackParams> {
        let mut request = Request::get(url);
        request.limits = Limits {
            redirects: 0,
            ..Limits::default()
        };
        let answer = self.egress.send(request).await?;
        let location = answer.headers.get("location");
        let location = location.context("the authorization server sends nobody back")?;
        let mut params = CallbackParams::default();
        for (name, value) in Url::parse(location.to_str()?)?.query_pairs() {
            match &*name {
                "code" => params.code = Some(Secret::new(value)),
                "iss" => params.issuer = Some(value.into_owned()),
                "error" => params.error = Some(value.into_owned()),
                "state" => anyhow::ensure!(value == state, "another state came back"),
                _ => {}
            }
        }
        Ok(params)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
