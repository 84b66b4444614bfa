//! The use cases. A request takes one straight line: route → use case → gate → server. An answer reaches the user in
//! one way only: as a row and an event.
//!
//! [`App`] holds everything that a use case needs. The use cases form six groups. A group uses only the groups to its
//! right: `chat → runs → tools → servers → accounts → platform`.

pub mod accounts;
pub mod chat;
pub mod platform;
pub mod runs;
pub mod servers;
pub mod tools;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    accounts::usage,
    chat::{agent_loop, flows, words},
    platform::{
        audit, data_identity, health, keys,
        polls::{POLL, STATISTICS_INTERVAL, every},
        replicas, retention, webhooks,
    },
    runs::{ending, run_slots, scheduler, sign_outs},
    servers::{connections, credentials, oauth, orchestrator, pins, registry},
    tools::{client_tools, elicitations, policy_trials, toolset},
};
use crate::live::Live;
use domain::{
    clock::Clock,
    config::{Config, Environment},
    ids::{ApprovalId, ReplicaId, TenantId},
    principal::claims_named_by,
};
use egress::Egress;
use llm::Models;
use mcp::{Mcp, Options, tokens::TokenSource};
use packs::PackStore;
use store::Db;

/// How long the start waits for servers that are not required before the process counts as ready.
const FIRST_DISCOVERY: Duration = Duration::from_secs(10);
/// How long running work may take to end once the process was asked to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the connections to the database may take to close.
const CLOSE: Duration = Duration::from_secs(2);

/// One process of the program: everything that a use case needs.
pub struct App {
    pub config: Config,
    pub clock: Clock,
    /// When this process started. Its polls are counted from then.
    started_at: tokio::time::Instant,
    pub replica: ReplicaId,
    pub accounts: accounts::Accounts,
    pub connections: connections::Connections,
    pub credentials: credentials::Credentials,
    pub pins: pins::PinCache,
    pub tools: toolset::Toolsets,
    pub client_calls: client_tools::OpenCalls,
    pub packs: PackStore,
    pub registry: registry::Registry,
    pub keys: keys::Keys,
    pub(crate) policy_trials: policy_trials::TrialsUnderWay,
    pub(crate) known_policies: replicas::KnownPolicies,
    pub(crate) seen_data: data_identity::SeenData,
    pub webhooks: webhooks::Webhooks,
    pub orchestrator: orchestrator::Orchestrator,
    /// Set when the first discovery of servers has ended.
    pub started: CancellationToken,
    /// Set once a stop was asked for: requests are still answered, but a load balancer should send no new ones.
    pub draining: CancellationToken,
    /// Set when the process stops: no new work starts.
    pub shutdown: CancellationToken,
    pub(crate) db: Db,
    pub(crate) live: Live,
    pub(crate) egress: Egress,
    pub(crate) mcp: Mcp,
    pub(crate) models: Models,
    pub(crate) audit: audit::AuditQueue,
    /// Hints for the other replicas: what they must read again.
    pub(crate) hints: mpsc::UnboundedSender<store::hints::Hint>,
    /// Slots for runs in this process.
    pub(crate) run_slots: run_slots::RunSlots,
    /// Runs that this process has claimed, on their way to [`scheduler::receive_runs`].
    pub(crate) claimed_runs: mpsc::UnboundedSender<scheduler::Claim>,
    /// Requests for consent that were approved or withdrawn here, on their way to
    /// [`scheduler::approvals::receive_due`].
    pub(crate) due_approvals: mpsc::UnboundedSender<(TenantId, ApprovalId)>,
    /// The function that works on a claimed run: `chat::agent_loop::work_on`. The group `runs` may not name it.
    pub(crate) worker: scheduler::Worker,
    /// The runs that this process works on.
    pub(crate) running: scheduler::Running,
    pub(crate) repeating_clients: runs::ending::RepeatingClients,
    pub(crate) tasks: TaskTracker,
}

/// The receiving ends of the channels, for [`App::run_background`].
pub struct Background {
    claimed_runs: mpsc::UnboundedReceiver<scheduler::Claim>,
    hints: mpsc::UnboundedReceiver<store::hints::Hint>,
    audit: audit::AuditReceiver,
    due_approvals: mpsc::UnboundedReceiver<(TenantId, ApprovalId)>,
}

fn mcp_options(config: &Config, tokens: TokenSource) -> Options {
    Options {
        stdio_commands: config.stdio_commands.clone(),
        stdio_env: config.stdio_env.clone(),
        stdio_launcher: config.launcher.clone(),
        tokens: Some(tokens),
        ..Options::default()
    }
}

