//! `chatelaine credentials`: what an operator does about stored credentials of users. No command prints one.

use std::io::Write;

use crate::app::{
    accounts::find_tenant,
    platform::keys::{Keys, retry_quarantined},
};
use domain::account::Tenant;
use store::Db;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Try to open the credentials again that were put aside because they could not be opened, after their rows or keys
    /// were restored
    Retry {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
    },
}

pub async fn run(
    command: Command,
    db: &Db,
    keys: &Keys,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let Command::Retry { tenant } = command;
    let tenants: Vec<Tenant> = match tenant {
        Some(name) => vec![find_tenant(db, &name).await?],
        None => store::tenants::list(&mut db.system().await?).await?,
    };
    let (mut tried, mut active) = (0, 0);
    for tenant in tenants {
        let retried = retry_quarantined(keys, tenant.id).await?;
        if retried.tried > 0 {
            let name = &tenant.name;
            writeln!(
                out,
                "{name}: {} of {} quarantined credentials are active again",
                retried.active, retried.tried
            )?;
        }
        tried += retried.tried;
        active += retried.active;
    }
    writeln!(
        out,
        "{active} of {tried} quarantined credentials are active again"
    )?;
    if active < tried {
        writeln!(
            out,
            "the others still cannot be opened: restore their rows, or let their users enter them again"
        )?;
    }
    Ok(())
}
