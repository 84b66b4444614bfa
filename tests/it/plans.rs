//! What is looked for among much is found by an index, as the roles that work see it.

use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::db::TestDb;

/// The plan of the one query of the program that has `part`, with these arguments.
async fn plan(db: &mut PgConnection, part: &str, arguments: &str) -> String {
    let queries = std::fs::read_dir(".sqlx").unwrap().map(|entry| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let kept: Value = serde_json::from_str(&text).unwrap();
        kept["query"].as_str().unwrap().to_owned()
    });
    let found: Vec<_> = queries.filter(|query| query.contains(part)).collect();
    assert_eq!(found.len(), 1, "queries with {part:?}");
    let sql = format!(
        "set plan_cache_mode = force_custom_plan; deallocate all; prepare asked as {}",
        found[0]
    );
    execute(db, sql).await;
    let explain = format!("explain execute asked ({arguments})");
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
        .fetch_all(db)
        .await
        .unwrap();
    lines.join("\n")
}

async fn execute(db: &mut PgConnection, sql: impl Into<String>) {
    sqlx::raw_sql(AssertSqlSafe(sql.into()))
        .execute(db)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_search_reads_the_index_of_words() {
    let test = TestDb::new().await;
    let (ours, theirs) = (test.tenant("ours").await, test.tenant("theirs").await);
    for tenant in [ours, theirs] {
        let fill = format!(
            "insert into conversations (tenant_id, id, agent, user_id)
             select '{tenant}', gen_random_uuid(), 'bank', 'user' || n % 10 from generate_series(1, 2000) n;
             -- A message with all three words, and then a message with each.
             insert into conversation_words (tenant_id, id, first_seq, last_seq, words)
             select tenant_id, id, case last when 1 then 1 else 2 end, last, (
               select string_agg(words_of(tenant_id, user_id) || word || ':' || case last when 1 then 1 else n end, ' ')
                      ::tsvector
               from unnest('{{kiwi,plum,pear}}'::text[]) with ordinality as said (word, n))
             from conversations, unnest(array[1, 4]) last"
        );
        execute(&mut test.as_tenant(tenant).await, fill).await;
    }
    execute(
        &mut test.as_owner().await,
        "analyze conversation_words, conversations",
    )
    .await;
    let mut db = test.as_tenant(ours).await;
    let ask = format!(
        "select set_config('app.words', stretch_query('{ours}', 'user1', typed_query('kiwi pl'))::text, false);
         set role chatelaine_search"
    );
    execute(&mut db, test.name_roles(&ask).await).await;
    let part = "from conversation_words where tenant_id = $1 group by id";
    let found = plan(&mut db, part, &format!("'{ours}'")).await;
    assert!(
        found.contains("Index Scan on conversation_words_words"),
        "{found}"
    );
    assert!(!found.contains("Seq Scan"), "{found}");

    // Whatever a statement of this role says, it sees what answers the query, of this tenant: words of one message.
    let seen: i64 = sqlx::query_scalar("select count(*) from conversation_words")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(seen, 200);
    for sql in [
        "select words from conversation_words",
        "select 1 from messages",
        "select 1 from conversations",
        "delete from conversation_words",
    ] {
        let refused = sqlx::query(sql).execute(&mut db).await.unwrap_err();
        assert!(
            refused.to_string().contains("permission denied"),
            "{sql}: {refused}"
        );
    }
    for words in ["''", "'nothing'"] {
        let ask = format!("select set_config('app.words', {words}, false)");
        execute(&mut db, ask).await;
        let seen: i64 = sqlx::query_scalar("select count(*) from conversation_words")
            .fetch_one(&mut db)
            .await
            .unwrap();
        assert_eq!(seen, 0, "{words}");
    }
}

#[tokio::test]
async fn lines_of_the_trail_with_a_rare_outcome_or_tool_are_read_by_an_index() {
    let test = TestDb::new().await;
    let tenant = test.tenant("ours").await;
    let mut db = test.as_tenant(tenant).await;
    let fill = format!(
        "insert into audit (tenant_id, id, at, actor, action, agent, server, tool, outcome)
         select '{tenant}', gen_random_uuid(), now(), 'user' || n % 50, 'tool.call', 'bank', 'bank', 'tool' || n % 500,
                case when n % 2000 = 1 then 'failed' when n % 3 = 0 then 'succeeded' else 'outcome_unknown' end
         from generate_series(1, 20000) n;
         insert into audit_outcomes (tenant_id, id, outcome)
         select tenant_id, id, case when random() < 0.002 then 'failed' else 'succeeded' end
         from audit where outcome = 'outcome_unknown' and tool <> 'tool7'"
    );
    execute(&mut db, fill).await;
    execute(
        &mut test.as_owner().await,
        "analyze audit, audit_outcomes, audit_open_lines",
    )
    .await;
    let arguments = |tool: &str, outcome: &str| {
        format!(
            "'{tenant}', '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
             null, null, null, null, null, null, {tool}, null, {outcome}, null, 50"
        )
    };
    for (outcome, indexes) in [
        (
            "'failed'",
            ["audit_by_outcome", "audit_outcomes_by_outcome"],
        ),
        (
            "'outcome_unknown'",
            ["audit_open_lines", "audit_outcomes_by_outcome"],
        ),
    ] {
        let part = ") ended\n             join audit a";
        let found = plan(&mut db, part, &arguments("null", outcome)).await;
        for index in indexes {
            assert!(found.contains(index), "{found}");
        }
        for table in ["audit", "audit_outcomes"] {
            let scan = format!("Seq Scan on {table} ");
            assert!(!found.contains(&scan), "{found}");
        }
    }
    let found = plan(&mut db, "as outcome) ended", &arguments("'tool7'", "null")).await;
    assert!(found.contains("audit_by_tool_name"), "{found}");
    assert!(!found.contains("Seq Scan"), "{found}");
}

#[tokio::test]
async fn requests_in_a_rare_state_are_read_by_an_index() {
    let test = TestDb::new().await;
    let tenant = test.tenant("ours").await;
    let key = "insert into keks (id, check_value, state) values ('k1', decode(repeat('00', 16), 'hex'), 'sealing')";
    execute(&mut test.as_system().await, key).await;
    let mut db = test.as_tenant(tenant).await;
    let fill = format!(
        "insert into tenant_keys (tenant_id, id, version, kek_id, wrapped, state)
         values ('{tenant}', '{tenant}', 1, 'k1', '\\x00', 'sealing');
         insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256, sealed,
                                credential, requester, principal, call_id, follow_up, approvers, min_approvals,
                                self_approval, expires_at)
         select '{tenant}', gen_random_uuid(), lpad(n::text, 5, '0'), case when n % 1000 = 1 then 'failed' else 'succeeded' end,
                'agent' || n % 3, 'bank', 'send_money', '{{}}', sha256('x'), sha256(n::text::bytea), '\\x01000100000001', '/0',
                'user' || n % 50, '{{}}', 'call', true, '{{cfo}}', 1, true, now()
         from generate_series(1, 10000) n"
    );
    execute(&mut db, fill).await;
    execute(&mut test.as_owner().await, "analyze approvals").await;
    let part = "agent = any($1) and ($3::text is null or state = $3)";
    let arguments = format!(
        "'{{agent0,agent1,agent2}}', '{{cfo,cfo,cfo}}', 'failed', null, 50, false, 'me', '{tenant}', null, null, false,
         false, false"
    );
    let found = plan(&mut db, part, &arguments).await;
    assert!(found.contains("approvals_by_state"), "{found}");
    assert!(!found.contains("Seq Scan on approvals"), "{found}");
}

