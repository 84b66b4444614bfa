//! Looks at a database as `serve` will use it, and says what is wrong with it. Nothing is changed: every statement reads,
//! and the transactions are rolled back.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};

use super::{
    migrations, options, pool,
    roles::{self, Roles},
    shards,
};
use domain::{
    clock,
    config::DirectAddress,
    error::database::{code, is_away},
    finding::{Code, Finding, Severity},
    secret::Secret,
};

/// The oldest Postgres with which the program is tried.
const OLDEST: u32 = 15;
/// The first Postgres in which a role that makes roles has no power over those that others made.
const BOUNDED_CREATEROLE: u32 = 16;
/// The `SQLSTATE` of a server or a role that has as many connections as it may have.
const TOO_MANY: &str = "53300";
/// How many transactions are held open to make a pooler lend the session of another client.
const HELD: usize = 3;
/// How long a pooler may take to lend a session that it has.
const LENDING: Duration = Duration::from_secs(2);

/// What gives a database roles of its own.
const OWN_ROLES: &str = "`chatelaine migrate`, or the next start, gives it roles of its own";

/// What was found out about a database.
#[derive(Default)]
pub struct Examination {
    pub findings: Vec<Finding>,
    /// Whether the tables can be read, so that what is in them can be checked, too.
    pub has_tables: bool,
    /// Checks that could not be made: which, and why.
    pub skipped: Vec<(&'static str, String)>,
}

/// Examines the database at the address of transactions and, where it is another one, at the direct address.
/// `connections` is the setting of their number.
pub async fn examine(url: &Secret, direct: &DirectAddress, connections: u32) -> Examination {
    let mut found = Examination::default();
    let Some(mut main) = found.open(url, "DATABASE_URL").await else {
        return found;
    };
    if let Err(error) = found.look(&mut main, connections).await
        && !found.has_lost_statement(
            error
                .chain()
                .find_map(<dyn std::error::Error>::downcast_ref),
            "DATABASE_URL",
        )
    {
        let remedy = "look into the log of Postgres, and of the pooler before it";
        found.add(
            Code::DatabaseTrouble,
            format!("the database cannot be looked into: {error}"),
            remedy,
        );
    }
    found.look_for_lost_statements(url).await;
    match direct {
        DirectAddress::Same => found.look_for_pooler(url, "DATABASE_URL").await,
        DirectAddress::Off => {}
        DirectAddress::At(direct) => {
            const VARIABLE: &str = "CHATELAINE_LISTEN_DATABASE_URL";
            if let Some(mut other) = found.open(direct, VARIABLE).await {
                found.compare(&mut main, &mut other).await;
                let _ = other.close().await;
                found.look_for_pooler(direct, VARIABLE).await;
            }
        }
    }
    let _ = main.close().await;
    found
}

/// What the server says of itself and of the role.
#[derive(sqlx::FromRow)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one answer of the catalog"
)]
struct Facts {
    role: String,
    is_superuser: bool,
    bypasses_rls: bool,
    may_create_tables: bool,
    is_read_only: bool,
    /// Connections that roles without a privilege may have.
    connections: i32,
    /// Those of our roles that the role is no member of.
    foreign_roles: Vec<String>,
    /// Those of our roles for which row-level security does not hold.
    strong_roles: Vec<String>,
}

const FACTS: &str = "
    select r.rolname::text as role, r.rolsuper as is_superuser, r.rolbypassrls as bypasses_rls,
           coalesce(has_schema_privilege(current_schema(), 'create'), false) as may_create_tables,
           pg_is_in_recovery() or current_setting('transaction_read_only') = 'on' as is_read_only,
           case when r.rolconnlimit >= 0
             then least(r.rolconnlimit, current_setting('max_connections')::int)
             else current_setting('max_connections')::int end
             - current_setting('superuser_reserved_connections')::int as connections,
           array(select o.rolname::text from pg_roles o
                 where o.rolname = any($1) and not pg_has_role(r.oid, o.oid, 'member')) as foreign_roles,
           array(select o.rolname::text from pg_roles o
                 where o.rolname = any($1) and (o.rolsuper or o.rolbypassrls)) as strong_roles
    from pg_roles r where r.rolname = current_user";

