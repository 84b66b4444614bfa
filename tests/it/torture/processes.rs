//! The replicas as they are shipped, each a process of its own, and a database that can crash.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{clock, config::Environment, secret::Secret};
use futures_util::future::join_all;
use rand::{RngExt, rngs::StdRng};
use sqlx::postgres::PgConnectOptions;
use store::Db;

use super::database_link::DatabaseLink;

/// Replicas take each other for dead after this time.
pub const LEASE: Duration = Duration::from_secs(2);
/// For a process to start or to end, on a machine that is busy with the other tests.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A Postgres of this test's own, which keeps what it has committed: nothing here may be blamed on it.
pub struct Database {
    folder: PathBuf,
    url: Secret,
    server: Option<PrivatePostgres>,
}

impl Database {
    pub async fn start(folder: &Path) -> Self {
        let folder = folder.join("postgres");
        let server = PrivatePostgres::start(&folder, &Environment::from_process())
            .await
            .unwrap();
        Self {
            folder,
            url: server.url().clone(),
            server: Some(server),
        }
    }

    /// Ends it as a crash would (`pg_ctl stop -m immediate`) and starts it again.
    pub async fn crash(&mut self) {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap();
        signal("QUIT", file.lines().next().unwrap().parse().unwrap());
        self.server
            .take()
            .expect("it runs between two crashes")
            .stop()
            .await
            .unwrap();
        let server = PrivatePostgres::start(&self.folder, &Environment::from_process())
            .await
            .unwrap();
        assert_eq!(
            server.url(),
            &self.url,
            "the replicas look for it where it was"
        );
        self.server = Some(server);
    }

    pub async fn stop(self) {
        self.server
            .expect("it runs between two crashes")
            .stop()
            .await
            .unwrap();
    }

    pub async fn link(&self) -> DatabaseLink {
        DatabaseLink::start(&self.url).await
    }

    pub async fn open(&self) -> Db {
        Db::connect(&self.url, 2).await.unwrap()
    }

    /// How to connect as somebody who sees every row.
    pub fn all_seeing(&self) -> PgConnectOptions {
        self.url
            .expose()
            .parse::<PgConnectOptions>()
            .unwrap()
            .username("postgres")
    }
}

/// The bank's agent: what a clerk asks for, one or two chiefs approve, but for invoices at the till.
const PACK: &str = r#"
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: {} }
llm: { provider: openai, model: scripted, baseUrl: "MODEL_URL", apiKey: model-key }
flows: { authentication: { required: true, rolesAttribute: roles } }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "BANK_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess:
        default: none
        roles: { clerk: [create_invoice, send_money] }
        approval:
          - { tools: [create_invoice], approvers: [chief], timeoutMinutes: 600 }
          - { tools: [send_money], approvers: [chief], minApprovals: 2, selfApproval: false, timeoutMinutes: 600 }
    - name: till
      transport: streamable-http
      url: "BANK_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess: { default: none, roles: { clerk: [create_invoice] } }
"#;

/// Writes the pack of the replicas.
pub fn write_pack(folder: &Path, bank: &str, model: &str) {
    let pack = folder.join("packs/bank");
    fs::create_dir_all(&pack).unwrap();
    fs::write(
        pack.join("agent-pack.yaml"),
        PACK.replace("BANK_URL", bank).replace("MODEL_URL", model),
    )
    .unwrap();
}

/// Where the replicas listen: what a load balancer knows, dead and frozen ones included.
#[derive(Clone, Default)]
pub struct Addresses(Arc<Mutex<Vec<String>>>);

impl Addresses {
    pub fn any(&self, random: &mut StdRng) -> String {
        let addresses = self.0.lock().unwrap();
        addresses[random.random_range(0..addresses.len())].clone()
    }

    fn set(&self, at: usize, address: String) {
        self.0.lock().unwrap()[at] = address;
    }
}

/// The replicas.
pub struct Fleet {
    folder: PathBuf,
    pub database: DatabaseLink,
    addresses: Addresses,
    replicas: Vec<Replica>,
    started: usize,
}

