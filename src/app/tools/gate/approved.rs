//! An approved call on its way. Everything that was true when it was asked for is looked at again: what the
//! requester may do, the policy, the credential, the tool itself as its server describes it now. Then it is
//! sent, once, with the arguments that were approved.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::send::{CallContext, Destination, Permit, resolve_connection};
use crate::{
    app::{
        App,
        servers::credentials::{self, ResolvedConnection},
        tools::approvals::{
            execution::{self, Claimed},
            recheck::{permitted_server, same_tool},
        },
    },
    domain::{
        approval::Approval,
        error::{Error, Result},
        message::ToolResult,
        server::{AccessMode, ServerSpec},
        tool::Tool,
    },
    mcp::{CallOptions, RepeatCheck},
};

/// Why it is not sent.
enum NotSent {
    /// It never will be: this is not what was approved.
    Revoked(String),
    /// Not now; nothing was sent.
    Later,
}

impl From<Error> for NotSent {
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
struct PreparedCall {
    spec: Arc<ServerSpec>,
    destination: Destination,
    arguments: Box<RawValue>,
}

/// Makes an approved call whose lease this process holds; `None` when it was not sent, and the row says why.
/// What came of it has to be written by the caller, who may try that again.
pub async fn call(
    app: &Arc<App>,
    approval: &Arc<Claimed>,
    cancel: CancellationToken,
) -> Result<Option<ToolResult>> {
    let ready = match checked(app, approval).await {
        Ok(ready) => ready,
        Err(NotSent::Revoked(reason)) => {
            return execution::revoke(app, approval, &reason)
                .await
                .map(|()| None);
        }
        Err(NotSent::Later) => return execution::postpone(app, approval).await.map(|()| None),
    };
    let PreparedCall {
        spec,
        destination,
        arguments,
    } = ready;
    let permit = match Permit::approved(caller(app, approval), approval, &spec, destination).await {
        Ok(Ok(permit)) => permit,
        Ok(Err(reason)) => {
            return execution::revoke(app, approval, reason)
                .await
                .map(|()| None);
        }
        Err(error) => return Err(error),
    };
    let options = CallOptions {
        cancel,
        once: Some(approval.id.to_string()),
        repeat_check: Some(repeat_check(app, approval)),
        ..CallOptions::default()
    };
    let answer = permit.call(&approval.tool, &arguments, options).await;
    Ok(Some(permit.into_result(&approval.call_id, answer)))
}

/// A call whose session was lost is made again only as the same execution: before the request expires, and while this
/// process holds the lease that it was sent under.
fn repeat_check(app: &Arc<App>, approval: &Arc<Claimed>) -> RepeatCheck {
    let (app, approval) = (app.clone(), approval.clone());
    RepeatCheck::new(move || {
        let (app, approval) = (app.clone(), approval.clone());
        Box::pin(async move {
            app.clock.now() < approval.expires_at
                && execution::heartbeat(&app, &approval).await.unwrap_or(false)
        })
    })
}

fn caller<'a>(app: &'a Arc<App>, approval: &'a Approval) -> CallContext<'a> {
    CallContext {
        app,
        principal: &approval.principal,
        agent: &approval.agent,
        run: approval.run,
        is_recorded: true,
    }
}

async fn checked(app: &Arc<App>, approval: &Claimed) -> Result<PreparedCall, NotSent> {
    if approval.withdrawn_by.is_some() {
        return Err(NotSent::Revoked(approval.withdrawn_reason().to_owned()));
    }
    let spec = permitted_server(app, approval)
        .await?
        .map_err(NotSent::Revoked)?;
    let destination = connect(app, approval, &spec).await?;
    same_tool(&tools(app, approval, &spec, &destination).await?, approval)
        .map_err(NotSent::Revoked)?;
    let arguments = match execution::arguments(app, approval).await {
        Ok(arguments) => arguments,
        Err(Error::Conflict(..)) => {
            return Err(NotSent::Revoked(
                "its arguments cannot be opened any more".to_owned(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(PreparedCall {
        spec,
        destination,
        arguments,
    })
}

/// The tools as their server lists them now. Listing may be repeated as often as one likes. It also finds out whether
/// the session is alive, so that the call itself does not have to.
async fn tools(
    app: &App,
    approval: &Approval,
    spec: &ServerSpec,
    destination: &Destination,
) -> Result<Vec<Arc<Tool>>, NotSent> {
    let Destination::Server(ResolvedConnection { key, spec: target }) = destination else {
        return Ok(app.orchestrator.tools().to_vec());
    };
    match app.mcp.discover(key, target).await {
        Ok(discovery) => Ok(discovery.tools),
        Err(error) if error.is_credential() => {
            if spec.access_mode == AccessMode::UserControlled {
                credentials::reject(app, &approval.principal, key).await?;
            }
            Err(NotSent::Revoked(
                "the server does not accept the credential any more".to_owned(),
            ))
        }
        Err(error) => {
            tracing::info!(approval = %approval.id, %error, "the server of an approved call cannot be reached");
            Err(NotSent::Later)
        }
    }
}

async fn connect(
    app: &Arc<App>,
    approval: &Approval,
    spec: &Arc<ServerSpec>,
) -> Result<Destination, NotSent> {
    let changed =
        || NotSent::Revoked("its requester's credential has changed; ask again".to_owned());
    let gone = || NotSent::Revoked("the run that asked for it is gone".to_owned());
    let is_built_in = app.orchestrator.is(spec);
    if is_built_in && approval.run.is_none() {
        return Err(gone());
    }
    let destination = match resolve_connection(&caller(app, approval), spec).await {
        Ok(destination) => destination.ok_or_else(changed)?,
        Err(Error::NotFound(_)) if is_built_in => return Err(gone()),
        Err(error) => return Err(error.into()),
    };
    if destination.credential() == approval.credential {
        Ok(destination)
    } else {
        Err(changed())
    }
}
