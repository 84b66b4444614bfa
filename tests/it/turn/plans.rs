//! The plans of a turn. Postgres makes them while the tables of a new installation are empty, and would look a minute
//! later whether they have grown. The program does so itself, soon.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::{
    AssertSqlSafe, Executor as _, PgConnection, Row as _, postgres::PgQueryResult, raw_sql,
};

use super::world;
use crate::support::{
    bank::pair,
    model::{calls, text},
    wait::eventually,
};

/// How many rows each table of a turn gets.
const ROWS: u64 = 100_000;
/// A plan of a turn that reads a table reads it with each of the turns: four million rows. Connections report late, so
/// what each of them read before the program looked at the sizes may be counted here.
const MOST_READ: i64 = 1_000_000;
/// Turns, so that each connection has run each query often enough to keep one plan for all values.
const TURNS: usize = 40;

#[tokio::test]
async fn no_query_of_a_turn_reads_a_table_that_has_grown_from_end_to_end() {
    let world = world().await;
    let mut owner = world.db.as_owner().await;
    // The service looks at the tables meanwhile, so that the two may stand in each other's way.
    while prepare(&mut owner).await.is_err() {}
    let ann = world.user("ann", &["finance"]).await;
    let answer = |request: &serde_json::Value| {
        let is_new = request["messages"].as_array()?.last()?["role"] == "user";
        Some(if is_new {
            calls([("bank__get_exchange_rate", pair())])
        } else {
            text("Done.")
        })
    };
    world.model.on(answer);
    let chat = json!({ "model": "bank", "messages": [{ "role": "user", "content": "And now?" }] });
    let turns = async |count: usize| {
        for at in 0..count {
            ann.ask("bank", "Which rate?").await;
            let mut chat = chat.clone();
            chat["messages"][0]["content"] = json!(format!("And now, {at} of {count}?"));
            ann.post("/v1/chat/completions", chat).await.expect(200);
        }
        ann.get("/v1/conversations").await.expect(200);
        ann.get("/v1/approvals").await.expect(200);
    };
    turns(TURNS).await;
    let filled = fill(&mut owner).await;
    for table in ["conversations", "messages", "runs", "events", "audit"] {
        assert!(filled.contains(table), "{table} is not in {filled:?}");
    }
    let is_analysed = async || {
        let sql = "select count(*) from pg_stat_user_tables where n_mod_since_analyze > 1000";
        let row = world.db.as_owner().await.fetch_one(sql).await.unwrap();
        row.get::<i64, _>(0) == 0
    };
    eventually(is_analysed).await;
    let before = reads(&mut owner).await;
    turns(TURNS).await;
    // Connections report what they have read when they end.
    let _stopped = world.stop().await;
    let mut found = Vec::new();
    for (name, read) in reads(&mut owner).await {
        let before = before.iter().find(|(other, _)| *other == name);
        let read = read - before.map_or(0, |(_, read)| *read);
        if read > MOST_READ {
            found.push(format!("{name}: {read} rows"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Keeps Postgres from gathering statistics by itself, triggers from writing down work for jobs, and what refers to rows
/// that are not there from mattering. Done before
/// the first query, since it makes Postgres plan anew.
async fn prepare(owner: &mut PgConnection) -> sqlx::Result<PgQueryResult> {
    raw_sql(
        "do $$ declare what record; begin
           for what in select oid::regclass as name from pg_class
             where relkind = 'r' and relnamespace = 'public'::regnamespace loop
             execute format('alter table %s set (autovacuum_enabled = false)', what.name);
             execute format('alter table %s no force row level security', what.name);
             execute format('alter table %s disable trigger user', what.name);
           end loop;
           for what in select conrelid::regclass as name, conname from pg_constraint
             where contype = 'f' and connamespace = 'public'::regnamespace loop
             execute format('alter table %s drop constraint %I', what.name, what.conname);
           end loop;
         end $$",
    )
    .execute(owner)
    .await
}

/// Copies a row of each table that has one. Half of the copies are another tenant's. Returns the names of the tables.
async fn fill(owner: &mut PgConnection) -> BTreeSet<String> {
    let columns = "select c.relname::text, string_agg(quote_ident(a.attname), ', ' order by a.attnum),
           string_agg(case
             when a.attname = 'tenant_id' then 'case when n % 2 = 0 then $1 else one.tenant_id end'
             when a.atttypid = 'uuid'::regtype and a.attname <> 'parent_id' then
               format('case when one.%1$I is not null then gen_random_uuid() end', a.attname)
             when a.atttypid = 'timestamptz'::regtype then format('one.%I - n * interval ''1 minute''', a.attname)
             when a.atttypid = 'date'::regtype then format('one.%I - (n %% 365)::int', a.attname)
             when not a.is_unique then format('one.%I', a.attname)
             when a.atttypid in ('int8'::regtype, 'int4'::regtype) then format('one.%I + n', a.attname)
             when a.atttypid = 'bytea'::regtype then 'sha256(n::text::bytea)'
             when a.atttypid = 'text'::regtype then format('one.%I || n', a.attname)
             else format('one.%I', a.attname) end, ', ' order by a.attnum)
         from pg_class c
         join lateral (select *, exists (select from pg_index i where i.indrelid = c.oid and i.indisunique
             and attnum = any(i.indkey)) as is_unique from pg_attribute
           where attrelid = c.oid and attnum > 0 and not attisdropped and attgenerated = '') a on true
         where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace
           -- Jobs take what these have away again, which is no growth.
           and c.relname not in ('unindexed_messages', 'usage_additions')
           and exists (select from pg_attribute t where t.attrelid = c.oid and t.attname = 'tenant_id')
         group by 1";
    let tables = owner.fetch_all(columns).await.unwrap();
    let mut filled = BTreeSet::new();
    for table in tables {
        let (name, columns, values): (String, String, String) =
            (table.get(0), table.get(1), table.get(2));
        let insert = format!(
            "insert into {name} ({columns}) overriding system value
             select {values} from (select * from {name} order by ctid desc limit 1) one,
               generate_series(1000, 999 + {ROWS}) n
             on conflict do nothing"
        )
        .replace("$1", "gen_random_uuid()");
        // A table may have rules that such a copy breaks. The test names those that it needs.
        let done = raw_sql(AssertSqlSafe(insert)).execute(&mut *owner).await;
        if done.is_ok_and(|done| done.rows_affected() > ROWS / 2) {
            filled.insert(name);
        }
    }
    filled
}

/// How many rows were read of each table from end to end, and of each index.
async fn reads(owner: &mut PgConnection) -> Vec<(String, i64)> {
    let sql = "select relname::text, seq_tup_read from pg_stat_user_tables
         union all select indexrelname::text, idx_tup_read from pg_stat_user_indexes";
    let rows = owner.fetch_all(sql).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
