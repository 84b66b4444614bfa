//! `chatelaine user`: blocks a user, copies or deletes all their data. It is for operators: whoever has access to the
//! database may use it.

use std::io::Write;

use tokio::sync::mpsc;

use crate::app::{
    accounts::{block_user, find_tenant, unblock_user},
    runs::user_data,
};
use domain::{
    audit::OPERATOR,
    config::Config,
    error::Result,
    ids::{ReplicaId, TenantId, UserId},
};
use store::{Db, hints::Hint};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Block a user: no token and no key that speaks for them is taken, and what is theirs ends
    Block {
        /// The user's id
        user: String,
        #[arg(long)]
        tenant: String,
    },
    /// End the block of a user
    Unblock {
        /// The user's id
        user: String,
        #[arg(long)]
        tenant: String,
    },
    /// Print a copy of all that is a user's, as one JSON document
    Export {
        /// The user's id
        user: String,
        #[arg(long)]
        tenant: String,
    },
    /// Delete all that is a user's, and end their sessions
    Delete {
        /// The user's id
        user: String,
        #[arg(long)]
        tenant: String,
        /// Confirm: nothing of it can be brought back
        #[arg(long)]
        yes: bool,
    },
}

pub async fn run(
    command: Command,
    db: &Db,
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let operator = UserId(OPERATOR.into());
    match command {
        Command::Block { user, tenant } => {
            let tenant = find_tenant(db, &tenant).await?;
            let user_id = UserId(user.as_str().into());
            block_user(db, tenant.id, &user_id, &operator).await?;
            hint_replicas(db, tenant.id, user_id).await?;
            writeln!(out, "{user:?} is blocked; replicas follow within a second")?;
            Ok(())
        }
        Command::Unblock { user, tenant } => {
            let tenant = find_tenant(db, &tenant).await?;
            let user_id = UserId(user.as_str().into());
            unblock_user(db, tenant.id, &user_id, &operator).await?;
            hint_replicas(db, tenant.id, user_id).await?;
            writeln!(
                out,
                "{user:?} is not blocked any more, and has to sign in again"
            )?;
            Ok(())
        }
        Command::Export { user, tenant } => {
            let tenant = find_tenant(db, &tenant).await?;
            let (pieces, mut inbox) = mpsc::channel::<Result<String>>(1);
            let user = UserId(user.into());
            let print = async {
                while let Some(piece) = inbox.recv().await {
                    out.write_all(piece?.as_bytes())?;
                }
                anyhow::Ok(())
            };
            let keys = super::keys::open(db, config)?;
            let export = user_data::export(db, &keys, tenant.id, &user, &operator, pieces);
            let ((), printed) = tokio::join!(export, print);
            printed
        }
        Command::Delete { user, tenant, yes } => {
            let tenant = find_tenant(db, &tenant).await?;
            anyhow::ensure!(
                yes,
                "all that is {user:?}'s would be deleted; confirm with --yes"
            );
            let user_id = UserId(user.as_str().into());
            let list = config.deletions_file.clone();
            user_data::delete_in_database(db, list, tenant.id, &user_id, &operator).await?;
            hint_replicas(db, tenant.id, user_id).await?;
            writeln!(
                out,
                "all that was {user:?}'s is deleted; replicas follow within seconds"
            )?;
            Ok(())
        }
    }
}

/// Tells the replicas that the sessions of a user have ended.
async fn hint_replicas(db: &Db, tenant: TenantId, user: UserId) -> Result<()> {
    db.send_hints(ReplicaId::new(), &[Hint::SignedOut { tenant, user }])
        .await
}
