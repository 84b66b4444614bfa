//! An approved call on its way. Everything that was true when it was asked for is looked at again: what the
//! requester may do, the policy, the credential, the tool itself as its server describes it now. Then it is
//! sent, once, with the arguments that were approved.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::{came_of, outcome_name};
use crate::{
    app::{
        App,
        platform::audit::Line,
        runs,
        servers::{agents, connections, credentials, orchestrator},
        tools::approvals::{
            execution,
            recheck::{credential_of, permitted, same_tool},
        },
    },
    domain::{
        approval::Approval,
        error::{Error, Result},
        ids::{AuditId, ConversationId, RunId},
        message::{CallStatus, ToolResult},
        pack::Pack,
        server::{AccessMode, ServerSpec},
    },
    mcp::{CallOptions, Key},
    store::{self, audit::AuditRow},
};

/// Why it is not sent.
enum Held {
    /// It never will be: this is not what was approved.
    Revoked(String),
    /// Not now; nothing was sent.
    Later,
}

impl From<Error> for Held {
    /// Nothing was sent, so what went wrong on our side is tried again.
    fn from(error: Error) -> Self {
        tracing::warn!(
            error = format!("{:#}", anyhow::Error::from(error)),
            "an approved call is put off"
        );
        Self::Later
    }
}

/// What is sent, and where.
struct Ready {
    key: Key,
    spec: Arc<ServerSpec>,
    target: Arc<ServerSpec>,
    arguments: Box<RawValue>,
}

/// Makes an approved call whose lease this process holds; `None` when it was not sent, and the row says why.
/// What came of it has to be written by the caller, who may try that again.
pub async fn call(
    app: &Arc<App>,
    approval: &Approval,
    cancel: CancellationToken,
) -> Result<Option<ToolResult>> {
    let ready = match checked(app, approval).await {
        Ok(ready) => ready,
        Err(Held::Revoked(reason)) => {
            return execution::revoke(app, approval, &reason)
                .await
                .map(|()| None);
        }
        Err(Held::Later) => return execution::put_off(app, approval).await.map(|()| None),
    };
    let line: Line<'_> = match app.audit.reserve(promised(app, approval)) {
        Ok(line) => line,
        Err(_) => return execution::put_off(app, approval).await.map(|()| None),
    };
    if let Err(error) = execution::start(app, approval).await {
        line.write(outcome_name(CallStatus::Denied));
        return Err(error);
    }
    let options = CallOptions {
        cancel,
        once: Some(approval.id.to_string()),
        ..CallOptions::default()
    };
    let mcp = app.orchestrator.mcp(&ready.spec, &app.mcp);
    let sent = mcp
        .call(
            &ready.key,
            &ready.target,
            &approval.tool,
            &ready.arguments,
            options,
        )
        .await;
    if let (true, Some(run)) = (app.orchestrator.is(&ready.spec), approval.run) {
        over(app, approval, run).await;
    }
    let result = came_of(
        app,
        &approval.principal,
        &approval.call_id,
        &ready.key,
        &ready.spec,
        sent,
    )
    .await;
    line.write(outcome_name(result.status));
    Ok(Some(result))
}

