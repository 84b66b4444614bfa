//! The replicas that live, and the policies of their packs. Each replica writes its state every few seconds, and at once
//! when its packs change, and removes itself when it stops.
//!
//! Two replicas may have different packs: while a pack is rolled out, or because one was forgotten. Then the stricter
//! policy decides at both ([`domain::policy::PolicyOverride`]), until they agree or the operator settles which one
//! counts. Nobody is left out for being the older one: a forgotten replica that restarts is the newest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use time::OffsetDateTime;

use super::health;
use crate::app::App;
use domain::{
    audit::OPERATOR,
    config::Config,
    error::{Error, Missing, Result},
    finding::{Code, Finding},
    ids::{AgentId, ReplicaId},
    policy::{PolicyDigest, PolicyOverride},
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

/// What this replica has compared last.
#[derive(Default)]
pub struct KnownPolicies(Mutex<Option<(Arc<PackSnapshot>, PoliciesStamp)>>);

/// Writes the state of this replica.
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
    tx.commit().await
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
    let files = app.packs.files();
    let lock = || {
        let known = &app.known_policies.0;
        known.lock().unwrap_or_else(PoisonError::into_inner)
    };
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
        return Ok(());
    }
    let mut tx = app.db.system().await?;
    let replicas = store::replicas::list_policies(&mut tx).await?;
    let settled = store::replicas::list_settled(&mut tx).await?;
    drop(tx);
    let overrides = find_overrides(&files, app.replica, &replicas, &settled);
    for (agent, by) in &overrides {
        log_difference(agent, by, &replicas);
    }
    app.packs.override_policies(overrides);
    let before = lock().replace((files.clone(), stamp));
    measure_policies(before.as_ref().map(|(files, _)| files.as_ref()), &files);
    Ok(())
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

/// Which policies of other replicas count for the agents of this one.
fn find_overrides(
    own: &PackSnapshot,
    this: ReplicaId,
    replicas: &[ReplicaPolicies],
    settled: &BTreeMap<AgentId, PolicyDigest>,
) -> BTreeMap<AgentId, PolicyOverride> {
    let of_agent = |(agent, policy): (&AgentId, &domain::policy::AgentPolicy)| {
        let own = policy.digest();
        let others = replicas.iter().filter(|replica| replica.id != this);
        let mut others: BTreeMap<_, _> = others
            .filter_map(|replica| replica.policies.get(agent).cloned())
            .filter(|(digest, _)| *digest != own)
            .collect();
        // What is settled counts while a replica has it.
        if let Some(digest) = settled.get(agent) {
            match others.get(digest) {
                _ if *digest == own => others.clear(),
                Some(Some(policy)) => {
                    let by = PolicyOverride::Settled(*digest, policy.clone());
                    return Some((agent.clone(), by));
                }
                Some(None) | None => {}
            }
        }
        (!others.is_empty()).then(|| (agent.clone(), PolicyOverride::Strictest(others)))
    };
    own.policies().iter().filter_map(of_agent).collect()
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
/// that lives has it.
pub async fn settle_policy(db: &Db, agent: &AgentId, digest: PolicyDigest) -> Result<()> {
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
    let detail = format!("{agent} {digest}");
    store::audit::record_for_operator(&mut tx, OPERATOR, "policy.settled", &detail).await?;
    tx.commit().await
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
        tracing::debug!(%error, "this replica stays on the list for an hour");
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
