//! `chatelaine token`: a token for development, signed with the key in the data folder.

use std::{io::Write, path::Path};

use time::Duration;

use crate::app::accounts::{
    development::{self, DevelopmentUser},
    find_tenant,
};
use domain::clock::Clock;
use store::Db;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tenant the user belongs to
    #[arg(long, default_value = "demo")]
    tenant: String,
    /// The user's immutable id (claim `sub`)
    #[arg(long)]
    user: String,
    /// A role (claim `roles`); may be given several times
    #[arg(long = "role")]
    roles: Vec<String>,
    #[arg(long)]
    email: Option<String>,
    #[arg(long)]
    name: Option<String>,
    /// A language tag such as `es` or `pt-BR`
    #[arg(long)]
    locale: Option<String>,
    /// Give the right to manage the tenant
    #[arg(long)]
    admin: bool,
    /// How long the token is valid
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=8760))]
    hours: u16,
}

/// Prints the token and nothing else, so that it can be used in `$(…)`.
pub async fn run(
    args: Args,
    db: &Db,
    clock: &Clock,
    data: &Path,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let tenant = find_tenant(db, &args.tenant).await?;
    let Args {
        user,
        roles,
        email,
        name,
        locale,
        admin,
        hours,
        ..
    } = args;
    let person = DevelopmentUser {
        user,
        name,
        email,
        locale,
        roles,
        admin,
    };
    let now = clock.now();
    let token = development::token(
        db,
        data,
        &tenant,
        &person,
        now..now + Duration::hours(hours.into()),
    )
    .await?;
    writeln!(out, "{}", token.expose())?;
    Ok(())
}
