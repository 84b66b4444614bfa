//! `chatelaine tenant key`. A key is printed once, when it is made.

mod owner;

use std::io::Write;

use clap::ValueEnum;
use time::{Duration, OffsetDateTime};

use self::owner::KeyOwnerArgs;
use super::issuer::{SourceArgs, tell_prefix};
use crate::{
    app::accounts::{
        IssuedKey, KeyRotation, NewKey, create_key, find_tenant, list_keys, revoke_key, rotate_key,
    },
    domain::{
        account::{ApiKey, ChatSettings, ShownCalls},
        clock::Clock,
        principal::Scopes,
    },
    store::Db,
};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a key and print it
    Create {
        tenant: String,
        /// Lower-case letters, digits, `-`, `_` and `.`
        name: String,
        /// `chat` or `admin`; may be given several times
        #[arg(long = "scope", default_value = "chat")]
        scopes: Vec<String>,
        /// After this many days the key ends
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        days: Option<u16>,
        #[command(flatten)]
        speaker: Box<KeyOwnerArgs>,
        /// An answer goes on when its OpenAI client closes the connection
        #[arg(long)]
        keep_running: bool,
        /// How OpenAI clients show tool calls
        #[arg(long, default_value = "none")]
        tool_calls: ToolCalls,
    },
    /// List the keys of a tenant
    List { tenant: String },
    /// End a key by its prefix, or all of a name, within seconds
    Revoke {
        tenant: String,
        name_or_prefix: String,
    },
    /// Make a second key of a name and let the first one end
    Rotate {
        tenant: String,
        name: String,
        /// How long the first one still works
        #[arg(long, default_value_t = 24)]
        overlap_hours: u16,
        #[command(flatten)]
        source: SourceArgs,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ToolCalls {
    None,
    Text,
    Details,
}

impl From<ToolCalls> for ShownCalls {
    fn from(calls: ToolCalls) -> Self {
        match calls {
            ToolCalls::None => Self::None,
            ToolCalls::Text => Self::Text,
            ToolCalls::Details => Self::Details,
        }
    }
}

pub(super) async fn run(
    command: Command,
    db: &Db,
    clock: &Clock,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    match command {
        Command::Create {
            tenant,
            name,
            scopes,
            days,
            speaker,
            keep_running,
            tool_calls,
        } => {
            let (speaker, source) = speaker.speaker()?;
            let new = NewKey {
                name,
                scopes: Scopes::parse(&scopes)
                    .map_err(|error| anyhow::anyhow!("--scope: {error}"))?,
                speaker,
                source,
                chat: ChatSettings {
                    keep_running,
                    tool_calls: tool_calls.into(),
                },
                expires_at: days.map(|days| clock.now() + Duration::days(days.into())),
            };
            let tenant = find_tenant(db, &tenant).await?;
            let issued = create_key(db, clock, tenant.id, new).await?;
            show(&issued, out)?;
        }
        Command::List { tenant } => print_keys(db, clock, &tenant, out).await?,
        Command::Revoke {
            tenant,
            name_or_prefix,
        } => {
            let tenant = find_tenant(db, &tenant).await?;
            let revoked = revoke_key(db, tenant.id, &name_or_prefix).await?;
            writeln!(
                out,
                "{revoked} revoked; replicas refuse them within seconds"
            )?;
        }
        Command::Rotate {
            tenant,
            name,
            overlap_hours,
            source,
        } => {
            let change = KeyRotation {
                overlap: Duration::hours(overlap_hours.into()),
                source: source.into(),
            };
            rotate((db, clock), &tenant, &name, change, out).await?;
        }
    }
    Ok(())
}

async fn rotate(
    (db, clock): (&Db, &Clock),
    tenant: &str,
    name: &str,
    change: KeyRotation,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let tenant = find_tenant(db, tenant).await?;
    let hours = change.overlap.whole_hours();
    let issued = rotate_key(db, clock, tenant.id, name, change).await?;
    show(&issued, out)?;
    Ok(writeln!(out, "the previous key ends in {hours} h")?)
}

async fn print_keys(
    db: &Db,
    clock: &Clock,
    tenant: &str,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let tenant = find_tenant(db, tenant).await?;
    for key in list_keys(db, tenant.id).await? {
        writeln!(out, "{}", line(&key, clock.now()))?;
    }
    Ok(())
}

fn show(issued: &IssuedKey, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{}", issued.secret.expose())?;
    writeln!(out, "keep it: it cannot be shown again")?;
    Ok(tell_prefix(&issued.key.source, out)?)
}

fn line(key: &ApiKey, now: OffsetDateTime) -> String {
    let state = match (key.revoked_at, key.expires_at) {
        (Some(at), _) => format!("revoked {}", at.date()),
        (None, Some(at)) if at <= now => format!("expired {}", at.date()),
        (None, Some(at)) => format!("live until {}", at.date()),
        (None, None) => "live".to_owned(),
    };
    format!(
        "{}  {}  {}  {}  {state}{}",
        key.prefix,
        key.name,
        key.speaker.kind(),
        key.scopes.names().join(","),
        key.source
    )
}
