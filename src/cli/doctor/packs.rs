//! The packs, and whether what they name is there: variables, servers, programs and models.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use url::Url;

use super::{
    super::check::{Place, find_obstacle},
    Installation, Outcome, REQUEST,
    settings::EGRESS_ALLOW,
};
use crate::app::platform::keys::replica_keys;
use domain::{
    finding::{Code, Finding},
    pack::{Llm, Pack, Provider},
    server::{Endpoint, Remote, ServerSpec},
};
use egress::{EgressError, ErrorKind, Limits, Request};
use llm::ModelError;
use packs::{PackStore, Problem, Report, Severity};

/// The packs as the start would load them; none where one of them is broken.
pub(super) struct LoadedPacks {
    pub report: Report,
    packs: Vec<Arc<Pack>>,
}

/// The limits of a request that only looks whether somebody is there.
const LIMITS: Limits = Limits {
    connect: std::time::Duration::from_secs(5),
    deadline: Some(REQUEST),
    idle: None,
    max_body: 64 * 1024,
    redirects: 0,
};

impl LoadedPacks {
    pub(super) fn load(here: &Installation) -> (Outcome, Self) {
        let mut outcome = Outcome::default();
        let (folder, servers) = (&here.config.packs, here.config.mcp_servers.as_ref());
        let report = packs::check(folder, &here.env, servers);
        let without_variables = packs::check_allowing_unset(folder, &here.env, servers);
        for problem in &report.problems {
            let code = match problem.severity {
                Severity::Fault | Severity::Warning => Code::PacksDoubtful,
                Severity::Error if without_variables.problems.contains(problem) => {
                    Code::PacksBroken
                }
                Severity::Error => Code::PacksVariable,
            };
            outcome.findings.push(finding(code, problem));
        }
        let loaded = PackStore::load(folder, &here.env, servers);
        let packs = loaded.map(|store| store.snapshot().packs().cloned().collect());
        let packs: Vec<Arc<Pack>> = packs.unwrap_or_default();
        if !report.is_ok() {
            outcome.skip("servers and models of packs", "packs do not load");
        }
        if here.has_readable_keys()
            && let Err(error) = replica_keys::require_ring(here.config.ring.as_ref(), packs.iter())
        {
            outcome.add(Code::KeysMissing, error.to_string(), "");
        }
        (outcome, Self { report, packs })
    }

    /// Opens a connection to each server that has an address, and looks for the program of each that has none. No tool
    /// is asked for.
    pub(super) async fn check_servers(&self, here: &Installation) -> Outcome {
        let mut outcome = Outcome::default();
        if here.faulty.contains(&EGRESS_ALLOW) {
            outcome.skip("servers of packs", "CHATELAINE_EGRESS_ALLOW cannot be read");
            return outcome;
        }
        // Servers at one origin share the answer.
        let mut origins: BTreeMap<String, (Url, Vec<String>)> = BTreeMap::new();
        for pack in &self.packs {
            for server in &pack.servers {
                let named = format!("server {} of pack {}", server.id, pack.id());
                let place = place_of(server);
                if let Some((message, hint)) = find_obstacle(&place, &here.egress, &here.config) {
                    let code = match place {
                        Place::Program(_) => Code::ServersCommand,
                        Place::Url(_) | Place::WebSocket(_) => Code::EgressRefused,
                    };
                    outcome.add(code, format!("{named}: {message}"), hint);
                    continue;
                }
                match place {
                    Place::Program(program) => {
                        if !is_program(&program, here.env.get("PATH")) {
                            outcome.add(
                                Code::ServersCommand,
                                format!("{named}: there is no program {program:?} here"),
                                "install it, or write the absolute path of it",
                            );
                        }
                    }
                    Place::Url(url) | Place::WebSocket(url) => {
                        let at = origins.entry(url.to_string());
                        at.or_insert((url, Vec::new())).1.push(named);
                    }
                }
            }
        }
        let asked = origins.into_values().map(async |(url, servers)| {
            let mut found = Outcome::default();
            let request = Request {
                limits: LIMITS,
                ..Request::get(with_http_scheme(url.clone()))
            };
            match here.egress.send(request).await {
                Ok(answer) => {
                    let date = answer.headers.get("date");
                    let date = date.and_then(|date| date.to_str().ok());
                    let date = date.and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
                    found.compare_clock(url.host_str().unwrap_or_default(), date);
                }
                Err(error) => found.findings.extend(explain(&error, &servers)),
            }
            found
        });
        for found in futures_util::future::join_all(asked).await {
            outcome.append(found);
        }
        outcome
    }

