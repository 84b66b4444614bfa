//! Each database has roles of its own, and installations of one server do not touch.

use std::fs;

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{config::Environment, secret::Secret};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::{
    Db,
    migrations::embedded,
    roles::{Roles, SYSTEM, TENANT},
};
use tokio::{process::Command, task::JoinSet};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    execute, execute_at,
    running::migrate,
    schema::catalog,
    sharded::{begin, read_and_write},
};
use crate::support::{db::TestDb, program::chatelaine, wait::eventually};

/// The last migration of the state in which databases shared their roles.
const LAST_OF_BEFORE: i64 = 9;

/// A server that believes everybody who they are, so that only the rights of roles are tried.
struct Server {
    postgres: PrivatePostgres,
}

impl Server {
    async fn start() -> Self {
        let env = Environment::from_process();
        let postgres = PrivatePostgres::throwaway(&env).await.unwrap();
        let server = Self { postgres };
        let mut admin = server.open("postgres", "postgres").await.unwrap();
        let hba: String = sqlx::query_scalar("show hba_file")
            .fetch_one(&mut admin)
            .await
            .unwrap();
        fs::write(hba, "local all all trust\n").unwrap();
        execute_at(&mut admin, "select pg_reload_conf()").await;
        eventually(async || {
            server
                .open("nobody", "postgres")
                .await
                .is_err_and(|error| is_no_role(&error))
        })
        .await;
        // It has the right to make roles, and nothing to do here.
        server
            .order("postgres", "alter role chatelaine nocreaterole")
            .await;
        server
    }

    fn url(&self, role: &str, database: &str) -> Secret {
        let mut url = Url::parse(self.postgres.url().expose()).unwrap();
        url.set_username(role).unwrap();
        url.set_path(database);
        Secret::new(url.as_str().replace('+', "%20"))
    }

    async fn open(&self, role: &str, database: &str) -> sqlx::Result<PgConnection> {
        PgConnection::connect(self.url(role, database).expose()).await
    }

