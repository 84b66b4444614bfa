//! Spreads the tables over the nodes of a Citus cluster, by tenant: all rows of a tenant are on one node.
//!
//! A table whose unique keys all name the tenant is distributed. One that is read for all tenants at once and seldom
//! written is a reference table, which each node has; so is one whose unique key names no tenant. What is no tenant's stays
//! at the coordinator. All of it is one transaction, so a failure leaves the tables as they were.

use std::{collections::BTreeMap, fmt};

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection};

use super::{
    migrations::statements,
    pool,
    roles::{self, Roles},
};
use domain::{error::database::is_away, secret::Secret};

/// The role of a transaction that changes a tenant and writes its trail. It has the rights of two roles, because a
/// transaction cannot change its role where tables are sharded.
pub const OPERATOR: &str = "chatelaine_operator";
/// Small tables that are read for all tenants at once, or beside the rows of each.
const OF_EVERY_NODE: [&str; 4] = [
    "keks",
    "pinned_tools_of_all",
    "server_settings",
    "user_sources",
];

/// Where the rows of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// By tenant.
    Distributed,
    /// At every node.
    Reference,
    /// At the coordinator.
    Local,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Distributed => "distributed",
            Self::Reference => "reference",
            Self::Local => "local",
        })
    }
}

/// A table, where it is and where it belongs.
#[derive(Debug)]
pub struct Table {
    pub name: String,
    pub is: Placement,
    pub belongs: Placement,
}

/// What [`distribute`] would do.
#[derive(Debug)]
pub struct Plan {
    pub tables: Vec<Table>,
    /// Why it cannot be done; each says what to do.
    pub obstacles: Vec<String>,
}

impl Plan {
    /// The tables that are not where they belong.
    pub fn pending(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(|table| table.is != table.belongs)
    }
}

/// Whether Citus spreads the tables of a database over nodes.
pub async fn is_sharded(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let has_citus: bool =
        sqlx::query_scalar("select to_regclass('pg_catalog.pg_dist_partition') is not null")
            .fetch_one(&mut *connection)
            .await?;
    if !has_citus {
        return Ok(false);
    }
    sqlx::query_scalar(
        "select exists (select from pg_dist_partition where logicalrelid = to_regclass('conversations'))",
    )
    .fetch_one(connection)
    .await
}

/// Plans what [`distribute`] does, and changes nothing. The database has the schema of this release.
pub async fn plan(url: &Secret) -> anyhow::Result<Plan> {
    let mut connection = open(url).await?;
    let plan = read_plan(&mut connection).await?;
    connection.close().await?;
    Ok(plan)
}

/// Moves each table to where it belongs, with `shards` shards for each that is distributed, in one transaction. Moves
/// nothing where there are obstacles, or nothing to do. Returns what is left to do.
pub async fn distribute(url: &Secret, shards: u32) -> anyhow::Result<Plan> {
    let mut connection = open(url).await?;
    let mut plan = read_plan(&mut connection).await?;
    if plan.obstacles.is_empty() && plan.pending().next().is_some() {
        // Before the transaction: in one that has made a role, Citus makes all that belongs to tables as their owner, who
        // may not do that at a node.
        make_roles(&mut connection).await?;
        // They may log in from now on, and perhaps they cannot.
        plan = read_plan(&mut connection).await?;
    }
    if !plan.obstacles.is_empty() || plan.pending().next().is_none() {
        connection.close().await?;
        return Ok(plan);
    }
    let mut tx = connection.begin().await?;
    execute(
        &mut tx,
        &format!(
            "{CHANGING}; set local statement_timeout = 0; set local lock_timeout = '10s';
             set local citus.shard_count = {shards}"
        ),
    )
    .await?;
    let tables = read_tables(&mut tx).await?;
    place(&mut tx, &tables).await?;
    // Each of our connections then has one to each node for each role, also for what is asked of all shards.
    let database: String = sqlx::query_scalar("select quote_ident(current_database())")
        .fetch_one(&mut *tx)
        .await?;
    let sql = format!("alter database {database} set citus.max_adaptive_executor_pool_size = 1");
    execute(&mut tx, &sql).await?;
    tx.commit().await?;
    let plan = read_plan(&mut connection).await?;
    connection.close().await?;
    Ok(plan)
}

