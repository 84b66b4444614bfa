//! `chatelaine tenant key`: manages the API keys of a tenant. A key is printed once, when it is made.

use std::io::Write;

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value};
use time::{Duration, OffsetDateTime};

use super::issuer::{SourceArgs, print_prefix};
use crate::app::accounts::{
    IssuedKey, KeyRotation, NewKey, create_key, find_tenant, list_keys, revoke_key, rotate_key,
};
use domain::{
    account::{self, ApiKey, ChatSettings, FrontendSettings, KeyKind, ShownCalls, SourceSettings},
    clock::Clock,
    principal::Scopes,
};
use store::Db;

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
            print_new_key(&issued, out)?;
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
            rotate(db, clock, &tenant, &name, change, out).await?;
        }
    }
    Ok(())
}

async fn rotate(
    db: &Db,
    clock: &Clock,
    tenant: &str,
    name: &str,
    change: KeyRotation,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let tenant = find_tenant(db, tenant).await?;
    let hours = change.overlap.whole_hours();
    let issued = rotate_key(db, clock, tenant.id, name, change).await?;
    print_new_key(&issued, out)?;
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
        writeln!(out, "{}", describe_key(&key, clock.now()))?;
    }
    Ok(())
}

fn print_new_key(issued: &IssuedKey, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{}", issued.secret.expose())?;
    writeln!(out, "keep it: it cannot be shown again")?;
    Ok(print_prefix(&issued.key.source, out)?)
}

fn describe_key(key: &ApiKey, now: OffsetDateTime) -> String {
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

/// For whom the key speaks: for itself unless a frontend is named.
#[derive(Debug, clap::Args)]
pub struct KeyOwnerArgs {
    /// Claims of a key that speaks for itself, as a JSON object
    #[arg(long, conflicts_with_all = ["frontend", "user_id_header"])]
    claims: Option<String>,
    /// The key speaks for the users of this frontend
    #[arg(long)]
    frontend: Option<Frontend>,
    /// The header with the user's id; with the others, for a frontend that is not in the list
    #[arg(long)]
    user_id_header: Option<String>,
    #[arg(long)]
    name_header: Option<String>,
    #[arg(long)]
    email_header: Option<String>,
    /// The header that becomes the claim `roles`
    #[arg(long)]
    roles_header: Option<String>,
    #[arg(long)]
    locale_header: Option<String>,
    /// The header with the frontend's id of the conversation
    #[arg(long)]
    conversation_header: Option<String>,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Frontend {
    OpenWebui,
    Librechat,
}

impl From<Frontend> for account::Frontend {
    fn from(frontend: Frontend) -> Self {
        match frontend {
            Frontend::OpenWebui => Self::OpenWebui,
            Frontend::Librechat => Self::Librechat,
        }
    }
}

impl KeyOwnerArgs {
    pub(super) fn speaker(self) -> anyhow::Result<(KeyKind, SourceSettings)> {
        let source = SourceSettings::from(self.source);
        let settings = FrontendSettings {
            preset: self.frontend.map(Into::into),
            user_id: self.user_id_header,
            name: self.name_header,
            email: self.email_header,
            roles: self.roles_header,
            locale: self.locale_header,
            conversation: self.conversation_header,
            trust_email: source.trust_email,
            shares_users_with: source.shares_users_with,
        };
        if !settings.is_empty() {
            let source = settings.source();
            let headers = settings.headers();
            let headers = headers.context(
                "a frontend's headers need --user-id-header, which says who its user is",
            )?;
            return Ok((KeyKind::Frontend(headers), source));
        }
        let claims = self.claims.map_or_else(
            || Ok(Map::new()),
            |text| serde_json::from_str::<Map<String, Value>>(&text),
        );
        claims
            .map(|claims| (KeyKind::Service(claims), SourceSettings::default()))
            .map_err(|error| anyhow::anyhow!("--claims: not a JSON object: {error}"))
    }
}
