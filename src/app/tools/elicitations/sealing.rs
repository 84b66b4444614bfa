//! The answers of users as sealed rows.

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    app::{
        App,
        platform::keys::{
            OpenError,
            contexts::{self, ElicitationValue},
        },
    },
    domain::{
        elicitation::{Elicitation, Entered, Request},
        error::{Error, Result},
        ids::TenantId,
        secret::Secret,
    },
    vault::Context,
};

/// What is asked and what was answered so far; `None` when it cannot be opened any more.
pub async fn unseal(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
) -> Result<Option<(Request, Entered)>> {
    let of = |which| context(tenant, elicitation, which);
    let Some(request) =
        open_sealed(app, &of(ElicitationValue::Asked), &elicitation.request).await?
    else {
        return Ok(None);
    };
    let entered = match &elicitation.entered {
        Some(sealed) => open_sealed(app, &of(ElicitationValue::Entered), sealed).await?,
        None => Some(Entered::default()),
    };
    Ok(entered.map(|entered| (request, entered)))
}

/// Seals what was answered so far.
pub async fn seal_entered(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
    entered: &Entered,
) -> Result<Vec<u8>> {
    let context = context(tenant, elicitation, ElicitationValue::Entered);
    seal(app, &context, entered).await
}

pub(super) fn context(
    tenant: TenantId,
    elicitation: &Elicitation,
    which: ElicitationValue,
) -> Context {
    let (agent, server) = (elicitation.agent.as_str(), elicitation.server.as_str());
    contexts::of_elicitation(
        tenant,
        &elicitation.user,
        agent,
        server,
        elicitation.id,
        which,
    )
}

pub(super) async fn seal(app: &App, context: &Context, value: &impl Serialize) -> Result<Vec<u8>> {
    let text = Secret::new(serde_json::to_string(value).map_err(Error::internal)?);
    app.keys.seal(context.tenant, context, &text).await
}

async fn open_sealed<T: DeserializeOwned>(
    app: &App,
    context: &Context,
    sealed: &[u8],
) -> Result<Option<T>> {
    match app.keys.open(context.tenant, context, sealed).await {
        Ok(text) => serde_json::from_str(text.expose())
            .map(Some)
            .map_err(Error::internal),
        Err(OpenError::Unopenable(_)) => Ok(None),
        Err(OpenError::Failed(error)) => Err(error),
    }
}
