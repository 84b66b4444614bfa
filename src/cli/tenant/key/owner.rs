//! The options that say for whom a new key speaks.

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::{
    cli::tenant::issuer::SourceArgs,
    domain::account::{self, FrontendSettings, KeyKind, SourceSettings},
};

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