/// Executes a migration in a transaction that has not done anything yet, where tables are sharded, and places each table
/// that it makes at once, so that what follows is done where its rows are. No statement waits longer for a lock than
/// `lock_timeout`, at any node. Other replicas may serve meanwhile.
pub async fn migrate(
    tx: &mut PgConnection,
    sql: &str,
    lock_timeout: &'static str,
) -> anyhow::Result<()> {
    execute(tx, CHANGING).await?;
    execute(tx, "set local statement_timeout = 0").await?;
    // A text of its own each: Citus repeats at the nodes the whole text in which it finds a statement for them.
    execute(tx, "set local citus.propagate_set_commands = 'local'").await?;
    execute(tx, &format!("set local lock_timeout = '{lock_timeout}'")).await?;
    for statement in statements::read(sql) {
        // One statement after the other, for the same reason.
        if !statement.makes_table() {
            execute(tx, &grant_whole_tables(&statement.text)).await?;
            continue;
        }
        // Citus refuses the foreign keys of a table that is not placed yet, unless it does not see the table.
        execute(tx, "set local citus.enable_ddl_propagation = off").await?;
        execute(tx, &statement.text).await?;
        execute(tx, "set local citus.enable_ddl_propagation = on").await?;
        let tables = read_tables(tx).await?;
        place(tx, &tables).await?;
    }
    distribute_functions(tx).await
}

/// Replaces a grant of columns by one of whole tables: Citus gives the shards no grants of columns.
fn grant_whole_tables(statement: &str) -> String {
    let grant = statement.strip_prefix("grant ");
    match grant.and_then(|grant| grant.split_once(" on ")) {
        Some((rights, rest)) => {
            let without_columns: String = rights.split(['(', ')']).step_by(2).collect();
            format!("grant {without_columns} on {rest}")
        }
        None => statement.to_owned(),
    }
}

async fn open(url: &Secret) -> anyhow::Result<PgConnection> {
    // Otherwise what takes a second would be logged as a warning with its whole text.
    let options = super::options(url)?.disable_statement_logging();
    Ok(pool::connect(&options, std::time::Duration::ZERO, is_away).await?)
}

async fn read_plan(connection: &mut PgConnection) -> anyhow::Result<Plan> {
    let has_citus: bool =
        sqlx::query_scalar("select exists (select from pg_extension where extname = 'citus')")
            .fetch_one(&mut *connection)
            .await?;
    if !has_citus {
        let obstacle = "the database has no Citus: as a superuser, execute `create extension citus` in it at each node, \
                        and `select citus_add_node('…', 5432)` for each worker at the coordinator";
        return Ok(Plan {
            tables: Vec::new(),
            obstacles: vec![obstacle.to_owned()],
        });
    }
    let tables = read_tables(connection).await?;
    anyhow::ensure!(
        !tables.is_empty(),
        "the database has no tables yet; execute `chatelaine migrate` first"
    );
    let mut plan = Plan {
        tables,
        obstacles: Vec::new(),
    };
    if plan.pending().next().is_some() {
        plan.obstacles = read_obstacles(connection, &plan.tables).await?;
    }
    Ok(plan)
}