    /// The first statement that fails, as this role in this database; empty if none does.
    async fn refusal(&self, role: &str, database: &str, statements: &[&str]) -> String {
        let tried = async {
            let mut connection = self.open(role, database).await?;
            for sql in statements {
                let sql = sqlx::raw_sql(AssertSqlSafe((*sql).to_owned()));
                sql.execute(&mut connection).await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        let error = tried.await.err();
        error.map_or_else(String::new, |error| error.to_string())
    }

    /// Executes SQL as a superuser.
    async fn order(&self, database: &str, sql: &str) {
        let mut admin = self.open("postgres", database).await.unwrap();
        for sql in sql.split_inclusive(';') {
            execute_at(&mut admin, sql).await;
        }
    }

    /// The command, and what it said.
    async fn run(&self, role: &str, database: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = chatelaine(arguments);
        let url = self.url(role, database);
        let output = command.env("DATABASE_URL", url.expose()).output();
        let output = output.await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    /// What the doctor says of databases' neighbours.
    async fn findings(&self, role: &str) -> Vec<String> {
        let (_, said) = self.run(role, role, &["doctor", "--json"]).await;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let findings = said["findings"].as_array().unwrap().iter();
        let codes = findings.map(|finding| finding["code"].as_str().unwrap().to_owned());
        codes.filter(|code| code.starts_with("database.")).collect()
    }

    /// An installation as docs/operators.md has it, with this name for role and database.
    async fn install(&self, name: &str) {
        let page = fs::read_to_string("docs/operators.md").unwrap();
        let (_, section) = page.split_once("\n## Postgres\n").unwrap();
        let blocks = section.split("```sql\n").skip(1);
        let mut blocks = blocks.map(|block| block.split("```").next().unwrap());
        let (before, after) = (blocks.next().unwrap(), blocks.next().unwrap());
        let named = |sql: &str| sql.replace("chatelaine", name);
        self.order("postgres", &named(before)).await;
        let (code, said) = self.run(name, name, &["migrate"]).await;
        assert_eq!(code, Some(0), "{said}");
        self.order("postgres", &named(after)).await;
    }

    async fn roles(&self, name: &str) -> Roles {
        let mut owner = self.open(name, name).await.unwrap();
        store::roles::read(&mut owner).await.unwrap().unwrap()
    }
}

/// Without the map of users that the server had before.
fn is_no_role(error: &sqlx::Error) -> bool {
    error.to_string().contains("does not exist")
}

#[tokio::test]
async fn two_installations_made_by_the_documents_on_one_server_never_touch() {
    let server = Server::start().await;
    server.install("one").await;
    server.install("two").await;
    let (one, two) = (server.roles("one").await, server.roles("two").await);
    assert_ne!(one, two);
    assert!(server.findings("one").await.is_empty());

    let connect = server.refusal("two", "one", &["select 1"]).await;
    assert!(connect.contains("permission denied"), "{connect}");
    for role in one.names().iter().map(String::as_str).chain(["one"]) {
        for take in [
            format!("set role {role}"),
            format!("grant {role} to two"),
            format!("alter role {role} password 'mine'"),
        ] {
            let refused = server.refusal("two", "two", &[&take]).await;
            assert!(
                refused.contains("permission denied") || refused.contains("must have"),
                "{take}: {refused}"
            );
        }
    }
    // Not even who was let in takes the roles of another database.
    server
        .order("one", "grant connect on database one to two")
        .await;
    for role in one.names() {
        let take = format!("set role {role}");
        let refused = server.refusal("two", "one", &[&take]).await;
        assert!(
            refused.contains("permission denied to set role"),
            "{refused}"
        );
    }
    for role in two.names() {
        let take = format!("set role {role}");
        let look = [&*take, "select count(*) from tenants"];
        let refused = server.refusal("two", "one", &look).await;
        assert!(refused.contains("permission denied for table"), "{refused}");
    }
}

#[tokio::test]
async fn the_doctor_finds_who_may_take_the_roles_of_a_database() {
    let server = Server::start().await;
    server.install("one").await;
    server.install("two").await;
    assert!(server.findings("one").await.is_empty());
    server.order("postgres", "alter role two createrole").await;
    assert_eq!(server.findings("one").await, ["database.createrole"]);
    server
        .order("postgres", "alter role two nocreaterole")
        .await;
    let shares = format!("grant {} to two", server.roles("one").await.name(SYSTEM));
    server.order("postgres", &shares).await;
    assert_eq!(server.findings("one").await, ["database.shared_roles"]);
    server
        .order(
            "postgres",
            &shares.replace("grant", "revoke").replace(" to ", " from "),
        )
        .await;
    let tenant = server.roles("one").await.name(TENANT);
    for (may, found) in [
        ("bypassrls", vec!["database.role"]),
        ("nobypassrls", vec![]),
    ] {
        let alter = format!("alter role {tenant} {may}");
        server.order("postgres", &alter).await;
        assert_eq!(server.findings("one").await, found);
    }
    server.order("postgres", "grant one to two").await;
    assert_eq!(server.findings("one").await, ["database.members"]);
    server.order("postgres", "revoke one from two").await;
    server
        .order("one", "grant connect on database one to public")
        .await;
    assert_eq!(server.findings("one").await, ["database.shared_roles"]);
    // The next start takes it away.
    server.run("one", "one", &["migrate"]).await;
    assert!(server.findings("one").await.is_empty());
}

#[tokio::test]
async fn roles_that_somebody_made_to_be_let_in_are_not_taken() {
    let server = Server::start().await;
    server.order("postgres", "create role two; create role chatelaine_system_one; grant chatelaine_system_one to two").await;
    server.install("one").await;
    let system = server.roles("one").await.name(SYSTEM);
    assert_eq!(system, "chatelaine_system_one_2");
}

#[tokio::test]
async fn a_login_that_makes_no_roles_is_told_what_a_superuser_can_do() {
    let server = Server::start().await;
    server
        .order(
            "postgres",
            "create role one login; create database one owner one",
        )
        .await;
    let (code, said) = server.run("one", "one", &["migrate"]).await;
    assert_eq!(code, Some(1), "{said}");
    let (_, instead) = said.split_once("as a superuser: ").unwrap();
    assert_eq!(server.findings("one").await, ["database.rights"]);
    let instead = instead.lines().next().unwrap();
    server.order("postgres", instead).await;
    assert!(server.findings("one").await.is_empty());
    let (code, said) = server.run("one", "one", &["migrate"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        server.roles("one").await.name(SYSTEM),
        "chatelaine_system_one"
    );
}

#[tokio::test]
async fn a_backup_that_another_login_restores_on_the_same_server_gets_roles_of_its_own() {
    let server = Server::start().await;
    server.install("one").await;
    server
        .order(
            "postgres",
            "create role two login createrole; create database two owner two",
        )
        .await;
    let copy = format!(
        "set -o pipefail; PATH=\"$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -1)\"; \
         pg_dump '{}' --no-owner | psql -q -v ON_ERROR_STOP=1 '{}'",
        server.url("postgres", "one").expose(),
        server.url("two", "two").expose(),
    );
    let copied = Command::new("bash")
        .args(["-c", &copy])
        .output()
        .await
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(
        server.findings("two").await,
        ["database.shared_roles"],
        "its roles are those of the other"
    );
    let (code, said) = server.run("two", "two", &["migrate"]).await;
    assert_eq!(code, Some(0), "{said}");
    let (one, two) = (server.roles("one").await, server.roles("two").await);
    assert_ne!(one, two);
    server
        .order("postgres", "alter role two nocreaterole")
        .await;
    assert!(server.findings("two").await.is_empty());
    // Nothing of it is left to the roles of the other database.
    let look = format!("set role {}", one.name(SYSTEM));
    let seen = server
        .refusal("postgres", "two", &[&look, "select id from tenants"])
        .await;
    assert!(seen.contains("permission denied"), "{seen}");
}

/// Makes a database as the state before this one did, with roles that all databases of the server share.
async fn make_of_before(test: &TestDb) {
    test.db.close().await;
    execute(
        test,
        "drop schema public cascade; create schema public; grant usage on schema public to public;
         create table _sqlx_migrations (version bigint primary key, description text not null,
           installed_on timestamptz not null default now(), success boolean not null, checksum bytea not null,
           execution_time bigint not null)",
    )
    .await;
    for migration in embedded().iter().filter(|it| it.version <= LAST_OF_BEFORE) {
        // Nothing has put names of roles in.
        execute_at(&mut test.as_owner().await, migration.sql.as_str()).await;
        sqlx::query(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values ($1, $2, true, $3, 0)",
        )
        .bind(migration.version)
        .bind(&*migration.description)
        .bind(&*migration.checksum)
        .execute(&mut test.as_owner().await)
        .await
        .unwrap();
    }
    execute(
        test,
        "set role chatelaine_system; insert into releases (version, oldest) values ('0.2.0', '0.2.0')",
    )
    .await;
    assert!(test.roles().await.are_shared());
}

#[tokio::test]
async fn an_installation_of_before_gets_roles_of_its_own_while_people_work() {
    let test = TestDb::new().await;
    make_of_before(&test).await;
    let shared = Roles::default();
    let done = CancellationToken::new();
    let mut people: JoinSet<sqlx::Result<()>> = JoinSet::new();
    let mut tenants = Vec::new();
    for number in 0..4 {
        let tenant = test.tenant(&format!("tenant-{number}")).await;
        tenants.push(tenant);
        let (mut connection, done, shared) = (test.as_owner().await, done.clone(), shared.clone());
        people.spawn(async move {
            while !done.is_cancelled() {
                read_and_write(&mut connection, &shared, tenant).await?;
            }
            // Also when it is over: the release before runs on.
            read_and_write(&mut connection, &shared, tenant).await
        });
    }
    let done_at_the_end = done.drop_guard();
    let migrator = embedded();
    let (one, other) = tokio::join!(Db::connect(&test.url, 2), migrate(&test, &migrator, true));
    let db = one.unwrap();
    other.unwrap();
    drop(done_at_the_end);
    while let Some(ended) = people.join_next().await {
        ended.unwrap().unwrap();
    }
    let own = test.roles().await;
    assert!(!own.are_shared());
    // It is the schema of a new database, but for the roles.
    assert_eq!(catalog(&test).await, catalog(&TestDb::new().await).await);

    // The release before and this one read the same rows, until the shared roles are ended.
    let count = async |roles: &Roles| {
        let mut connection = test.as_owner().await;
        let mut tx = begin(&mut connection, roles, Some(tenants[0])).await?;
        sqlx::query_scalar::<_, i64>("select count(*) from conversations")
            .fetch_one(&mut *tx)
            .await
    };
    assert!(count(&own).await.unwrap() > 0);
    assert_eq!(count(&own).await.unwrap(), count(&shared).await.unwrap());
    let ended = chatelaine(&["migrate", "--end-shared-roles"])
        .env("DATABASE_URL", test.url.expose())
        .output()
        .await
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let refused = count(&shared).await.unwrap_err().to_string();
    assert!(refused.contains("permission denied for table"), "{refused}");
    assert!(count(&own).await.unwrap() > 0);
    db.tenant(tenants[0]).await.unwrap().commit().await.unwrap();
    db.close().await;
}

#[tokio::test]
async fn a_move_to_own_roles_that_broke_off_goes_on() {
    let test = TestDb::new().await;
    make_of_before(&test).await;
    let mut holder = test.as_owner().await;
    execute_at(&mut holder, "begin; lock table runs").await;
    let refused = Db::connect(&test.url, 1)
        .await
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains(
            "giving the table runs roles of its own needs a lock that is held by process"
        ),
        "{refused}"
    );
    assert!(test.roles().await.are_shared());
    let tenant = test.tenant("acme").await;
    let mut owner = test.as_owner().await;
    execute_at(&mut holder, "rollback").await;
    read_and_write(&mut owner, &Roles::default(), tenant)
        .await
        .unwrap();
    Db::connect(&test.url, 1).await.unwrap().close().await;
    assert!(!test.roles().await.are_shared());
    let mut tenant = test.as_tenant(tenant).await;
    let role: String = sqlx::query_scalar("select current_user::text")
        .fetch_one(&mut tenant)
        .await
        .unwrap();
    assert_eq!(role, test.roles().await.name(TENANT));
}
