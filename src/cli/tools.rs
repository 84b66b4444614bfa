//! `chatelaine tools`: shows what servers say of their tools that nobody has accepted, and accepts it. Without `--tenant`
//! it is about the servers that serve all tenants, and what is accepted counts for all of them.

use std::io::Write;

use sha2::{Digest, Sha256};
use similar::{ChangeTag, TextDiff};

use crate::app::{
    accounts::find_tenant,
    servers::pins::{TOLD, accept_in_database, accept_of_all},
};
use domain::{
    audit::OPERATOR,
    error::Result,
    ids::{ReplicaId, TenantId},
    pin,
};
use store::{
    Db,
    hints::Hint,
    pins::{WaitingDefinition, WaitingSelection, list_waiting, list_waiting_of_all},
};

/// Digits of a hash that people read and write.
const SHOWN: usize = 16;

#[derive(Debug, clap::Args)]
pub struct Selection {
    /// Only what waits for this tenant, also of its own servers
    #[arg(long)]
    tenant: Option<String>,
    /// Only of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only of this server
    #[arg(long)]
    server: Option<String>,
    /// Only this tool
    #[arg(long)]
    tool: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the tools that changed or are new, with what their servers said of them before and say now
    Diff {
        #[command(flatten)]
        of: Selection,
    },
    /// Accept one tool, or all that `diff` has shown, as they are now
    Accept {
        #[command(flatten)]
        of: Selection,
        /// Accept all that `diff` shows with the same options
        #[arg(long)]
        all: bool,
        /// The hash that `diff` has shown: of one tool, or with `--all` of all of them
        hash: String,
    },
}

pub async fn run(command: Command, db: &Db, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    match command {
        Command::Diff { of } => {
            let (_, waiting) = find(db, &of).await?;
            write!(out, "{}", describe(&waiting))?;
            Ok(())
        }
        Command::Accept { of, all, hash } => {
            let (tenant, mut waiting) = find(db, &of).await?;
            let hash = hash.to_lowercase();
            let is_shown = hash.len() >= SHOWN;
            if all {
                anyhow::ensure!(
                    is_shown && !waiting.is_empty() && hash_of_all(&waiting).starts_with(&hash),
                    "that is not what waits now; `chatelaine tools diff` shows it, with the hash to name here"
                );
            } else {
                waiting.retain(|one| is_shown && one.hash.starts_with(&hash));
                anyhow::ensure!(
                    !waiting.is_empty(),
                    "no tool with this hash waits; `chatelaine tools diff` shows those that do"
                );
            }
            match tenant {
                Some(tenant) => accept_in_database(db, tenant, OPERATOR, &waiting).await?,
                None => accept_of_all(db, OPERATOR, &waiting).await?,
            }
            db.send_hints(ReplicaId::new(), &[Hint::Tools { tenant }])
                .await?;
            for one in &waiting {
                writeln!(out, "{} {} {} is accepted", one.agent, one.server, one.tool)?;
            }
            writeln!(out, "replicas follow within a second")?;
            Ok(())
        }
    }
}

/// What waits, the oldest first.
async fn find(db: &Db, of: &Selection) -> Result<(Option<TenantId>, Vec<WaitingDefinition>)> {
    let tenant = match &of.tenant {
        Some(name) => Some(find_tenant(db, name).await?),
        None => None,
    };
    let agents = match (&of.agent, &tenant) {
        (Some(agent), _) => Some(vec![agent.clone()]),
        (None, Some(tenant)) => tenant.agents.clone(),
        (None, None) => None,
    };
    let wanted = WaitingSelection {
        agents: agents.as_deref(),
        server: of.server.as_deref(),
        tool: of.tool.as_deref(),
        limit: i64::MAX,
        ..WaitingSelection::default()
    };
    let mut waiting = match &tenant {
        Some(tenant) => list_waiting(&mut db.tenant(tenant.id).await?, wanted).await?,
        None => list_waiting_of_all(&mut db.system().await?, wanted).await?,
    };
    waiting.reverse();
    Ok((tenant.map(|tenant| tenant.id), waiting))
}

/// Names everything that is shown, so that nobody accepts what came later.
fn hash_of_all(waiting: &[WaitingDefinition]) -> String {
    let mut digest = Sha256::new();
    for one in waiting {
        let line = format!("{} {} {} {}\n", one.agent, one.server, one.tool, one.hash);
        digest.update(line.as_bytes());
    }
    hex::encode(digest.finalize())
}

fn describe(waiting: &[WaitingDefinition]) -> String {
    if waiting.is_empty() {
        return "every tool is as it was accepted\n".to_owned();
    }
    let mut text = String::new();
    for one in waiting {
        let kind = match (&one.accepted, one.changed.as_slice()) {
            (None, _) => "new".to_owned(),
            (Some(_), []) => "changed".to_owned(),
            (Some(_), changed) => format!("changed ({})", changed.join(", ")),
        };
        let (agent, server, tool) = (&one.agent, &one.server, &one.tool);
        let hash = &one.hash[..SHOWN];
        text += &format!("{agent} {server} {tool}: {kind}, {hash}\n");
        if one.is_told {
            text += "  it is used meanwhile: neither what the model reads nor what arguments mean is another\n";
        }
        if one.changes > TOLD {
            text += "  it changes at every listing, or differs by user; `pin: tell` lets it in\n";
        }
        let before = one.accepted.as_deref().map(pin::to_lines);
        let (before, after) = (before.unwrap_or_default(), pin::to_lines(&one.definition));
        let difference = TextDiff::from_lines(&before, &after);
        for change in difference.iter_all_changes() {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            text += &format!("  {sign} {change}");
        }
        text += "\n";
    }
    let all = &hash_of_all(waiting)[..SHOWN];
    text + &format!(
        "`chatelaine tools accept HASH` accepts one of them, `chatelaine tools accept --all {all}` all of them\n"
    )
}
