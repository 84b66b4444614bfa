//! Packs with the servers that their references take from the registry, for a tenant or for one run.

use std::sync::Arc;

use super::{RegistrySnapshot, may_have_settings, snapshot};
use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::TenantId,
    pack::Pack,
    registry::{
        Entry, EntryId, Rules, ServerRef,
        merge::{depends_on_run, merge},
        resolve::{self, ReferenceValues, ResolveError, ResolvedServer, Sources},
        settings::{self, RefusedSetting, ServerSetting, join},
    },
};
use packs::PackSnapshot;

/// A pack with the servers that it takes from one state of the registry.
pub(super) struct ResolvedPack {
    base: Arc<Pack>,
    /// The rules of other packs hold where they have a server at the same address.
    packs: Arc<PackSnapshot>,
    stamp: String,
    pack: Arc<Pack>,
}

/// Why a run's servers were not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolutionError {
    /// The caller can mend the configuration; no run was begun.
    #[error(transparent)]
    Config(#[from] ResolveError),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<ResolutionError> for Error {
    fn from(error: ResolutionError) -> Self {
        match error {
            ResolutionError::Config(error) => error.into(),
            ResolutionError::Failed(error) => error,
        }
    }
}

/// The entry that a pack's reference names, and the rules for it. An entry in the pack's folder wins over the
/// tenant's.
pub(in crate::app) fn entry_of<'a>(
    app: &'a App,
    snapshot: &'a RegistrySnapshot,
    pack: &'a Pack,
    reference: &ServerRef,
) -> Option<(&'a Arc<Entry>, Rules<'a>)> {
    entry_named(app, snapshot, pack, &reference.entry)
}

/// The same by the id of the entry.
pub(super) fn entry_named<'a>(
    app: &'a App,
    snapshot: &'a RegistrySnapshot,
    pack: &'a Pack,
    id: &EntryId,
) -> Option<(&'a Arc<Entry>, Rules<'a>)> {
    let own = pack.entries.iter().find(|entry| entry.id == *id);
    match own {
        Some(entry) => Some((entry, Rules::Operator)),
        None => Some((
            snapshot.entries.get(id)?,
            Rules::of_tenant(&app.registry.grants),
        )),
    }
}

/// A pack whose references have what these settings say, and the settings that cannot apply to it. `pack` is as its
/// author wrote it.
pub(in crate::app) fn join_settings(
    snapshot: &RegistrySnapshot,
    pack: &Arc<Pack>,
    settings: &[ServerSetting],
) -> (Arc<Pack>, Vec<RefusedSetting>) {
    let address = |id: &EntryId| {
        let entry = snapshot.entries.get(id)?;
        Some(entry.definition.url.as_str())
    };
    let (references, refused) = join(pack, settings, address);
    if references == pack.references {
        return (pack.clone(), refused);
    }
    let mut joined = Pack::clone(pack);
    joined.references = references;
    (Arc::new(joined), refused)
}

/// The pack as it is for a tenant outside of runs: with what the tenant's admins set, and with those servers of its references that are the same for every
/// run. A reference that cannot be resolved is left out; the log and `agent_servers::list` say why.
pub async fn pack_for(app: &App, tenant: TenantId, pack: &Arc<Pack>) -> Result<Arc<Pack>> {
    if pack.references.is_empty() && !may_have_settings(app, tenant).await? {
        return Ok(pack.clone());
    }
    let snapshot = snapshot(app, tenant).await?;
    let place = (tenant, pack.id().clone());
    let known = app.registry.packs.get(&place).await;
    let packs = app.packs.snapshot();
    if let Some(known) = known.filter(|known| {
        Arc::ptr_eq(&known.base, pack)
            && Arc::ptr_eq(&known.packs, &packs)
            && known.stamp == snapshot.stamp
    }) {
        return Ok(known.pack.clone());
    }
    let (joined, refused) = join_settings(&snapshot, pack, &snapshot.settings);
    for RefusedSetting {
        owner,
        server,
        reason,
        ..
    } in refused
    {
        tracing::warn!(%tenant, agent = %pack.id(), %owner, %server, reason, "what an admin set for a server is left out");
    }
    let mut servers = Vec::new();
    for reference in &joined.references {
        match resolve_one(app, &snapshot, &joined, reference, None) {
            Ok(Some(resolved)) => servers.push(resolved),
            Ok(None) => {}
            Err(reason) => {
                tracing::warn!(%tenant, agent = %pack.id(), %reason, "a server of the registry is left out");
            }
        }
    }
    let served = with_servers(&joined, &servers);
    let new = ResolvedPack {
        base: pack.clone(),
        packs,
        stamp: snapshot.stamp.clone(),
        pack: served.clone(),
    };
    app.registry.packs.insert(place, Arc::new(new)).await;
    Ok(served)
}

