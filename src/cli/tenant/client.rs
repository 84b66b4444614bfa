//! `chatelaine tenant client`: lists and forgets the OAuth clients that the service registered for a tenant's users.

use std::io::Write;

use crate::app::{
    accounts::find_tenant,
    servers::oauth::{forget_clients_of, list_clients_of},
};
use store::Db;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the clients that were registered at authorization servers
    List { tenant: String },
    /// Forget the clients of an issuer: another one is registered at the next sign-in
    Forget { tenant: String, issuer: String },
}

pub(super) async fn run(
    command: Command,
    db: &Db,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    match command {
        Command::List { tenant } => {
            let tenant = find_tenant(db, &tenant).await?;
            for client in list_clients_of(db, tenant.id).await? {
                let unknown = client
                    .unknown_since
                    .map_or("", |_| ", not known there any more");
                writeln!(
                    out,
                    "{}  {}  registered {}{unknown}",
                    client.issuer,
                    client.redirect_uri,
                    client.registered_at.date()
                )?;
            }
        }
        Command::Forget { tenant, issuer } => {
            let found = find_tenant(db, &tenant).await?;
            let count = forget_clients_of(db, found.id, &issuer).await?;
            anyhow::ensure!(
                count > 0,
                "no client of tenant {tenant:?} is registered at {issuer}; `chatelaine tenant client list {tenant}` shows those that are"
            );
            writeln!(
                out,
                "forgotten; another client is registered at the next sign-in, and the sign-ins of the old one stay"
            )?;
        }
    }
    Ok(())
}
