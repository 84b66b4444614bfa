//! `chatelaine policy test`: what the rules of packs would do with the examples of a file, or with the calls that a
//! tenant has kept. No server is called.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{keys, serve};
use crate::app::{
    accounts::find_tenant,
    platform::replicas,
    tools::{
        kept_calls::{self, KeptCall},
        policy_trials::{judge, judge_example, judged},
    },
};
use domain::{
    clock::Clock,
    config::{Config, Environment},
    ids::AgentId,
    pack::Pack,
    policy::{
        PolicyDigest,
        trial::{Trial, Verdict},
    },
};
use packs::{Example, Expected, PackSnapshot, PackStore};
use store::{Db, kept_calls::Selection};
use terminal::print_line;

/// Kept calls read at once.
const PAGE: i64 = 500;
/// The most calls of an agent that are judged.
const MAX_CALLS: usize = 100_000;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say what would become of calls, and which rule decides. Fails when an example becomes something else than it
    /// expects.
    Test(Args),
    /// Say which rules of an agent count while replicas have different ones. It holds while a replica has them.
    Settle {
        #[arg(value_parser = AgentId::parse)]
        agent: AgentId,
        /// The digest of the rules, as the doctor, the log and `GET /v1/admin/replicas` show it.
        #[arg(value_parser = parse_digest)]
        digest: PolicyDigest,
    },
}

fn parse_digest(text: &str) -> Result<PolicyDigest, String> {
    PolicyDigest::parse(text)
        .ok_or_else(|| "write the 64 hexadecimal digits of the rules".to_owned())
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file of examples.
    #[arg(required_unless_present = "calls")]
    file: Option<PathBuf>,
    /// A folder of packs, one pack's folder, or its file; `CHATELAINE_PACKS` unless given.
    #[arg(long)]
    packs: Option<PathBuf>,
    /// Judge the calls that the tenant has kept, of so many days: `30d`.
    #[arg(long, value_name = "DAYS", value_parser = parse_days, requires = "tenant", conflicts_with = "file")]
    calls: Option<u16>,
    #[arg(long, requires = "calls")]
    tenant: Option<String>,
    /// Only the calls at this agent.
    #[arg(long, requires = "calls", value_parser = AgentId::parse)]
    agent: Option<AgentId>,
}

fn parse_days(text: &str) -> Result<u16, String> {
    let days = text.strip_suffix('d').unwrap_or(text).parse().ok();
    days.filter(|days| (1..=366).contains(days))
        .ok_or_else(|| "write a number of days from 1 to 366: `30d`".to_owned())
}

pub async fn run(command: Command, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let args = match command {
        Command::Test(args) => args,
        Command::Settle { agent, digest } => {
            let settle = async |db| Ok(replicas::settle_policy(&db, None, &agent, digest).await?);
            serve::with_database(config, env, settle).await?;
            print_line(&format!("the rules {digest} count for {agent} now"));
            return Ok(ExitCode::SUCCESS);
        }
    };
    let folder = args.packs.as_ref().unwrap_or(&config.packs);
    let packs = PackStore::load(folder, env, config.mcp_servers.as_ref())?.snapshot();
    if let Some(file) = &args.file {
        return test_examples(file, &packs);
    }
    let work = async |db| test_calls(&args, &packs, &db, config, &mut io::stdout()).await;
    serve::with_database(config, env, work).await?;
    Ok(ExitCode::SUCCESS)
}

fn test_examples(file: &Path, packs: &PackSnapshot) -> anyhow::Result<ExitCode> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let examples = packs::read_examples(&file.to_string_lossy(), &text, None)
        .map_err(|report| anyhow::anyhow!("the examples are not understood\n{report}"))?;
    let mut failed = 0;
    for example in &examples {
        let problem = match find_pack(packs, &example.agent) {
            Ok(pack) => test_example(pack, example),
            Err(problem) => Some(problem),
        };
        if let Some(problem) = problem {
            failed += 1;
            let line = example.at.line;
            let Example {
                server,
                tool,
                arguments,
                ..
            } = example;
            print_line(&format!(
                "{}:{line}: {server} {tool} {arguments}\n  {problem}",
                file.display()
            ));
        }
    }
    let plural =
        |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let all = plural(examples.len(), "example");
    print_line(&match failed {
        0 => format!("{all}: all as expected"),
        failed => format!("{all}: {failed} not as expected"),
    });
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn find_pack<'p>(packs: &'p PackSnapshot, agent: &AgentId) -> Result<&'p Pack, String> {
    let pack = packs.get(agent).map(AsRef::as_ref);
    pack.ok_or_else(|| format!("there is no pack {agent}"))
}

