//! Calls that a tenant keeps with their arguments, so that its admins can try policies with them. They are sealed like
//! arguments that wait for approval, and deleted after the days of the tenant's `call_arguments`. Without such days
//! nothing is kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{
    App,
    platform::keys::{Keys, OpenError, contexts},
};
use domain::{
    canonical,
    error::{Error, Result},
    ids::{AgentId, ServerId, TenantId, UserId},
    json::Json,
    policy::Origin,
    principal::Principal,
    secret::Secret,
    tool::Tool,
};
use store::{
    Db,
    kept_calls::{self, NewCall, Selection},
};

/// The most bytes of the arguments and the claims of a call. A longer call is not kept.
const MAX_BYTES: usize = 64 * 1024;

/// One call.
pub struct KeptCall {
    pub id: Uuid,
    pub at: OffsetDateTime,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    pub origin: Origin,
    pub arguments: Json,
    /// Who made the call, as they were then.
    pub principal: Principal,
}

/// What is sealed of a call.
#[derive(Serialize, Deserialize)]
struct Content {
    arguments: Box<RawValue>,
    principal: Principal,
}

/// A call that is decided about.
pub(super) struct DecidedCall<'a> {
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a Tool,
    pub origin: Origin,
    pub arguments: &'a Json,
}

/// The longest that a call waits to be kept.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps a call, if its tenant wants that. A call does not fail for it, nor wait for it long.
pub(super) async fn keep(app: &App, call: &DecidedCall<'_>) {
    let kept = tokio::time::timeout(PATIENCE, Box::pin(try_keep(app, call))).await;
    let reason = match kept {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.with_cause(),
        Err(_) => "it took too long".to_owned(),
    };
    tracing::warn!(reason, server = %call.server, "a call could not be kept for trying policies");
}

async fn try_keep(app: &App, call: &DecidedCall<'_>) -> Result<()> {
    let Principal { tenant, user, .. } = call.principal;
    let settings = app.accounts.tenant(*tenant).await?;
    if settings.retention.call_arguments.is_none() || !app.keys.has_ring() {
        return Ok(());
    }
    // Rules may look into arguments that the schema fills in.
    let arguments = canonical::with_defaults(&call.tool.input_schema, call.arguments.clone());
    let content = Content {
        arguments: arguments.to_raw(),
        principal: call.principal.clone(),
    };
    let content = Secret::new(serde_json::to_string(&content).map_err(Error::internal)?);
    if content.expose().len() > MAX_BYTES {
        return Ok(());
    }
    let id = Uuid::now_v7();
    let (agent, server) = (call.agent.as_str(), call.server.as_str());
    let context = contexts::of_kept_call(*tenant, user, agent, server, id);
    let sealed = app.keys.seal(*tenant, &context, &content).await?;
    let mut tx = app.db.tenant(*tenant).await?;
    let new = NewCall {
        id,
        user,
        own_key: call.principal.own_key(),
        agent: call.agent,
        server: call.server,
        tool: &call.tool.name,
        origin: call.origin,
        sealed: &sealed,
    };
    kept_calls::put(&mut tx, &new).await?;
    tx.commit().await
}

/// Some kept calls.
pub struct CallPage {
    /// The oldest first. A call that cannot be opened is left out.
    pub calls: Vec<KeptCall>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Uuid>,
}

pub async fn list(
    db: &Db,
    keys: &Keys,
    tenant: TenantId,
    which: Selection<'_>,
) -> Result<CallPage> {
    let mut tx = db.tenant(tenant).await?;
    let rows = kept_calls::list(&mut tx, which).await?;
    drop(tx);
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == which.limit);
    let next = rows.last().map(|row| row.id).filter(|_| is_full);
    let calls = open_all(keys, tenant, rows).await?;
    Ok(CallPage { calls, next })
}

async fn open_all(
    keys: &Keys,
    tenant: TenantId,
    rows: Vec<kept_calls::KeptCall>,
) -> Result<Vec<KeptCall>> {
    let mut calls = Vec::with_capacity(rows.len());
    for row in rows {
        let user = UserId(row.user.as_str().into());
        let (agent, server) = (row.agent.as_str(), row.server.as_str());
        let context = contexts::of_kept_call(tenant, &user, agent, server, row.id);
        let content = match keys.open(tenant, &context, &row.sealed).await {
            Ok(content) => content,
            Err(OpenError::Failed(error)) => return Err(error),
            Err(OpenError::Unopenable(why)) => {
                tracing::error!(%tenant, id = %row.id, %why, "a kept call cannot be opened; it is left out");
                continue;
            }
        };
        let content: Content = serde_json::from_str(content.expose()).map_err(Error::internal)?;
        let arguments = Json::parse(content.arguments.get());
        calls.push(KeptCall {
            id: row.id,
            at: row.at,
            agent: row.agent,
            server: row.server,
            tool: row.tool,
            origin: row.origin,
            arguments: arguments.map_err(|error| Error::internal(anyhow::anyhow!(error)))?,
            principal: content.principal,
        });
    }
    Ok(calls)
}
