//! The scope and the parameters of a run, and the pack that they complete. Only this module decrypts the
//! scope; from here it goes to servers, never to a model, a message, a log line or an answer of the API.

use std::sync::Arc;

use crate::app::{App, platform::keys::contexts, servers::registry};
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{ConversationId, RunId, TenantId},
    json::Members,
    orchestrator,
    pack::Pack,
    registry::resolve,
    run::RunValues,
    secret::Secret,
};

/// The most characters of a scope as JSON.
const MAX_SCOPE: usize = 100_000;

/// Seals a scope for storage; `None` for an empty one.
pub(in crate::app) async fn seal_scope(
    app: &App,
    tenant: TenantId,
    root: RunId,
    scope: &Members,
) -> Result<Option<Vec<u8>>> {
    if scope.is_empty() {
        return Ok(None);
    }
    let text = scope.to_string();
    if text.chars().count() > MAX_SCOPE {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "scope",
            format!("has more than {MAX_SCOPE} characters"),
        ));
    }
    app.keys
        .seal(
            tenant,
            &contexts::of_scope(tenant, root),
            &Secret::new(text),
        )
        .await
        .map(Some)
}

/// The values that a run was started with. The scope belongs to its tree, and is empty once the tree has ended.
pub async fn load(
    app: &App,
    tenant: TenantId,
    run_id: RunId,
    session_id: ConversationId,
) -> Result<RunValues> {
    let (scope, params) = load_stored(app, tenant, run_id).await?;
    Ok(RunValues {
        scope,
        params,
        run_id,
        session_id,
    })
}

/// Scope and parameters of a run.
pub async fn load_stored(app: &App, tenant: TenantId, run: RunId) -> Result<(Members, Members)> {
    let mut tx = app.db.tenant(tenant).await?;
    let stored = store::trees::get_values(&mut tx, run).await?;
    drop(tx);
    let stored = stored
        .ok_or_else(|| Error::not_found(format!("run {run}, or the run that began it all,")))?;
    let scope = match &stored.scope {
        None => Members::default(),
        Some((root, sealed)) => {
            let text = app
                .keys
                .open(tenant, &contexts::of_scope(tenant, *root), sealed)
                .await?;
            serde_json::from_str(text.expose()).map_err(|_| {
                Error::Internal(anyhow::anyhow!("the scope of run {root} cannot be read"))
            })?
        }
    };
    Ok((scope, stored.params))
}

/// Whether the servers of a pack differ from run to run.
fn depends_on_run(pack: &Pack) -> bool {
    !pack.references.is_empty()
}

/// The pack as it is in a run: the run's values are filled into its servers. An error says which value is missing, and
/// then the run is not created. Resolution happens nowhere else.
pub async fn resolve_pack(
    app: &App,
    tenant: TenantId,
    pack: &Arc<Pack>,
    values: &RunValues,
) -> Result<Arc<Pack>> {
    if !depends_on_run(pack) {
        return Ok(pack.clone());
    }
    let for_registry = resolve::ReferenceValues::default()
        .params(&values.params)
        .scope(&values.scope)
        .runtime(&values.session_id.to_string(), &values.run_id.to_string())
        .runner(orchestrator::ADDRESS);
    let resolved = registry::pack_for_run(app, tenant, pack, &for_registry).await?;
    Ok(with_guarded_orchestrator(&resolved))
}

/// Returns the pack with its built-in server as a pack may define it, even if the registry defines that server in
/// another way.
fn with_guarded_orchestrator(pack: &Arc<Pack>) -> Arc<Pack> {
    if !pack.servers.iter().any(orchestrator::is_built_in) {
        return pack.clone();
    }
    let mut guarded = Pack::clone(pack);
    for server in &mut guarded.servers {
        if orchestrator::is_built_in(server) {
            server.auth = None;
            orchestrator::guard(server);
        }
    }
    Arc::new(guarded)
}

/// The pack as it is in a run that was created; the run's values are read only for a pack that uses them. The values
/// of a message in a chat were not checked before: a server that they do not resolve is left out, as it is outside of
/// runs.
pub async fn pack_for_run(
    app: &App,
    tenant: TenantId,
    run: RunId,
    session: ConversationId,
    pack: Arc<Pack>,
) -> Result<Arc<Pack>> {
    if !depends_on_run(&pack) {
        return Ok(pack);
    }
    match resolve_pack(app, tenant, &pack, &load(app, tenant, run, session).await?).await {
        Err(Error::Invalid { reason, .. }) => {
            tracing::warn!(%run, agent = %pack.id(), %reason, "servers of the registry are left out of a run");
            Ok(with_guarded_orchestrator(&pack))
        }
        filled => filled,
    }
}
