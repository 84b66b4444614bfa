//! The scope and the parameters of a run, and the pack that they complete. Only this module opens the
//! scope; from here it goes to servers, never to a model, a message, a log line or an answer of the API.

use std::sync::Arc;

use crate::{
    app::{App, platform::keys::contexts, servers::registry},
    domain::{
        error::{Error, ErrorCode, Result},
        ids::{ConversationId, RunId, TenantId},
        json::Members,
        orchestrator,
        pack::Pack,
        registry::resolve,
        run::RunValues,
        secret::Secret,
    },
    store,
};

/// Characters of a scope as JSON.
const MAX_SCOPE: usize = 100_000;

/// A scope as it may be stored; nothing for an empty one.
pub(in crate::app) async fn sealed(
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

/// What a run was given. The scope is that of its tree, and empty once that is over.
pub async fn of(
    app: &App,
    tenant: TenantId,
    run_id: RunId,
    session_id: ConversationId,
) -> Result<RunValues> {
    let (scope, params) = stored(app, tenant, run_id).await?;
    Ok(RunValues {
        scope,
        params,
        run_id,
        session_id,
    })
}

/// Scope and parameters of a run.
pub async fn stored(app: &App, tenant: TenantId, run: RunId) -> Result<(Members, Members)> {
    let mut tx = app.db.tenant(tenant).await?;
    let stored = store::trees::values(&mut tx, run).await?;
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

/// The pack as it is in a run: what its servers take from the run's values is filled in. An error says what is
/// missing, and then the run is not created. This is the one place where resolution happens.
pub async fn filled_in(
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

/// The pack with the built-in server as a pack may have it, where the registry defines it.
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

/// The same for a run that was created; its values are looked up only for a pack that takes some. Nobody checked the
/// values of a message in a chat: there, what cannot be resolved is left out, as it is outside of runs.
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
    match filled_in(app, tenant, &pack, &of(app, tenant, run, session).await?).await {
        Err(Error::Invalid { reason, .. }) => {
            tracing::warn!(%run, agent = %pack.id(), %reason, "servers of the registry are left out of a run");
            Ok(with_guarded_orchestrator(&pack))
        }
        filled => filled,
    }
}