/// How an example differs from what it expects, if it does.
fn test_example(pack: &Pack, example: &Example) -> Option<String> {
    match judge_example(pack, example, Clock::System.now()) {
        Ok((_, true)) => None,
        Ok((verdict, false)) => {
            let expected = describe(&example.expected);
            Some(format!("expected: {expected}\n  but {verdict}"))
        }
        Err(problem) => Some(problem.to_string()),
    }
}

fn describe(expected: &Expected) -> String {
    match expected {
        Expected::Allow => "it is made".to_owned(),
        Expected::Approve { roles, votes } => {
            let roles = roles.as_ref().map(|roles| {
                let roles: Vec<_> = roles.iter().map(String::as_str).collect();
                format!(" for {}", roles.join(", "))
            });
            let votes = votes.map(|votes| format!(" ({votes} votes)"));
            format!(
                "it waits{}{}",
                roles.unwrap_or_default(),
                votes.unwrap_or_default()
            )
        }
        Expected::Confirm => "it waits for the user's own confirmation".to_owned(),
        Expected::Deny { reason } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}"));
            format!("it is refused{}", reason.unwrap_or_default())
        }
    }
}

/// Prints the kept calls that would not just be made, and how many there are of each kind.
pub async fn test_calls(
    args: &Args,
    packs: &PackSnapshot,
    db: &Db,
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let tenant = find_tenant(db, args.tenant.as_deref().unwrap_or_default()).await?;
    if tenant.retention.call_arguments.is_none() {
        writeln!(
            out,
            "tenant {} does not keep the arguments of calls; `retention.call_arguments` of the tenant says for how many days",
            tenant.name
        )?;
    }
    let keys = keys::open(db, config)?;
    let days = args.calls.unwrap_or_default();
    let (mut trials, mut counts) = (BTreeMap::new(), [0_usize; 4]);
    let mut which = Selection {
        agent: args.agent.as_ref(),
        user: None,
        since: Clock::System.now() - time::Duration::days(days.into()),
        after: None,
        before: None,
        limit: PAGE,
    };
    loop {
        let page = kept_calls::list(db, &keys, tenant.id, which).await?;
        for call in &page.calls {
            let trial = trials
                .entry(call.agent.to_string())
                .or_insert_with(Trial::default);
            let verdict = find_pack(packs, &call.agent).and_then(|pack| {
                let verdict = judge(trial, pack, &pack.vars, &judged(call));
                verdict.map_err(|problem| problem.to_string())
            });
            let count = match &verdict {
                Ok(Verdict::Allow | Verdict::AllowAsApprover) => 0,
                Ok(Verdict::Approve { .. } | Verdict::Confirm { .. }) => 1,
                Ok(Verdict::Refuse { .. } | Verdict::Deny(_)) => 2,
                Err(_) => 3,
            };
            counts[count] += 1;
            if count > 0 {
                writeln!(out, "{}", describe_call(call, &verdict)?)?;
            }
        }
        which.after = page.next;
        if page.next.is_none() {
            break;
        }
        if counts.iter().sum::<usize>() >= MAX_CALLS {
            writeln!(
                out,
                "these are the first {MAX_CALLS} calls; name an --agent or fewer days"
            )?;
            break;
        }
    }
    let [made, waiting, refused, unknown] = counts;
    write!(
        out,
        "{} calls: {made} made, {waiting} waiting, {refused} refused",
        counts.iter().sum::<usize>()
    )?;
    if unknown > 0 {
        write!(
            out,
            ", {unknown} at agents or servers that the packs do not have"
        )?;
    }
    writeln!(out)?;
    Ok(())
}

fn describe_call(call: &KeptCall, verdict: &Result<Verdict, String>) -> anyhow::Result<String> {
    let at = call
        .at
        .format(&time::format_description::well_known::Rfc3339)?;
    let what = match verdict {
        Ok(verdict) => verdict.to_string(),
        Err(problem) => problem.clone(),
    };
    let KeptCall {
        agent,
        server,
        tool,
        arguments,
        principal,
        ..
    } = call;
    Ok(format!(
        "{at} {} {agent} {server} {tool} {arguments}\n  {what}",
        principal.user
    ))
}
