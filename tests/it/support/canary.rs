//! A secret that is looked for in everything that is stored.

use std::fmt::Write;

use base64::Engine;

use super::db::TestDb;

/// The ways in which a secret may be written.
pub fn spellings(secret: &str) -> Vec<String> {
    let standard = base64::engine::general_purpose::STANDARD.encode(secret);
    let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(secret);
    let json = serde_json::to_string(secret)
        .unwrap()
        .trim_matches('"')
        .to_owned();
    let hex = hex::encode(secret);
    let percent = hex.as_bytes().chunks(2).fold(String::new(), |all, pair| {
        all + "%" + &String::from_utf8_lossy(pair).to_uppercase()
    });
    let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    vec![
        secret.to_owned(),
        standard.trim_end_matches('=').to_owned(),
        url_safe,
        json,
        percent,
        form,
        hex.to_uppercase(),
        hex,
    ]
}

/// Every row of every table, as text. For the end of a test: the locks are off afterwards.
pub async fn everything_stored(db: &TestDb) -> String {
    let mut db = db.as_owner().await;
    let tables: Vec<String> =
        sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public'")
            .fetch_all(&mut db)
            .await
            .unwrap();
    let mut all = String::new();
    for table in tables {
        // Its owner sees every tenant's rows from here on.
        let open = format!("alter table \"{table}\" no force row level security");
        sqlx::query(sqlx::AssertSqlSafe(open))
            .execute(&mut db)
            .await
            .unwrap();
        let rows: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select t::text from \"{table}\" t"
        )))
        .fetch_all(&mut db)
        .await
        .unwrap();
        writeln!(all, "{table}: {rows:?}\n{}", rows.join("\n")).unwrap();
    }
    all
}
