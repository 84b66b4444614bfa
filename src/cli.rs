//! Layer 4: the commands of the program. Each file is one command: its arguments, and a `run` that reads the settings,
//! does the work through the layers below, and prints the result.

pub mod audit;
pub mod check;
pub mod credentials;
pub mod demo;
pub mod distribute;
pub mod doctor;
pub mod explain;
pub mod import;
pub mod keys;
mod launch_child;
pub mod migrate;
pub mod policy;
pub mod private_postgres;
mod process_limits;
pub mod purge;
pub mod restored;
pub mod serve;
pub mod smoke;
pub mod tenant;
pub mod token;
pub mod tools;
pub mod user;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::ParseError, fmt, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::api;
use domain::{
    clock::Clock,
    config::{Config, Environment},
    trace_context::TRACES,
};
use mcp::LAUNCH;
use terminal::print_line;

/// A multi-tenant chat backend that keeps the keys of its users' MCP servers.
#[derive(Parser)]
#[command(version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API. Without `DATABASE_URL` a private Postgres is started.
    Serve,
    /// Bring the schema up to date and end, or say what that would lock.
    Migrate(migrate::Args),
    /// Spread the tables over the nodes of a Citus cluster, by tenant, or say what that would do.
    Distribute(distribute::Args),
    /// Bring up the demo: a tenant with five users, a bank and notes to talk to, and what to try next.
    Demo(demo::Args),
    /// Talk to an agent in the terminal, through the public API.
    Chat(terminal::chat::Args),
    /// Sign in to a service at its OpenID Connect provider; `chatelaine chat` goes on as whom you signed in.
    Login(terminal::login::Args),
    /// End that sign-in, at the provider too.
    Logout(terminal::login::LogoutArgs),
    /// Say what is wrong with packs (file, line, path and remedy), and what was understood of them. No server is asked:
    /// `smoke` says what the tools are, and what the model is told otherwise of them.
    Check(check::Args),
    /// Say what is wrong with this installation: settings, database, keys, packs and what they need, addresses and limits.
    /// Changes nothing. Ends with 0 for nothing, 1 for warnings, 2 for errors.
    Doctor(doctor::Args),
    /// Print a pack in the native format, with where each value comes from; or, with `--user`, which tools somebody
    /// has at an agent and why not the others.
    Explain(explain::Args),
    /// Write a pack of another format as a native one.
    Import(import::Args),
    /// Say whether the servers of a pack can be reached, and which tools each role sees. A personal server that
    /// is named is tried with what you enter; nothing of that is kept.
    Smoke(smoke::Args),
    /// Say what the rules of packs would do with examples, or with the calls that a tenant keeps.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Make a token for development.
    Token(token::Args),
    /// Tenants, their issuers and their API keys.
    #[command(subcommand)]
    Tenant(tenant::Command),
    /// The key ring: what protects the credentials, and its rotation.
    #[command(subcommand)]
    Keys(keys::Command),
    /// Stored credentials of users: try those again that could not be opened.
    #[command(subcommand)]
    Credentials(credentials::Command),
    /// Say who did what in a tenant.
    Audit(Box<audit::Args>),
    /// A copy of all that is one user's, and its deletion.
    #[command(subcommand)]
    User(user::Command),
    /// Tools that their servers have changed or added: say how, and accept them.
    #[command(subcommand)]
    Tools(tools::Command),
    /// Delete what is older than it is to be kept, or say what that would be.
    Purge(purge::Args),
    /// End what was open in a database that was restored to an earlier time, before any replica starts.
    Restored(restored::Args),
    /// Print the OpenAPI document.
    Openapi {
        /// Only what the frontends of users call.
        #[arg(long, value_parser = ["user"])]
        audience: Option<String>,
    },
    /// Become a server that is a child of the service, with less than the service may.
    #[command(hide = true, name = LAUNCH)]
    LaunchChild(launch_child::Args),
}

