//! Where people sign in to the web client and from the terminal: OpenID Connect providers at which both are public
//! clients.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// A provider, and as which client the page signs people in there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignInProvider {
    /// The name of the tenant whose users sign in here; without one it is for everybody.
    #[serde(default)]
    pub tenant: Option<String>,
    /// What the button says.
    pub name: String,
    /// The issuer, below which its discovery document is.
    pub issuer: String,
    /// The page as the provider knows it: a public client without a secret.
    pub client_id: String,
    /// The terminal client, where the provider wants another entry for it; absent: `client_id`.
    pub terminal_client_id: Option<String>,
    #[serde(default = "default_scope")]
    pub scope: String,
    /// Which of the two tokens the API receives.
    #[serde(default)]
    pub token: SignInToken,
    /// Parameters of the authorization request that the provider needs, such as `resource` or `audience`.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Origins of the provider that differ from the issuer's, such as the one of its token endpoint.
    #[serde(default)]
    pub origins: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignInToken {
    #[default]
    AccessToken,
    IdToken,
}

fn default_scope() -> String {
    "openid profile email offline_access".to_owned()
}

impl SignInProvider {
    /// Reads a JSON array of providers; the error says what to write.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let providers: Vec<Self> = serde_json::from_str(text).map_err(|why| {
            format!("write [{{\"name\":…,\"issuer\":\"https://…\",\"client_id\":…}}]: {why}")
        })?;
        for provider in &providers {
            provider.connect_origins()?;
        }
        Ok(providers)
    }

    /// Whether a page that was opened for this tenant, or for none, offers the provider.
    pub fn is_for(&self, tenant: Option<&str>) -> bool {
        self.tenant.is_none() || self.tenant.as_deref() == tenant
    }

    /// The origins that a browser asks during the sign-in.
    pub fn connect_origins(&self) -> Result<Vec<String>, String> {
        let addresses = std::iter::once(&self.issuer).chain(&self.origins);
        addresses.map(|address| origin(address)).collect()
    }
}

fn origin(address: &str) -> Result<String, String> {
    let url = Url::parse(address).ok().filter(is_safe);
    let url = url.ok_or_else(|| {
        format!("{address:?} must begin with https://; http:// is for loopback addresses only")
    })?;
    Ok(url.origin().ascii_serialization())
}

fn is_safe(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}
