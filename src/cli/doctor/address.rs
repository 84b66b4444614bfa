//! Where the service listens, where people reach it, and where they sign in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use url::{Host, Url};

use super::{super::serve, Installation, Outcome, REQUEST};
use domain::finding::Code;
use egress::Egress;
use mcp::oauth::{self, OAuthErrorKind};

/// What `/healthz` says.
const ALIVE: &str = "ok";

/// Who answers at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// A service like this one.
    Service,
    Somebody,
    Nobody,
}

pub(super) async fn check(here: &Installation) -> Outcome {
    let mut outcome = Outcome::default();
    let config = &here.config;
    let local = who_answers(here, &format!("http://{}", reachable(config.listen))).await;
    for (address, variable) in [
        (Some(config.listen), "CHATELAINE_LISTEN"),
        (config.metrics_listen, "CHATELAINE_METRICS_LISTEN"),
    ] {
        let Some(address) = address.filter(|address| address.port() != 0) else {
            continue;
        };
        // The service may run already.
        let is_ours = local == Answers::Service;
        if let Err(error) = serve::listen(address, variable).await
            && !is_ours
        {
            outcome.add(Code::ListenTaken, format!("{error:#}"), "");
        }
    }
    check_public_url(here, local, &mut outcome).await;
    outcome
}

async fn check_public_url(here: &Installation, local: Answers, outcome: &mut Outcome) {
    let config = &here.config;
    let Ok(url) = Url::parse(&config.public_url) else {
        if !config.listen.ip().is_loopback() {
            outcome.add(
                Code::UrlUnset,
                format!(
                    "CHATELAINE_PUBLIC_URL is not set, so links lead to http://{}",
                    config.listen
                ),
                "set it to the address where browsers reach the service",
            );
        }
        return;
    };
    if url.scheme() == "http" && !is_loopback(&url) {
        outcome.add(
            Code::UrlInsecure,
            format!(
                "CHATELAINE_PUBLIC_URL ({url}) has no TLS, so tokens cross the network in the clear"
            ),
            "put a proxy with TLS before the service, and write https://",
        );
    }
    match who_answers(here, config.public_url.trim_end_matches('/')).await {
        Answers::Service => {}
        Answers::Somebody => outcome.add(
            Code::UrlElsewhere,
            format!("{url} of CHATELAINE_PUBLIC_URL does not lead to the service: another answers at /healthz"),
            "correct the address, or the proxy: it must pass every path on",
        ),
        Answers::Nobody if local == Answers::Service => outcome.add(
            Code::UrlUnreachable,
            format!("nobody answers at {url} of CHATELAINE_PUBLIC_URL, and the service runs"),
            "check the name, the proxy and its certificate; from inside, the address may be closed on purpose",
        ),
        Answers::Nobody => outcome.skip(
            "CHATELAINE_PUBLIC_URL",
            format!("no service runs at {} yet", config.listen),
        ),
    }
}

/// Asks for `/healthz` below an address. A proxy without a service behind it counts as nobody.
async fn who_answers(here: &Installation, base: &str) -> Answers {
    let asked = here.client.get(format!("{base}/healthz")).send();
    let Ok(Ok(answer)) = tokio::time::timeout(REQUEST, asked).await else {
        return Answers::Nobody;
    };
    let status = answer.status();
    if status.is_server_error() {
        return Answers::Nobody;
    }
    // Another may send without an end.
    let is_short = answer
        .content_length()
        .is_some_and(|length| length == ALIVE.len() as u64);
    if !status.is_success() || !is_short {
        return Answers::Somebody;
    }
    match tokio::time::timeout(REQUEST, answer.text()).await {
        Ok(Ok(text)) if text == ALIVE => Answers::Service,
        _ => Answers::Somebody,
    }
}

/// Where a service that listens at an address is found from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Fetches the metadata of each provider of `CHATELAINE_SIGN_IN`, as the terminal client does.
pub(super) async fn check_sign_in(here: &Installation) -> Outcome {
    let mut outcome = Outcome::default();
    for provider in &here.config.sign_in {
        let issuer = &provider.issuer;
        // The operator named the address.
        let host = Url::parse(issuer)
            .ok()
            .and_then(|url| Some(url.host_str()?.to_owned()));
        let Ok(egress) = Egress::new(&host.into_iter().collect::<Vec<_>>()) else {
            continue;
        };
        if let Err(error) = oauth::discover_issuer(&egress, issuer).await {
            let code = match error.kind {
                OAuthErrorKind::Unavailable => Code::IssuerUnreachable,
                _ => Code::IssuerWrong,
            };
            outcome.add(
                code,
                format!("issuer {issuer:?} of CHATELAINE_SIGN_IN: {error}"),
                "write the issuer exactly as its metadata say it, and let this machine reach it",
            );
        }
    }
    outcome
}