/// The orchestrator is a built-in server whose tools start runs. The group `servers` may not use `runs`, so the
/// function that makes the calls is passed in here.
fn new_orchestrator() -> orchestrator::Orchestrator {
    orchestrator::Orchestrator::new(|app, caller, tool, arguments| {
        Box::pin(
            async move { runs::orchestrator_tools::call(&app, &caller, &tool, arguments).await },
        )
    })
}

impl App {
    /// Builds the process and loads the packs. Nothing is opened to the outside yet.
    pub fn build(
        config: Config,
        env: &Environment,
        db: Db,
    ) -> anyhow::Result<(Arc<Self>, Background)> {
        let egress = Egress::with_tenant_list(&config.egress_allow, &config.tenant_egress_allow)
            .map_err(anyhow::Error::msg)?;
        let model_client = egress::operator_client().map_err(anyhow::Error::msg)?;
        let packs = PackStore::load(&config.packs, env, config.mcp_servers.as_ref())?;
        keys::replica_keys::require_ring(config.ring.as_ref(), packs.snapshot().packs())?;
        let keys = keys::Keys::new(db.clone(), config.ring.clone());
        let tasks = TaskTracker::new();
        let tokens = oauth::tokens::source(db.clone(), keys.clone(), egress.clone(), tasks.clone());
        let (claimed_runs, claimed_inbox) = mpsc::unbounded_channel();
        let (hints, hints_inbox) = mpsc::unbounded_channel();
        let (due_approvals, due_inbox) = mpsc::unbounded_channel();
        let (audit, audit_inbox) = audit::AuditQueue::new(config.audit_wait);
        let background = Background {
            claimed_runs: claimed_inbox,
            hints: hints_inbox,
            audit: audit_inbox,
            due_approvals: due_inbox,
        };
        let clock = config.clock.clone();
        let accounts = accounts::Accounts::new(
            db.clone(),
            egress.clone(),
            clock.clone(),
            env.clone(),
            config.max_token_bytes,
            &config.public_url,
        );
        let snapshot = packs.snapshot();
        accounts.keep_claims(claims_named_by(snapshot.packs().map(AsRef::as_ref)));
        let app = Self {
            accounts,
            registry: registry::Registry::new(egress.for_tenants(), env, &config.registry_env),
            connections: connections::Connections::default(),
            credentials: credentials::Credentials::new(),
            pins: pins::PinCache::default(),
            tools: toolset::Toolsets::default(),
            client_calls: client_tools::OpenCalls::default(),
            keys,
            policy_trials: policy_trials::TrialsUnderWay::default(),
            known_policies: replicas::KnownPolicies::default(),
            seen_data: data_identity::SeenData::new(&config),
            webhooks: webhooks::Webhooks::new(egress.for_tenants()),
            orchestrator: new_orchestrator(),
            packs,
            started: CancellationToken::new(),
            draining: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            live: Live::default(),
            models: Models::new(model_client),
            mcp: Mcp::new(egress.clone(), mcp_options(&config, tokens)),
            egress,
            audit,
            hints,
            due_approvals,
            run_slots: run_slots::RunSlots::new(&config),
            claimed_runs,
            worker: agent_loop::work_on,
            running: scheduler::Running::default(),
            repeating_clients: runs::ending::RepeatingClients::default(),
            tasks,
            replica: ReplicaId::new(),
            started_at: tokio::time::Instant::now(),
            clock,
            db,
            config,
        };
        Ok((Arc::new(app), background))
    }

    /// Starts the background work. Fails when a server that a pack calls `required` cannot be reached.
    pub async fn run_background(self: &Arc<Self>, background: Background) -> anyhow::Result<()> {
        self.tasks.spawn(keys::replica_keys::hold(self.clone()));
        health::compare_clocks(self).await;
        self.tasks.spawn(health::follow_clock(self.clone()));
        self.tasks
            .spawn(audit::write(self.clone(), background.audit));
        self.tasks
            .spawn(scheduler::send_hints(self.clone(), background.hints));
        self.tasks.spawn(scheduler::receive_hints(self.clone()));
        self.tasks.spawn(scheduler::receive_runs(
            self.clone(),
            background.claimed_runs,
        ));
        self.tasks.spawn(scheduler::approvals::receive_due(
            self.clone(),
            background.due_approvals,
        ));
        self.tasks
            .spawn(scheduler::approvals::follow_user_claims(self.clone()));
        self.tasks.spawn(connections::supervise(self.clone()));
        self.tasks.spawn(credentials::follow_changes(self.clone()));
        self.tasks.spawn(webhooks::deliver(self.clone()));
        self.start_polls();
        self.start_settling();
        let app = self.clone();
        self.tasks
            .spawn(async move { app.packs.watch(app.shutdown.clone()).await });
        connections::await_required(self).await?;
        let app = self.clone();
        self.tasks.spawn(async move {
            let first = connections::await_first_discovery(&app);
            // A server that does not answer must not keep the process from becoming ready.
            tokio::select! {
                _ = tokio::time::timeout(FIRST_DISCOVERY, first) => app.started.cancel(),
                () = app.shutdown.cancelled() => {}
            }
        });
        Ok(())
    }

