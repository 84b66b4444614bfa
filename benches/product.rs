//! The program as it is shipped, in a process of its own, so that its memory is not ours and its start is a real
//! one. The model, the servers and the people live in this process.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use chatelaine::app::accounts::{self, development};
use domain::{account::Tenant, clock, clock::Clock, secret::Secret};
use serde_json::Value;
use sqlx::Connection;
use store::{Db, roles};
use tempfile::TempDir;

use super::support::{
    client::{Client, Events},
    world::TIME_LIMIT,
};

/// May use the bank.
const FINANCE: &str = "finance";

/// A pack with a scripted model and one server.
pub fn pack(id: &str, model: &str, server: &str) -> String {
    format!(
        r#"
metadata: {{ id: {id}, displayName: Bank, description: Money, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: "You are a bank." }} }}
llm: {{ provider: openai, model: scripted, baseUrl: "{model}", apiKey: model-key-0123456789 }}
flows: {{ authentication: {{ required: true, rolesAttribute: roles }} }}
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "{server}"
      toolAccess:
        default: none
        roles:
          employee: [get_exchange_rate, get_balances]
          finance: [get_exchange_rate, get_balances, send_money]
"#
    )
}

/// A tenant, its packs and its database: all that is there before the program starts.
pub struct Deployment {
    tenant: Tenant,
    db: Db,
    database: Secret,
    folder: TempDir,
    /// `MCP_CONFIG_ENCRYPTION_KEY`; empty where nobody has a credential.
    key: String,
}

impl Deployment {
    /// `packs`: id and content.
    pub async fn new(database: &Secret, packs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::with_ring(database, packs, "").await
    }

    /// The same with a key that protects credentials.
    pub async fn with_ring(
        database: &Secret,
        packs: impl IntoIterator<Item = (String, String)>,
        key: &str,
    ) -> Self {
        let db = Db::connect(database, 2).await.unwrap();
        let tenant = accounts::add_tenant(&db, &Clock::System, "acme", None, false)
            .await
            .unwrap();
        let (database, folder, key) = (
            database.clone(),
            tempfile::tempdir().unwrap(),
            key.to_owned(),
        );
        let deployment = Self {
            tenant,
            db,
            database,
            folder,
            key,
        };
        for (id, yaml) in packs {
            let folder = deployment.folder.path().join("packs").join(id);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("agent-pack.yaml"), yaml).unwrap();
        }
        // The first token makes the tenant trust its issuer.
        deployment.token("nobody", FINANCE).await;
        deployment
    }

    async fn token(&self, user: &str, role: &str) -> Secret {
        let roles = vec![role.to_owned()];
        let person = development::DevelopmentUser {
            user: user.to_owned(),
            roles,
            ..development::DevelopmentUser::default()
        };
        let (now, life) = (Clock::System.now(), time::Duration::hours(1));
        development::token(
            &self.db,
            &self.data(),
            &self.tenant,
            &person,
            now..now + life,
        )
        .await
        .unwrap()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the program and waits until it says that it is ready.
    pub async fn start(&self) -> Product {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new(env!("CARGO_BIN_EXE_chatelaine"))
            .arg("serve")
            .env_clear()
            .envs([
                ("CHATELAINE_LISTEN", format!("127.0.0.1:{port}").as_str()),
                ("DATABASE_URL", self.database.expose()),
                ("CHATELAINE_EGRESS_ALLOW", "127.0.0.1"),
                ("CHATELAINE_REQUESTS_PER_MINUTE", "1000000"),
                ("CHATELAINE_APPROVALS_PER_TENANT", "1000000"),
                ("CHATELAINE_LOG", "warn,rmcp=error"),
            ])
            .env("MCP_CONFIG_ENCRYPTION_KEY", &self.key)
            .env("CHATELAINE_PACKS", self.folder.path().join("packs"))
            .env("CHATELAINE_DATA", self.data())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A stream may last, and a connection that was idle may be closed already.
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        let product = Product {
            url: format!("http://127.0.0.1:{port}"),
            http,
            child,
        };
        product.until(|readiness| readiness["ready"] == true).await;
        product
    }

    /// Gives so many other users the rows of the one credential there is. Nobody can open them, and nobody does.
    pub async fn copy_credentials(&self, users: usize) {
        let mut db = sqlx::postgres::PgConnection::connect(self.database.expose())
            .await
            .unwrap();
        let roles = roles::read(&mut db).await.unwrap().unwrap_or_default();
        let tenant = format!(
            "set app.tenant_id = '{}'; set role {}",
            self.tenant.id,
            roles.name(roles::TENANT)
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(tenant))
            .execute(&mut db)
            .await
            .unwrap();
        let copy = "insert into credentials (tenant_id, id, agent, server, user_id, generation, state, sealed)
            select tenant_id, gen_random_uuid(), agent, server, 'copy-' || n, generation, state, sealed
            from credentials, generate_series(1, $1) n";
        let copied = sqlx::query(copy)
            .bind(i64::try_from(users).unwrap())
            .execute(&mut db)
            .await
            .unwrap();
        assert_eq!(copied.rows_affected(), users as u64);
    }

    /// Somebody who may use the bank.
    pub async fn user(&self, product: &Product, user: &str) -> Client {
        self.member(product, user, FINANCE).await
    }

    /// Somebody with a role.
    pub async fn member(&self, product: &Product, user: &str, role: &str) -> Client {
        Client::new(&product.url, Some(&self.token(user, role).await))
    }
}

/// The program at work; killed with this value.
pub struct Product {
    url: String,
    http: reqwest::Client,
    child: Child,
}

impl Product {
    /// What `/readyz` says, as soon as it says what is wanted.
    pub async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let url = format!("{}/readyz", self.url);
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            if let Ok(answer) = self.http.get(&url).send().await
                && let Ok(readiness) = answer.json::<Value>().await
                && wanted(&readiness)
            {
                return readiness;
            }
            assert!(
                clock::instant() < deadline,
                "the program is not ready after {TIME_LIMIT:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until a server is connected.
    pub async fn until_connected(&self) {
        self.until(|readiness| readiness["servers_ready"].as_u64() > Some(0))
            .await;
    }

    /// Listens to a conversation from now on, on a connection of its own.
    pub async fn listen(&self, person: &Client, conversation: &str) -> Events {
        let url = format!("{}/v1/conversations/{conversation}/events", self.url);
        Events::of(
            self.http
                .get(url)
                .bearer_auth(person.token())
                .send()
                .await
                .unwrap(),
        )
    }

    /// Bytes of memory that the process holds.
    pub fn resident(&self) -> f64 {
        let asked = Command::new("ps")
            .args(["-o", "rss=", "-p", &self.child.id().to_string()])
            .output()
            .unwrap();
        let kibibytes: f64 = String::from_utf8_lossy(&asked.stdout)
            .trim()
            .parse()
            .expect("ps tells a number");
        kibibytes * 1024.0
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // It has ended by itself when this fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
