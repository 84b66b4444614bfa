//! Says what the pending migrations would do, and changes nothing.

use sqlx::PgConnection;

use super::{
    embedded, file_name, old_chain, pending, read_applied, refuse_changed, releases, roles,
    statements,
};

/// A migration that is not applied yet.
pub struct PlannedMigration {
    pub file: String,
    /// Whether it is one statement outside of a transaction.
    pub is_alone: bool,
    pub statements: Vec<statements::Statement>,
    /// The tables that are there and that it locks.
    pub tables: Vec<TableSize>,
}

/// A table as Postgres counted it last.
pub struct TableSize {
    pub name: String,
    /// `None` when it was never counted.
    pub rows: Option<i64>,
    /// With its indexes.
    pub bytes: i64,
}

/// What [`roles::prepare`] does, in words of SQL.
const OWN_ROLES: [&str; 2] = [
    "revoke connect on database … from public",
    "alter policy …, where roles are shared: table by table; who uses the table waits for a moment",
];

fn own_roles(text: &str) -> statements::Statement {
    statements::Statement {
        text: text.to_owned(),
        effects: Vec::new(),
    }
}

/// The pending migrations, in their order.
pub async fn plan(connection: &mut PgConnection) -> anyhow::Result<Vec<PlannedMigration>> {
    let (applied, migrator) = (read_applied(connection).await?, embedded());
    refuse_changed(&applied, &migrator)?;
    let mut planned = Vec::new();
    if let Some(found) = roles::read(connection).await? {
        if !roles::are_ready(connection, &found).await? {
            planned.push(PlannedMigration {
                file: "roles of its own".to_owned(),
                is_alone: true,
                statements: OWN_ROLES.map(own_roles).into(),
                tables: Vec::new(),
            });
        }
        releases::check(connection, &found).await?;
    }
    // The schema of such a database is there; only its list of migrations is replaced.
    let is_of_old_chain = old_chain::is_of_old_chain(&applied);
    let pending = pending(&applied, &migrator);
    for migration in pending.skip(usize::from(is_of_old_chain)) {
        let statements = statements::read(migration.sql.as_str());
        let effects = statements.iter().flat_map(|statement| &statement.effects);
        let mut names: Vec<String> = effects
            .filter(|effect| !effect.is_new && !effect.table.is_empty())
            .map(|effect| effect.table.clone())
            .collect();
        names.sort_unstable();
        names.dedup();
        planned.push(PlannedMigration {
            file: file_name(migration),
            is_alone: migration.no_tx,
            tables: read_sizes(connection, &names).await?,
            statements,
        });
    }
    Ok(planned)
}

async fn read_sizes(
    connection: &mut PgConnection,
    names: &[String],
) -> sqlx::Result<Vec<TableSize>> {
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "select relname::text, reltuples::bigint, pg_total_relation_size(oid) from pg_class
         where oid in (select to_regclass(quote_ident(name)) from unnest($1::text[]) name) order by 1",
    )
    .bind(names)
    .fetch_all(connection)
    .await?;
    let size = |(name, rows, bytes)| TableSize {
        name,
        rows: Some(rows).filter(|rows| *rows >= 0),
        bytes,
    };
    Ok(rows.into_iter().map(size).collect())
}
