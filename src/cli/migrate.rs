//! `chatelaine migrate`: brings the schema up to date and ends, or says what that would do.

use std::{io::Write, process::ExitCode};

use super::serve::with_address;
use domain::{
    config::{Config, Environment},
    secret::Secret,
};
use store::{
    Db,
    migrations::{
        PlannedMigration,
        statements::{Blocks, Effect},
    },
};

/// What the command ends with when migrations are pending.
const PENDING: u8 = 2;
/// The most characters of a statement in a line.
const SHOWN: usize = 100;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say which migrations are pending, what they lock for how long, and how large the tables are; change nothing. The
    /// exit code is 2 when migrations are pending
    #[arg(long)]
    dry_run: bool,
    /// Take from the roles that databases of one server shared before what they may do in this one. No replica of the
    /// release before can work afterwards
    #[arg(long, conflicts_with = "dry_run")]
    end_shared_roles: bool,
}

pub async fn run(
    args: Args,
    config: &Config,
    env: &Environment,
    out: &mut (impl Write + Send),
) -> anyhow::Result<ExitCode> {
    with_address(config, env, async |url| {
        if args.dry_run {
            return print_plan(url, out).await;
        }
        if args.end_shared_roles {
            Db::end_shared_roles(url).await?;
            writeln!(
                out,
                "the roles that databases shared can do nothing here any more"
            )?;
            return Ok(ExitCode::SUCCESS);
        }
        Db::migrate(config.database_wait, url, &config.direct_database).await?;
        let version = env!("CARGO_PKG_VERSION");
        writeln!(out, "the schema is the one of release {version}")?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn print_plan(url: &Secret, out: &mut (impl Write + Send)) -> anyhow::Result<ExitCode> {
    let planned = Db::plan_migrations(url).await?;
    if planned.is_empty() {
        writeln!(out, "no migration is pending")?;
        return Ok(ExitCode::SUCCESS);
    }
    for migration in &planned {
        print_migration(migration, out)?;
    }
    Ok(ExitCode::from(PENDING))
}

fn print_migration(migration: &PlannedMigration, out: &mut impl Write) -> std::io::Result<()> {
    let how = if migration.is_alone {
        "outside of a transaction"
    } else {
        "in one transaction"
    };
    writeln!(out, "{}, {how}", migration.file)?;
    // Of a new table only its making is worth a line.
    let mut new_tables = 0;
    for statement in &migration.statements {
        let effects = &statement.effects;
        if !effects.is_empty() && effects.iter().all(|effect| effect.is_new) {
            new_tables += usize::from(
                statement
                    .text
                    .to_ascii_lowercase()
                    .starts_with("create table"),
            );
            continue;
        }
        let text: String = statement.text.chars().take(SHOWN).collect();
        writeln!(out, "  {text}")?;
        for effect in effects.iter().filter(|effect| !effect.is_new) {
            writeln!(out, "    {}", describe(effect))?;
        }
    }
    if new_tables > 0 {
        writeln!(out, "  new tables, which nobody uses yet: {new_tables}")?;
    }
    for table in &migration.tables {
        let rows = table.rows.map_or_else(
            || "rows were never counted".to_owned(),
            |rows| format!("about {rows} rows"),
        );
        let mebibytes = table.bytes / (1 << 20);
        writeln!(out, "  table {}: {rows}, {mebibytes} MiB", table.name)?;
    }
    Ok(())
}

fn describe(effect: &Effect) -> String {
    let who = match effect.blocks {
        Blocks::Nothing => "nobody waits",
        Blocks::SameRows => "writers of the same rows wait",
        Blocks::Writes => "writers wait",
        Blocks::ReadsAndWrites => "readers and writers wait",
        Blocks::Unknown => return "it is not known what this locks".to_owned(),
    };
    let time = match (effect.is_long, effect.blocks) {
        (true, Blocks::Nothing) => ", while the whole table is read",
        (true, _) => " WHILE THE WHOLE TABLE IS READ OR WRITTEN",
        (false, Blocks::Nothing) => "",
        (false, _) => " for a moment",
    };
    format!("{} on {}: {who}{time}", effect.lock, effect.table)
}
