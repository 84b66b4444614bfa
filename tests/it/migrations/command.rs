//! `chatelaine migrate` brings a database up to date and says what that would lock.

use super::undo_releases;
use crate::support::{db::TestDb, program::chatelaine};

async fn migrate(test: &TestDb, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = chatelaine(&[&["migrate"], arguments].concat());
    let output = command
        .env("DATABASE_URL", test.url.expose())
        .output()
        .await
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn what_is_pending_is_said_before_it_is_done() {
    let test = TestDb::new().await;
    undo_releases(&test).await;
    for _ in 0..2 {
        let (code, said) = migrate(&test, &["--dry-run"]).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.starts_with("0002_releases.sql, in one transaction\n")
                && said.contains("nobody uses yet: 1"),
            "{said}"
        );
    }
    let (code, said) = migrate(&test, &[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the schema is the one of release"), "{said}");
    let (code, said) = migrate(&test, &["--dry-run"]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "no migration is pending\n")
    );
}
