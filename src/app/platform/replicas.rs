//! The replicas that live, and the policies of their packs. Each replica writes its state every few seconds, and at once
//! when its packs change, and removes itself when it stops.
//!
//! Two replicas may have different packs: while a pack is rolled out, or because one was forgotten. Then the stricter
//! policy decides at both ([`domain::policy::PolicyOverride`]), until they agree or the operator settles which one
//! counts. Nobody is left out for being the older one: a forgotten replica that restarts is the newest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use time::OffsetDateTime;

use super::{data_identity, health};
use crate::app::App;
use domain::{
    audit::OPERATOR,
    clock,
    config::Config,
    error::{Error, Missing, Result},
    finding::{Code, Finding},
    ids::{AgentId, ReplicaId},
    policy::{AgentPolicy, PolicyDigest, PolicyOverride},
    principal::Admin,
    replica::Replica,
};
use packs::PackSnapshot;
use store::{
    Db,
    replicas::{PoliciesStamp, ReplicaPolicies, ReplicaState},
};

/// How often a replica writes its state.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// For how long replicas may have different packs before it counts as a fault: a pack is rolled out in less.
const ROLLOUT: time::Duration = time::Duration::minutes(5);
/// How long a replica with other rules waits for the others before it serves. Each looks every second.
const AGREEMENT: Duration = Duration::from_secs(10);

/// How old what is known of the other replicas may be where a call is made: some looks.
const STALE: Duration = Duration::from_secs(3);

/// What this replica has compared last.
#[derive(Default)]
pub struct KnownPolicies {
    compared: Mutex<Option<Compared>>,
    looked_at: Mutex<Option<Instant>>,
}

/// The packs of this replica, and the policies of all.
type Compared = (Arc<PackSnapshot>, PoliciesStamp);

impl KnownPolicies {
    fn lock(&self) -> MutexGuard<'_, Option<Compared>> {
        let compared = self.compared.lock();
        compared.unwrap_or_else(PoisonError::into_inner)
    }

    fn looked_at(&self) -> MutexGuard<'_, Option<Instant>> {
        let looked_at = self.looked_at.lock();
        looked_at.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the state of this replica, and that it works with this data.
pub async fn announce(app: &Arc<App>, started_at: OffsetDateTime) -> Result<()> {
    let readiness = health::check_readiness(app).await;
    let files = app.packs.files();
    let mut tx = app.db.system().await?;
    let state = ReplicaState {
        id: app.replica,
        version: env!("CARGO_PKG_VERSION"),
        started_at,
        readiness: &readiness,
        policies: files.policies(),
        settings: &shared_settings(&app.config),
    };
    store::replicas::put(&mut tx, &state).await?;
    data_identity::commit(app, tx).await
}

