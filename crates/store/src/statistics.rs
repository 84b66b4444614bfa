//! What Postgres knows of the sizes of tables. It plans by that, and a connection keeps its plans. Postgres itself looks
//! for tables that have grown once a minute: a new installation would work for so long with plans for empty tables.

use sqlx::{AssertSqlSafe, Executor as _};

use super::{Db, limits, limits::in_time};
use domain::error::Result;

impl Db {
    /// Analyses each table that has doubled since it was analysed last. A replica leaves
    /// out what another is analysing. Where the program does not own its tables, Postgres leaves them as they are.
    pub async fn analyze_grown(&self) -> Result<()> {
        let mut connection = in_time(self.pool.get()).await?;
        let grown = sqlx::query_scalar!(
            r#"select quote_ident(s.schemaname) || '.' || quote_ident(s.relname) as "name!"
               from pg_stat_user_tables s join pg_class c on c.oid = s.relid
               where s.schemaname = current_schema() and s.n_mod_since_analyze > 200 + greatest(c.reltuples, 0)"#
        )
        .fetch_all(&mut *connection)
        .await?;
        if !grown.is_empty() {
            // The SQL is safe: the names are quoted, and come from the catalog.
            let sql = format!(
                "begin; {}; analyze (skip_locked) {}; commit",
                limits(),
                grown.join(", ")
            );
            connection
                .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
                .await?;
        }
        connection.give_back();
        Ok(())
    }
}