/// Tables with a policy for one of our roles, which then lacks the privilege that the policy is about.
const LACKING: &str = "
    select distinct g.rolname || ' on ' || c.relname
    from pg_policy p join pg_class c on c.oid = p.polrelid
    join pg_roles g on g.oid = any(p.polroles) and g.rolname = any($1)
    where c.relnamespace = current_schema()::regnamespace
      and not case p.polcmd
        when 'd' then has_table_privilege(g.oid, c.oid, 'delete')
        when 'a' then has_any_column_privilege(g.oid, c.oid, 'insert')
        when 'w' then has_any_column_privilege(g.oid, c.oid, 'update')
        else has_any_column_privilege(g.oid, c.oid, 'select') end
    order by 1";

/// Tables of ours, `$1`, whose policies do not hold, or not for their owner.
const UNGUARDED: &str = "
    select distinct format('%I', c.relname) from pg_policy p join pg_class c on c.oid = p.polrelid
    where c.relnamespace = current_schema()::regnamespace and c.relname = any($1)
      and not (c.relrowsecurity and c.relforcerowsecurity)
    order by 1";

/// Tables of ours that somebody else owns, who alone can change them in an upgrade.
const FOREIGN_TABLES: &str = "
    select format('%I', c.relname) from pg_class c
    where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and c.relname = any($1)
      and not pg_has_role(c.relowner, 'member')
    order by 1";

/// What has the name of a table of ours.
const NAMESAKES: &str = "
    select format('%I', c.relname) from pg_class c
    where c.relnamespace = current_schema()::regnamespace and c.relname = any($1) order by 1";

/// Roles other than the login that can act as one of the database's own: `$1`. The owner of the database may do everything
/// in it, and a member of the login is meant to be one. What an admin of a role could grant to itself does not count.
const SHARING: &str = "
    select r.rolname::text from pg_roles r
    where not r.rolsuper and r.rolname <> current_user and not r.rolname = any($1)
      and not pg_has_role(r.oid, current_user, 'member')
      and r.oid <> (select datdba from pg_database where datname = current_database())
      and exists (
        select from pg_roles o where o.rolname = any($1) and (
          pg_has_role(r.oid, o.oid, 'usage')
          or pg_has_role(r.oid, o.oid, case when current_setting('server_version_num')::int < 160000
                                       then 'member' else 'set' end)))
    order by 1";

/// Roles that can act as the login, which may do everything with the tables.
const MEMBERS: &str = "
    select r.rolname::text from pg_roles r
    where not r.rolsuper and r.rolname <> current_user
      and r.oid <> (select datdba from pg_database where datname = current_database())
      and (pg_has_role(r.oid, current_user, 'usage')
           or pg_has_role(r.oid, current_user, case when current_setting('server_version_num')::int < 160000
                                               then 'member' else 'set' end))
    order by 1";

/// Roles that may make roles, where other logins have databases on the server.
const MAKING: &str = "
    select r.rolname::text from pg_roles r
    where r.rolcreaterole and not r.rolsuper and exists (
      select from pg_database d join pg_roles o on o.oid = d.datdba
      where not o.rolsuper and o.rolname <> current_user
        and o.oid <> (select datdba from pg_database where datname = current_database()))
    order by 1";

/// Which server and which database of it this is.
const IDENTITY: &str = "
    select current_database()::text || ' ' || d.oid || ' ' || pg_postmaster_start_time()
    from pg_database d where d.datname = current_database()";

