//! The replicas as they are shipped, each a process of its own, and a database that can crash.

use std::{
    collections::BTreeMap,
    ffi::OsString,
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

use super::{bank_link::BankLink, database_link::DatabaseLink};
use crate::support::program;

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

    pub fn url(&self) -> &Secret {
        &self.url
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

/// The bank's agent: what a clerk asks for, a chief approves, and two of them what is large or for sato. Nobody is paid
/// whom the pack does not name, nor more than two millions. Invoices at the till need nobody, until they are so much
/// together that a chief is asked, and then too much for anybody; those at the desk are confirmed by their clerk. Nobody
/// decides about what is asked for `later` before half of the time is over, where anybody asks for that.
///
/// The bank and the desk are an older server with sessions, which are lost at times; the others have none.
const PACK: &str = r#"
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: {} }
llm: { provider: openai, model: scripted, baseUrl: "MODEL_URL", apiKey: model-key }
flows: { authentication: { required: true, rolesAttribute: roles } }
vars: { paid: [acme, sato] }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "OLDER_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess:
        default: none
        roles: { clerk: [create_invoice, send_money] }
        approval:
          - { tools: [create_invoice, send_money], approvers: [chief], timeoutMinutes: OPEN }
          - tools: [send_money]
            when: double(args.amount) >= 1000000.0
            approvers: [chief]
            minApprovals: 2
            selfApproval: false
            timeoutMinutes: OPEN
          - tools: [send_money]
            when: args.to == "sato"
            approvers: [chief]
            minApprovals: 2
            selfApproval: false
            timeoutMinutes: OPEN
        deny:
          - { tools: [send_money], when: "!(args.to in vars.paid)", reason: nobody pays them }
          - { tools: [send_money], when: double(args.amount) >= 2000000.0, reason: that is too much }
    - name: till
      transport: streamable-http
      url: "BANK_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess:
        default: none
        roles: { clerk: [create_invoice] }
        limits:
          - tools: [create_invoice]
            sum: args.amount
            per: tenant
            over: 30d
            most: TILL_ASKS
            then: approve
            approvers: [chief]
            timeoutMinutes: OPEN
          - { tools: [create_invoice], sum: args.amount, per: tenant, over: 30d, most: TILL_HOLDS, then: deny }
    - name: desk
      transport: streamable-http
      url: "OLDER_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess:
        default: none
        roles: { clerk: [create_invoice] }
        confirm: [{ tools: [create_invoice], timeoutMinutes: OPEN }]
    - name: later
      transport: streamable-http
      url: "BANK_URL"
      timeouts: { requestSeconds: 5 }
      toolAccess:
        default: none
        roles: { clerk: [create_invoice] }
        approval: [{ tools: [create_invoice], approvers: [chief], timeoutMinutes: 600 }]
"#;

/// The server whose tools change. It takes any arguments.
const STAMPS: &str = r#"
    - name: stamps
      transport: streamable-http
      url: "STAMPS_URL"
      timeouts: { requestSeconds: 5 }
      pin: hold
      toolAccess:
        default: none
        roles: { clerk: ["*"] }
        approval:
          - { tools: [seal], when: double(args.amount) < 1000.0, approvers: [chief], timeoutMinutes: OPEN }
        deny: [{ tools: [seal], when: double(args.amount) >= 1000.0, reason: that is too much }]
"#;

/// What differs in the pack of the replicas.
pub struct PackValues<'a> {
    pub bank: &'a BankLink,
    pub model: &'a str,
    /// The server whose tools change, where there is one.
    pub stamps: Option<&'a str>,
    /// After so many a request expires.
    pub minutes: u32,
    /// The till of each tenant.
    pub till: Tiers,
}

/// The two limits of the sum of a till.
#[derive(Clone, Copy)]
pub struct Tiers {
    /// What is more than that, a chief approves.
    pub asks: u64,
    /// What is more than that, is denied.
    pub holds: u64,
}

impl Tiers {
    pub const fn times(self, factor: u64) -> Self {
        Self {
            asks: self.asks * factor,
            holds: self.holds * factor,
        }
    }
}

/// Writes the pack of the replicas.
pub fn write_pack(folder: &Path, values: &PackValues<'_>) {
    let pack = folder.join("packs/bank");
    fs::create_dir_all(&pack).unwrap();
    let stamps = values.stamps.map(|url| STAMPS.replace("STAMPS_URL", url));
    let text = PACK.to_owned() + &stamps.unwrap_or_default();
    fs::write(
        pack.join("agent-pack.yaml"),
        text.replace("BANK_URL", &values.bank.url)
            .replace("OLDER_URL", &values.bank.older_url)
            .replace("MODEL_URL", values.model)
            .replace("OPEN", &values.minutes.to_string())
            .replace("TILL_ASKS", &values.till.asks.to_string())
            .replace("TILL_HOLDS", &values.till.holds.to_string()),
    )
    .unwrap();
}

/// A replica as it can be found.
#[derive(Clone, Debug)]
pub struct Place {
    pub address: String,
    pub process: u32,
}

