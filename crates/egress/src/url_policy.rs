//! Checks a URL before any look-up, and the operator's allowlist that overrides the check. The messages are
//! those of the AOS document's egress rules.

use url::{Host, Url};

use super::{
    address::is_public,
    error::{EgressError, ErrorKind},
};

/// Suffixes of names that belong to a private network, with the bare names themselves.
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

/// Which addresses a request to an accepted URL may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Only to public addresses.
    Public,
    /// The operator named the host: to whatever address it has.
    Allowed,
}

#[derive(Debug)]
pub(super) struct UrlPolicy {
    allow: Vec<Entry>,
}

/// `host` or `host:port` of the allowlist.
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

    /// Checks scheme, host and user information, in this order.
    pub(super) fn choose_route(&self, url: &Url) -> Result<Route, EgressError> {
        let reject = |why: String| Err(ErrorKind::Rejected(why).unsent());
        let scheme = url.scheme();
        if !matches!(scheme, "http" | "https") {
            return reject(format!("scheme {scheme:?} not allowed (http/https only)"));
        }
        let Some(host) = url.host() else {
            return reject(format!(
                "URL without a host {:?}",
                redacted_url(url.as_str())
            ));
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

/// Parses a URL. The error is the guard's refusal.
pub fn parse_url(text: &str) -> Result<Url, EgressError> {
    Url::parse(text).map_err(|_| {
        ErrorKind::Rejected(format!("unparseable URL {:?}", redacted_url(text))).unsent()
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

/// A URL for a message: short, without user information and query.
fn redacted_url(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let text = match (text.find("//"), text.rfind('@')) {
        (Some(slashes), Some(at)) if slashes + 2 < at => {
            format!("{}…{}", &text[..slashes + 2], &text[at..])
        }
        _ => text.to_owned(),
    };
    text.chars().take(200).collect()
}