async fn checked(app: &Arc<App>, approval: &Approval) -> Result<Ready, Held> {
    if approval.withdrawn_by.is_some() {
        return Err(Held::Revoked(execution::STOPPED.to_owned()));
    }
    let pack = match agents::pack(app, &approval.principal, approval.agent.as_str()).await {
        Ok(pack) => pack,
        Err(Error::NotFound(_) | Error::Forbidden(_)) => {
            return Err(Held::Revoked(
                "its requester may not talk to the agent any more".to_owned(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    let pack = match (approval.run, approval.conversation) {
        (Some(run), Some(session)) => in_run(app, approval, run, session, pack).await?,
        _ => pack,
    };
    let spec = permitted(&pack, approval).map_err(Held::Revoked)?;
    let (key, target) = reached(app, approval, &spec).await?;
    // Listing may be repeated as often as one likes. It also finds out whether the session is alive, so that the
    // call itself does not have to.
    let discovery = match app
        .orchestrator
        .mcp(&spec, &app.mcp)
        .discover(&key, &target)
        .await
    {
        Ok(discovery) => discovery,
        Err(error) if error.is_credential() => {
            if spec.access_mode == AccessMode::UserControlled {
                credentials::reject(app, &approval.principal, &key).await?;
            }
            return Err(Held::Revoked(
                "the server does not accept the credential any more".to_owned(),
            ));
        }
        Err(error) => {
            tracing::info!(approval = %approval.id, %error, "the server of an approved call cannot be reached");
            return Err(Held::Later);
        }
    };
    same_tool(&discovery.tools, approval).map_err(Held::Revoked)?;
    let arguments = match execution::arguments(app, approval).await {
        Ok(arguments) => arguments,
        Err(Error::Conflict(_)) => {
            return Err(Held::Revoked(
                "its arguments cannot be opened any more".to_owned(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Ready {
        key,
        spec,
        target,
        arguments,
    })
}

/// The pack with the servers that it has in the run that asked.
async fn in_run(
    app: &App,
    approval: &Approval,
    run: RunId,
    session: ConversationId,
    pack: Arc<Pack>,
) -> Result<Arc<Pack>, Held> {
    match runs::values::pack_for_run(app, approval.tenant, run, session, pack).await {
        Ok(pack) => Ok(pack),
        Err(Error::NotFound(_)) => Err(Held::Revoked(
            "the run that asked for it is gone".to_owned(),
        )),
        Err(error) => Err(error.into()),
    }
}

async fn reached(
    app: &App,
    approval: &Approval,
    spec: &Arc<ServerSpec>,
) -> Result<(Key, Arc<ServerSpec>), Held> {
    let changed = || Held::Revoked("its requester's credential has changed; ask again".to_owned());
    if app.orchestrator.is(spec) {
        let gone = || Held::Revoked("the run that asked for it is gone".to_owned());
        let reached = orchestrator::reach(
            app,
            approval.tenant,
            &approval.agent,
            spec,
            approval.run.ok_or_else(gone)?,
        );
        return match reached.await {
            Ok(reached) => Ok(reached),
            Err(Error::NotFound(_)) => Err(gone()),
            Err(error) => Err(error.into()),
        };
    }
    let (key, target) = match spec.access_mode {
        AccessMode::AdminControlled => (
            connections::key(approval.tenant, &approval.agent, spec),
            spec.clone(),
        ),
        AccessMode::UserControlled => {
            let connection =
                credentials::connection(app, &approval.principal, &approval.agent, spec).await?;
            let connection = connection.ok_or_else(changed)?;
            (connection.key, connection.spec)
        }
    };
    if credential_of(&key) == approval.credential {
        Ok((key, target))
    } else {
        Err(changed())
    }
}

/// Nobody speaks any more for a run that ended before its call was approved.
async fn over(app: &App, approval: &Approval, run: RunId) {
    if app.running.has(run) {
        return;
    }
    orchestrator::forget(app, run).await;
    let removed = async {
        let mut tx = app.db.tenant(approval.tenant).await?;
        store::trees::remove_tokens(&mut tx, run).await?;
        tx.commit().await
    };
    if let Err(error) = removed.await {
        tracing::warn!(%run, %error, "the token of a run that is over could not be removed");
    }
}

fn promised(app: &App, approval: &Approval) -> AuditRow {
    AuditRow {
        tenant: approval.tenant,
        id: AuditId::new(),
        at: app.clock.now(),
        actor: approval.requester().to_string(),
        action: "tool.call",
        agent: approval.agent.to_string(),
        run: approval.run,
        server: approval.server.to_string(),
        tool: approval.tool.clone(),
        args_sha256: approval.args_sha256.to_vec(),
        outcome: outcome_name(CallStatus::OutcomeUnknown),
        detail: Some(format!("approval {}", approval.code)),
    }
}
