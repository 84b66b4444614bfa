//! The roles that transactions take on.
//!
//! Roles belong to the whole server, and policies name them. So each database has roles of its own, named after it: with
//! shared ones, whoever may take them for one database could take them for every other. Files of migrations name them as
//! [`TENANT`] and so on, and the names of the database's own are put in when a file is executed. Which roles a database has
//! is read from its policies: a database that was renamed, copied or restored keeps its own.
//!
//! A database of before has the shared roles. It is moved table by table while replicas of before work: the shared roles
//! become members of its own ones, until [`end_shared`]. A sharded database keeps the names that it has, because Citus logs
//! in as them at each node; its cluster belongs to one installation.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::Instant;

use super::{
    migrations::{Place, Step, run},
    shards,
};
use domain::error::database::code;

/// Sees the rows of one tenant.
pub const TENANT: &str = "chatelaine_tenant";
/// Finds work and callers across tenants.
pub const SYSTEM: &str = "chatelaine_system";
/// Deletes old lines of a tenant's trail.
pub const RETENTION: &str = "chatelaine_retention";
/// Sees what answers a search.
pub const SEARCH: &str = "chatelaine_search";
const ALL: [&str; 4] = [TENANT, SYSTEM, RETENTION, SEARCH];
/// The most characters of a database's name in the name of a role: Postgres cuts names at 63.
const NAMED: usize = 36;
/// How many names are tried when others have taken some.
const NAMES: u32 = 9;

/// The names of the roles of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// What follows the names of [`ALL`]; empty for the shared roles of before.
    suffix: Arc<str>,
}

impl Roles {
    pub fn name(&self, role: &str) -> String {
        format!("{role}{}", self.suffix)
    }

    pub fn names(&self) -> Vec<String> {
        ALL.iter().map(|role| self.name(role)).collect()
    }

    pub fn are_shared(&self) -> bool {
        self.suffix.is_empty()
    }

    /// Puts these names in the place of the shared ones.
    pub fn name_in(&self, sql: &str) -> String {
        replace_names(sql, &Self::default(), self)
    }
}

/// Replaces the names of some roles by those of others.
fn replace_names(sql: &str, old: &Roles, new: &Roles) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut replaced = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(start) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_name(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        let role = ALL.iter().find(|role| old.name(role) == word);
        replaced.push_str(before);
        replaced.push_str(&role.map_or_else(|| word.to_owned(), |role| new.name(role)));
        rest = after;
    }
    replaced + rest
}

/// The roles that the policies of the database name; `None` where there are no tables.
pub async fn read(connection: &mut PgConnection) -> anyhow::Result<Option<Roles>> {
    let role: Option<String> = sqlx::query_scalar(
        "select r.rolname::text from pg_policy p join pg_roles r on r.oid = any(p.polroles)
         where p.polrelid = to_regclass('tenants') and p.polname = 'tenant'",
    )
    .fetch_optional(connection)
    .await?;
    let Some(role) = role else { return Ok(None) };
    let suffix = role.strip_prefix(TENANT).filter(|suffix| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        suffix.chars().all(is_plain)
    });
    let suffix = suffix.ok_or_else(|| {
        anyhow::anyhow!("the policies of the table tenants name the role {role}, which this program did not make; rename it back")
    })?;
    let suffix = suffix.into();
    Ok(Some(Roles { suffix }))
}

/// Whether there is nothing for [`prepare`] to do.
pub async fn are_ready(connection: &mut PgConnection, roles: &Roles) -> anyhow::Result<bool> {
    if shards::is_sharded(connection).await? {
        return Ok(true);
    }
    let is_to_do = roles.are_shared()
        || are_copied(connection, roles).await?
        || is_open(connection).await? && may_close(connection).await?;
    Ok(!is_to_do)
}

/// Gives the database roles of its own and closes it to roles that were not granted `connect`. The caller holds the lock of
/// migrations.
pub async fn prepare(
    connection: &mut PgConnection,
    place: &Place<'_>,
    end: Instant,
) -> anyhow::Result<Roles> {
    let found = read(connection).await?;
    if shards::is_sharded(connection).await? {
        return Ok(found.unwrap_or_default());
    }
    if is_open(connection).await? && may_close(connection).await? {
        // Behind a pooler another process may do the same at this moment.
        let close = "do $$ begin
            execute format('revoke connect on database %I from public', current_database());
          exception when internal_error then null; end $$";
        sqlx::raw_sql(close).execute(&mut *connection).await?;
    }
    let Some(old) = found else {
        return make(connection, None).await;
    };
    if !old.are_shared() && !are_copied(connection, &old).await? {
        return Ok(old);
    }
    let own = make(connection, Some(&old).filter(|old| old.are_shared())).await?;
    replace(connection, place, &old, &own, end).await?;
    Ok(own)
}