impl Examination {
    fn add(&mut self, code: Code, message: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding::new(code, message, remedy));
    }

    /// Opens a connection, or says why it cannot be opened.
    async fn open(&mut self, url: &Secret, variable: &str) -> Option<PgConnection> {
        let options = match options(url) {
            Ok(options) => options,
            Err(error) => {
                self.add(
                    Code::DatabaseAddress,
                    format!("{variable} is not an address of a database: {error}"),
                    "write postgres://ROLE:PASSWORD@HOST/DATABASE; characters such as @ and / in a password are %40 and %2F",
                );
                return None;
            }
        };
        match connect(&options).await {
            Ok(connection) => Some(connection),
            Err(error) if self.has_lost_statement(Some(&error), variable) => None,
            Err(error) => {
                let message = format!("cannot open the database that {variable} names: {error}");
                if matches!(
                    code(&error).as_deref(),
                    Some("28P01" | "28000" | "3D000" | "42501")
                ) {
                    let remedy = "check role, password and name of the database, and pg_hba.conf of the server";
                    self.add(Code::DatabaseRefused, message, remedy);
                } else if code(&error).as_deref() == Some(TOO_MANY) {
                    let remedy = "end sessions that nobody needs, raise max_connections or the limit of the role, or use a \
                                  pooler; each replica opens CHATELAINE_DATABASE_CONNECTIONS";
                    self.findings.push(Finding {
                        severity: Severity::Error,
                        ..Finding::new(Code::DatabaseConnections, message, remedy)
                    });
                } else {
                    let remedy =
                        "check host and port, that Postgres runs there, and what lies in between";
                    self.add(Code::DatabaseUnreachable, message, remedy);
                }
                None
            }
        }
    }

    async fn look(
        &mut self,
        connection: &mut PgConnection,
        connections: u32,
    ) -> anyhow::Result<()> {
        self.look_at_version(connection);
        let roles = roles::read(connection).await?;
        // An empty database has none yet, and others may have those of these names.
        let facts: Facts = sqlx::query_as(FACTS)
            .bind(roles.as_ref().map_or_else(Vec::new, Roles::names))
            .fetch_one(&mut *connection)
            .await?;
        self.look_at_clock(connection).await?;
        let obstacle = roles::find_obstacle(connection).await?;
        let may_make = obstacle.is_none();
        if let Some(remedy) = obstacle {
            self.add(
                Code::DatabaseRights,
                format!(
                    "the database needs roles of its own, and the role {} may not make them",
                    facts.role
                ),
                remedy,
            );
        }
        if let Some(roles) = &roles
            && roles::are_copied(connection, roles).await?
        {
            if may_make {
                self.add(
                    Code::DatabaseSharedRoles,
                    format!(
                        "the database is a copy, and its roles are those of another database of the server: {}",
                        roles.names().join(", ")
                    ),
                    OWN_ROLES,
                );
            }
            let because = "its roles are those of another database".to_owned();
            self.skipped.push(("what is in the database", because));
            return Ok(());
        }
        let (schema, finding) = migrations::examine(connection).await?;
        self.findings.extend(finding);
        self.look_at_role(&facts, schema);
        let needed = i64::from(connections);
        if needed > i64::from(facts.connections) {
            self.add(
                Code::DatabaseConnections,
                format!(
                    "CHATELAINE_DATABASE_CONNECTIONS is {needed}, and Postgres gives this role {} at most",
                    facts.connections
                ),
                "lower it, or raise max_connections or the limit of the role; each replica opens as many",
            );
        }
        if schema == migrations::Schema::Empty {
            let namesakes: Vec<String> = sqlx::query_scalar(NAMESAKES)
                .bind(migrations::table_names())
                .fetch_all(&mut *connection)
                .await?;
            if !namesakes.is_empty() {
                self.add(
                    Code::DatabaseForeign,
                    format!(
                        "the database has tables of somebody else with names of tables of the service ({})",
                        name_some(&namesakes)
                    ),
                    "give the service a database of its own; nothing of this one was changed",
                );
            }
            let because = "no start has made its tables yet".to_owned();
            self.skipped.push(("what is in the database", because));
            return Ok(());
        }
        let roles = roles.unwrap_or_default();
        if !facts.is_superuser {
            self.look_at_neighbours(connection, &roles).await?;
        }
        let lacking: Vec<String> = sqlx::query_scalar(LACKING)
            .bind(roles.names())
            .fetch_all(&mut *connection)
            .await?;
        if !lacking.is_empty() {
            self.add(
                Code::DatabaseGrant,
                format!("rights are missing: {}", lacking.join(", ")),
                "grant them as the migrations do; restore the roles before the tables",
            );
        }
        self.look_at_owners(connection, &facts.role).await?;
        if shards::is_sharded(connection).await? {
            for closed in shards::read_closed(connection).await? {
                self.add(Code::DatabaseNodes, closed, shards::ADMIT);
            }
        }
        self.has_tables = lacking.is_empty() && facts.foreign_roles.is_empty();
        Ok(())
    }

    /// Looks for tables of ours that the role does not own, or whose policies do not hold.
    async fn look_at_owners(
        &mut self,
        connection: &mut PgConnection,
        role: &str,
    ) -> anyhow::Result<()> {
        let unguarded: Vec<String> = sqlx::query_scalar(UNGUARDED)
            .bind(migrations::table_names())
            .fetch_all(&mut *connection)
            .await?;
        if !unguarded.is_empty() {
            self.add(
                Code::DatabaseRole,
                format!("row-level security is off for {}", unguarded.join(", ")),
                "for each: `alter table … enable row level security; alter table … force row level security`",
            );
        }
        let foreign: Vec<String> = sqlx::query_scalar(FOREIGN_TABLES)
            .bind(migrations::table_names())
            .fetch_all(&mut *connection)
            .await?;
        if !foreign.is_empty() {
            self.add(
                Code::DatabaseRights,
                format!(
                    "the role {} does not own tables of the service ({}), so the next upgrade cannot change them",
                    role,
                    name_some(&foreign)
                ),
                format!(
                    "give it each of them: `alter table {} owner to {}`",
                    foreign[0], role
                ),
            );
        }
        Ok(())
    }

    fn look_at_version(&mut self, connection: &PgConnection) {
        let version = connection.server_version_num();
        if let Some(major) = version.map(|version| version / 10_000)
            && major < OLDEST
        {
            self.add(
                Code::DatabaseVersion,
                format!(
                    "Postgres {major} is older than {OLDEST}, the oldest with which the service is tried"
                ),
                "upgrade Postgres",
            );
        }
    }

    async fn look_at_clock(&mut self, connection: &mut PgConnection) -> sqlx::Result<()> {
        let before = clock::machine_time();
        let there = sqlx::query_scalar("select clock_timestamp()")
            .fetch_one(&mut *connection)
            .await?;
        let behind = clock::correction(before, there, clock::machine_time());
        if let Some(by) = behind.filter(|by| !by.is_zero()) {
            self.add(
                Code::ClockDatabase,
                format!(
                    "the clock of this machine is {} the database's",
                    clock::describe(by)
                ),
                "set both clocks right; until then the service uses the database's",
            );
        }
        Ok(())
    }

    fn look_at_role(&mut self, facts: &Facts, schema: migrations::Schema) {
        let role = &facts.role;
        if facts.is_superuser || facts.bypasses_rls {
            let what = if facts.is_superuser {
                "is a superuser"
            } else {
                "has bypassrls"
            };
            self.add(
                Code::DatabaseRole,
                format!("the role {role} {what}, so row-level security does not hold for it"),
                "use a role of its own that owns the database: `create role … login createrole password '…'`; or `alter role \
                 … nosuperuser nobypassrls`, if it is one",
            );
        }
        if !facts.strong_roles.is_empty() {
            let roles = facts.strong_roles.join(", ");
            self.add(
                Code::DatabaseRole,
                format!("row-level security does not hold for {roles}, in which transactions run"),
                "as a superuser, for each: `alter role … nosuperuser nobypassrls`",
            );
        }
        if facts.is_read_only {
            self.add(
                Code::DatabaseReadOnly,
                "the database accepts no writes: it is a standby, or read-only by a setting",
                "name the primary; of several hosts, `target_session_attrs` or the proxy must choose it",
            );
        }
        // A superuser is a member of every role.
        if !facts.foreign_roles.is_empty() {
            let roles = facts.foreign_roles.join(", ");
            self.add(
                Code::DatabaseRights,
                format!("the role {role} is no member of {roles}, so no transaction can take them"),
                format!("`grant {roles} to {role}`"),
            );
        }
        let is_pending = matches!(
            schema,
            migrations::Schema::Empty | migrations::Schema::Older
        );
        if is_pending && !facts.may_create_tables {
            self.add(
                Code::DatabaseRights,
                format!("the role {role} may create no tables in this database"),
                format!("make it the owner: `alter database … owner to {role}`"),
            );
        }
    }

    /// Finds who else of the server can get at the rows.
    async fn look_at_neighbours(
        &mut self,
        connection: &mut PgConnection,
        own: &Roles,
    ) -> anyhow::Result<()> {
        // Citus logs in as the roles at each node, and its cluster belongs to one installation.
        if shards::is_sharded(connection).await? {
            return Ok(());
        }
        if own.are_shared() {
            self.add(
                Code::DatabaseSharedRoles,
                format!(
                    "the database has no roles of its own: whoever may take {} for another database of the server may take \
                     them here",
                    own.names().join(", ")
                ),
                OWN_ROLES,
            );
        } else {
            let sharing: Vec<String> = sqlx::query_scalar(SHARING)
                .bind(own.names())
                .fetch_all(&mut *connection)
                .await?;
            if !sharing.is_empty() {
                let is_of_before = sharing.contains(&Roles::default().name(roles::TENANT));
                let sharing = sharing.join(", ");
                let remedy = if is_of_before {
                    "`chatelaine migrate --end-shared-roles`, as soon as no replica of the release before is at work".to_owned()
                } else {
                    format!("`revoke {} from {sharing}`", own.names().join(", "))
                };
                self.add(
                    Code::DatabaseSharedRoles,
                    format!("other roles can take those of this database: {sharing}"),
                    remedy,
                );
            }
        }
        let members: Vec<String> = sqlx::query_scalar(MEMBERS)
            .fetch_all(&mut *connection)
            .await?;
        if !members.is_empty() {
            let members = members.join(", ");
            self.add(
                Code::DatabaseMembers,
                format!(
                    "other roles can act as this one, and read and change every row: {members}"
                ),
                format!("`revoke … from {members}`, unless they are meant to"),
            );
        }
        if roles::is_open(connection).await? {
            self.add(
                Code::DatabaseSharedRoles,
                "every role of the server may connect to the database",
                "`revoke connect on database … from public`, as its owner; the next start does so if the role owns the \
                 database",
            );
        }
        let making: Vec<String> = sqlx::query_scalar(MAKING)
            .fetch_all(&mut *connection)
            .await?;
        let major = connection.server_version_num().map(|it| it / 10_000);
        if !making.is_empty() && major.is_some_and(|major| major < BOUNDED_CREATEROLE) {
            self.add(
                Code::DatabaseCreateRole,
                format!(
                    "before Postgres {BOUNDED_CREATEROLE} a role with createrole can take every other role of the server, also \
                     those of databases of others: {}",
                    making.join(", ")
                ),
                "`alter role … nocreaterole` once the tables are there; a start that needs it again says so",
            );
        }
        Ok(())
    }

    /// Finds a pooler that does not know prepared statements: a second client meets those of the first.
    async fn look_for_lost_statements(&mut self, url: &Secret) {
        let Ok(options) = options(url) else { return };
        let tried = async {
            let mut other = connect(&options).await?;
            sqlx::query("select 1").execute(&mut other).await?;
            other.close().await
        };
        self.has_lost_statement(tried.await.err().as_ref(), "DATABASE_URL");
    }

    /// Whether the error is that of a pooler that lends a session with the prepared statements of somebody else, which
    /// is then reported.
    fn has_lost_statement(&mut self, error: Option<&sqlx::Error>, variable: &str) -> bool {
        let is_lost = error.is_some_and(is_lost_statement);
        self.has_tables &= !is_lost;
        if is_lost
            && !self
                .findings
                .iter()
                .any(|finding| finding.code == Code::DatabasePooler)
        {
            self.add(
                Code::DatabasePooler,
                format!("the pooler at {variable} {MIXES_UP}"),
                KNOWS_STATEMENTS,
            );
        }
        is_lost
    }

    /// Finds a direct address that leads to another database than the one of transactions.
    async fn compare(&mut self, main: &mut PgConnection, other: &mut PgConnection) {
        let here = sqlx::query_scalar::<_, String>(IDENTITY).fetch_one(main);
        let here = here.await;
        let there = sqlx::query_scalar::<_, String>(IDENTITY).fetch_one(other);
        if let (Ok(here), Ok(there)) = (here, there.await)
            && here != there
        {
            self.add(Code::DatabaseElsewhere, migrations::ELSEWHERE, "");
        }
    }

    /// Finds a pooler in transaction mode where a session is needed: it lends the session of a client that is in no
    /// transaction to the next one.
    async fn look_for_pooler(&mut self, url: &Secret, variable: &str) {
        match is_lent(url).await {
            Ok(false) => {}
            Ok(true) => self.add(
                Code::DatabasePooler,
                format!(
                    "a pooler in transaction mode is at {variable}, which is used for LISTEN: news would reach whoever has the session next"
                ),
                "set CHATELAINE_LISTEN_DATABASE_URL to the address of Postgres itself, or to `off`",
            ),
            Err(error) if self.has_lost_statement(Some(&error), variable) => {}
            Err(error) => {
                let because = format!("{variable} gave no further connection: {error}");
                self.skipped.push(("pooler", because));
            }
        }
    }
}

