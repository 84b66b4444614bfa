//! One tenant never sees another: by the catalog of the schema, and by trying.
//!
//! A new table needs nothing here but a row in [`ROWS`]; the tests find it in the catalog and say what it lacks.

mod queries;

use std::collections::BTreeSet;

use domain::ids::TenantId;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use store::roles::{SYSTEM, TENANT};
use uuid::Uuid;

use crate::support::db::TestDb;

/// The tables that are no tenant's: the tenants themselves, what servers list for all of them and what of it was
/// accepted, which data this is, work of one replica, the replicas and which policies count there, the releases, the key
/// ring and who has it, the operator's trail, and the list of migrations.
const NOT_OF_A_TENANT: [&str; 14] = [
    "tenants",
    "catalogs_of_all",
    "data_identity",
    "pinned_servers_of_all",
    "pinned_tools_of_all",
    "jobs",
    "keks",
    "key_holders",
    "operator_audit",
    "operator_request_answers",
    "releases",
    "replicas",
    "settled_policies",
    "_sqlx_migrations",
];

/// The tables whose rows are only ever added.
const APPEND_ONLY: [&str; 3] = ["audit", "audit_outcomes", "operator_audit"];

/// A row of each table, for `$1`, the tenant. Its other ids are made from the tenant's (`$2`, a text, is a
/// unique word), so that a row may refer to the one above it.
const ROWS: &[(&str, &str)] = &[
    (
        "limit_sums",
        "insert into limit_sums (tenant_id, id, looked_at) values ($1, sha256($2::bytea), now())",
    ),
    (
        "limit_uses",
        "insert into limit_uses (tenant_id, id, sum_id, at, amount) values ($1, $1, sha256($2::bytea), now(), 1)",
    ),
    (
        "issuers",
        "insert into issuers (tenant_id, id, issuer, audience, algorithm, secret_env) values ($1, $1, $2, 'a', 'HS256', 'KEY')",
    ),
    (
        "api_keys",
        "insert into api_keys (tenant_id, id, name, prefix, hash, scopes, kind) values ($1, $1, 'key', $2, '', '{}', 'service')",
    ),
    (
        "user_sources",
        "insert into user_sources (tenant_id, id, kind, name, prefix) values ($1, $1, 'issuer', $2, '')",
    ),
    ("conversations", "insert into conversations (tenant_id, id, agent, user_id) values ($1, $1, 'bank', $2)"),
    (
        "runs",
        "insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status)
         values ($1, $1, $1, 1, 'bank', $2, '{}', 'turn', 'queued')",
    ),
    (
        "messages",
        "insert into messages (tenant_id, id, conversation_id, seq, run_ordinal, role, parts, for_model)
         values ($1, $1, $1, 1, 1, 'user', jsonb_build_array($2), true)",
    ),
    // The message has noted itself there.
    (
        "unindexed_messages",
        "insert into unindexed_messages (tenant_id, user_id, id, seq) values ($1, $2, $1, 1) on conflict do nothing",
    ),
    (
        "conversation_words",
        "insert into conversation_words (tenant_id, id, first_seq, last_seq, words) values ($1, $1, 1, 1, array_to_tsvector(array[$2]))",
    ),
    (
        "events",
        "insert into events (tenant_id, id, conversation_id, seq, kind, run_error) values ($1, $1, $1, 1, 'run', $2)",
    ),
    (
        "catalogs",
        "insert into catalogs (tenant_id, id, agent, server, version, tools, dropped, fetched_at)
         values ($1, $1, 'bank', 'bank', $2, '[]', '[]', now())",
    ),
    (
        "pinned_tools",
        "insert into pinned_tools (tenant_id, id, agent, server, tool, hash, definition)
         values ($1, $1, 'bank', 'bank', $2, repeat('0', 64), '{}')",
    ),
    (
        "pinned_servers",
        "insert into pinned_servers (tenant_id, id, agent, server, changed_at) values ($1, $1, 'bank', $2, now())",
    ),
    (
        "tenant_keys",
        "insert into tenant_keys (tenant_id, id, version, kek_id, wrapped, state)
         values ($1, $1, 1, 'k1', convert_to($2, 'utf8'), 'sealing')",
    ),
    (
        "kept_calls",
        "insert into kept_calls (tenant_id, id, user_id, agent, server, tool, origin, sealed)
         values ($1, $1, $2, 'bank', 'bank', 'pay', 'chat', '\\x01000100000001')",
    ),
    (
        "credentials",
        "insert into credentials (tenant_id, id, agent, server, user_id, generation, state, sealed)
         values ($1, $1, 'bank', 'notes', $2, 1, 'active', '\\x01000100000001')",
    ),
    (
        "credential_judges",
        "insert into credential_judges (tenant_id, id, agent, server, asked) values ($1, $1, 'bank', $2, '\\x00')",
    ),
    (
        "oauth_clients",
        "insert into oauth_clients (tenant_id, id, issuer, redirect_uri, sealed)
         values ($1, $1, $2, 'https://chat.example.org/oauth/callback', '\\x00')",
    ),
    (
        "oauth_sign_ins",
        "insert into oauth_sign_ins (tenant_id, id, state_hash, user_id, agent, server, sealed, expires_at)
         values ($1, $1, convert_to($2, 'utf8'), 'ann', 'bank', 'notes', '\\x00', now())",
    ),
    (
        "approvals",
        "insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256, sealed,
                                credential, requester, principal, call_id, follow_up, approvers, min_approvals,
                                self_approval, expires_at)
         values ($1, $1, '7F3K', 'pending', 'bank', 'bank', 'send_money', '{}', decode(repeat('00', 32), 'hex'),
                 decode(repeat('00', 32), 'hex'), '\\x01000100000001', '/0', $2, '{}', 'call', true, '{cfo}', 1, true, now())",
    ),
    (
        "approval_votes",
        "insert into approval_votes (tenant_id, id, approval_id, approver, choice) values ($1, $1, $1, $2, 'approve')",
    ),
    (
        "shown_requests",
        "insert into shown_requests (tenant_id, id, conversation_id, approval_id, args_sha256, run_id)
         values ($1, $1, $1, $1, decode(md5($2) || md5($2), 'hex'), $1)",
    ),
    (
        "approval_notices",
        "insert into approval_notices (tenant_id, id, user_id, approval_id) values ($1, $1, $2, $1)",
    ),
    ("approval_results", "insert into approval_results (tenant_id, id, result) values ($1, $1, $2)"),
    ("users", "insert into users (tenant_id, id, user_id, claims, claims_at) values ($1, $1, $2, '{}', now())"),
    (
        "flows",
        "insert into flows (tenant_id, id, conversation_id, user_id, agent, step, expires_at)
         values ($1, $1, $1, $2, 'bank', 'pick', now())",
    ),
    (
        "request_keys",
        "insert into request_keys (tenant_id, id, user_id, key, digest, conversation_id) values ($1, $1, $2, 'k', '', $1)",
    ),
    (
        "branches",
        "insert into branches (tenant_id, id, conversation_id, number, parent, from_seq)
         values ($1, $1, $1, 1, 0, length($2))",
    ),
    (
        "attachments",
        "insert into attachments (tenant_id, id, conversation_id, name, media_type, size, data)
         values ($1, $1, $1, $2, 'text/plain', 1, 'a')",
    ),
    (
        "feedback",
        "insert into feedback (tenant_id, id, conversation_id, message_id, rating, comment)
         values ($1, $1, $1, $1, 'up', $2)",
    ),
    (
        "request_answers",
        "insert into request_answers (tenant_id, id, user_id, key, digest) values ($1, $1, $2, 'k', '')",
    ),
    (
        "stream_tickets",
        "insert into stream_tickets (tenant_id, id, hash, principal, expires_at)
         values ($1, $1, decode(repeat('00', 32), 'hex'), json_build_object('user', $2), now())",
    ),
    (
        "responses",
        "insert into responses (tenant_id, id, conversation_id, first_event, settings)
         values ($1, $1, $1, 0, json_build_object('instructions', $2::text))",
    ),
    (
        "client_chats",
        "insert into client_chats (tenant_id, id, user_id, chat, conversation_id, run_id, first_event)
         values ($1, $1, $2, 'ui:one', $1, $1, 0)",
    ),
    (
        "resource_links",
        "insert into resource_links (tenant_id, id, conversation_id, server, tool, uri)
         values ($1, $1, $1, 'bank', 'get_statement', $2)",
    ),
    (
        "elicitations",
        "insert into elicitations (tenant_id, id, conversation_id, user_id, agent, server, tool, run_id, call_id,
                                   credential, for_model, round, sealed, expires_at)
         values ($1, $1, $1, $2, 'bank', 'bank', 'send_money', $1, 'call', '/0', true, 1, '\\x01000100000001', now())",
    ),
    (
        "webhooks",
        "insert into webhooks (tenant_id, id, slot, url, events, sealed)
         values ($1, $1, 1, 'https://hooks.example.org', array[$2], '\\x01000100000001')",
    ),
    (
        "webhook_deliveries",
        "insert into webhook_deliveries (tenant_id, id, webhook_id, event, payload) values ($1, $1, $1, $2, '{}')",
    ),
    (
        "mcp_servers",
        "insert into mcp_servers (tenant_id, id, entry, name, definition, version) values ($1, $1, 'docs', $2, '{}', 1)",
    ),
    (
        "secrets",
        "insert into secrets (tenant_id, id, name, sealed, version) values ($1, $1, $2, '\\x01000100000001', 1)",
    ),
    (
        "server_settings",
        "insert into server_settings (tenant_id, id, level, owner, server, entry, definition, version)
         values ($1, $1, 'agent', 'bank', 'docs', $2, '{}', 1)",
    ),
    (
        "access_tokens",
        "insert into access_tokens (tenant_id, id, request, fence) values ($1, $1, sha256(convert_to($2, 'utf8')), 1)",
    ),
    ("audit", "insert into audit (tenant_id, id, at, actor, action, outcome) values ($1, $1, now(), $2, 'call', 'ok')"),
    ("audit_outcomes", "insert into audit_outcomes (tenant_id, id, outcome) values ($1, $1, $2)"),
    ("audit_open_lines", "insert into audit_open_lines (tenant_id, id) values ($1, case when $2::text <> '' then $1 end)"),
    ("usage", "insert into usage (tenant_id, id, day, user_id, agent) values ($1, $1, now(), $2, 'bank')"),
    (
        "usage_additions",
        "insert into usage_additions (tenant_id, id, day, user_id, agent) values ($1, $1, now(), $2, 'bank')",
    ),
    (
        "sign_outs",
        "insert into sign_outs (tenant_id, id, user_id, issued_until, expires_until) values ($1, $1, $2, 1, 1)",
    ),
];