/// Takes from the shared roles what they may do here. No replica that takes them can work afterwards.
pub async fn end_shared(connection: &mut PgConnection) -> anyhow::Result<()> {
    let own = read(connection).await?.unwrap_or_default();
    anyhow::ensure!(
        !own.are_shared(),
        "the database has no roles of its own yet; execute `chatelaine migrate` first"
    );
    for shared in ALL {
        let sql = format!(
            "do $$ begin
               if exists (select from pg_roles where rolname = '{shared}') then
                 revoke {own} from {shared};
               end if;
             end $$",
            own = own.name(shared)
        );
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Whether every role of the server may open the database.
pub async fn is_open(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "select exists (
           select from pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba)))
           where datname = current_database() and grantee = 0 and privilege_type = 'CONNECT')",
    )
    .fetch_one(connection)
    .await
}

async fn may_close(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let owner =
        "select pg_has_role(datdba, 'usage') from pg_database where datname = current_database()";
    sqlx::query_scalar(owner).fetch_one(connection).await
}

/// Whether the database is a copy for another login: its roles are those of the database that it was copied from.
pub async fn are_copied(connection: &mut PgConnection, roles: &Roles) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "select exists (
           select from pg_roles r join pg_shdepend d on d.refclassid = 'pg_authid'::regclass and d.refobjid = r.oid
           where r.rolname = any($1) and not pg_has_role(r.oid, 'member') and d.dbid <> 0
             and d.dbid <> (select oid from pg_database where datname = current_database()))",
    )
    .bind(roles.names())
    .fetch_one(connection)
    .await
}

/// Those of some names that are no roles that the login may take.
const MISSING: &str = "
    select name from unnest($1::text[]) name
    where not exists (select from pg_roles where rolname = name and pg_has_role(oid, 'member'))";

/// Those of some shared roles that cannot do what their own ones can.
const APART: &str = "
    select s.rolname::text, o.rolname::text from unnest($1::text[], $2::text[]) n (shared, own)
    join pg_roles s on s.rolname = n.shared join pg_roles o on o.rolname = n.own
    where not pg_has_role(s.oid, o.oid, 'usage')";

/// Makes the roles of a database, or takes those that somebody made for it. What takes on the `shared` ones can go on.
async fn make(connection: &mut PgConnection, shared: Option<&Roles>) -> anyhow::Result<Roles> {
    let own = choose(connection).await?;
    let missing: Vec<String> = sqlx::query_scalar(MISSING)
        .bind(own.names())
        .fetch_all(&mut *connection)
        .await?;
    // Behind a pooler another process may make them at this moment.
    for name in missing {
        let sql = format!(
            "do $$ begin
               begin create role {name} nologin; exception when duplicate_object or unique_violation then null; end;
               begin grant {name} to current_user; exception when unique_violation then null; end;
             end $$"
        );
        execute(connection, &own, shared, sql).await?;
    }
    if let Some(shared) = shared {
        let apart: Vec<(String, String)> = sqlx::query_as(APART)
            .bind(shared.names())
            .bind(own.names())
            .fetch_all(&mut *connection)
            .await?;
        for (shared_name, name) in apart {
            let sql = format!(
                "do $$ begin grant {name} to {shared_name}; exception when unique_violation then null; end $$"
            );
            execute(connection, &own, Some(shared), sql).await?;
        }
    }
    Ok(own)
}

/// Chooses names after the database's. Roles of these names are taken only if nobody else may take them and no other
/// database has them: somebody else may have made them to be let in.
async fn choose(connection: &mut PgConnection) -> anyhow::Result<Roles> {
    let database: String = sqlx::query_scalar("select current_database()::text")
        .fetch_one(&mut *connection)
        .await?;
    let plain = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() { c } else { '_' }
    };
    let named: String = database.chars().map(plain).take(NAMED).collect();
    for number in 1..=NAMES {
        let suffix = match number {
            1 => format!("_{named}"),
            _ => format!("_{named}_{number}"),
        };
        let roles = Roles {
            suffix: suffix.into(),
        };
        let is_taken: bool = sqlx::query_scalar(
            "select exists (
               select from pg_roles r where r.rolname = any($1) and (
                 not pg_has_role(r.oid, 'member')
                 or exists (select from pg_auth_members m join pg_roles o on o.oid = m.member
                            where m.roleid = r.oid and o.rolname <> current_user and not o.rolname = any($2))
                 or exists (select from pg_shdepend d
                            where d.refclassid = 'pg_authid'::regclass and d.refobjid = r.oid and d.dbid <> 0
                              and d.dbid <> (select oid from pg_database where datname = current_database()))))",
        )
        .bind(roles.names())
        .bind(Roles::default().names())
        .fetch_one(&mut *connection)
        .await?;
        if !is_taken {
            return Ok(roles);
        }
    }
    anyhow::bail!(
        "others have the roles whose names end with _{named} and with a number up to _{named}_{NAMES}; drop those that no \
         database uses, or rename this database"
    )
}

/// Executes what needs the right to make roles. Without it, the error says what a superuser can do instead.
async fn execute(
    connection: &mut PgConnection,
    own: &Roles,
    shared: Option<&Roles>,
    sql: String,
) -> anyhow::Result<()> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *connection)
        .await;
    let Err(error) = done else { return Ok(()) };
    if code(&error).as_deref() != Some("42501") {
        return Err(error.into());
    }
    anyhow::bail!(
        "the database needs roles of its own, and the role may not make them; {}",
        instead(connection, own, shared).await?
    )
}

