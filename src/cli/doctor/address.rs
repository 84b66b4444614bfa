//! Where the service listens, where people reach it, and where they sign in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{
    StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE},
};
use url::{Host, Url};

use super::{super::serve, Installation, Outcome, REQUEST};
use domain::{config::Traces, finding::Code};
use egress::Egress;
use mcp::oauth::{self, OAuthErrorKind};

/// What `/healthz` says.
const ALIVE: &str = "ok";

/// Who answers at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answers {
    /// A service like this one.
    Service,
    Somebody,
    /// TLS fails, for this reason.
    Untrusted(String),
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
    check_public_url(here, &local, &mut outcome).await;
    outcome
}

async fn check_public_url(here: &Installation, local: &Answers, outcome: &mut Outcome) {
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
        Answers::Untrusted(why) => outcome.add(
            Code::UrlTls,
            format!("TLS with {url} of CHATELAINE_PUBLIC_URL fails: {why}"),
            "renew the certificate of the proxy; SSL_CERT_FILE names an authority of your own",
        ),
        Answers::Nobody if *local == Answers::Service => outcome.add(
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
    let asked = here.client.get(format!("{base}/healthz"));
    // A proxy may pass an answer on in pieces, and must not compress this one.
    let asked = asked.header(ACCEPT_ENCODING, "identity").send();
    let mut answer = match tokio::time::timeout(REQUEST, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return egress::tls_failure(&error).map_or(Answers::Nobody, Answers::Untrusted);
        }
        Err(_) => return Answers::Nobody,
    };
    let status = answer.status();
    if status.is_server_error() {
        return Answers::Nobody;
    }
    if !status.is_success() {
        return Answers::Somebody;
    }
    if answer.headers().contains_key(CONTENT_ENCODING) {
        // It compresses all the same. Nothing says that the service does not stand behind it.
        return Answers::Service;
    }
    // Another may send without an end.
    let mut body = Vec::new();
    while body.len() <= ALIVE.len() {
        match tokio::time::timeout(REQUEST, answer.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None)) => break,
            _ => return Answers::Somebody,
        }
    }
    if body == ALIVE.as_bytes() {
        Answers::Service
    } else {
        Answers::Somebody
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

/// Sends an empty batch of spans to the collector, as `serve` sends full ones.
pub(super) async fn check_collector(here: &Installation) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(Traces {
        endpoint, headers, ..
    }) = here.config.traces()
    else {
        return outcome;
    };
    let mut asked = here
        .client
        .post(endpoint.expose())
        .header(CONTENT_TYPE, "application/x-protobuf");
    for (name, value) in &headers {
        asked = asked.header(name, value.expose());
    }
    let host = Url::parse(endpoint.expose()).ok();
    let host = host.as_ref().and_then(Url::host_str).unwrap_or_default();
    let refused = match tokio::time::timeout(REQUEST, asked.send()).await {
        Ok(Ok(answer)) => match answer.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                Some(format!("refuses traces with {status}"))
            }
            status if status.is_server_error() => Some(format!("answers {status}")),
            _ => None,
        },
        Ok(Err(error)) => Some(egress::tls_failure(&error).map_or_else(
            || "does not answer".to_owned(),
            |why| format!("cannot be reached by TLS: {why}"),
        )),
        Err(_) => Some("does not answer in time".to_owned()),
    };
    if let Some(why) = refused {
        outcome.add(
            Code::TracesUnreachable,
            format!("the collector of traces at {host} {why}, so traces are lost"),
            "check OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS; unset the former to have no traces",
        );
    }
    outcome
}