/// The columns that the program itself may read before a tenant is known; `*` for all. Anything else is content.
const SYSTEM_READS: &[(&str, &str)] = &[
    ("api_keys", "*"),
    (
        "approvals",
        "tenant_id id state approvers expires_at changed_at lease_until withdrawn",
    ),
    ("catalogs_of_all", "*"),
    ("conversations", "tenant_id id last_event"),
    (
        "credentials",
        "tenant_id id agent server user_id generation state tenant_key_version updated_at verified_at told_generation candidate_generation candidate_key_version last_generation candidate_refused",
    ),
    ("data_identity", "*"),
    ("elicitations", "tenant_id id expires_at"),
    ("flows", "tenant_id id link_hash expires_at"),
    ("issuers", "*"),
    ("jobs", "*"),
    ("keks", "*"),
    ("key_holders", "*"),
    ("mcp_servers", "tenant_id id version"),
    ("oauth_sign_ins", "tenant_id id state_hash expires_at"),
    ("operator_audit", "*"),
    ("operator_request_answers", "*"),
    ("pinned_servers", "tenant_id agent server changed_at"),
    ("pinned_servers_of_all", "*"),
    ("pinned_tools", "tenant_id accepted_at standing"),
    ("pinned_tools_of_all", "*"),
    ("releases", "*"),
    ("replicas", "*"),
    (
        "runs",
        "tenant_id id conversation_id user_id kind status lease_until created_at root_run has_scope awaits_callback",
    ),
    ("secrets", "tenant_id id version"),
    ("server_settings", "tenant_id id version"),
    ("settled_policies", "*"),
    ("sign_outs", "tenant_id user_id changed_at"),
    ("tenant_keys", "tenant_id version kek_id state"),
    ("tenants", "*"),
    ("unindexed_messages", "tenant_id"),
    ("usage_additions", "tenant_id"),
    ("user_sources", "*"),
    ("users", "tenant_id user_id changed_at"),
    (
        "webhook_deliveries",
        "tenant_id id webhook_id created_at next_attempt_at",
    ),
];

