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
             insert into conversation_words (tenant_id, id, first_seq, last_seq, words)
             select tenant_id, id, 1, 1, array_to_tsvector(array(
               select words_of(tenant_id, user_id) || word from unnest('{{kiwi,plum,pear}}'::text[]) word))
             from conversations"
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
        "select set_config('app.words', stretch_query('{ours}', 'user1', typed_query('kiwi pl')), false);
         set role chatelaine_search"
    );
    execute(&mut db, ask).await;
    let part = "from conversation_words where tenant_id = $1 group by id";
    let found = plan(&mut db, part, &format!("'{ours}'")).await;
    assert!(
        found.contains("Index Scan on conversation_words_words"),
        "{found}"
    );
    assert!(!found.contains("Seq Scan"), "{found}");

    // Whatever a statement of this role says, it sees what answers the query, of this tenant.
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