async fn read_tables(connection: &mut PgConnection) -> sqlx::Result<Vec<Table>> {
    let rows: Vec<(String, bool, bool, Option<String>)> = sqlx::query_as(
        "select t.relname,
                exists (select from pg_attribute a where a.attrelid = t.oid and a.attname = 'tenant_id'),
                exists (select from pg_index i where i.indrelid = t.oid and i.indisunique and not exists (
                  select from pg_attribute a
                  where a.attrelid = t.oid and a.attname = 'tenant_id' and a.attnum = any(i.indkey))),
                case when p.partmethod = 'h' then 'distributed' when p.repmodel = 't' then 'reference' end
         from pg_class t left join pg_dist_partition p on p.logicalrelid = t.oid
         where t.relkind = 'r' and t.relnamespace = 'public'::regnamespace and t.relname <> '_sqlx_migrations'
         order by t.relname",
    )
    .fetch_all(connection)
    .await?;
    let to_table = |(name, has_tenant, has_other_key, kind): (String, _, _, Option<String>)| {
        let is = match kind.as_deref() {
            Some("distributed") => Placement::Distributed,
            Some("reference") => Placement::Reference,
            _ => Placement::Local,
        };
        let is_of_every_node = name == "tenants" || OF_EVERY_NODE.contains(&name.as_str());
        let belongs = match (has_tenant, has_other_key) {
            _ if is_of_every_node => Placement::Reference,
            (true, false) => Placement::Distributed,
            (true, true) => Placement::Reference,
            (false, _) => Placement::Local,
        };
        Table { name, is, belongs }
    };
    Ok(rows.into_iter().map(to_table).collect())
}

async fn read_obstacles(
    connection: &mut PgConnection,
    tables: &[Table],
) -> sqlx::Result<Vec<String>> {
    let mut obstacles = Vec::new();
    let moved_elsewhere = tables
        .iter()
        .filter(|table| table.is != table.belongs && table.is != Placement::Local);
    for Table { name, is, belongs } in moved_elsewhere {
        obstacles.push(format!(
            "{name} is a {is} table and belongs to the {belongs} ones; `select undistribute_table('{name}')` first"
        ));
    }
    let subqueries: Vec<String> = sqlx::query_scalar(
        r"select polname || ' on ' || polrelid::regclass from pg_policy
          where coalesce(pg_get_expr(polqual, polrelid), '') || coalesce(pg_get_expr(polwithcheck, polrelid), '')
                ~* '\mselect\M'",
    )
    .fetch_all(&mut *connection)
    .await?;
    for policy in subqueries {
        obstacles.push(format!(
            "the policy {policy} has a subquery, which Citus refuses"
        ));
    }
    let others: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity
         where datname = current_database() and application_name = 'chatelaine' and pid <> pg_backend_pid()",
    )
    .fetch_one(&mut *connection)
    .await?;
    if others > 0 {
        obstacles.push(format!(
            "{others} connections of the service are open; stop all replicas first"
        ));
    }
    let nodes: i64 = sqlx::query_scalar(
        "select count(*) from pg_dist_node where shouldhaveshards and isactive and noderole = 'primary'",
    )
    .fetch_one(&mut *connection)
    .await?;
    if nodes == 0 {
        obstacles.push(
            "no node may have shards: as a superuser, `select citus_add_node('…', 5432)` for each worker, or, without \
             workers, `select citus_set_coordinator_host('…', 5432)` and \
             `select citus_set_node_property('…', 5432, 'shouldhaveshards', true)`"
                .to_owned(),
        );
    }
    for closed in read_closed(connection).await? {
        obstacles.push(format!("{closed}; {ADMIT}"));
    }
    Ok(obstacles)
}

/// What is to be done where Citus cannot log in.
pub const ADMIT: &str = "admit the role in `pg_hba.conf` of each node, or name its password in `pg_dist_authinfo` of each \
                         node (docs/scaling.md)";

/// As whom Citus cannot log in, and where: the owner, and those of the service's roles that may log in. Postgres says why, in
/// warnings, which are logged.
pub async fn read_closed(connection: &mut PgConnection) -> sqlx::Result<Vec<String>> {
    let own = roles::read(connection).await.unwrap_or_default();
    let own = own.unwrap_or_default();
    let roles: Vec<String> = sqlx::query_scalar(
        "select quote_ident(rolname) from pg_roles
         where rolcanlogin and pg_has_role(oid, 'member')
           and (rolname = current_user or rolname = $1 or rolname = any($2))
         order by rolname",
    )
    .bind(own.name(OPERATOR))
    .bind(own.names())
    .fetch_all(&mut *connection)
    .await?;
    let mut closed = Vec::new();
    for role in roles {
        let mut tx = connection.begin().await?;
        let take_role = AssertSqlSafe(format!("set local role {role}"));
        tx.execute(sqlx::raw_sql(take_role)).await?;
        for query in [CLOSED_TO_COORDINATOR, CLOSED_TO_NODES] {
            let nodes: Vec<String> = sqlx::query_scalar(query).fetch_all(&mut *tx).await?;
            if !nodes.is_empty() {
                let nodes = nodes.join(", ");
                closed.push(format!("Citus cannot log in as {role} at {nodes}"));
                break;
            }
        }
        tx.rollback().await?;
    }
    Ok(closed)
}