    /// Transactions of tenants that this process has begun.
    pub fn transactions(&self) -> u64 {
        self.db.transactions()
    }

    /// Starts the polls: tasks that look for changes of rows at a fixed interval.
    fn start_polls(self: &Arc<Self>) {
        let (app, tasks) = (|| self.clone(), &self.tasks);
        tasks.spawn(every(
            app(),
            POLL,
            "look for waiting runs",
            scheduler::claim_waiting,
        ));
        let started_at = self.clock.now();
        tasks.spawn(every(
            app(),
            replicas::HEARTBEAT_INTERVAL,
            "say how this replica is",
            async move |app| replicas::announce(app, started_at).await,
        ));
        tasks.spawn(every(
            app(),
            POLL,
            "compare the rules of the replicas",
            async move |app| replicas::compare_policies(app, started_at).await,
        ));
        tasks.spawn(every(
            app(),
            POLL,
            "look whether the database has its data",
            async |app| data_identity::follow(app).await,
        ));
        let mut known = HashMap::new();
        tasks.spawn(every(app(), POLL, "look for news", async move |app| {
            scheduler::poll_changes(app, &mut known).await
        }));
        let mut known = HashSet::new();
        tasks.spawn(every(
            app(),
            POLL,
            "look for sessions that ended",
            async move |app| sign_outs::poll_ended(app, &mut known).await,
        ));
        tasks.spawn(every(
            app(),
            POLL,
            "look at tenants and issuers",
            accounts::watch::poll_changes,
        ));
        let mut known = HashMap::new();
        tasks.spawn(every(
            app(),
            POLL,
            "look for news of approvals",
            async move |app| scheduler::approvals::poll_changes(app, &mut known).await,
        ));
        tasks.spawn(every(
            app(),
            POLL,
            "look at credentials",
            credentials::poll_changes,
        ));
        tasks.spawn(every(
            app(),
            POLL,
            "look at registries",
            registry::poll_changes,
        ));
    }

    /// Starts the tasks that settle runs that have ended and delete rows whose time is over.
    fn start_settling(self: &Arc<Self>) {
        let (app, tasks) = (|| self.clone(), &self.tasks);
        tasks.spawn(every(app(), usage::PERIOD, "add up usage", usage::fold));
        tasks.spawn(every(app(), words::PERIOD, "index words", words::index));
        tasks.spawn(every(
            app(),
            ending::PERIOD,
            "settle runs",
            ending::finalize_due,
        ));
        tasks.spawn(every(
            app(),
            flows::PURGE_INTERVAL,
            "delete old flows",
            flows::purge_ended,
        ));
        let expire = elicitations::expire_overdue;
        tasks.spawn(every(
            app(),
            elicitations::EXPIRY_INTERVAL,
            "end old questions",
            expire,
        ));
        tasks.spawn(every(
            app(),
            webhooks::PURGE_INTERVAL,
            "delete old deliveries",
            async |app| webhooks::purge_old(app).await.map(drop),
        ));
        tasks.spawn(every(
            app(),
            retention::CHECK_INTERVAL,
            "delete what is old",
            retention::purge_due,
        ));
        tasks.spawn(every(
            app(),
            pins::TELLING,
            "tell which tools changed",
            pins::tell_due,
        ));
        tasks.spawn(every(
            app(),
            STATISTICS_INTERVAL,
            "analyse tables",
            async |app| app.db.analyze_grown().await,
        ));
    }

    /// Stops the process: it accepts no new work, gives running work a bounded time, and hands the rest back for
    /// another replica.
    pub async fn stop(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout(DRAIN, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                "some work did not end in time; it is taken up again when its lease ends"
            );
        }
        self.mcp.shutdown().await;
        keys::replica_keys::leave(&self.keys, self.replica).await;
        replicas::leave(self).await;
        // Closing waits until every connection has been returned. Work that did not end in time may still hold one.
        if tokio::time::timeout(CLOSE, self.db.close()).await.is_err() {
            tracing::warn!("some database connections did not end in time");
        }
    }
}