/// The settings that must be the same at all replicas, as they are written.
fn shared_settings(config: &Config) -> BTreeMap<String, String> {
    let days = config.retention();
    let storage = config.storage();
    let settings = [
        ("CHATELAINE_KEEP_*_DAYS", format!("{days:?}")),
        (
            "CHATELAINE_STORED_MIB_PER_*_PER_DAY",
            format!("{storage:?}"),
        ),
        (
            "CHATELAINE_RUNS_PER_USER_PER_DAY",
            format!("{:?}", config.runs_per_user_per_day),
        ),
        (
            "CHATELAINE_RUNS_PER_TENANT_PER_DAY",
            format!("{:?}", config.runs_per_tenant_per_day),
        ),
        (
            "CHATELAINE_APPROVALS_PER_USER",
            config.approvals_per_user.to_string(),
        ),
        (
            "CHATELAINE_APPROVALS_PER_TENANT",
            config.approvals_per_tenant.to_string(),
        ),
        (
            "CHATELAINE_APPROVAL_WINDOW_SECONDS",
            config.approval_window.as_secs().to_string(),
        ),
    ];
    let settings = settings.into_iter();
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Compares the policies of this replica with those of the others, and puts the stricter into force. A change of this
/// replica's own packs is written first.
pub async fn compare_policies(app: &Arc<App>, started_at: OffsetDateTime) -> Result<()> {
    let looked_at = clock::instant();
    let files = app.packs.files();
    let lock = || app.known_policies.lock();
    let before = lock().clone();
    let has_changed = |(known, _): &(Arc<PackSnapshot>, _)| !Arc::ptr_eq(known, &files);
    if before.as_ref().is_some_and(has_changed) {
        announce(app, started_at).await?;
    }
    let stamp = app
        .db
        .look(|tx| Box::pin(store::replicas::stamp_policies(tx)))
        .await?;
    if before.is_some_and(|(known, seen)| Arc::ptr_eq(&known, &files) && seen == stamp) {
        *app.known_policies.looked_at() = Some(looked_at);
        return Ok(());
    }
    let mut tx = app.db.system().await?;
    let replicas = store::replicas::list_policies(&mut tx).await?;
    let settled = store::replicas::list_settled(&mut tx).await?;
    drop(tx);
    let overrides = find_overrides(&files, app.replica, &replicas, &settled);
    for (agent, by) in &overrides {
        let own = files.policies().get(agent).map(AgentPolicy::digest);
        if let Some(by) = own.and_then(|own| by.beside(own)) {
            log_difference(agent, &by, &replicas);
        }
    }
    app.packs.override_policies(overrides);
    let mut tx = app.db.system().await?;
    store::replicas::put_seen(&mut tx, app.replica, &stamp).await?;
    for (agent, digest) in &settled {
        let mut all = replicas.iter().filter_map(|it| it.policies.get(agent));
        let first = all.next().map(|(digest, _)| digest);
        // All have the same rules, so nothing is left to settle: a replica that comes back with other ones is a new case.
        if first.is_some() && all.all(|(digest, _)| Some(digest) == first) {
            store::replicas::end_settlement(&mut tx, agent, *digest).await?;
        }
    }
    tx.commit().await?;
    *app.known_policies.looked_at() = Some(looked_at);
    let before = lock().replace((files.clone(), stamp));
    measure_policies(before.as_ref().map(|(files, _)| files.as_ref()), &files);
    Ok(())
}

/// Compares the policies before a call is made, if they were last compared long ago: a process that was stopped for a while
/// goes on with what it knew.
pub async fn refresh_policies(app: &Arc<App>) -> Result<()> {
    let looked_at = *app.known_policies.looked_at();
    if looked_at.is_some_and(|at| at.elapsed() < STALE) {
        return Ok(());
    }
    compare_policies(app, app.clock.now()).await
}

/// Waits until all replicas go by the rules of this one, where it has others than they. So no call is made by laxer rules
/// than its own once it serves. A replica that hangs does not keep it from serving.
pub async fn await_agreement(app: &Arc<App>, started_at: OffsetDateTime) -> Result<()> {
    let end = clock::instant() + AGREEMENT;
    loop {
        compare_policies(app, started_at).await?;
        if !app.packs.is_overridden() {
            return Ok(());
        }
        let stamp = app.known_policies.lock().clone();
        let stamp = stamp.map(|(_, stamp)| stamp).unwrap_or_default();
        let mut tx = app.db.system().await?;
        let behind = store::replicas::count_behind(&mut tx, &stamp).await?;
        drop(tx);
        if behind == 0 {
            return Ok(());
        }
        if clock::instant() > end {
            tracing::warn!(
                behind,
                "serving, although replicas do not yet go by the rules of this one"
            );
            return Ok(());
        }
        tokio::time::sleep(AGREEMENT / 50).await;
    }
}

/// Shows the policies of this replica's packs as a metric, in place of those that it had `before`.
fn measure_policies(before: Option<&PackSnapshot>, now: &PackSnapshot) {
    let before = before.iter().map(|files| (files.policies(), 0.0));
    for (policies, value) in before.chain([(now.policies(), 1.0)]) {
        for (agent, policy) in policies {
            let labels = [
                ("agent", agent.to_string()),
                ("digest", policy.digest().to_string()),
            ];
            metrics::gauge!("chatelaine_packs_info", &labels).set(value);
        }
    }
}

/// Which policies count for the agents of this replica: those that other replicas have, or the one that is settled, as long
/// as a replica has it.
fn find_overrides(
    own: &PackSnapshot,
    this: ReplicaId,
    replicas: &[ReplicaPolicies],
    settled: &BTreeMap<AgentId, PolicyDigest>,
) -> BTreeMap<AgentId, PolicyOverride> {
    let of_agent = |agent: &AgentId| {
        let of = |it: &ReplicaPolicies| it.policies.get(agent).cloned();
        let settled = settled.get(agent).and_then(|wanted| {
            let mut all = replicas.iter().filter_map(of);
            let (digest, policy) = all.find(|(digest, _)| digest == wanted)?;
            Some(PolicyOverride::Settled(digest, policy?))
        });
        let others = replicas.iter().filter(|it| it.id != this);
        let strictest = || PolicyOverride::Strictest(others.filter_map(of).collect());
        (agent.clone(), settled.unwrap_or_else(strictest))
    };
    own.policies().keys().map(of_agent).collect()
}

fn log_difference(agent: &AgentId, by: &PolicyOverride, replicas: &[ReplicaPolicies]) {
    let others: BTreeSet<_> = match by {
        PolicyOverride::Strictest(others) => others.keys().collect(),
        PolicyOverride::Settled(digest, _) => BTreeSet::from([digest]),
    };
    let which = replicas.iter().filter_map(|replica| {
        let (digest, _) = replica.policies.get(agent)?;
        others
            .contains(digest)
            .then(|| format!("{} ({digest})", replica.id))
    });
    let others = which.collect::<Vec<_>>().join(", ");
    match by {
        PolicyOverride::Strictest(_) => tracing::warn!(
            %agent,
            others,
            "other replicas have other rules for this agent; the stricter decide until all have the same pack, or \
             `chatelaine policy settle` says which count"
        ),
        PolicyOverride::Settled(..) => tracing::warn!(
            %agent,
            others,
            "the operator has settled that the rules of other replicas count for this agent, not those of this one's pack"
        ),
    }
}

/// Says that the policy with this digest decides alone for an agent, while a replica has it. `NotFound` when no replica
/// that lives has it. `by`: the admin who says it; `None` for the operator.
pub async fn settle_policy(
    db: &Db,
    by: Option<&Admin>,
    agent: &AgentId,
    digest: PolicyDigest,
) -> Result<()> {
    let mut tx = db.system().await?;
    let replicas = store::replicas::list_policies(&mut tx).await?;
    let has = |replica: &ReplicaPolicies| {
        let policy = replica.policies.get(agent);
        policy.is_some_and(|(known, _)| *known == digest)
    };
    if !replicas.iter().any(has) {
        let what = format!("a replica that lives and has the rules {digest} for {agent}");
        return Err(Error::NotFound(Missing::Other(what)));
    }
    store::replicas::settle_policy(&mut tx, agent, digest).await?;
    let actor = by.map_or(OPERATOR, |admin| admin.user().as_str());
    let of = by.map(|admin| format!(" by an admin of the tenant {}", admin.tenant()));
    let detail = format!("{agent} {digest}{}", of.unwrap_or_default());
    store::audit::record_for_operator(&mut tx, actor, "policy.settled", &detail).await?;
    tx.commit().await
}

/// The same over the API. The admin of a tenant settles nothing for another one: what is settled counts for all tenants.
pub async fn settle_policy_of_tenant(
    app: &App,
    admin: &Admin,
    agent: &str,
    digest: PolicyDigest,
) -> Result<()> {
    let unknown = || Error::NotFound(Missing::Agent(agent.to_owned()));
    let agent = AgentId::parse(agent).map_err(|_| unknown())?;
    let mut tenants = app.accounts.tenants().await?;
    tenants.retain(|tenant| tenant.serves(&agent));
    if !tenants.iter().any(|tenant| tenant.id == admin.tenant()) {
        return Err(unknown());
    }
    if admin.is_operator() {
        return settle_policy(&app.db, None, &agent, digest).await;
    }
    if tenants.len() > 1 {
        return Err(Error::Forbidden(format!(
            "other tenants have the agent {agent}, too, so the operator settles which rules count"
        )));
    }
    settle_policy(&app.db, Some(admin), &agent, digest).await
}

/// Takes this replica off the list.
pub async fn leave(app: &App) {
    let left = async {
        let mut tx = app.db.system().await?;
        store::replicas::delete(&mut tx, app.replica).await?;
        tx.commit().await
    };
    let left: Result<()> = left.await;
    if let Err(error) = left {
        tracing::debug!(
            error = error.with_cause(),
            "this replica stays on the list for an hour"
        );
    }
}

/// The replicas of the installation, for an admin of any tenant, with the policies of the agents that serve it.
pub async fn list(app: &App, admin: &Admin) -> Result<Vec<Replica>> {
    let tenant = app.accounts.tenant(admin.tenant()).await?;
    let mut tx = app.db.system().await?;
    let mut replicas = store::replicas::list(&mut tx).await?;
    for known in store::replicas::list_policies(&mut tx).await? {
        if let Some(replica) = replicas.iter_mut().find(|it| it.id == known.id) {
            let policies = known.policies.into_iter();
            let policies = policies.map(|(agent, (digest, _))| (agent, digest));
            replica.policies = policies.filter(|(agent, _)| tenant.serves(agent)).collect();
        }
    }
    Ok(replicas)
}

/// What is wrong with the replicas that live: packs with different rules, and settings that must be the same.
pub async fn examine(db: &Db) -> Result<Vec<Finding>> {
    let mut tx = db.system().await?;
    let now = tx.now().await?;
    let policies = store::replicas::list_policies(&mut tx).await?;
    let mut replicas = store::replicas::list(&mut tx).await?;
    replicas.retain(|replica| !replica.silent);
    let settled = store::replicas::list_settled(&mut tx).await?;
    let agents: BTreeSet<_> = policies.iter().flat_map(|it| it.policies.keys()).collect();
    let mut findings = Vec::new();
    for agent in agents {
        let mut since: BTreeMap<PolicyDigest, OffsetDateTime> = BTreeMap::new();
        for replica in &policies {
            if let Some((digest, _)) = replica.policies.get(agent) {
                let first = since.entry(*digest).or_insert(replica.since);
                *first = (*first).min(replica.since);
            }
        }
        let is_settled = settled.get(agent).is_some_and(|it| since.contains_key(it));
        let newest = since.values().max().copied();
        if since.len() > 1 && !is_settled && newest.is_some_and(|at| now - at > ROLLOUT) {
            let digests: Vec<_> = since.keys().map(PolicyDigest::to_string).collect();
            findings.push(Finding::new(
                Code::ReplicasPacks,
                format!(
                    "the replicas have different rules for the agent {agent}, and the stricter decide: {}",
                    digests.join(", ")
                ),
                "give all replicas the same pack, or say which rules count with `chatelaine policy settle`",
            ));
        }
    }
    let names: BTreeSet<_> = replicas.iter().flat_map(|it| it.settings.keys()).collect();
    for name in names {
        let values = replicas.iter().filter_map(|it| it.settings.get(name));
        let values: BTreeSet<_> = values.collect();
        if values.len() > 1 {
            findings.push(Finding::new(
                Code::ReplicasSettings,
                format!("the replicas have different values of {name}"),
                "give all replicas the same value, and restart them",
            ));
        }
    }
    Ok(findings)
}
