//! Decides whether a URL may be called, by its text alone and by the operator's allowlist. The messages are those of the
//! egress rules in the AOS document.

use url::{Host, Url};

use super::{
    address::is_public,
    error::{EgressError, ErrorKind},
};

/// Domains of private networks. A host is private if it is one of them or below one.
const PRIVATE_SUFFIXES: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "lan",
    "home",
    "corp",
    "intranet",
    "localdomain",
    "home.arpa",
];

/// The addresses that a request to an accepted URL may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Public addresses only.
    Public,
    /// Any address, because the allowlist names the host.
    Allowed,
}

#[derive(Debug)]
pub(super) struct UrlPolicy {
    allow: Vec<Entry>,
}

/// An entry of the allowlist: `host` or `host:port`.
#[derive(Debug)]
struct Entry {
    host: Host,
    port: Option<u16>,
}

impl UrlPolicy {
    pub(super) fn new(allow: &[String]) -> Result<Self, String> {
        allow
            .iter()
            .map(|entry| Entry::parse(entry))
            .collect::<Result<_, _>>()
            .map(|allow| Self { allow })
    }

    /// Checks scheme, host and user information, in this order. The error is the refusal.
    pub(super) fn choose_route(&self, url: &Url) -> Result<Route, EgressError> {
        let reject = |why: String| Err(ErrorKind::Rejected(why).unsent());
        let scheme = url.scheme();
        if !matches!(scheme, "http" | "https") {
            return reject(format!("scheme {scheme:?} not allowed (http/https only)"));
        }
        let Some(host) = url.host() else {
            return reject(format!("URL without a host {:?}", redact_url(url.as_str())));
        };
        let host = without_trailing_dot(host.to_owned());
        let allowed = self.allow.iter().any(|entry| {
            entry.host == host
                && entry
                    .port
                    .is_none_or(|port| Some(port) == url.port_or_known_default())
        });
        if !allowed && is_private(&host) {
            return reject(format!(
                "private/loopback/internal host \"{host}\" not in egress allowlist"
            ));
        }
        if !allowed && scheme == "http" {
            return reject(format!(
                "plain http to non-loopback host \"{host}\" (use https or allowlist it)"
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return reject(format!(
                "URL with user information for host \"{host}\" (send credentials in a header)"
            ));
        }
        Ok(if allowed {
            Route::Allowed
        } else {
            Route::Public
        })
    }
}

/// Parses a URL. The error is [`ErrorKind::Rejected`].
pub fn parse_url(text: &str) -> Result<Url, EgressError> {
    Url::parse(text).map_err(|_| {
        ErrorKind::Rejected(format!("unparseable URL {:?}", redact_url(text))).unsent()
    })
}

impl Entry {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("egress allowlist entry {text:?} is neither `host` nor `host:port`");
        let text = text.trim();
        if let Ok(address) = text.parse::<std::net::Ipv6Addr>() {
            return Ok(Self {
                host: Host::Ipv6(address),
                port: None,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (
                host,
                Some(
                    port.parse::<u16>()
                        .ok()
                        .filter(|port| *port != 0)
                        .ok_or_else(bad)?,
                ),
            ),
            _ => (text, None),
        };
        if host.contains(['/', '@', '*', ' ']) {
            return Err(bad());
        }
        let host = Host::parse(host).map_err(|_| bad())?;
        Ok(Self {
            host: without_trailing_dot(host),
            port,
        })
    }
}

fn without_trailing_dot<S: AsRef<str>>(host: Host<S>) -> Host {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref();
            Host::Domain(name.strip_suffix('.').unwrap_or(name).to_owned())
        }
        Host::Ipv4(address) => Host::Ipv4(address),
        Host::Ipv6(address) => Host::Ipv6(address),
    }
}

fn is_private(host: &Host) -> bool {
    match host {
        Host::Ipv4(address) => !is_public((*address).into()),
        Host::Ipv6(address) => !is_public((*address).into()),
        Host::Domain(name) => PRIVATE_SUFFIXES.iter().any(|suffix| {
            name.strip_suffix(suffix)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }),
    }
}

/// A URL for a message: at most 200 characters, without user information, query and fragment.
fn redact_url(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let text = match (text.find("//"), text.rfind('@')) {
        (Some(slashes), Some(at)) if slashes + 2 < at => {
            format!("{}…{}", &text[..slashes + 2], &text[at..])
        }
        _ => text.to_owned(),
    };
    text.chars().take(200).collect()
}
