//! The contexts in which stored values are sealed, one per kind of value. They stand in one place because `rewrap`
//! seals rows anew: it must build the same context for a row as the code that opens the row later. No two kinds share a
//! scope, so a value of one kind never opens as another.

use uuid::Uuid;

use domain::{
    credential::CredentialRef,
    error::{Error, Result},
    ids::{AgentId, CredentialId, RunId, ServerId, TenantId, UserId, WebhookId},
};
use store::{
    sealed::{Kind, Sealed},
    vault::Context,
};

/// A user's credential for a server, in one generation of it.
pub fn of_credential(credential: &CredentialRef) -> Context {
    Context {
        tenant: credential.tenant,
        user: credential.user.clone(),
        scope: format!("{}/{}", credential.agent, credential.server),
        credential: credential.id.0,
        generation: credential.generation,
    }
}

/// The secret of a webhook.
pub fn of_webhook(tenant: TenantId, id: WebhookId) -> Context {
    Context {
        tenant,
        user: UserId("".into()),
        scope: "webhook".to_owned(),
        credential: id.0,
        generation: 1,
    }
}

/// The sensitive values of a server's definition, in one version of it.
pub fn of_entry(tenant: TenantId, entry: &str, id: Uuid, version: i64) -> Context {
    of_registry(tenant, format!("mcp-server:{entry}"), id, version)
}

/// A tenant's secret, in one version of it.
pub fn of_secret(tenant: TenantId, name: &str, id: Uuid, version: i64) -> Context {
    of_registry(tenant, format!("secret:{name}"), id, version)
}

/// An access token that replicas share, in one version of it. `rewrap` leaves its row alone: a token that cannot be
/// opened is fetched again.
pub fn of_access_token(tenant: TenantId, id: Uuid, version: i64) -> Context {
    of_registry(tenant, "access-token".to_owned(), id, version)
}

/// The answer of a request that created something. `rewrap` leaves its row alone: it is kept for a day.
pub fn of_answer(tenant: TenantId, user: &UserId, id: Uuid) -> Context {
    Context {
        tenant,
        user: user.clone(),
        scope: "request/answer".to_owned(),
        credential: id,
        generation: 1,
    }
}

/// The program as a client of an authorization server. `rewrap` leaves its row alone: a client that cannot be opened
/// is registered again.
pub fn of_oauth_client(tenant: TenantId, id: Uuid) -> Context {
    of_registry(tenant, "oauth-client".to_owned(), id, 1)
}

/// A pending sign-in of a user. `rewrap` leaves its row alone: it lives for minutes.
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

/// The arguments of a call that waits for approval. Its scope has one part more than a credential's, so that neither
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

/// The arguments of a call that a tenant keeps to try policies with.
pub fn of_kept_call(
    tenant: TenantId,
    user: &UserId,
    agent: &str,
    server: &str,
    id: Uuid,
) -> Context {
    Context {
        scope: format!("kept-call/{agent}/{server}"),
        ..of_approval(tenant, user, agent, server, id)
    }
}

/// The scope of a tree of runs, by the root run.
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

/// The two sealed values of a flow, which must not open as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowValue {
    /// The values that the user has entered so far.
    Entered = 1,
    /// An answer on its way to the run that receives it.
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

/// The two sealed values of an elicitation, which must not open as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElicitationValue {
    /// The call, the questions and the server's own state.
    Asked = 1,
    /// The answers that the user has entered so far.
    Entered = 2,
}

/// A value of an elicitation. It is bound to its user, agent and server, so a row that was altered never opens.
pub fn of_elicitation(
    tenant: TenantId,
    user: &UserId,
    agent: &str,
    server: &str,
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

/// The context of a sealed row of any kind.
pub(super) fn of_row(tenant: TenantId, row: &Sealed) -> Result<Context> {
    let (id, user) = (row.id, UserId(row.user.as_str().into()));
    let of_elicitation = |which| of_elicitation(tenant, &user, &row.agent, &row.name, id, which);
    Ok(match row.kind {
        Kind::Credential | Kind::CredentialCandidate => of_credential(&credential(tenant, row)?),
        Kind::Webhook => of_webhook(tenant, WebhookId(id)),
        Kind::Entry => of_entry(tenant, &row.name, id, row.version),
        Kind::Secret => of_secret(tenant, &row.name, id, row.version),
        Kind::Approval => of_approval(tenant, &user, &row.agent, &row.name, id),
        Kind::KeptCall => of_kept_call(tenant, &user, &row.agent, &row.name, id),
        Kind::RunScope => of_scope(tenant, RunId(id)),
        Kind::FlowEntered => of_flow(tenant, &user, &row.agent, id, FlowValue::Entered),
        Kind::FlowAnswer => of_flow(tenant, &user, &row.agent, id, FlowValue::Answer),
        Kind::Elicitation => of_elicitation(ElicitationValue::Asked),
        Kind::ElicitationEntered => of_elicitation(ElicitationValue::Entered),
    })
}

/// The credential of a row.
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
