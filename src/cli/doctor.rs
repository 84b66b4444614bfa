//! `chatelaine doctor`: says what is wrong with an installation before its users notice. It asks with the code that
//! `serve` starts with, so that both say the same. It changes nothing: it starts no Postgres, applies no migration and
//! writes no row.
//!
//! The checks run side by side, each within a deadline. One that cannot be made is named with the reason.

mod address;
mod database;
mod packs;
mod settings;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;
use time::OffsetDateTime;

use self::{packs::LoadedPacks, settings::Settings};
use super::process_limits;
use domain::{
    clock,
    config::{Config, Environment},
    finding::{Code, Finding, Severity},
};
use egress::Egress;

/// The longest time of a check.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest time of one request of a check.
const REQUEST: Duration = Duration::from_secs(8);
/// Clocks of other machines, which are told in whole seconds and may be cached, are not off before this.
const MAX_DIFFERENCE: time::Duration = time::Duration::seconds(60);

#[derive(clap::Args)]
pub struct Args {
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// The variables of the keys.
const KEYS: [&str; 2] = ["MCP_CONFIG_ENCRYPTION_KEY", "MCP_CONFIG_ENCRYPTION_KEYS"];

/// What the checks look at.
struct Installation {
    /// The settings, without those that cannot be used.
    config: Config,
    /// The variables without the secrets of the program.
    env: Environment,
    /// The variables whose values cannot be used.
    faulty: Vec<&'static str>,
    egress: Egress,
    /// The client for addresses that the operator named.
    client: reqwest::Client,
}

impl Installation {
    /// Whether the keys could be read from the settings. Otherwise nothing can be said of them but that.
    fn has_readable_keys(&self) -> bool {
        !KEYS.iter().any(|name| self.faulty.contains(name))
    }
}

/// What checks found, and which could not be made.
#[derive(Default, Serialize)]
struct Outcome {
    findings: Vec<Finding>,
    skipped: Vec<Skipped>,
}

#[derive(Serialize)]
struct Skipped {
    check: &'static str,
    because: String,
}

impl Outcome {
    fn add(&mut self, code: Code, message: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding::new(code, message, remedy));
    }

    fn skip(&mut self, check: &'static str, because: impl Into<String>) {
        let because = because.into();
        self.skipped.push(Skipped { check, because });
    }

    fn append(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.skipped.extend(other.skipped);
    }

    /// Compares the clock of this machine with that of a host.
    fn compare_clock(&mut self, host: &str, there: Option<OffsetDateTime>) {
        let Some(there) = there else { return };
        let behind = there - clock::machine_time();
        if behind.abs() > MAX_DIFFERENCE {
            let difference = clock::describe(behind);
            self.add(
                Code::ClockHttp,
                format!("the clock of this machine is {difference} that of {host}"),
                "let both follow a time server; tokens and sign-ins are refused when they differ",
            );
        }
    }
}

/// Checks everything and prints what was found. The status: 0 nothing, 1 warnings, 2 errors.
pub async fn run(args: &Args, env: Environment) -> ExitCode {
    process_limits::disable_core_dumps();
    let mut outcome = Box::pin(check(env)).await;
    outcome.findings.sort_by_key(|finding| finding.code);
    outcome.findings.dedup();
    match print(&outcome, args.json) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            let _ = writeln!(io::stderr(), "chatelaine: {error}");
        }
    }
    let worst = outcome
        .findings
        .iter()
        .map(|finding| finding.severity)
        .min();
    ExitCode::from(match worst {
        None => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Error) => 2,
    })
}

async fn check(env: Environment) -> Outcome {
    let Settings {
        config,
        mut outcome,
        faulty,
    } = Settings::read(&env);
    let clients = Egress::with_tenant_list(&config.egress_allow, &config.tenant_egress_allow)
        .and_then(|egress| Ok((egress, egress::operator_client()?)));
    let (egress, client) = match clients {
        Ok(clients) => clients,
        Err(why) => {
            outcome.add(Code::EgressTls, why, "install ca-certificates");
            outcome.skip("everything else", "no request can be made without them");
            return outcome;
        }
    };
    let installation = Installation {
        config,
        env: env.without_keys(),
        faulty,
        egress,
        client,
    };
    let here = &installation;
    let (found, packs) = LoadedPacks::load(here);
    outcome.append(found);
    let checks = tokio::join!(
        in_time("database", database::check(here, &packs)),
        in_time("servers of packs", packs.check_servers(here)),
        in_time("models", packs.check_models(here)),
        in_time("sign-in", address::check_sign_in(here)),
        in_time("addresses", address::check(here)),
        in_time("collector of traces", address::check_collector(here)),
    );
    outcome.append(settings::check_machine(here));
    for found in <[Outcome; 6]>::from(checks) {
        outcome.append(found);
    }
    outcome
}

/// The outcome of a check, or that it took too long.
async fn in_time(check: &'static str, work: impl Future<Output = Outcome>) -> Outcome {
    tokio::time::timeout(DEADLINE, work)
        .await
        .unwrap_or_else(|_| {
            let mut outcome = Outcome::default();
            outcome.add(
                Code::DoctorTime,
                format!("the check of {check} did not end within {} seconds", DEADLINE.as_secs()),
                "look for what keeps it waiting: a firewall that drops packets, or a machine that is overloaded",
            );
            outcome
        })
}

fn print(outcome: &Outcome, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        return writeln!(out, "{}", serde_json::to_string_pretty(outcome)?);
    }
    for finding in &outcome.findings {
        writeln!(out, "{finding}")?;
    }
    for Skipped { check, because } in &outcome.skipped {
        writeln!(out, "skipped: {check}, because {because}")?;
    }
    let count = |severity| {
        let of_it = outcome
            .findings
            .iter()
            .filter(|one| one.severity == severity);
        of_it.count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    writeln!(
        out,
        "errors: {errors}, warnings: {warnings}, skipped: {}; docs/doctor.md explains each code",
        outcome.skipped.len()
    )
}
