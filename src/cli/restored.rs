//! `chatelaine restored`: after the database was restored to an earlier time, and before any replica starts, ends what
//! was open then, and deletes again whom a list outside of the database names.

use std::{io::Write, path::PathBuf};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::app::runs::{deletions, restored};
use store::Db;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The time that the database was restored to, such as 2026-11-21T12:00:00Z
    #[arg(long, value_parser = parse_time, required_unless_present = "same_data")]
    at: Option<OffsetDateTime>,
    /// Nothing that was done is missing: the database was moved or upgraded, or a standby took over. Nothing is ended
    #[arg(long, conflicts_with_all = ["at", "deletions"])]
    same_data: bool,
    /// The file that `CHATELAINE_DELETIONS_FILE` names; of several replicas with files of their own, each of them
    #[arg(long)]
    deletions: Vec<PathBuf>,
}

fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "a time is written like 2026-11-21T12:00:00Z".to_owned())
}

pub async fn run(args: Args, db: &Db, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let Some(at) = args.at else {
        restored::confirm_same_data(db).await?;
        writeln!(out, "replicas can start with this database")?;
        return Ok(());
    };
    let mut deletions = Vec::new();
    for list in &args.deletions {
        deletions.extend(deletions::read_since(list, at)?);
    }
    let done = restored::settle(db, at, &deletions).await?;
    writeln!(
        out,
        "requests for approval that cannot be approved any more: {}",
        done.requests
    )?;
    writeln!(out, "runs that end at the next start: {}", done.runs)?;
    writeln!(
        out,
        "questions of servers that cannot be answered any more: {}",
        done.questions
    )?;
    writeln!(out, "users who were deleted once more: {}", done.users)?;
    for (user, error) in &done.left {
        writeln!(out, "{user:?} is not deleted once more: {error}")?;
    }
    if done.unknown_tenants > 0 {
        writeln!(
            out,
            "deletions in tenants that are not here: {}",
            done.unknown_tenants
        )?;
    }
    if args.deletions.is_empty() {
        writeln!(
            out,
            "no list of deletions was given: users who were deleted after that time are here again"
        )?;
    }
    anyhow::ensure!(
        done.left.is_empty(),
        "start the replicas, and delete the users named above with `chatelaine user delete`"
    );
    Ok(())
}
