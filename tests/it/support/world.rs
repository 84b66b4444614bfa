//! The whole product in this process, as `chatelaine serve` builds it: a database of its own, packs in a folder
//! of its own, a scripted model, a bank, and the people who use it.
//!
//! ```ignore
//! let world = World::start().await;
//! world.model.reply(text("Hello."));
//! let alice = world.user("alice", &["employee"]).await;
//! assert_eq!(alice.ask("bank", "hi").await, "Hello.");
//! ```
//!
//! [`World::shared`] is the same, and much quicker, for tests that change no setting.

use std::{future::Future, ops::Deref, path::Path, sync::Arc, time::Duration};

use chatelaine::{
    app::{
        App,
        accounts::{self, NewKey, RetentionChange, TenantChange, development},
    },
    cli::serve::Service,
};
use domain::{
    account::{ChatSettings, FrontendHeaders, KeyKind, Tenant},
    config::{Config, DirectAddress, Environment},
    ids::{AgentId, TenantId},
    principal::{Scope, Scopes},
    ring::KeyRing,
    secret::Secret,
    usage::Limit,
};
use serde_json::{Value, json};
use store::Db;
use tempfile::TempDir;

use super::{
    bank::{Bank, start_bank},
    client::Client,
    db::TestDb,
    model::ScriptedModel,
    pooler::Pooler,
    replica::{self, Replica},
    shared::{self, SharedWorld},
};

const ALONE: &str = "this needs a world of its own: `World::start` or `World::with`";
/// How long a test waits for something that should happen at once.
pub const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The agent of most tests: everybody may talk to it, and its bank's tools go by role.
fn bank_pack() -> Value {
    json!({
        "metadata": { "id": "bank", "displayName": "Bank", "description": "Money", "defaultLanguage": "en" },
        "languages": { "en": { "greetingMessage": "Hello {userName}!", "systemPrompt": "You are a bank." } },
        "llm": { "provider": "openai", "model": "scripted", "baseUrl": "${MODEL_URL}", "apiKey": "model-key-0123456789" },
        "flows": {
            "welcome": { "enabled": true, "templateKey": "greetingMessage" },
            "authentication": { "required": false, "rolesAttribute": "roles", "adminUsers": ["alice"] },
        },
        "mcp": { "servers": [{
            "name": "bank",
            "transport": "streamable-http",
            "url": "${BANK_URL}",
            "toolAccess": { "default": "none", "roles": {
                "guest": ["get_exchange_rate"],
                "employee": ["get_exchange_rate", "get_balances"],
                "finance": ["get_exchange_rate", "get_balances", "send_money"],
            } },
        }] },
    })
}

/// An agent for signed-in users only, without tools.
const OFFICE: &str = r#"
metadata: { id: office, displayName: Office, description: Papers, defaultLanguage: en }
languages: { en: { systemPrompt: "You are an office." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: true } }
"#;

/// What a test may change before the start.
pub struct Setup {
    pub config: Config,
    pub env: Environment,
    /// The database of the world.
    pub database: Secret,
    /// `(id, agent-pack.yaml)`
    pub packs: Vec<(String, String)>,
}

impl Setup {
    /// Changes the pack of the bank, as [`change_pack`] does.
    pub fn change_pack(&mut self, change: Value) {
        self.edit_pack(|pack| change_pack(pack, change));
    }

    /// The same for the entry of its server.
    pub fn change_server(&mut self, change: Value) {
        self.edit_pack(|pack| change_pack(&mut pack["mcp"]["servers"][0], change));
    }

    /// Another server for the agent, before its own.
    pub fn add_server(&mut self, entry: Value) {
        self.edit_pack(|pack| {
            let servers = pack["mcp"]["servers"].as_array_mut().unwrap();
            servers.insert(0, entry);
        });
    }

    fn edit_pack(&mut self, edit: impl FnOnce(&mut Value)) {
        let (_, text) = self.packs.iter_mut().find(|(id, _)| id == "bank").unwrap();
        edit_text(text, edit);
    }
}

