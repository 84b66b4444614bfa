//! `chatelaine tenant issuer`: manages the issuers whose tokens a tenant accepts.

use std::{io::Write, path::PathBuf};

use anyhow::Context;

use crate::app::accounts::{add_issuer, find_tenant, list_issuers, remove_issuer};
use domain::{
    account::{Issuer, IssuerKeys, SourceSettings, UserSource},
    ids::IssuerId,
};
use store::Db;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Trust an issuer, or replace the keys of one that is trusted
    Add {
        tenant: String,
        /// The claim `iss` of its tokens
        #[arg(long)]
        issuer: String,
        /// The claim `aud` of tokens for this tenant
        #[arg(long)]
        audience: String,
        /// The only algorithm it may sign with
        #[arg(long, default_value = "RS256")]
        algorithm: String,
        #[command(flatten)]
        keys: KeySourceArgs,
        #[command(flatten)]
        source: SourceArgs,
    },
    /// List the issuers of a tenant
    List { tenant: String },
    /// Trust an issuer no longer
    Remove {
        tenant: String,
        issuer: String,
        /// Only with this audience
        #[arg(long)]
        audience: Option<String>,
    },
}

/// How the users of an issuer or of a frontend are known. What is not given stays as it was.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// An e-mail address counts without the claim `email_verified`
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    trust_email: Option<bool>,
    /// Another issuer, or the name of a frontend's key, whose users are its users, too
    #[arg(long, value_name = "ISSUER_OR_KEY")]
    shares_users_with: Option<String>,
}

impl From<SourceArgs> for SourceSettings {
    fn from(args: SourceArgs) -> Self {
        Self {
            trust_email: args.trust_email,
            shares_users_with: args.shares_users_with,
        }
    }
}

/// The place of the issuer's keys: exactly one of three.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct KeySourceArgs {
    /// URL of its JSON Web Key Set
    #[arg(long)]
    jwks: Option<String>,
    /// File with its public key in PEM
    #[arg(long)]
    public_key: Option<PathBuf>,
    /// Name of the environment variable with its HMAC secret (the secret itself is never stored)
    #[arg(long)]
    secret_env: Option<String>,
}

impl KeySourceArgs {
    fn read(self) -> anyhow::Result<IssuerKeys> {
        match (self.jwks, self.public_key, self.secret_env) {
            (Some(url), ..) => Ok(IssuerKeys::Jwks(url)),
            (_, Some(path), _) => {
                let pem = std::fs::read_to_string(&path);
                Ok(IssuerKeys::PublicKey(pem.with_context(|| {
                    format!("{} cannot be read", path.display())
                })?))
            }
            (.., Some(name)) => Ok(IssuerKeys::SecretEnv(name)),
            (None, None, None) => {
                anyhow::bail!("one of --jwks, --public-key and --secret-env is needed")
            }
        }
    }
}

pub(super) async fn run(
    command: Command,
    db: &Db,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    match command {
        Command::Add {
            tenant,
            issuer,
            audience,
            algorithm,
            keys,
            source,
        } => {
            let tenant = find_tenant(db, &tenant).await?;
            let keys = keys.read()?;
            let issuer = Issuer {
                id: IssuerId::new(),
                tenant: tenant.id,
                issuer,
                audience,
                algorithm,
                keys,
                source: UserSource::default(),
                of_tenant: None,
            };
            let trusted = format!("{} for audience {}", issuer.issuer, issuer.audience);
            let source = add_issuer(db, issuer, &source.into()).await?;
            writeln!(out, "tenant {} trusts {trusted}", tenant.name)?;
            print_prefix(&source, out)?;
        }
        Command::List { tenant } => {
            let tenant = find_tenant(db, &tenant).await?;
            for issuer in list_issuers(db, tenant.id).await? {
                writeln!(out, "{}", describe_issuer(&issuer))?;
            }
        }
        Command::Remove {
            tenant,
            issuer,
            audience,
        } => {
            let tenant = find_tenant(db, &tenant).await?;
            remove_issuer(db, tenant.id, &issuer, audience.as_deref()).await?;
            writeln!(
                out,
                "tenant {} no longer trusts {issuer}; its tokens stop within seconds",
                tenant.name
            )?;
        }
    }
    Ok(())
}

/// Prints the prefix of the users' ids, if they have one: then their ids here differ from those at the source.
pub(super) fn print_prefix(source: &UserSource, out: &mut impl Write) -> std::io::Result<()> {
    if source.prefix.is_empty() {
        return Ok(());
    }
    let prefix = &source.prefix;
    writeln!(
        out,
        "its users are {prefix}<id>; --shares-users-with makes them the users of another issuer or frontend"
    )
}

fn describe_issuer(issuer: &Issuer) -> String {
    let keys = match &issuer.keys {
        IssuerKeys::Jwks(url) => url.clone(),
        IssuerKeys::PublicKey(_) => "a static public key".to_owned(),
        IssuerKeys::SecretEnv(name) => format!("the secret in {name}"),
    };
    format!(
        "{}  audience {}  {} with {keys}{}",
        issuer.issuer, issuer.audience, issuer.algorithm, issuer.source
    )
}