/// Runs one command; a failure is one line on standard error that says what to do.
pub async fn run(cli: Cli) -> ExitCode {
    if let Command::LaunchChild(args) = &cli.command {
        return launch_child::run(args);
    }
    let env = Environment::from_process();
    if let Command::Doctor(args) = &cli.command {
        return Box::pin(doctor::run(args, env)).await;
    }
    let done = match Config::from_environment(&env) {
        Ok(mut config) => {
            config.launcher = launch_child::launcher();
            run_observed(cli.command, config, env.without_keys()).await
        }
        Err(reason) => Err(anyhow::anyhow!(reason)),
    };
    match done {
        Ok(code) => code,
        // The reader of the output has closed it, as in `chatelaine audit | head`.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "chatelaine: {}", describe(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes. A cause that the text before it ends with is not said again.
fn describe(error: &anyhow::Error) -> String {
    if let Some(text) = store::diagnosis::explain(error) {
        return text;
    }
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs a command with its log on standard error and, if it serves, with traces.
async fn run_observed(
    command: Command,
    config: Config,
    env: Environment,
) -> anyhow::Result<ExitCode> {
    let serves = matches!(command, Command::Serve | Command::Demo(_));
    let (exporter, layer) = match config.traces().filter(|_| serves) {
        Some(settings) => {
            let client = egress::operator_client().map_err(anyhow::Error::msg)?;
            let (exporter, layer) = telemetry::start(&settings, client)?;
            (Some(exporter), Some(layer))
        }
        None => (None, None),
    };
    log_to_stderr(&config, layer);
    let done = Box::pin(dispatch(command, config, env)).await;
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    done
}

async fn dispatch(command: Command, config: Config, env: Environment) -> anyhow::Result<ExitCode> {
    if matches!(
        command,
        Command::Serve
            | Command::Demo(_)
            | Command::Keys(_)
            | Command::Credentials(_)
            | Command::Smoke(_)
    ) {
        process_limits::disable_core_dumps();
    }
    match command {
        // `run` has handled these before it read the settings.
        Command::LaunchChild(args) => return Ok(launch_child::run(&args)),
        Command::Doctor(_) => {}
        Command::Serve => serve::run(config, env).await?,
        Command::Migrate(args) => {
            return migrate::run(args, &config, &env, &mut io::stdout()).await;
        }
        Command::Distribute(args) => {
            return distribute::run(args, &config, &mut io::stdout()).await;
        }
        Command::Demo(args) => demo::run(args, config, env).await?,
        Command::Chat(args) => return terminal::chat::run(args, &config, &env).await,
        Command::Login(args) => terminal::login::run(&args, &config, &env).await?,
        Command::Logout(args) => terminal::login::run_logout(&args, &config, &env).await?,
        Command::Check(args) => return check::run(&args, &config, &env).await,
        Command::Explain(args) => explain::run(&args, &config, &env).await?,
        Command::Import(args) => import::run(&args, &config, &env)?,
        Command::Smoke(args) => return smoke::run(&args, &config, &env).await,
        Command::Policy(command) => return policy::run(command, &config, &env).await,
        Command::Token(args) => {
            let data = config.data.clone();
            let run =
                async |db| token::run(args, &db, &Clock::System, &data, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Tenant(command) => {
            let run = async |db| tenant::run(command, &db, &Clock::System, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Keys(command) => {
            let run = async |db| keys::run(command, &db, &config, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Credentials(command) => {
            let run = async |db| {
                let keys = keys::open(&db, &config)?;
                credentials::run(command, &db, &keys, &mut io::stdout()).await
            };
            serve::with_database(&config, &env, run).await?;
        }
        Command::Audit(args) => {
            let run = async |db| audit::run(*args, &db, &Clock::System, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::User(command) => {
            let run = async |db| user::run(command, &db, &config, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Tools(command) => {
            let run = async |db| tools::run(command, &db, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Purge(args) => {
            let days = config.retention();
            let run = async |db| purge::run(args, &db, &days, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Restored(args) => {
            let run = async |db| restored::run(args, &db, &mut io::stdout()).await;
            serve::with_database(&config, &env, run).await?;
        }
        Command::Openapi { audience } => {
            let document = audience.map_or_else(api::openapi, |_| api::openapi_for_users());
            print_line(&serde_json::to_string_pretty(&document)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn log_filter(config: &Config) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(&config.log)
}

/// Logs to standard error. `traces` gets the spans that it exports.
fn log_to_stderr(config: &Config, traces: Option<Box<dyn Layer<Registry> + Send + Sync>>) {
    let mut filter = log_filter(config).unwrap_or_else(|_| EnvFilter::new("info"));
    if traces.is_none() {
        let off = format!("{TRACES}=off").parse();
        filter = filter.add_directive(off.expect("a target and a level are a directive"));
    }
    let lines = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let lines = if config.log_json {
        lines.json().boxed()
    } else {
        lines.boxed()
    };
    // A second subscriber in one process (tests) leaves the first in place.
    let _ = tracing_subscriber::registry()
        .with(traces)
        .with(lines.with_filter(filter))
        .try_init();
}