/// The nodes at which the coordinator cannot log in as the current role.
const CLOSED_TO_COORDINATOR: &str = "
    select format('%s:%s', nodename, nodeport) from pg_dist_node
    where isactive and noderole = 'primary' and not citus_check_connection_to_node(nodename, nodeport)
    order by 1";
/// The nodes at which any node cannot.
const CLOSED_TO_NODES: &str = "
    select format('%s:%s from %s:%s', to_nodename, to_nodeport, from_nodename, from_nodeport)
    from citus_check_cluster_node_health() where result is not true
    order by 1";

/// Settings of a transaction that changes tables where Citus has a part of them.
const CHANGING: &str = "set local client_min_messages = warning; set local citus.multi_shard_modify_mode = 'sequential';
    set local citus.enable_unsafe_triggers = on";

/// Moves the tables to where they belong, and puts the functions onto each node.
async fn place(tx: &mut PgConnection, tables: &[Table]) -> anyhow::Result<()> {
    let moved: Vec<&Table> = tables
        .iter()
        .filter(|table| table.is != table.belongs)
        .collect();
    let names: Vec<String> = moved.iter().map(|table| table.name.clone()).collect();
    // A policy that is forced upon the owner, too, would hide all rows from the copy.
    for name in &names {
        execute(
            tx,
            &format!("alter table {name} no force row level security"),
        )
        .await?;
    }
    let before = count_rows(tx, &names).await?;
    let keys = drop_all(tx, FOREIGN_KEYS, &names).await?;
    // The copy of a row is no new row.
    let triggers = drop_all(tx, TRIGGERS, &names).await?;
    grant_tables(tx, &names).await?;
    for name in of(&moved, Placement::Reference) {
        execute(tx, &format!("select create_reference_table('{name}')")).await?;
    }
    let mut beside = tables
        .iter()
        .find(|table| table.is == Placement::Distributed)
        .map_or("none", |table| table.name.as_str());
    for name in of(&moved, Placement::Distributed) {
        let sql = format!(
            "select create_distributed_table('{name}', 'tenant_id', colocate_with => '{beside}')"
        );
        execute(tx, &sql).await?;
        if beside == "none" {
            beside = name;
        }
    }
    let after = count_rows(tx, &names).await?;
    anyhow::ensure!(
        before == after,
        "rows were lost or added on the way, so nothing was changed: {before:?} before, {after:?} after"
    );
    for name in &names {
        execute(
            tx,
            &format!("select truncate_local_data_after_distributing_table('{name}')"),
        )
        .await?;
    }
    for name in &names {
        execute(tx, &format!("alter table {name} force row level security")).await?;
    }
    distribute_functions(tx).await?;
    for again in triggers.iter().chain(&keys) {
        execute(tx, again).await?;
    }
    Ok(())
}

/// Foreign keys from and to some tables, `$1`: what drops each, and what makes it again. Citus adds a key between two
/// tables only when both are where they belong.
const FOREIGN_KEYS: &str = "
    select format('alter table %s drop constraint %I', conrelid::regclass, conname),
           format('alter table %s add constraint %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    from pg_constraint
    where contype = 'f' and (conrelid::regclass::text = any($1) or confrelid::regclass::text = any($1))
    order by conrelid::regclass::text, conname";
/// Triggers of some tables, likewise.
const TRIGGERS: &str = "
    select format('drop trigger %I on %s', tgname, tgrelid::regclass), pg_get_triggerdef(oid)
    from pg_trigger where not tgisinternal and tgrelid::regclass::text = any($1) order by tgname";

fn of<'a>(tables: &[&'a Table], placement: Placement) -> impl Iterator<Item = &'a str> {
    let chosen: Vec<&str> = tables
        .iter()
        .filter(|table| table.belongs == placement)
        .map(|table| table.name.as_str())
        .collect();
    chosen.into_iter()
}

