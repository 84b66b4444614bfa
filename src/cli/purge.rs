//! `chatelaine purge`: deletes rows that are older than their retention, or prints how many these are. It is for
//! operators: whoever has access to the database may use it.

use std::io::Write;

use crate::app::platform::retention::{self, OldRows};
use domain::{audit::OPERATOR, retention::Days};
use store::Db;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

/// Prints a line for each tenant and kind of row.
pub async fn run(
    args: Args,
    db: &Db,
    settings: &Days,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let only = args.tenant.as_deref();
    let (found, what) = if args.dry_run {
        (
            retention::preview(db, settings, only).await?,
            "would be purged",
        )
    } else {
        let purged = retention::purge(db, settings, only, OPERATOR).await?;
        (purged, "purged")
    };
    if found.is_empty() {
        writeln!(out, "nothing is older than it is to be kept")?;
    }
    for OldRows {
        tenant,
        kind,
        days,
        rows,
    } in found
    {
        let kind = kind.name();
        writeln!(out, "{tenant}: {rows} {kind} older than {days} days {what}")?;
    }
    Ok(())
}