/// What is missing for [`prepare`], and what to do about it.
pub async fn find_obstacle(connection: &mut PgConnection) -> anyhow::Result<Option<String>> {
    let found = read(connection).await?;
    if shards::is_sharded(connection).await? {
        return Ok(None);
    }
    let shared = found.as_ref().filter(|found| found.are_shared());
    if let Some(found) = &found
        && shared.is_none()
        && !are_copied(connection, found).await?
    {
        return Ok(None);
    }
    let own = choose(connection).await?;
    let is_obstacle: bool = sqlx::query_scalar(AssertSqlSafe(format!(
        "select not (rolcreaterole or rolsuper) and exists ({MISSING}) from pg_roles where rolname = current_user"
    )))
    .bind(own.names())
    .fetch_one(&mut *connection)
    .await?;
    Ok(if is_obstacle {
        Some(instead(connection, &own, shared).await?)
    } else {
        None
    })
}

/// What to do where the login may not make roles.
async fn instead(
    connection: &mut PgConnection,
    own: &Roles,
    shared: Option<&Roles>,
) -> sqlx::Result<String> {
    let login: String = sqlx::query_scalar("select quote_ident(current_user)")
        .fetch_one(connection)
        .await?;
    let names = own.names();
    let mut statements: Vec<String> = names
        .iter()
        .map(|name| format!("create role {name}"))
        .collect();
    statements.push(format!("grant {} to {login}", names.join(", ")));
    if let Some(shared) = shared {
        let go_on = ALL.iter().map(|role| (own.name(role), shared.name(role)));
        statements.extend(go_on.map(|(own, shared)| format!("grant {own} to {shared}")));
    }
    Ok(format!(
        "`alter role {login} createrole` for as long as the start takes, or as a superuser: {}",
        statements.join("; ")
    ))
}

/// The tables that name one of some roles. The one whose policy says which roles the database has is the last.
const TABLES: &str = "
    select c.relname::text from pg_class c
    where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace and exists (
      select from pg_roles r where r.rolname = any($1) and (
        exists (select from pg_policy p where p.polrelid = c.oid and r.oid = any(p.polroles))
        or exists (select from aclexplode(c.relacl) g where g.grantee = r.oid)
        or exists (select from pg_attribute a, aclexplode(a.attacl) g where a.attrelid = c.oid and g.grantee = r.oid)))
    order by c.relname = 'tenants', c.relname";

/// What puts other roles in the place of some in the policies and grants of a table.
const REPLACE: &str = "
    with named as (
      select r.oid, n.old, n.new from unnest($2::text[], $3::text[]) n (old, new) join pg_roles r on r.rolname = n.old
    ), located as (select oid, relacl, format('%I', relname) as name from pg_class
                  where relname = $1 and relnamespace = current_schema()::regnamespace)
    select sql from (
      select 1 as step, format('alter policy %I on %s to %s', p.polname, c.name, (
               select string_agg(format('%I', coalesce(n.new, r.rolname)), ', ')
               from pg_roles r left join named n on n.oid = r.oid where r.oid = any(p.polroles))) as sql
      from located c join pg_policy p on p.polrelid = c.oid
      where exists (select from named n where n.oid = any(p.polroles))
      union all
      select 2, format('grant %s on %s to %I', g.privilege_type, c.name, n.new)
      from located c, aclexplode(c.relacl) g join named n on n.oid = g.grantee
      union all
      select 2, format('grant %s (%I) on %s to %I', g.privilege_type, a.attname, c.name, n.new)
      from located c join pg_attribute a on a.attrelid = c.oid, aclexplode(a.attacl) g join named n on n.oid = g.grantee
      union all
      select 3, format('revoke all on %s from %I', c.name, n.old) from located c, named n
    ) statements order by step, sql";

/// Puts the own roles in the place of the old ones, a table at a time, so that nobody waits for longer than a moment.
async fn replace(
    connection: &mut PgConnection,
    place: &Place<'_>,
    old: &Roles,
    own: &Roles,
    end: Instant,
) -> anyhow::Result<()> {
    tracing::info!(
        roles = own.names().join(", "),
        "the database gets roles of its own"
    );
    let function: Option<String> = sqlx::query_scalar(
        "select pg_get_functiondef(to_regprocedure('lock_by_tenant(regclass)'))",
    )
    .fetch_one(&mut *connection)
    .await?;
    if let Some(function) = function {
        let function = replace_names(&function, old, own);
        sqlx::raw_sql(AssertSqlSafe(function))
            .execute(&mut *connection)
            .await?;
    }
    let tables: Vec<String> = sqlx::query_scalar(TABLES)
        .bind(old.names())
        .fetch_all(&mut *connection)
        .await?;
    for table in tables {
        let statements: Vec<String> = sqlx::query_scalar(REPLACE)
            .bind(&table)
            .bind(old.names())
            .bind(own.names())
            .fetch_all(&mut *connection)
            .await?;
        let name = format!("giving the table {table} roles of its own");
        let step = Step::Sql(statements.join("; "));
        run(connection, place, &name, &step, end).await?;
    }
    Ok(())
}
