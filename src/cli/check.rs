//! `chatelaine check [path]`: prints the problems of packs, and how they were understood. `serve` loads packs with the
//! same code. No server is called: `smoke` prints the tools of a server, and what a model is told of them. Conditions of
//! rules are compared with the lists of tools that the database of `DATABASE_URL` keeps.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use url::Url;

use crate::app::accounts;
use domain::{
    config::{Config, Environment},
    ids::{AgentId, ServerId},
    owner::CatalogOwner,
    tool::{Catalog, Tool},
};
use egress::Egress;
use packs::{KnownTools, PackSummary, Problem, Report, ServerSummary, Severity, compare_rules};
use store::Db;
use terminal::print_line;

#[derive(clap::Args)]
pub struct Args {
    /// A folder of packs, one pack's folder, or its file; `CHATELAINE_PACKS` unless given.
    path: Option<PathBuf>,
    /// Leave variables open that are not set here, for a machine without the operator's environment.
    #[arg(long)]
    allow_unset: bool,
    /// Print the problems as JSON.
    #[arg(long)]
    json: bool,
}

/// The last line of the report: what this command does not check.
const ASK_SMOKE: &str = "tools are not looked at here: `chatelaine smoke <pack>` asks the servers, and says what the model is told \
     otherwise of a tool's arguments";

fn has_servers(pack: &PackSummary) -> bool {
    !pack.servers.is_empty()
}