/// Changes a pack or a part of it: of objects each member that `change` has, anything else as a whole. `null` takes away.
pub fn change_pack(pack: &mut Value, change: Value) {
    match (pack, change) {
        (Value::Object(pack), Value::Object(change)) => {
            for (name, change) in change {
                if change.is_null() {
                    pack.shift_remove(&name)
                        .expect("it is there to be taken away");
                } else {
                    change_pack(pack.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (pack, change) => *pack = change,
    }
}

/// The packs that are changed are JSON, which is YAML.
fn edit_text(text: &mut String, edit: impl FnOnce(&mut Value)) {
    let mut pack = serde_json::from_str(text).unwrap();
    edit(&mut pack);
    *text = pack.to_string();
}

/// The product at work. [`World::stop`] ends it in order; dropped, it just ends, or is given back.
pub struct World {
    pub model: ScriptedModel,
    pub bank: Bank,
    /// `http://127.0.0.1:…`
    pub url: String,
    /// Takes guests.
    pub tenant: Tenant,
    /// Another one, with the agent `bank` only and no guests.
    pub other: Tenant,
    pub config: Config,
    pub env: Environment,
    pub db: TestDb,
    process: Process,
}

/// What a world runs in.
enum Process {
    /// One of its own.
    Own {
        service: Box<Service>,
        folder: TempDir,
    },
    /// One that serves other tests before and after this one.
    Shared(Box<Lent>),
}

/// A world that goes back when this is dropped.
struct Lent {
    /// Taken when it goes back.
    world: Option<SharedWorld>,
    tenants: [TenantId; 2],
}

impl Deref for Lent {
    type Target = SharedWorld;

    fn deref(&self) -> &SharedWorld {
        self.world.as_ref().expect("only `drop` takes it")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(world) = self.world.take() {
            world.give_back(self.tenants);
        }
    }
}

impl World {
    /// A process and a database for this test alone.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Two new tenants, a new model and a new bank in a process that serves one test after the other. It cannot be stopped,
    /// and what counts whole tables, all metrics or all log lines counts other tests too.
    pub async fn shared() -> Self {
        Self::shared_with("default", |_| {}).await
    }

    /// The same in a process with other settings. All who say the same `kind` make the same changes.
    pub async fn shared_with(
        kind: &'static str,
        change: impl FnOnce(&mut Setup) + Send + 'static,
    ) -> Self {
        shared::lend(kind, change).await
    }

    /// What a test is lent of a shared world.
    pub(super) fn lent(world: SharedWorld, tenant: Tenant, other: Tenant) -> Self {
        let tenants = [tenant.id, other.id];
        Self {
            model: world.model.renewed(),
            bank: world.bank.renewed(),
            url: world.url.clone(),
            tenant,
            other,
            config: world.config.clone(),
            env: world.env.clone(),
            db: TestDb::lent(world.database.clone(), world.closed.clone()),
            process: Process::Shared(Box::new(Lent {
                world: Some(world),
                tenants,
            })),
        }
    }

    /// The same as [`World::start`], after `change` to the settings.
    pub async fn with(change: impl FnOnce(&mut Setup)) -> Self {
        log_if_asked();
        let (model, bank, mut db) = (
            ScriptedModel::start().await,
            start_bank(None).await,
            TestDb::new().await,
        );
        let folder = tempfile::tempdir().unwrap();
        let env = Environment::default()
            .with("MODEL_URL", model.base_url())
            .with("BANK_URL", bank.url.clone());
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            data: folder.path().join("data"),
            packs: folder.path().join("packs"),
            ring: Some(KeyRing::parse_one(&"5e".repeat(32)).unwrap()),
            egress_allow: vec!["127.0.0.1".to_owned()],
            tenant_egress_allow: vec!["127.0.0.1".to_owned()],
            // A test that wants titles scripts the model's answer for them.
            model_titles: false,
            ..Config::from_environment(&Environment::default()).unwrap()
        };
        let packs = vec![
            ("bank".to_owned(), bank_pack().to_string()),
            ("office".to_owned(), OFFICE.to_owned()),
        ];
        let mut setup = Setup {
            config,
            env,
            database: db.url.clone(),
            packs,
        };
        put_behind_pooler_if_asked(&mut setup);
        change(&mut setup);
        if setup.config.database_url.is_some() {
            db.db = replica::open(&setup.config, &db.url).await;
        }
        for (id, yaml) in &setup.packs {
            write_pack(&setup.config.packs, id, yaml);
        }
        let clock = domain::clock::Clock::System;
        let tenant = accounts::add_tenant(&db.db, &clock, "acme", None, true)
            .await
            .unwrap();
        let other = accounts::add_tenant(
            &db.db,
            &clock,
            "globex",
            Some(vec![AgentId::parse("bank").unwrap()]),
            false,
        )
        .await
        .unwrap();
        let service = Service::start(setup.config.clone(), &setup.env, db.db.clone())
            .await
            .unwrap();
        let url = format!("http://{}", service.address);
        let Setup { config, env, .. } = setup;
        Self {
            model,
            bank,
            url,
            tenant,
            other,
            config,
            env,
            db,
            process: Process::Own {
                service: Box::new(service),
                folder,
            },
        }
    }

    /// The program at work. What is done with it runs where the test runs, so it must be a process of its own.
    #[track_caller]
    pub fn app(&self) -> &Arc<App> {
        match &self.process {
            Process::Own { service, .. } => &service.app,
            Process::Shared(_) => panic!("{ALONE}"),
        }
    }

    /// Stops the process in order, as a signal would.
    pub async fn stop(self) -> Stopped {
        let Self {
            model,
            bank,
            tenant,
            other,
            config,
            env,
            db,
            process,
            ..
        } = self;
        let Process::Own { service, folder } = process else {
            panic!("{ALONE}")
        };
        service.stop().await.unwrap();
        Stopped {
            model,
            bank,
            tenant,
            other,
            config,
            env,
            db,
            folder,
        }
    }

    /// Writes a pack into the folder of the packs, or a new version of it.
    pub fn write_pack(&self, id: &str, yaml: &str) {
        assert!(matches!(self.process, Process::Own { .. }), "{ALONE}");
        write_pack(&self.config.packs, id, yaml);
    }

    /// Changes the pack of the bank in its folder, as [`change_pack`] does.
    pub fn change_pack(&self, change: Value) {
        self.edit_pack(|pack| change_pack(pack, change));
    }

    /// The same for the entry of its server.
    pub fn change_server(&self, change: Value) {
        self.edit_pack(|pack| change_pack(&mut pack["mcp"]["servers"][0], change));
    }

    /// Takes a server out of the pack of the bank.
    pub fn remove_server(&self, name: &str) {
        self.edit_pack(|pack| {
            let servers = pack["mcp"]["servers"].as_array_mut().unwrap();
            servers.retain(|server| server["name"] != name);
        });
    }

    fn edit_pack(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.config.packs.join("bank/agent-pack.yaml");
        let mut text = std::fs::read_to_string(path).unwrap();
        edit_text(&mut text, edit);
        self.write_pack("bank", &text);
    }

    /// Lets the tenant keep the arguments of calls for so many days.
    pub async fn keep_calls(&self, days: u32) {
        let change = TenantChange {
            retention: RetentionChange {
                call_arguments: Some(Some(Limit::AtMost(days))),
                ..RetentionChange::default()
            },
            ..TenantChange::default()
        };
        let clock = domain::clock::Clock::System;
        accounts::change_tenant(&self.db.db, &clock, &self.tenant.name, change)
            .await
            .unwrap();
        let changed = self.app().accounts.tenant_changed(self.tenant.id).await;
        assert!(changed.unwrap());
    }

    /// Waits until the tools of the default packs' bank are known.
    pub async fn tools_ready(&self) {
        let is_ready = || match &self.process {
            Process::Own { service, .. } => service.app.connections.count().0 >= 1,
            Process::Shared(process) => process.knows_bank(&self.tenant),
        };
        let ready = async {
            while !is_ready() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIME_LIMIT, ready)
            .await
            .expect("the bank is not connected");
    }

    /// Somebody with these roles.
    pub async fn user(&self, user: &str, roles: &[&str]) -> Client {
        self.person(&self.tenant, user, roles, false).await
    }

    /// Somebody of the tenant with this description.
    pub async fn someone(&self, person: &development::DevelopmentUser) -> Client {
        self.token(&self.tenant, person.clone()).await
    }

    /// Another replica on the same database and packs.
    pub async fn replica(&self) -> Replica {
        assert!(matches!(self.process, Process::Own { .. }), "{ALONE}");
        Replica::start(&self.config, &self.env, &self.db.url).await
    }

    /// Another replica whose files say something else of the bank's server.
    pub async fn replica_with_server(&self, change: Value) -> (Replica, TempDir) {
        assert!(matches!(self.process, Process::Own { .. }), "{ALONE}");
        let other = tempfile::tempdir().unwrap();
        for pack in std::fs::read_dir(&self.config.packs).unwrap() {
            let (folder, id) = pack.map(|it| (it.path(), it.file_name())).unwrap();
            let mut text = std::fs::read_to_string(folder.join("agent-pack.yaml")).unwrap();
            if id == "bank" {
                edit_text(&mut text, |pack| {
                    change_pack(&mut pack["mcp"]["servers"][0], change.clone());
                });
            }
            write_pack(other.path(), id.to_str().unwrap(), &text);
        }
        let config = Config {
            packs: other.path().to_owned(),
            ..self.config.clone()
        };
        let replica = Replica::start(&config, &self.env, &self.db.url).await;
        (replica, other)
    }

    /// Somebody who may manage the tenant.
    pub async fn admin(&self) -> Client {
        self.person(&self.tenant, "root", &[], true).await
    }

    /// Somebody of the other tenant.
    pub async fn stranger(&self, user: &str) -> Client {
        self.stranger_with(user, &[]).await
    }

    /// Somebody of the other tenant with these roles.
    pub async fn stranger_with(&self, user: &str, roles: &[&str]) -> Client {
        self.person(&self.other, user, roles, false).await
    }

    async fn person(&self, tenant: &Tenant, user: &str, roles: &[&str], admin: bool) -> Client {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        let person = development::DevelopmentUser {
            user: user.to_owned(),
            roles,
            admin,
            ..Default::default()
        };
        self.token(tenant, person).await
    }

    /// Somebody whose token ends so long from now.
    pub async fn user_for_a_while(&self, user: &str, left: time::Duration) -> Client {
        let person = development::DevelopmentUser {
            user: user.to_owned(),
            ..Default::default()
        };
        self.token_for(&self.tenant, person, left).await
    }

    async fn token(&self, tenant: &Tenant, person: development::DevelopmentUser) -> Client {
        self.token_for(tenant, person, time::Duration::hours(1))
            .await
    }

    async fn token_for(
        &self,
        tenant: &Tenant,
        person: development::DevelopmentUser,
        left: time::Duration,
    ) -> Client {
        let (data, tenant) = (self.config.data.clone(), tenant.clone());
        let token = self.in_process(move |app, db| async move {
            let now = app.clock.now();
            let begin = now - time::Duration::hours(1);
            development::token(&db, &data, &tenant, &person, begin..now + left).await
        });
        self.client(&token.await.unwrap())
    }

    /// Somebody with a token of the tenant's issuer that is for these audiences. `{}` stands for the service's address.
    pub async fn user_for(&self, user: &str, roles: &[&str], audiences: &[&str]) -> Client {
        self.user(user, roles).await; // so that the issuer is trusted
        let key = std::fs::read(self.config.data.join("development-key.pem")).unwrap();
        let now = domain::clock::machine_time().unix_timestamp();
        let audiences = audiences.iter().map(|name| name.replace("{}", &self.url));
        let claims = json!({
            "iss": format!("https://dev.chatelaine.invalid/{}", self.tenant.name),
            "aud": audiences.collect::<Vec<_>>(),
            "sub": user, "roles": roles, "iat": now, "exp": now + 3600,
        });
        let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA);
        let key = jsonwebtoken::EncodingKey::from_ed_pem(&key).unwrap();
        let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
        self.client(&token.into())
    }

    /// Does something where the process does its own work: a connection to the database belongs to the runtime that opened it.
    pub async fn in_process<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<App>, Db) -> F,
    ) -> T {
        match &self.process {
            Process::Own { service, .. } => work(service.app.clone(), self.db.db.clone()).await,
            Process::Shared(process) => process.run(work).await,
        }
    }

    /// A frontend's key, speaking for one of its users.
    pub async fn frontend(&self, user: &str) -> Client {
        let speaker = KeyKind::Frontend(FrontendHeaders::open_webui());
        let key = self
            .key("frontend", Scopes::new([Scope::Chat]), speaker)
            .await;
        self.client(&key)
            .with_header(&FrontendHeaders::open_webui().user_id, user)
    }

    /// A key of the tenant.
    pub async fn key(&self, name: &str, scopes: Scopes, speaker: KeyKind) -> Secret {
        self.made(NewKey {
            source: domain::account::SourceSettings::default(),
            name: name.to_owned(),
            scopes,
            speaker,
            chat: ChatSettings::default(),
            expires_at: None,
        })
        .await
    }

    /// A key whose OpenAI clients are answered like this.
    pub async fn chat_key(&self, name: &str, chat: ChatSettings, speaker: KeyKind) -> Secret {
        self.made(NewKey {
            source: domain::account::SourceSettings::default(),
            name: name.to_owned(),
            scopes: Scopes::new([Scope::Chat]),
            speaker,
            chat,
            expires_at: None,
        })
        .await
    }

    async fn made(&self, new: NewKey) -> Secret {
        let tenant = self.tenant.id;
        let made = self.in_process(move |app, db| async move {
            accounts::create_key(&db, &app.clock, tenant, new).await
        });
        made.await.unwrap().secret
    }

    /// Somebody without a token of their own, who asked for a guest's.
    pub async fn guest(&self) -> Client {
        let answer = self
            .nobody()
            .post("/v1/guests", json!({ "tenant": self.tenant.name }))
            .await;
        self.client(&Secret::new(answer.expect(201)["token"].as_str().unwrap()))
    }

    pub fn nobody(&self) -> Client {
        Client::new(&self.url, None)
    }

    pub fn client(&self, token: &Secret) -> Client {
        Client::new(&self.url, Some(token))
    }
}