impl Fleet {
    pub async fn start(
        folder: &Path,
        database: &Database,
        addresses: &Addresses,
        replicas: usize,
    ) -> Self {
        let (folder, database) = (folder.to_owned(), database.link().await);
        let mut fleet = Self {
            folder,
            database,
            addresses: addresses.clone(),
            replicas: Vec::new(),
            started: 0,
        };
        let mut begun: Vec<_> = (0..replicas).map(|_| fleet.begin()).collect();
        *fleet.addresses.0.lock().unwrap() = join_all(begun.iter_mut().map(Replica::address)).await;
        fleet.replicas = begun;
        fleet
    }

    pub fn size(&self) -> usize {
        self.replicas.len()
    }

    /// Ends one from one moment to the next, and starts another in its place.
    pub async fn kill(&mut self, at: usize) {
        self.replicas[at].must_run();
        self.replicas[at].child.kill().unwrap();
        self.replicas[at].child.wait().unwrap();
        self.replicas[at] = self.begin();
        let address = self.replicas[at].address().await;
        self.addresses.set(at, address);
    }

    /// Lets one stand still for a time.
    pub async fn freeze(&mut self, at: usize, time: Duration) {
        self.replicas[at].must_run();
        signal("STOP", self.replicas[at].child.id());
        tokio::time::sleep(time).await;
        signal("CONT", self.replicas[at].child.id());
    }

    /// Stops all of them in order.
    pub async fn stop(&mut self) {
        for replica in &mut self.replicas {
            replica.must_run();
            signal("TERM", replica.child.id());
        }
        for replica in &mut self.replicas {
            let status = replica.ended().await;
            assert!(
                status.success(),
                "a replica did not stop in order ({status}); see {}",
                replica.log.display()
            );
        }
    }

    fn begin(&mut self) -> Replica {
        self.started += 1;
        let log = self.folder.join(format!("replica-{}.log", self.started));
        let child = Command::new(env!("CARGO_BIN_EXE_chatelaine"))
            .arg("serve")
            .env_clear()
            .envs([
                ("CHATELAINE_LISTEN", "127.0.0.1:0"),
                ("DATABASE_URL", self.database.url.expose()),
                ("CHATELAINE_DATABASE_CONNECTIONS", "12"),
                ("MCP_CONFIG_ENCRYPTION_KEY", &"5e".repeat(32)),
                ("CHATELAINE_EGRESS_ALLOW", "127.0.0.1"),
                ("CHATELAINE_TENANT_EGRESS_ALLOW", "127.0.0.1"),
                ("CHATELAINE_REQUESTS_PER_MINUTE", "1000000"),
                ("CHATELAINE_APPROVALS_PER_USER", "1000000"),
                ("CHATELAINE_APPROVALS_PER_TENANT", "1000000"),
                ("CHATELAINE_RUN_LEASE_SECONDS", &LEASE.as_secs().to_string()),
                ("CHATELAINE_LOG", "info,sqlx=error"),
            ])
            .env("CHATELAINE_PACKS", self.folder.join("packs"))
            .env("CHATELAINE_DATA", self.folder.join("data"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Replica { child, log }
    }
}

/// A process of the product; killed with this value.
struct Replica {
    child: Child,
    log: PathBuf,
}

impl Replica {
    /// Where it listens, as soon as it says so.
    async fn address(&mut self) -> String {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            self.must_run();
            let said = fs::read_to_string(&self.log).unwrap();
            // The line may be half written.
            let address = said
                .split_once("listening address=")
                .and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((address, _)) = address {
                return format!("http://{}", address.trim());
            }
            assert!(
                clock::instant() < deadline,
                "a replica does not start; see {}",
                self.log.display()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!(
                "a replica ended by itself ({status}); see {}",
                self.log.display()
            );
        }
    }

    async fn ended(&mut self) -> ExitStatus {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                clock::instant() < deadline,
                "a replica does not stop; see {}",
                self.log.display()
            );
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It has ended already when these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, process: u32) {
    assert!(
        Command::new("kill")
            .args(["-s", name, &process.to_string()])
            .status()
            .unwrap()
            .success()
    );
}