const MIXES_UP: &str = "mixes up the prepared statements of its clients";
const KNOWS_STATEMENTS: &str =
    "use PgBouncer 1.21 or newer in transaction mode, with max_prepared_statements = 500";

/// Whether the error is that of a pooler that lends a session with the prepared statements of somebody else: a statement
/// of this name exists already, or not any more.
fn is_lost_statement(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| matches!(&*code, "42P05" | "26000"))
}

/// What an error at the start means, where its own words do not say it.
pub fn explain(error: &anyhow::Error) -> Option<String> {
    let failed: &sqlx::Error = error.chain().find_map(|cause| cause.downcast_ref())?;
    is_lost_statement(failed)
        .then(|| format!("the pooler at DATABASE_URL {MIXES_UP}; {KNOWS_STATEMENTS}"))
}

/// The first names of several.
fn name_some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whether a client's session is another client's while it is in no transaction.
async fn is_lent(url: &Secret) -> sqlx::Result<bool> {
    let options = options(url).map_err(|error| sqlx::Error::Configuration(error.into()))?;
    let mut client = connect(&options).await?;
    let own = session(&mut client).await?;
    let mut others = Vec::new();
    let mut is_lent = false;
    for _ in 0..HELD {
        let mut other = connect(&options).await?;
        sqlx::raw_sql("begin read only").execute(&mut other).await?;
        is_lent |= session(&mut other).await? == own;
        others.push(other);
        if is_lent {
            break;
        }
    }
    if !is_lent {
        // A pooler whose sessions are all held lets the client wait.
        let again = tokio::time::timeout(LENDING, session(&mut client)).await;
        is_lent = again.map_or(Ok(true), |again| again.map(|again| again != own))?;
    }
    for mut other in others {
        let _ = sqlx::raw_sql("rollback").execute(&mut other).await;
        let _ = other.close().await;
    }
    let _ = client.close().await;
    Ok(is_lent)
}

/// The process of Postgres that serves a connection now.
async fn session(connection: &mut PgConnection) -> sqlx::Result<i32> {
    use sqlx::{Executor as _, Row as _};
    let row = connection
        .fetch_one(sqlx::raw_sql("select pg_backend_pid()"))
        .await?;
    row.try_get(0)
}

async fn connect(options: &PgConnectOptions) -> sqlx::Result<PgConnection> {
    pool::connect(options, Duration::ZERO, is_away).await
}
