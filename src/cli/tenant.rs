//! `chatelaine tenant`: manages tenants, their issuers and their keys. It is for operators: whoever has access to the
//! database may use it.

mod client;
mod issuer;
mod key;

use std::io::Write;

use crate::app::accounts::{
    TenantChange, add_tenant, change_tenant, find_tenant, list_tenants, remove_tenant,
};
use domain::{
    clock::Clock,
    ids::{AgentId, ReplicaId, TenantId},
};
use store::{Db, hints::Hint};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Add a tenant
    Add {
        /// Lower-case letters, digits and `-`
        name: String,
        /// The agents that serve it; without this every one does
        #[arg(long, value_delimiter = ',', value_parser = AgentId::parse)]
        agents: Option<Vec<AgentId>>,
        /// Let people without a token ask for a guest's
        #[arg(long)]
        guests: bool,
    },
    /// List tenants
    List,
    /// Refuse a tenant's tokens and keys, and stop what runs for it; everything is kept
    Suspend { name: String },
    /// Take a suspended tenant's tokens and keys again
    Resume { name: String },
    /// Remove a tenant with all its conversations, issuers, keys and audit
    Remove {
        name: String,
        /// Confirm: nothing of the tenant can be brought back
        #[arg(long)]
        yes: bool,
    },
    /// Manage who may vouch for a tenant's users
    #[command(subcommand)]
    Issuer(issuer::Command),
    /// Manage the OAuth clients that were registered for a tenant's users
    #[command(subcommand)]
    Client(client::Command),
    /// Manage the keys of programs and frontends
    #[command(subcommand)]
    Key(key::Command),
}

pub async fn run(
    command: Command,
    db: &Db,
    clock: &Clock,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    match command {
        Command::Add {
            name,
            agents,
            guests,
        } => {
            let tenant = add_tenant(db, clock, &name, agents, guests).await?;
            writeln!(out, "tenant {} added ({})", tenant.name, tenant.id)?;
        }
        Command::List => {
            for tenant in list_tenants(db).await? {
                let agents = tenant
                    .agents
                    .map_or_else(|| "every agent".to_owned(), |agents| agents.join(", "));
                let guests = if tenant.guests { ", guests" } else { "" };
                let suspended = if tenant.suspended_at.is_some() {
                    ", suspended"
                } else {
                    ""
                };
                writeln!(
                    out,
                    "{}  {}  {agents}{guests}{suspended}",
                    tenant.id, tenant.name
                )?;
            }
        }
        Command::Suspend { name } => suspend(&name, true, db, clock, out).await?,
        Command::Resume { name } => suspend(&name, false, db, clock, out).await?,
        Command::Remove { name, yes } => {
            let tenant = find_tenant(db, &name).await?;
            anyhow::ensure!(
                yes,
                "tenant {name:?} would be removed with everything it has; confirm with --yes"
            );
            remove_tenant(db, tenant.id).await?;
            hint_replicas(db, tenant.id).await?;
            writeln!(out, "tenant {name} removed")?;
        }
        Command::Issuer(command) => issuer::run(command, db, out).await?,
        Command::Client(command) => client::run(command, db, out).await?,
        Command::Key(command) => key::run(command, db, clock, out).await?,
    }
    Ok(())
}

async fn suspend(
    name: &str,
    suspended: bool,
    db: &Db,
    clock: &Clock,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let change = TenantChange {
        suspended: Some(suspended),
        ..TenantChange::default()
    };
    let (tenant, changed) = change_tenant(db, clock, name, change).await?;
    hint_replicas(db, tenant.id).await?;
    let (state, before) = (
        if suspended { "suspended" } else { "active" },
        if changed { "" } else { " already" },
    );
    writeln!(
        out,
        "tenant {name} is {state}{before}; replicas follow within seconds"
    )?;
    Ok(())
}

/// Tells the replicas that a tenant has changed.
async fn hint_replicas(db: &Db, tenant: TenantId) -> anyhow::Result<()> {
    Ok(db
        .send_hints(ReplicaId::new(), &[Hint::Tenant { tenant }])
        .await?)
}