/// Where the replicas listen: what a load balancer knows, dead and frozen ones included.
#[derive(Clone, Default)]
pub struct Places(Arc<Mutex<Vec<Place>>>);

impl Places {
    pub fn any(&self, random: &mut StdRng) -> String {
        let places = self.0.lock().unwrap();
        places[random.random_range(0..places.len())].address.clone()
    }

    pub fn all(&self) -> Vec<Place> {
        self.0.lock().unwrap().clone()
    }

    fn set(&self, at: usize, place: Place) {
        self.0.lock().unwrap()[at] = place;
    }
}

/// The ways from the replicas to the database.
pub struct Doors {
    pub ordinary: DatabaseLink,
    /// For `LISTEN`, where a pooler is behind the other one.
    pub direct: Option<DatabaseLink>,
}

impl Doors {
    fn links(&self) -> impl Iterator<Item = &DatabaseLink> {
        [&self.ordinary].into_iter().chain(&self.direct)
    }

    /// Ends every connection, whatever is under way on it.
    pub fn cut(&self) {
        self.links().for_each(DatabaseLink::cut);
    }

    /// Lets nothing pass for a time.
    pub async fn stall(&self, time: Duration) {
        join_all(self.links().map(|link| link.stall(time))).await;
    }
}

/// The replicas.
pub struct Fleet {
    folder: PathBuf,
    pub database: Doors,
    /// What runs of it, from the next start on.
    pub program: OsString,
    /// What a replica is told at its next start.
    pub variables: BTreeMap<&'static str, String>,
    places: Places,
    replicas: Vec<Replica>,
    started: usize,
}

impl Fleet {
    /// None runs before [`Fleet::grow`].
    pub fn new(folder: &Path, database: Doors, places: &Places) -> Self {
        let mut variables: BTreeMap<_, _> = [
            ("CHATELAINE_LISTEN", "127.0.0.1:0"),
            ("DATABASE_URL", database.ordinary.url.expose()),
            ("CHATELAINE_DATABASE_CONNECTIONS", "12"),
            ("MCP_CONFIG_ENCRYPTION_KEY", &"5e".repeat(32)),
            ("CHATELAINE_EGRESS_ALLOW", "127.0.0.1"),
            ("CHATELAINE_TENANT_EGRESS_ALLOW", "127.0.0.1"),
            ("CHATELAINE_REQUESTS_PER_MINUTE", "1000000"),
            ("CHATELAINE_APPROVALS_PER_USER", "1000000"),
            ("CHATELAINE_APPROVALS_PER_TENANT", "1000000"),
            ("CHATELAINE_RUN_LEASE_SECONDS", &LEASE.as_secs().to_string()),
            ("CHATELAINE_LOG", "info,sqlx=error"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into();
        if let Some(direct) = &database.direct {
            let url = direct.url.expose().to_owned();
            variables.insert("CHATELAINE_LISTEN_DATABASE_URL", url);
        }
        Self {
            folder: folder.to_owned(),
            database,
            program: program::path(),
            variables,
            places: places.clone(),
            replicas: Vec::new(),
            started: 0,
        }
    }

    /// Starts so many more.
    pub async fn grow(&mut self, replicas: usize) {
        let mut begun: Vec<_> = (0..replicas).map(|_| self.begin()).collect();
        let places = join_all(begun.iter_mut().map(Replica::place)).await;
        self.places.0.lock().unwrap().extend(places);
        self.replicas.extend(begun);
    }

    pub fn size(&self) -> usize {
        self.replicas.len()
    }

    /// Ends one from one moment to the next, and starts another in its place.
    pub async fn kill(&mut self, at: usize) {
        self.replicas[at].must_run();
        self.replicas[at].child.kill().unwrap();
        self.replicas[at].child.wait().unwrap();
        self.replace(at).await;
    }

    /// Stops one in order, and starts another in its place.
    pub async fn restart(&mut self, at: usize) {
        self.replicas[at].must_run();
        signal("TERM", self.replicas[at].child.id());
        self.replicas[at].must_end_well().await;
        self.replace(at).await;
    }

    async fn replace(&mut self, at: usize) {
        self.replicas[at] = self.begin();
        let place = self.replicas[at].place().await;
        self.places.set(at, place);
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
            replica.must_end_well().await;
        }
    }

    /// A command line of the product with what its replicas are told.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .env("CHATELAINE_PACKS", self.folder.join("packs"))
            .env("CHATELAINE_DATA", self.folder.join("data"))
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn begin(&mut self) -> Replica {
        self.started += 1;
        let log = self.folder.join(format!("replica-{}.log", self.started));
        let child = self
            .command(&["serve"])
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
    async fn place(&mut self) -> Place {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            self.must_run();
            let said = fs::read_to_string(&self.log).unwrap();
            // The line may be half written.
            let address = said
                .split_once("listening address=")
                .and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((address, _)) = address {
                return Place {
                    address: format!("http://{}", address.trim()),
                    process: self.child.id(),
                };
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

    async fn must_end_well(&mut self) {
        let status = self.ended().await;
        assert!(
            status.success(),
            "a replica did not stop in order ({status}); see {}",
            self.log.display()
        );
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