/// What is left of a world that was stopped.
pub struct Stopped {
    pub model: ScriptedModel,
    pub bank: Bank,
    pub tenant: Tenant,
    pub other: Tenant,
    pub config: Config,
    pub env: Environment,
    pub db: TestDb,
    folder: TempDir,
}

impl Stopped {
    /// Starts the product again on what it left behind. Tokens stay good.
    pub async fn start(self) -> World {
        let Self {
            model,
            bank,
            tenant,
            other,
            config,
            env,
            mut db,
            folder,
        } = self;
        db.db = replica::open(&config, &db.url).await;
        let service = Service::start(config.clone(), &env, db.db.clone())
            .await
            .unwrap();
        let url = format!("http://{}", service.address);
        World {
            model,
            bank,
            url,
            tenant,
            other,
            config,
            env,
            db,
            process: Process::Own {
                service: Box::new(service),
                folder,
            },
        }
    }
}

/// `CHATELAINE_TEST_LOG=chatelaine=debug` shows what the product says while a test runs.
fn log_if_asked() {
    let env = Environment::from_process();
    if let Some(filter) = env.get("CHATELAINE_TEST_LOG") {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
    }
}

/// `CHATELAINE_TEST_POOLER=direct` runs the tests of worlds behind a pooler, where news come over a direct address; `off`,
/// where they come by the clock.
fn put_behind_pooler_if_asked(setup: &mut Setup) {
    let env = Environment::from_process();
    let Some(news) = env.get("CHATELAINE_TEST_POOLER") else {
        return;
    };
    setup.config.database_url = Some(Pooler::start(&setup.database).url);
    setup.config.direct_database = match news {
        "off" => DirectAddress::Off,
        _ => DirectAddress::At(setup.database.clone()),
    };
}

fn write_pack(packs: &Path, id: &str, yaml: &str) {
    std::fs::create_dir_all(packs.join(id)).unwrap();
    std::fs::write(packs.join(id).join("agent-pack.yaml"), yaml).unwrap();
}