/// Fails when a pack would not load, or a condition in it says neither yes nor no; warnings do not count.
pub async fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let path = args.path.as_ref().unwrap_or(&config.packs);
    let check = if args.allow_unset {
        packs::check_allowing_unset
    } else {
        packs::check
    };
    let mut report = check(path, env, config.mcp_servers.as_ref());
    let unreachable = warn_of_unreachable(&report, config)?;
    report.problems.extend(unreachable);
    let unseen = warn_of_unseen_claims(&report, config).await;
    report.problems.extend(unseen);
    let (known, unreadable) = read_known_tools(&report, config).await;
    report.problems.extend(unreadable);
    let compared = compare_rules(path, env, config.mcp_servers.as_ref(), &known);
    report.problems.extend(compared.problems);
    if args.json {
        print_line(&serde_json::to_string_pretty(&report)?);
    } else {
        for pack in &report.understood {
            print_line(&pack.to_string());
        }
        print_line(report.to_string().trim_end());
        if report.understood.iter().any(has_servers) {
            print_line(ASK_SMOKE);
        }
        for (agent, server) in &compared.unknown {
            print_line(&format!(
                "the rules of {agent} {server} are not compared with its tools: that needs a list of them in the database \
                 of DATABASE_URL"
            ));
        }
    }
    Ok(if report.errors() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A warning for each server that this installation refuses to start or to call. An address with a variable in it is
/// not judged before it is used.
fn warn_of_unreachable(report: &Report, config: &Config) -> anyhow::Result<Vec<Problem>> {
    let egress = Egress::new(&config.egress_allow).map_err(anyhow::Error::msg)?;
    let mut problems = Vec::new();
    for pack in &report.understood {
        let servers = pack.servers.iter().filter(|server| {
            let is_written_out = !server.at.contains("${") && !server.at.is_empty();
            is_written_out && server.transport != "registry"
        });
        problems.extend(servers.filter_map(|server| {
            let place = Place::of(server)?;
            let (message, hint) = find_obstacle(&place, &egress, config)?;
            let path = format!("server {}", server.id);
            Some(warning(pack.id.clone(), path, message, hint))
        }));
    }
    Ok(problems)
}

/// Where a server is.
pub(super) enum Place {
    Program(String),
    Url(Url),
    WebSocket(Url),
}

impl Place {
    fn of(server: &ServerSummary) -> Option<Self> {
        if server.transport == "stdio" {
            return Some(Self::Program(server.at.clone()));
        }
        let url = Url::parse(&server.at).ok()?;
        Some(if server.transport == "websocket" {
            Self::WebSocket(url)
        } else {
            Self::Url(url)
        })
    }
}

/// Why a server will not be started or called, and what to change.
pub(super) fn find_obstacle(
    place: &Place,
    egress: &Egress,
    config: &Config,
) -> Option<(String, String)> {
    let (url, refused, scheme) = match place {
        Place::Program(at) => {
            let is_known = at.starts_with('/') || config.stdio_commands.contains(at);
            let message = format!("the command {at:?} will not be started");
            let hint = "write an absolute path, or name the command in CHATELAINE_STDIO_COMMANDS";
            return (!is_known).then(|| (message, hint.to_owned()));
        }
        Place::Url(url) => (url, egress.check_url(url), "https"),
        Place::WebSocket(url) => (url, egress.check_socket_url(url), "wss"),
    };
    let message = format!("{url} will not be called: {}", refused.err()?);
    let hint =
        format!("use a public {scheme} address, or name the host in CHATELAINE_EGRESS_ALLOW");
    Some((message, hint))
}

/// Packs whose `rolesAttribute` is a claim that no recent token had, as far as the database of `DATABASE_URL` tells.
pub(super) async fn warn_of_unseen_claims(report: &Report, config: &Config) -> Vec<Problem> {
    let named = report.understood.iter();
    let named: Vec<_> = named
        .filter_map(|pack| Some((pack, pack.roles_attribute.as_deref()?)))
        .collect();
    let Some(url) = config.database_url.as_ref().filter(|_| !named.is_empty()) else {
        return Vec::new();
    };
    let ask = async {
        let db = Db::connect_to_read(url).await?;
        let mut problems = Vec::new();
        for (pack, claim) in named {
            if accounts::has_been_claimed(&db, claim).await? == Some(false) {
                problems.push(unseen_claim(pack, claim));
            }
        }
        anyhow::Ok(problems)
    };
    ask.await.unwrap_or_else(|error| {
        let message = format!("cannot ask which claims people came with: {error:#}");
        let hint = "unset DATABASE_URL to check the packs alone";
        vec![warning(
            "DATABASE_URL".to_owned(),
            String::new(),
            message,
            hint.to_owned(),
        )]
    })
}

/// The tools of the packs' servers, as far as the database of `DATABASE_URL` keeps a list of them, and a warning where it
/// cannot be asked. Lists that differ by user are not among them.
async fn read_known_tools(report: &Report, config: &Config) -> (KnownTools, Option<Problem>) {
    let Some(url) = &config.database_url else {
        return Default::default();
    };
    let servers = report.understood.iter().flat_map(|pack| {
        let servers = pack.servers.iter();
        servers.filter_map(|server| {
            let agent = AgentId::parse(&pack.id).ok()?;
            Some((agent, ServerId::parse(&server.id).ok()?))
        })
    });
    let ask = async {
        let db = Db::connect_to_read(url).await?;
        let mut known = KnownTools::new();
        for (agent, server) in servers {
            if let Some(tools) = find_kept_tools(&db, &agent, &server).await? {
                known.insert((agent, server), tools);
            }
        }
        anyhow::Ok(known)
    };
    match ask.await {
        Ok(known) => (known, None),
        Err(error) => {
            let message = format!("cannot ask for the tools of servers: {error:#}");
            let hint = "unset DATABASE_URL to check the packs alone";
            let file = "DATABASE_URL".to_owned();
            let problem = warning(file, String::new(), message, hint.to_owned());
            (KnownTools::new(), Some(problem))
        }
    }
}

/// The newest list of a server's tools that is kept for all tenants, or for one of them.
async fn find_kept_tools(
    db: &Db,
    agent: &AgentId,
    server: &ServerId,
) -> anyhow::Result<Option<Vec<Arc<Tool>>>> {
    let of_all = store::catalogs::get_of_all(&mut db.system().await?, agent, server).await?;
    if let Some(catalog) = of_all {
        return Ok(Some(catalog.tools));
    }
    let mut newest: Option<Catalog> = None;
    for tenant in accounts::list_tenants(db).await? {
        let mut tx = db.tenant(tenant.id).await?;
        let wanted = [(server.clone(), CatalogOwner::Shared)];
        for (catalog, _) in store::catalogs::list(&mut tx, agent, &wanted).await? {
            let at = newest.as_ref().map(|newest| newest.fetched_at);
            if at.is_none_or(|at| at < catalog.fetched_at) {
                newest = Some(catalog);
            }
        }
    }
    Ok(newest.map(|catalog| catalog.tools))
}

fn unseen_claim(pack: &PackSummary, claim: &str) -> Problem {
    warning(
        pack.id.clone(),
        "flows.authentication.rolesAttribute".to_owned(),
        format!(
            "no token of the last people had the claim `{claim}`, so the roles of the pack are nobody's"
        ),
        "decode a token and name the claim that holds the roles, or let the issuer send it"
            .to_owned(),
    )
}

fn warning(file: String, path: String, message: String, hint: String) -> Problem {
    Problem {
        severity: Severity::Warning,
        file,
        at: None,
        path,
        message,
        hint: Some(hint),
        excerpt: None,
    }
}
