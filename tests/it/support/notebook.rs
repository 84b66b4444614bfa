//! The demo's notes, in this process.

use std::path::PathBuf;

use tempfile::TempDir;

#[path = "../../../examples/notes/book.rs"]
pub mod book;
#[path = "../../../examples/notes/http.rs"]
pub mod http;
#[path = "../../../examples/notes/tools.rs"]
pub mod tools;

use book::Book;

/// Notes that listen on a port of this machine for as long as the test runs.
pub struct Notebook {
    /// `http://127.0.0.1:…/mcp`
    pub url: String,
    tokens: PathBuf,
    folder: TempDir,
}

impl Notebook {
    /// Knows `erin-token`, which may do everything, and `fred-token`, which may read.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, file) = (
            folder.path().join("tokens.json"),
            folder.path().join("notes.json"),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let router = http::router(Book::open(Some(file)).unwrap().into(), tokens.clone(), &[]);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let notebook = Self {
            url,
            tokens,
            folder,
        };
        notebook.know(
            r#"{ "erin-token": { "name": "erin", "scopes": ["read", "write"] },
                 "fred-token": { "name": "fred", "scopes": ["read"] } }"#,
        );
        notebook
    }

    /// Knows these tokens from now on, and no others.
    pub fn know(&self, tokens: &str) {
        let draft = self.folder.path().join("draft");
        std::fs::write(&draft, tokens).unwrap();
        std::fs::rename(draft, &self.tokens).unwrap();
    }

    /// What a restart would find.
    pub fn reopened(&self) -> Book {
        Book::open(Some(self.folder.path().join("notes.json"))).unwrap()
    }
}