/// Lets the roles log in, for the connections between nodes. They get no password.
async fn make_roles(tx: &mut PgConnection) -> anyhow::Result<()> {
    let own: Roles = roles::read(tx).await?.unwrap_or_default();
    let operator = own.name(OPERATOR);
    let exists: bool =
        sqlx::query_scalar("select exists (select from pg_roles where rolname = $1)")
            .bind(&operator)
            .fetch_one(&mut *tx)
            .await?;
    if !exists {
        execute(tx, &format!("create role {operator}")).await?;
    }
    let (tenant, system) = (own.name(roles::TENANT), own.name(roles::SYSTEM));
    execute(tx, &format!("grant {tenant}, {system} to {operator}")).await?;
    execute(tx, &format!("grant {operator} to current_user")).await?;
    let database: String = sqlx::query_scalar("select quote_ident(current_database())")
        .fetch_one(&mut *tx)
        .await?;
    for role in own.names().into_iter().chain([operator]) {
        // A node waits for locks no longer than the coordinator does. Statements have no limit there: the coordinator ends
        // them, and a limit would end a commit's wait for a standby, too.
        execute(
            tx,
            &format!(
                "alter role {role} login; alter role {role} set lock_timeout = {}",
                super::LOCK_MS
            ),
        )
        .await?;
        execute(
            tx,
            &format!("grant connect on database {database} to {role}"),
        )
        .await?;
    }
    // Its policy reads the days of the tenant, which are at every node.
    let retention = own.name(roles::RETENTION);
    let nested =
        format!("alter role {retention} set citus.allow_nested_distributed_execution = on");
    execute(tx, &nested).await
}

/// Drops what this query finds of the tables. Returns what makes it again.
async fn drop_all(
    tx: &mut PgConnection,
    query: &'static str,
    tables: &[String],
) -> anyhow::Result<Vec<String>> {
    let found: Vec<(String, String)> = sqlx::query_as(query)
        .bind(tables)
        .fetch_all(&mut *tx)
        .await?;
    for (drop, _) in &found {
        execute(tx, drop).await?;
    }
    Ok(found.into_iter().map(|(_, again)| again).collect())
}

/// Replaces the grants of columns by those of whole tables: Citus gives the shards no grants of columns.
async fn grant_tables(tx: &mut PgConnection, tables: &[String]) -> anyhow::Result<()> {
    let grants: Vec<String> = sqlx::query_scalar(
        "select distinct format('grant %s on %s to %s', g.privilege_type, a.attrelid::regclass, g.grantee::regrole)
         from pg_attribute a, aclexplode(a.attacl) g
         where a.attrelid::regclass::text = any($1) and a.attnum > 0 order by 1",
    )
    .bind(tables)
    .fetch_all(&mut *tx)
    .await?;
    for grant in &grants {
        execute(tx, grant).await?;
    }
    Ok(())
}

/// Puts the functions that queries and triggers call onto each node.
async fn distribute_functions(tx: &mut PgConnection) -> anyhow::Result<()> {
    let functions: Vec<String> = sqlx::query_scalar(
        "select format('select create_distributed_function(%L)', p.oid::regprocedure) from pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.prokind = 'f'
           and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
         order by 1",
    )
    .fetch_all(&mut *tx)
    .await?;
    for function in &functions {
        execute(tx, function).await?;
    }
    Ok(())
}

async fn count_rows(
    tx: &mut PgConnection,
    tables: &[String],
) -> anyhow::Result<BTreeMap<String, i64>> {
    let mut counts = BTreeMap::new();
    for name in tables {
        let sql = format!("select count(*) from {name}");
        let count = sqlx::query_scalar(AssertSqlSafe(sql));
        counts.insert(name.clone(), count.fetch_one(&mut *tx).await?);
    }
    Ok(counts)
}

/// Executes SQL that is made of names of the schema.
async fn execute(tx: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    let done = tx.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
    done.with_context(|| format!("no table was changed, because this failed: {sql}"))?;
    Ok(())
}