/// The tables that the program itself writes, outside of any tenant.
const SYSTEM_WRITES: [&str; 13] = [
    "data_identity",
    "tenants",
    "jobs",
    "keks",
    "key_holders",
    "operator_audit",
    "operator_request_answers",
    "catalogs_of_all",
    "pinned_servers_of_all",
    "pinned_tools_of_all",
    "releases",
    "replicas",
    "settled_policies",
];

const CONDITION: &str =
    "(tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)";

#[tokio::test]
async fn every_table_is_locked_by_tenant() {
    let test = TestDb::new().await;
    let roles = test.roles().await;
    let mut db = test.as_owner().await;
    let mut missing = Vec::new();
    for table in tables(&mut db).await {
        let mut lacks = |what: &str| missing.push(format!("{table}: {what}"));
        let (enabled, forced) = row_security(&mut db, &table).await;
        if !enabled || !forced {
            lacks("row-level security is not both enabled and forced");
        }
        if NOT_OF_A_TENANT.contains(&&*table) {
            continue;
        }
        if primary_key(&mut db, &table)
            .await
            .first()
            .map(String::as_str)
            != Some("tenant_id")
        {
            lacks("the primary key does not begin with tenant_id");
        }
        for key in foreign_keys_without_tenant(&mut db, &table).await {
            lacks(&format!("foreign key {key} does not include tenant_id"));
        }
        let policies = policies(&mut db, &table, &roles.name(TENANT)).await;
        if policies
            != [(
                "ALL".to_owned(),
                Some(CONDITION.to_owned()),
                Some(CONDITION.to_owned()),
            )]
        {
            lacks(&format!(
                "not the one policy of chatelaine_tenant for all, using and with check, but {policies:?}"
            ));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[tokio::test]
async fn rows_of_the_audit_trail_are_only_ever_added() {
    let test = TestDb::new().await;
    let roles = test.roles().await;
    let mut db = test.as_owner().await;
    for table in APPEND_ONLY {
        for role in [roles.name(TENANT), roles.name(SYSTEM), "public".to_owned()] {
            for privilege in ["update", "delete", "truncate"] {
                let sql = "select has_table_privilege($1, $2, $3) or has_any_column_privilege($1, $2, 'update')";
                let may: bool = sqlx::query_scalar(sql)
                    .bind(&role)
                    .bind(table)
                    .bind(privilege)
                    .fetch_one(&mut db)
                    .await
                    .unwrap();
                assert!(!may, "{role} may {privilege} {table}");
            }
        }
    }
}

#[tokio::test]
async fn the_program_itself_reads_no_content() {
    let test = TestDb::new().await;
    let mut db = test.as_owner().await;
    let sql = "select table_name::text, string_agg(column_name, ' ' order by ordinal_position)
               from information_schema.columns
               where table_schema = 'public' and has_column_privilege('chatelaine_system', table_name::text, column_name::text, 'select')
               group by 1 order by 1";
    let sql = test.name_roles(sql).await;
    let readable: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(sql))
        .fetch_all(&mut db)
        .await
        .unwrap();
    let mut wanted = Vec::new();
    for (table, columns) in SYSTEM_READS {
        let columns = if *columns == "*" {
            columns_of(&mut db, table).await
        } else {
            (*columns).to_owned()
        };
        wanted.push(((*table).to_owned(), columns));
    }
    assert_eq!(readable, wanted);
}

#[tokio::test]
async fn the_program_itself_writes_only_tenants_the_key_ring_and_its_own_trail() {
    let test = TestDb::new().await;
    let roles = test.roles().await;
    let mut db = test.as_owner().await;
    for table in tables(&mut db).await {
        let sql = "select has_table_privilege('chatelaine_system', $1, 'insert, update, delete')
                   or has_any_column_privilege('chatelaine_system', $1, 'insert, update')";
        let writes: bool = sqlx::query_scalar(AssertSqlSafe(roles.name_in(sql)))
            .bind(&table)
            .fetch_one(&mut db)
            .await
            .unwrap();
        assert_eq!(writes, SYSTEM_WRITES.contains(&&*table), "{table}");
    }
}

#[tokio::test]
async fn nothing_in_the_schema_looks_with_its_owners_eyes() {
    let test = TestDb::new().await;
    let sql = "select relname::text from pg_class c where relnamespace = 'public'::regnamespace and relkind = 'v'
                 and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
               union all
               select proname::text from pg_proc where pronamespace = 'public'::regnamespace and prosecdef";
    let found: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(&mut test.as_owner().await)
        .await
        .unwrap();
    assert!(
        found.is_empty(),
        "views and `security definer` functions pass by row-level security: {found:?}"
    );
}

#[tokio::test]
async fn every_table_has_a_row_to_try_with() {
    let test = TestDb::new().await;
    let tables: BTreeSet<String> = tables(&mut test.as_owner().await)
        .await
        .into_iter()
        .collect();
    let tried: BTreeSet<String> = ROWS
        .iter()
        .map(|row| row.0)
        .chain(NOT_OF_A_TENANT)
        .map(str::to_owned)
        .collect();
    assert_eq!(tables, tried, "write a row for each new table into ROWS");
}

#[tokio::test]
async fn a_tenant_sees_its_own_rows_and_no_others() {
    let (_test, mut ours, theirs) = two_tenants().await;
    for (table, _) in ROWS {
        let seen: Vec<Uuid> =
            sqlx::query_scalar(AssertSqlSafe(format!("select tenant_id from {table}")))
                .fetch_all(&mut ours)
                .await
                .unwrap();
        assert_eq!(seen.len(), 1, "{table}: its own row");
        assert!(!seen.contains(&theirs.0), "{table}: somebody else's row");
    }
    let tenants: Vec<Uuid> = sqlx::query_scalar("select id from tenants")
        .fetch_all(&mut ours)
        .await
        .unwrap();
    assert!(
        tenants.len() == 1 && !tenants.contains(&theirs.0),
        "tenants: {tenants:?}"
    );
}

#[tokio::test]
async fn a_tenant_changes_no_row_of_another() {
    let (test, mut ours, theirs) = two_tenants().await;
    for (table, _) in ROWS
        .iter()
        .rev()
        .filter(|(table, _)| !APPEND_ONLY.contains(table))
    {
        for sql in [
            format!("update {table} set id = id"),
            format!("delete from {table}"),
        ] {
            let done = sqlx::query(AssertSqlSafe(format!("{sql} where tenant_id = $1")))
                .bind(theirs.0)
                .execute(&mut ours)
                .await
                .unwrap();
            assert_eq!(done.rows_affected(), 0, "{sql}");
        }
        // Without a condition, as a forgetful query: our own row is changed, theirs is not.
        sqlx::query(AssertSqlSafe(format!("delete from {table}")))
            .execute(&mut ours)
            .await
            .unwrap();
        let left: i64 = sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {table}")))
            .fetch_one(&mut test.as_tenant(theirs).await)
            .await
            .unwrap();
        assert_eq!(left, 1, "{table}: their row");
    }
}

#[tokio::test]
async fn a_tenant_writes_no_row_into_another() {
    let (_test, mut ours, theirs) = two_tenants().await;
    for (table, row) in ROWS {
        let error = sqlx::query(*row)
            .bind(theirs.0)
            .bind("intruder")
            .execute(&mut ours)
            .await
            .unwrap_err();
        assert_eq!(code(&error), "42501", "insert into {table}: {error}");
        if !APPEND_ONLY.contains(table) {
            let moved = sqlx::query(AssertSqlSafe(format!("update {table} set tenant_id = $1")));
            let error = moved.bind(theirs.0).execute(&mut ours).await.unwrap_err();
            // Citus lets nobody change it.
            let refused = ["42501", "0A000"];
            assert!(
                refused.contains(&&*code(&error)),
                "a move of {table}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn without_a_tenant_there_are_no_rows() {
    let (test, ..) = two_tenants().await;
    let mut nobody = test.as_role(TENANT, None).await;
    for (table, row) in ROWS {
        let rows = sqlx::query(AssertSqlSafe(format!("select 1 from {table}")))
            .fetch_all(&mut nobody)
            .await
            .unwrap();
        assert_eq!(rows.len(), 0, "{table}");
        let error = sqlx::query(*row)
            .bind(Uuid::now_v7())
            .bind("nobody")
            .execute(&mut nobody)
            .await
            .unwrap_err();
        assert_eq!(code(&error), "42501", "insert into {table}: {error}");
    }
}

/// Two tenants with a row in every table; the connection is of the first, the id of the second.
async fn two_tenants() -> (TestDb, PgConnection, TenantId) {
    let test = TestDb::new().await;
    let (ours, theirs) = (test.tenant("ours").await, test.tenant("theirs").await);
    let sql = "insert into keks (id, check_value, state) values ('k1', decode(repeat('00', 16), 'hex'), 'sealing')";
    sqlx::query(sql)
        .execute(&mut test.as_system().await)
        .await
        .unwrap();
    for tenant in [theirs, ours] {
        let mut connection = test.as_tenant(tenant).await;
        for (table, row) in ROWS {
            let inserted = sqlx::query(*row)
                .bind(tenant.0)
                .bind(tenant.to_string())
                .execute(&mut connection)
                .await;
            assert!(inserted.is_ok(), "{table}: {inserted:?}");
        }
    }
    let connection = test.as_tenant(ours).await;
    (test, connection, theirs)
}

fn code(error: &sqlx::Error) -> String {
    error
        .as_database_error()
        .unwrap()
        .code()
        .unwrap()
        .into_owned()
}

async fn tables(db: &mut PgConnection) -> Vec<String> {
    let sql = "select relname::text from pg_class
               where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'm', 'f') order by 1";
    sqlx::query_scalar(sql).fetch_all(db).await.unwrap()
}

async fn columns_of(db: &mut PgConnection, table: &str) -> String {
    let sql = "select string_agg(column_name, ' ' order by ordinal_position) from information_schema.columns
               where table_schema = 'public' and table_name = $1";
    sqlx::query_scalar(sql)
        .bind(table)
        .fetch_one(db)
        .await
        .unwrap()
}

async fn row_security(db: &mut PgConnection, table: &str) -> (bool, bool) {
    if table == "_sqlx_migrations" {
        // Made by sqlx; nobody but the owner may read it.
        return (true, true);
    }
    let sql = "select relrowsecurity, relforcerowsecurity from pg_class where oid = $1::regclass";
    let row = sqlx::query(sql).bind(table).fetch_one(db).await.unwrap();
    (row.get(0), row.get(1))
}

async fn primary_key(db: &mut PgConnection, table: &str) -> Vec<String> {
    let sql = "select a.attname::text from pg_constraint c, unnest(c.conkey) with ordinality k (attnum, position)
               join pg_attribute a on a.attnum = k.attnum
               where c.conrelid = $1::regclass and c.contype = 'p' and a.attrelid = c.conrelid order by k.position";
    sqlx::query_scalar(sql)
        .bind(table)
        .fetch_all(db)
        .await
        .unwrap()
}

async fn foreign_keys_without_tenant(db: &mut PgConnection, table: &str) -> Vec<String> {
    let sql = "select conname::text from pg_constraint c
               where conrelid = $1::regclass and contype = 'f' and not exists (
                 select from unnest(c.conkey, c.confkey) k (ours, theirs)
                 join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.ours
                 join pg_attribute b on b.attrelid = c.confrelid and b.attnum = k.theirs
                 where a.attname = 'tenant_id' and (b.attname = 'tenant_id' or c.confrelid = 'tenants'::regclass))
               and confrelid <> 'keks'::regclass";
    sqlx::query_scalar(sql)
        .bind(table)
        .fetch_all(db)
        .await
        .unwrap()
}

type Policy = (String, Option<String>, Option<String>);

async fn policies(db: &mut PgConnection, table: &str, role: &str) -> Vec<Policy> {
    let sql = "select cmd, qual, with_check from pg_policies
               where schemaname = 'public' and tablename = $1 and ($2 = any (roles) or 'public' = any (roles))";
    sqlx::query_as(sql)
        .bind(table)
        .bind(role)
        .fetch_all(db)
        .await
        .unwrap()
}
