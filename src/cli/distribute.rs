//! `chatelaine distribute`: spreads the tables over the nodes of a Citus cluster, or says what that would do.

use std::{io::Write, process::ExitCode};

use domain::config::Config;
use store::shards::{self, Placement, Plan};

/// What the command ends with when tables are not where they belong.
const PENDING: u8 = 2;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub struct Args {
    /// Say where each table belongs, and what is in the way; change nothing. The exit code is 2 when there is something
    /// to do
    #[arg(long, group = "what")]
    dry_run: bool,
    /// Do it, in one transaction, while no replica runs
    #[arg(long, group = "what")]
    apply: bool,
    /// Into how many shards the tenants are spread; more than there will ever be nodes
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: u32,
}

pub async fn run(
    args: Args,
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<ExitCode> {
    let Some(url) = &config.database_url else {
        anyhow::bail!("set DATABASE_URL to the coordinator of a Citus cluster");
    };
    let plan = if args.apply {
        shards::distribute(url, args.shards).await?
    } else {
        shards::plan(url).await?
    };
    print_plan(&plan, out)?;
    anyhow::ensure!(
        plan.obstacles.is_empty(),
        "nothing was moved: {}",
        plan.obstacles.join("; ")
    );
    Ok(if args.apply || plan.pending().next().is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(PENDING)
    })
}

fn print_plan(plan: &Plan, out: &mut impl Write) -> std::io::Result<()> {
    for placement in [
        Placement::Distributed,
        Placement::Reference,
        Placement::Local,
    ] {
        let names = |pending: bool| {
            let there = plan.tables.iter().filter(move |table| {
                table.belongs == placement && (table.is != placement) == pending
            });
            let names: Vec<&str> = there.map(|table| table.name.as_str()).collect();
            names.join(" ")
        };
        for (state, names) in [("", names(false)), (", to be moved", names(true))] {
            if !names.is_empty() {
                writeln!(out, "{placement}{state}: {names}")?;
            }
        }
    }
    Ok(())
}
