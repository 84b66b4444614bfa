//! Checks that a request still matches the call that was requested: when it is approved, and again when it
//! runs. A change since then revokes the request, because the approver did not consent to the change.

use std::sync::Arc;

use super::App;
use crate::{
    app::servers::{agents, connections, credentials, run_values},
    domain::{
        approval::{Approval, Consent},
        canonical,
        error::{Error, Result},
        pack::Pack,
        policy::{Decision, decide},
        principal::Principal,
        server::{AccessMode, ServerSpec},
        tool::Tool,
    },
};

/// The server of a request by today's pack and the newest claims of its requester, with the values of the run that
/// asked; or why the call must not be made.
pub async fn permitted_server(
    app: &App,
    approval: &Approval,
) -> Result<Result<Arc<ServerSpec>, String>> {
    let principal = match app.accounts.current(approval.as_act()).await? {
        Ok(principal) => principal,
        Err(end) => return Ok(Err(end.reason().to_owned())),
    };
    let pack = match agents::pack(app, &principal, approval.agent.as_str()).await {
        Ok(pack) => pack,
        Err(Error::Suspended(_)) => return Ok(Err("its tenant is suspended".to_owned())),
        Err(Error::NotFound(_) | Error::Forbidden(_)) => {
            return Ok(Err(
                "its requester may not talk to the agent any more".to_owned()
            ));
        }
        Err(error) => return Err(error),
    };
    let pack = match (approval.run, approval.conversation) {
        (Some(run), Some(session)) => {
            match run_values::pack_for_run(app, approval.tenant, run, session, pack).await {
                Ok(pack) => pack,
                Err(Error::NotFound(_)) => {
                    return Ok(Err("the run that asked for it is gone".to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        _ => pack,
    };
    Ok(permitted(&pack, &principal, approval))
}

fn permitted(
    pack: &Pack,
    principal: &Principal,
    approval: &Approval,
) -> Result<Arc<ServerSpec>, String> {
    let spec = pack
        .servers
        .iter()
        .find(|server| server.id == approval.server);
    let spec = spec.ok_or_else(|| "the agent does not have the server any more".to_owned())?;
    match decide(spec, &principal.access(pack), &approval.tool) {
        Decision::Deny(_) => Err("its requester may not use the tool any more".to_owned()),
        Decision::Approve(policy) if Consent::from(policy) != approval.consent => {
            Err("who has to approve it has changed; ask again".to_owned())
        }
        Decision::Approve(_) | Decision::Allow(_) => Ok(Arc::new(spec.clone())),
    }
}

/// Whether the tool is the one that was asked for, as its server describes it now.
pub fn same_tool(tools: &[Arc<Tool>], approval: &Approval) -> Result<(), String> {
    let tool = tools.iter().find(|tool| tool.name == approval.tool);
    let tool = tool.ok_or_else(|| "its server does not have the tool any more".to_owned())?;
    if canonical::fingerprint(tool).ok() == Some(approval.fingerprint) {
        Ok(())
    } else {
        Err("its server describes the tool differently now; ask again".to_owned())
    }
}

/// Identifies the credential of a call: another credential or generation gives another text.
pub fn credential_of(key: &crate::mcp::Key) -> String {
    key.owner.to_string()
}

/// Why a pending request must not be approved any more. The server is asked only when what is known of it says so;
/// the execution asks it always.
pub(super) async fn obstacle(app: &Arc<App>, approval: &Approval) -> Result<Option<String>> {
    let spec = match permitted_server(app, approval).await? {
        Ok(spec) => spec,
        Err(reason) => return Ok(Some(reason)),
    };
    if spec.access_mode == AccessMode::UserControlled {
        let connection =
            credentials::resolve_connection(app, &approval.principal, &approval.agent, &spec)
                .await?;
        let held = connection.map(|connection| credential_of(&connection.key));
        let changed = held.as_deref() != Some(&approval.credential);
        return Ok(changed.then(|| "its requester's credential has changed; ask again".to_owned()));
    }
    if app.orchestrator.is(&spec) {
        return Ok(None);
    }
    let known = app
        .connections
        .catalog(approval.tenant, &approval.agent, &spec.id);
    if known.is_none_or(|catalog| same_tool(&catalog.tools, approval).is_ok()) {
        return Ok(None);
    }
    // What is known here may be older than the request. A server that does not answer is asked before it runs.
    let key = connections::connection_key(approval.tenant, &approval.agent, &spec);
    let asked = app.mcp.discover(&key, &spec).await;
    Ok(asked
        .ok()
        .and_then(|discovery| same_tool(&discovery.tools, approval).err()))
}
