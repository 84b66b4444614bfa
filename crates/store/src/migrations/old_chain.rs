//! Takes over a database of the 54 migrations 0001 to 0092, which nobody but developers ran. `0001_schema.sql` makes the
//! same catalog in one file, so only the list of migrations is replaced.

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, PgConnection, migrate::Migration};

use super::Applied;

/// The checksum of the first of those migrations, which every such database has.
const FIRST: &str = "f673fe8fe117dd9a2e3a30659ea3c247613d6519fe8ae2dce29ad75db4137a8c6a6c7868b239645ef36cbeca2e873523";
/// SHA-256 of `version checksum` of all of them, one a line.
const ALL: &str = "295934413fc7f4ecd63b095d653f4dab12edc2ab16694465dee08670336d1294";

/// Replaces the list of those migrations by `schema`, the first migration of today, if the database was made by them.
/// Returns whether it was. An error says what to do with a database that has only some of them.
pub async fn take_over(
    connection: &mut PgConnection,
    applied: &Applied,
    schema: &Migration,
) -> anyhow::Result<bool> {
    if !is_of_old_chain(applied) {
        return Ok(false);
    }
    anyhow::ensure!(
        digest(applied) == ALL,
        "the database was made by an earlier state of the program and stands in the middle of its migrations ({} of \
         them, the last one is {}); start the program of commit 6cd19cea once, which brings the database to 0092, and \
         then this one",
        applied.len(),
        applied.keys().max().copied().unwrap_or_default(),
    );
    // Locked and compared once more, because another replica may do the same at this moment. The constraint is the one
    // thing in which the catalogs differ: the old chain had not yet validated it.
    let sql = format!(
        "do $$ begin
           lock table _sqlx_migrations in access exclusive mode;
           if (select checksum = '\\x{FIRST}' from _sqlx_migrations where version = 1) then
             alter table approvals validate constraint approvals_withdrawn_cause_check;
             delete from _sqlx_migrations;
             insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values ({}, '{}', true, '\\x{}', 0);
           end if;
         end $$",
        schema.version,
        schema.description,
        hex::encode(&schema.checksum),
    );
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .context("the list of migrations could not be replaced by the one of version 1")?;
    tracing::info!("the migrations up to 0092 were replaced by one schema");
    Ok(true)
}

/// Whether the database was made by those migrations.
pub fn is_of_old_chain(applied: &Applied) -> bool {
    applied.get(&1).and_then(Option::as_deref).map(hex::encode) == Some(FIRST.to_owned())
}

fn digest(applied: &Applied) -> String {
    let line = |(version, checksum): (&i64, &Option<Vec<u8>>)| {
        format!(
            "{version} {}",
            hex::encode(checksum.as_deref().unwrap_or_default())
        )
    };
    let lines: Vec<String> = applied.iter().map(line).collect();
    hex::encode(Sha256::digest(lines.join("\n")))
}
