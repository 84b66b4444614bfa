//! The input of a run: its message and its parameters.

use std::sync::Arc;

use super::{RunInitiator, RunSpec, RunTarget};
use crate::{
    app::{App, servers::run_values},
    domain::{
        error::{Error, ErrorCode, Reason, Result},
        ids::ConversationId,
        json::Members,
        orchestrator::MAX_INPUT,
        pack::{Pack, Provider},
        params,
        principal::Principal,
        run::RunValues,
    },
    store,
};

/// The message that a run answers.
pub(super) fn message(pack: &Pack, wanted: &RunSpec) -> Result<String> {
    let agent = pack.id();
    if pack.llm.provider == Provider::None {
        return Err(Error::conflict(
            ErrorCode::AgentHasNoModel,
            format!("agent {agent} has no model, so it can neither be started nor resumed"),
        ));
    }
    let prompt = wanted.prompt.replace('\0', "");
    let text = params::message(&prompt, &wanted.params);
    if text.trim().is_empty() {
        return Err(Error::invalid(
            "prompt",
            "is empty; say what the agent is to do",
        ));
    }
    check_size(&prompt, &wanted.params)?;
    // A session was given what it needs when it was started.
    if matches!(wanted.target, RunTarget::Start { .. }) || !wanted.params.is_empty() {
        params::check(pack.params.as_ref(), &wanted.params).map_err(|unfit| {
            Error::invalid(
                format!("params.{}", unfit.name),
                Reason::Sentence(unfit.reason),
            )
        })?;
    }
    Ok(text)
}

fn check_size(prompt: &str, params: &Members) -> Result<()> {
    let size = prompt.chars().count() + params.to_string().chars().count();
    if size > MAX_INPUT {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "params",
            Reason::Sentence(format!(
                "Parameters too large: {size} characters (max {MAX_INPUT})"
            )),
        ));
    }
    Ok(())
}

/// The pack with the servers that it has with what the run is given, and the run's scope, sealed.
pub(super) async fn checked(
    app: &App,
    by: RunInitiator<'_>,
    pack: &Arc<Pack>,
    mut values: RunValues,
) -> Result<(Arc<Pack>, Option<Vec<u8>>)> {
    let tenant = by.principal().tenant;
    if let RunInitiator::Run { caller, .. } = by {
        values.scope = run_values::stored(app, tenant, caller.run).await?.0;
    }
    let filled = run_values::filled_in(app, tenant, pack, &values).await?;
    let scope = match by {
        RunInitiator::Program(_) => {
            run_values::sealed(app, tenant, values.run_id, &values.scope).await?
        }
        RunInitiator::Run { .. } => None,
    };
    Ok((filled, scope))
}

/// The parameters of a session, when a run names none: its servers may need them again.
pub(super) async fn params_of_session(
    app: &App,
    principal: &Principal,
    session: ConversationId,
) -> Result<Members> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::trees::params_of(&mut tx, session).await
}