/// Resolves every reference of a pack with the values of a run, in the pack's order. A reference that cannot be
/// resolved is an error that says what is missing; then the run must not begin.
pub async fn resolve(
    app: &App,
    tenant: TenantId,
    pack: &Pack,
    values: &ReferenceValues,
) -> Result<Vec<ResolvedServer>, ResolutionError> {
    if pack.references.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = snapshot(app, tenant).await?;
    let mut resolved = Vec::with_capacity(pack.references.len());
    for reference in &pack.references {
        resolved.extend(resolve_one(app, &snapshot, pack, reference, Some(values))?);
    }
    Ok(resolved)
}

/// The pack as it is in a run with these values: with every server that it takes from the registry. The toolset and
/// the gate need nothing else. Runs that send the same values to a server share a connection; other runs do not.
pub async fn pack_for_run(
    app: &App,
    tenant: TenantId,
    pack: &Arc<Pack>,
    values: &ReferenceValues,
) -> Result<Arc<Pack>, ResolutionError> {
    Ok(with_servers(
        pack,
        &resolve(app, tenant, pack, values).await?,
    ))
}

/// The pack with the resolved servers in place of all servers of its references.
fn with_servers(pack: &Arc<Pack>, resolved: &[ResolvedServer]) -> Arc<Pack> {
    let mut served = Pack::clone(pack);
    served.servers.retain(|server| {
        !served
            .references
            .iter()
            .any(|reference| reference.alias == server.id)
    });
    served.servers.extend(
        resolved
            .iter()
            .map(|resolved| resolved.spec.as_ref().clone()),
    );
    Arc::new(served)
}

/// Resolves one reference with the values of a run. `Ok(None)` when the server differs per run and no values are
/// given.
fn resolve_one(
    app: &App,
    snapshot: &RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
    values: Option<&ReferenceValues>,
) -> Result<Option<ResolvedServer>, ResolveError> {
    let Some((entry, rules)) = entry_of(app, snapshot, pack, reference) else {
        let (alias, entry) = (reference.alias.clone(), reference.entry.clone());
        return Err(ResolveError::UnknownEntry { alias, entry });
    };
    if values.is_none()
        && merge(entry, reference).is_ok_and(|merged| depends_on_run(entry, &merged))
    {
        return Ok(None);
    }
    let none = ReferenceValues::default();
    let sources = Sources {
        env: &app.registry.env,
        rules,
        of_admins: Rules::of_tenant(&app.registry.grants),
        secrets: &snapshot.secrets,
        run: values.unwrap_or(&none),
    };
    let mut resolved = resolve::resolve(entry, reference, sources)?;
    // An entry beside the pack is the operator's own.
    if !pack.entries.iter().any(|own| own.id == entry.id) {
        let all = app.packs.snapshot();
        let others = all.packs().filter(|other| other.id() != pack.id());
        let spec = Arc::make_mut(&mut resolved.spec);
        settings::add_rules_of_address(spec, others.map(AsRef::as_ref));
    }
    Ok(Some(resolved))
}

/// Why a reference cannot be resolved, for people; `None` when nothing is wrong with it outside of runs.
pub(in crate::app) fn resolution_problem(
    app: &App,
    snapshot: &RegistrySnapshot,
    pack: &Pack,
    reference: &ServerRef,
) -> Option<String> {
    let none = ReferenceValues::default();
    let resolution_problem = match resolve_one(app, snapshot, pack, reference, None) {
        Ok(Some(_)) => None,
        Ok(None) => entry_of(app, snapshot, pack, reference).and_then(|(entry, rules)| {
            let sources = Sources {
                env: &app.registry.env,
                rules,
                of_admins: Rules::of_tenant(&app.registry.grants),
                secrets: &snapshot.secrets,
                run: &none,
            };
            resolve::find_missing(entry, reference, sources)
        }),
        Err(error) => Some(error),
    };
    resolution_problem.map(|error| error.to_string())
}
