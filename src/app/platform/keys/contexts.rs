//! What everything is sealed for, other than credentials and webhooks ([`super::context`],
//! [`super::context_of_webhook`]). In one place, since a record is sealed anew here too: what opens it there must be
//! the same. No two kinds share a scope, so that none opens as another.

use uuid::Uuid;

use crate::{
    domain::{
        credential::CredentialRef,
        error::{Error, Result},
        ids::{AgentId, CredentialId, RunId, ServerId, TenantId, UserId, WebhookId},
    },
    store::sealed::{Kind, Sealed},
    vault::Context,
};

/// The sensitive values of a server's definition, in one version of it.
pub fn of_entry(tenant: TenantId, entry: &str, id: Uuid, version: i64) -> Context {
    of_registry(tenant, format!("mcp-server:{entry}"), id, version)
}

/// A tenant's secret, in one version of it.
pub fn of_secret(tenant: TenantId, name: &str, id: Uuid, version: i64) -> Context {
    of_registry(tenant, format!("secret:{name}"), id, version)
}

/// An access token that replicas share, in one version of it. Its row is not sealed anew: one that cannot be opened is
/// fetched again.
pub fn of_access_token(tenant: TenantId, id: Uuid, version: i64) -> Context {
    of_registry(tenant, "access-token".to_owned(), id, version)
}

/// The answer of a request that made something. Its row is not sealed anew: it is kept for a day.
pub fn of_answer(tenant: TenantId, user: &UserId, id: Uuid) -> Context {
    Context {
        tenant,
        user: user.clone(),
        scope: "request/answer".to_owned(),
        credential: id,
        generation: 1,
    }
}

/// The program as a client of an authorization server. Its row is not sealed anew: one that cannot be opened is
/// registered again.
pub fn of_oauth_client(tenant: TenantId, id: Uuid) -> Context {
    of_registry(tenant, "oauth-client".to_owned(), id, 1)
}

/// A user who was sent to sign in. The row lives for minutes and is not sealed anew.
pub fn of_sign_in(tenant: TenantId, user: &UserId, id: Uuid) -> Context {
    Context {
        tenant,
        user: user.clone(),
        scope: "oauth/sign-in/pending".to_owned(),
        credential: id,
        generation: 1,
    }
}

fn of_registry(tenant: TenantId, scope: String, credential: Uuid, version: i64) -> Context {
    let user = UserId("registry".into());
    Context {
        tenant,
        user,
        scope,
        credential,
        generation: version.cast_unsigned(),
    }
}

/// The arguments of a call that waits for approval. The scope has one part more than a credential's, so that neither
/// opens as the other.
pub fn of_approval(
    tenant: TenantId,
    user: &UserId,
    agent: &str,
    server: &str,
    id: Uuid,
) -> Context {
    let scope = format!("approval/{agent}/{server}");
    Context {
        tenant,
        user: user.clone(),
        scope,
        credential: id,
        generation: 1,
    }
}

/// The scope of a tree of runs, by the run that began it.
pub fn of_scope(tenant: TenantId, root: RunId) -> Context {
    // No user has the empty id.
    Context {
        tenant,
        user: UserId("".into()),
        scope: "run/scope".to_owned(),
        credential: root.0,
        generation: 1,
    }
}

/// Which of a flow's two sealed values: they must not be taken for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowValue {
    /// What was entered so far.
    Entered = 1,
    /// An answer on its way to the run that takes it in.
    Answer = 2,
}

pub fn of_flow(
    tenant: TenantId,
    user: &UserId,
    agent: &str,
    id: Uuid,
    which: FlowValue,
) -> Context {
    let scope = format!("{agent}/flow");
    Context {
        tenant,
        user: user.clone(),
        scope,
        credential: id,
        generation: which as u64,
    }
}

/// Which of an elicitation's two sealed values: they must not be taken for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElicitationValue {
    /// The call, the questions and the server's own state.
    Asked = 1,
    /// What was answered so far.
    Entered = 2,
}

/// Bound to user, agent and server: a row that was altered opens for nobody.
pub fn of_elicitation(
    tenant: TenantId,
    user: &UserId,
    (agent, server): (&str, &str),
    id: Uuid,
    which: ElicitationValue,
) -> Context {
    let scope = format!("elicitation/{agent}/{server}");
    Context {
        tenant,
        user: user.clone(),
        scope,
        credential: id,
        generation: which as u64,
    }
}

/// The same of a row, whatever it is.
pub(super) fn of_row(tenant: TenantId, row: &Sealed) -> Result<Context> {
    let (id, user) = (row.id, UserId(row.user.as_str().into()));
    let of_elicitation = |which| {
        let place = (row.agent.as_str(), row.name.as_str());
        of_elicitation(tenant, &user, place, id, which)
    };
    Ok(match row.kind {
        Kind::Credential | Kind::CredentialCandidate => super::context(&credential(tenant, row)?),
        Kind::Webhook => super::context_of_webhook(tenant, WebhookId(id)),
        Kind::Entry => of_entry(tenant, &row.name, id, row.version),
        Kind::Secret => of_secret(tenant, &row.name, id, row.version),
        Kind::Approval => of_approval(tenant, &user, &row.agent, &row.name, id),
        Kind::RunScope => of_scope(tenant, RunId(id)),
        Kind::FlowEntered => of_flow(tenant, &user, &row.agent, id, FlowValue::Entered),
        Kind::FlowAnswer => of_flow(tenant, &user, &row.agent, id, FlowValue::Answer),
        Kind::Elicitation => of_elicitation(ElicitationValue::Asked),
        Kind::ElicitationEntered => of_elicitation(ElicitationValue::Entered),
    })
}

/// The credential that a row is one of.
pub(super) fn credential(tenant: TenantId, row: &Sealed) -> Result<CredentialRef> {
    let broken = |why: String| Error::internal(anyhow::anyhow!("credential {}: {why}", row.id));
    Ok(CredentialRef {
        tenant,
        user: UserId(row.user.as_str().into()),
        agent: AgentId::parse(&row.agent).map_err(broken)?,
        server: ServerId::parse(&row.name).map_err(broken)?,
        id: CredentialId(row.id),
        generation: row.version.cast_unsigned(),
    })
}