#[tokio::test]
async fn calls_are_added_up_with_their_lines_and_not_counted_from_the_trail() {
    let test = TestDb::new().await;
    let tenant = test.tenant("ours").await;
    let mut db = test.as_tenant(tenant).await;
    let fill = format!(
        "insert into audit (tenant_id, id, at, actor, action, agent, outcome)
         select '{tenant}', gen_random_uuid(), date '2026-01-01' + n % 2, 'ann', 'tool.call', 'bank', 'failed'
         from generate_series(1, 5) n;
         insert into audit (tenant_id, id, at, actor, action, outcome)
         select '{tenant}', gen_random_uuid(), now(), 'ann', 'session.ended', 'succeeded'"
    );
    execute(&mut db, fill).await;
    let added: Vec<(String, i64)> = sqlx::query_as(
        "select day::text, tool_calls from usage_additions where user_id = 'ann' and agent = 'bank' order by 1",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    assert_eq!(
        added,
        [("2026-01-01".to_owned(), 2), ("2026-01-02".to_owned(), 3)]
    );
    let mut tx = test.db.tenant(tenant).await.unwrap();
    store::usage::fold(&mut tx, 100).await.unwrap();
    let lines = store::usage::list(&mut tx, None, None, 10).await.unwrap();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].tool_calls, 5);
}