    /// Asks each endpoint of a model for its list of models.
    pub(super) async fn check_models(&self, here: &Installation) -> Outcome {
        let mut models: Vec<(&Llm, String)> = Vec::new();
        for pack in &self.packs {
            for llm in std::iter::once(&pack.llm).chain(&pack.llm.fallback) {
                let is_same = |other: &Llm| {
                    (
                        other.provider,
                        &other.base_url,
                        &other.api_key,
                        &other.model,
                    ) == (llm.provider, &llm.base_url, &llm.api_key, &llm.model)
                };
                let is_known = models.iter().any(|(other, _)| is_same(other));
                if llm.provider != Provider::None && !is_known {
                    models.push((llm, format!("model {} of pack {}", llm.model, pack.id())));
                }
            }
        }
        let asked = models.into_iter().map(async |(llm, named)| {
            let mut found = Outcome::default();
            match llm::probe(&here.client, llm, REQUEST).await {
                Ok(answer) => {
                    let host = llm.base_url.as_ref().and_then(Url::host_str);
                    found.compare_clock(host.unwrap_or("the model's provider"), answer.date);
                    if answer.has_model == Some(false) {
                        found.add(
                            Code::ModelUnknown,
                            format!("{named}: the endpoint does not list it"),
                            "check `llm.model`; the list of the provider has its names",
                        );
                    }
                }
                // It is there and takes the key.
                Err(ModelError::RateLimited { .. }) => {}
                Err(error @ ModelError::Unauthorized(_)) => {
                    found.add(Code::ModelKey, format!("{named}: {error}"), "");
                }
                Err(error) => found.add(
                    Code::ModelUnreachable,
                    format!("{named}: {error}"),
                    "check `llm.baseUrl`, and that this machine reaches it",
                ),
            }
            found
        });
        let mut outcome = Outcome::default();
        for found in futures_util::future::join_all(asked).await {
            outcome.append(found);
        }
        outcome
    }
}

/// A problem of a pack as `check` says it, without the line of its source.
pub(super) fn finding(code: Code, problem: &Problem) -> Finding {
    let mut message = problem.file.clone();
    if let Some(at) = problem.at {
        message += &format!(":{}:{}", at.line, at.column);
    }
    if !problem.path.is_empty() {
        message += &format!(": {}", problem.path);
    }
    message += &format!(": {}", problem.message);
    Finding::new(code, message, problem.hint.clone().unwrap_or_default())
}

/// Where a server is; of an address only the origin, since the rest may hold secrets.
fn place_of(server: &ServerSpec) -> Place {
    match &server.endpoint {
        Endpoint::Stdio { command, .. } => Place::Program(command.clone()),
        Endpoint::Remote { transport, url, .. } => {
            let mut origin = url.clone();
            origin.set_path("");
            origin.set_query(None);
            origin.set_fragment(None);
            match transport {
                Remote::WebSocket => Place::WebSocket(origin),
                Remote::StreamableHttp | Remote::Sse => Place::Url(origin),
            }
        }
    }
}

/// The address at which a WebSocket's server answers HTTP.
fn with_http_scheme(url: Url) -> Url {
    let text = url.as_str();
    let changed = text
        .strip_prefix("ws")
        .and_then(|rest| Url::parse(&format!("http{rest}")).ok());
    changed.unwrap_or(url)
}

/// Why servers cannot be reached; `None` if they can, whatever they answered.
fn explain(error: &EgressError, servers: &[String]) -> Option<Finding> {
    let (code, remedy) = match &error.kind {
        ErrorKind::Rejected(_) | ErrorKind::PrivateAddress { .. } => (
            Code::EgressRefused,
            "use a public address, or name the host in CHATELAINE_EGRESS_ALLOW",
        ),
        ErrorKind::Unresolved { .. } => (
            Code::EgressUnresolved,
            "check the host name, and the resolver of this machine",
        ),
        ErrorKind::Connect { .. } | ErrorKind::ConnectTimeout { .. } => (
            Code::EgressUnreachable,
            "check that the server runs, and that a firewall lets this machine reach it",
        ),
        ErrorKind::Tls { .. } => (
            Code::EgressTls,
            "let the server have a certificate that this machine trusts (SSL_CERT_FILE names others); http:// needs CHATELAINE_EGRESS_ALLOW",
        ),
        _ => return None,
    };
    let servers = servers.join(", ");
    Some(Finding::new(code, format!("{servers}: {error}"), remedy))
}

/// Whether a program is there to be started.
fn is_program(program: &str, path: Option<&str>) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let mut folders = path.unwrap_or_default().split(':');
    folders.any(|folder| Path::new(folder).join(program).is_file())
}
