//! Enter, test, replace, remove. Test first, then replace in one statement: a bad new token never destroys a
//! good old one, and what fails its test is not kept.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{catalogs, changed, holdings, key, reject, whose};
use crate::{
    app::{App, accounts::users, platform::keys, servers::agents},
    domain::{
        audit::Fact,
        connection::Trouble,
        credential::{Credential, CredentialState},
        error::{Error, Result, Thing},
        ids::{CredentialId, UserId},
        pack::Pack,
        personal::{self, Fault, Unfit, Values},
        principal::{Admin, Principal},
        secret::Secret,
        server::{AccessMode, CatalogScope, ServerSpec},
    },
    mcp::{Discovery, Key, McpError, McpErrorKind},
    store::{self, hints::Hint},
};

/// How a test went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tested {
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Trouble>,
    /// For people.
    pub message: &'static str,
}

impl Tested {
    fn ok() -> Self {
        Self {
            ok: true,
            reason: None,
            message: "connected",
        }
    }

    fn failed(reason: Trouble) -> Self {
        Self {
            ok: false,
            reason: Some(reason),
            message: reason.sentence(),
        }
    }
}

impl From<&McpError> for Trouble {
    fn from(error: &McpError) -> Self {
        match error.kind {
            McpErrorKind::Unauthorized | McpErrorKind::Forbidden => Self::Unauthorized,
            McpErrorKind::Unreachable | McpErrorKind::Closed => Self::Unreachable,
            McpErrorKind::TimedOut => Self::Timeout,
            McpErrorKind::Misconfigured => Self::BadTemplate,
            McpErrorKind::Protocol => Self::NotMcp,
        }
    }
}

/// Tests what a user entered and, when it works, puts it in force in place of what they had.
pub async fn put(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
    entered: &BTreeMap<String, Secret>,
) -> Result<Tested> {
    let (pack, spec) = personal_server(app, principal, agent, server).await?;
    let values = Values::check(&spec.user_config, entered).map_err(|error| unfit(&error))?;
    put_checked(app, principal, &pack, &spec, &values).await
}

/// The same with values that were checked one by one.
pub async fn put_checked(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &Arc<ServerSpec>,
    values: &Values,
) -> Result<Tested> {
    let effective = match personal::effective(spec, values) {
        Ok(effective) => Arc::new(effective),
        Err(Unfit {
            fault: Fault::NotForHeaders,
            ..
        }) => return Ok(Tested::failed(Trouble::BadTemplate)),
        Err(error) => return Err(unfit(&error)),
    };
    let one_at_a_time = (whose(principal, pack.id()), spec.id.clone());
    let turn = app
        .credentials
        .changing
        .get_with(one_at_a_time, async { Arc::default() })
        .await;
    let _turn = turn.lock().await;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let old = store::holdings::of_user(&mut tx, pack.id(), &principal.user).await?;
    drop(tx);
    let old = old.into_iter().find(|held| held.server == spec.id.as_str());
    let (id, generation) = old
        .as_ref()
        .map_or((CredentialId::new(), 1), |old| (old.id, old.generation + 1));
    let trial = Trial::begin(
        app,
        key(principal.tenant, pack.id(), &spec.id, id, generation),
    );
    let discovery = match trial
        .run(&effective, must_list(app, principal, pack, spec).await?)
        .await
    {
        Ok(discovery) => discovery,
        Err(error) => {
            trial.give_up().await;
            tracing::info!(server = %spec.id, reason = Trouble::from(&error).code(), "what a user entered does not work");
            return Ok(Tested::failed(Trouble::from(&error)));
        }
    };
    let kept = match sealed(app, principal, &trial.key, (id, generation), values).await {
        Ok(credential) => keep(app, &credential, old.as_ref().map(|old| old.generation)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = kept {
        trial.give_up().await;
        return Err(error);
    }
    changed(app, principal, pack.id()).await;
    if let Some(old) = old {
        app.mcp
            .close(&key(
                principal.tenant,
                pack.id(),
                &spec.id,
                id,
                old.generation,
            ))
            .await;
    }
    if let Some(discovery) = discovery {
        catalogs::learn(app, &trial.key, spec, &discovery).await?;
    }
    Ok(Tested::ok())
}

/// Whether the tools must be listed: not when a shared catalog is there already. Then the handshake alone
/// shows that the server lets the credential in; one that lets anybody shake hands says so at the first call.
async fn must_list(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
) -> Result<bool> {
    let known = catalogs::known(app, principal.tenant, pack.id(), &[(spec, None)]).await?;
    Ok(spec.catalog != CatalogScope::Shared || known.iter().all(Option::is_none))
}

/// The credential as it will be, sealed.
async fn sealed(
    app: &App,
    principal: &Principal,
    key: &Key,
    (id, generation): (CredentialId, u64),
    values: &Values,
) -> Result<Credential> {
    let now = app.clock.now();
    let mut credential = Credential {
        tenant: principal.tenant,
        id,
        agent: key.agent.clone(),
        server: key.server.clone(),
        user: principal.user.clone(),
        generation,
        state: CredentialState::Active,
        reason: None,
        sealed: Vec::new(),
        created_at: now,
        updated_at: now,
        verified_at: Some(now),
    };
    credential.sealed = keys::seal(
        app,
        principal.tenant,
        &keys::context(&credential),
        &values.to_sealable(),
    )
    .await?;
    Ok(credential)
}

async fn keep(app: &App, credential: &Credential, replaces: Option<u64>) -> Result<()> {
    let mut tx = app.db.tenant(credential.tenant).await?;
    store::credentials::put(&mut tx, credential, replaces).await?;
    let detail = format!("generation {}", credential.generation);
    let action = if replaces.is_some() {
        "credential.replaced"
    } else {
        "credential.stored"
    };
    let fact = Fact::new(credential.user.as_str(), action)
        .at(credential.agent.as_str(), credential.server.as_str());
    store::audit::record(&mut tx, credential.tenant, &fact.detail(&detail)).await?;
    tx.commit().await
}

/// Connects with what the user entered before. A definite no marks it; an outage changes nothing; a yes
/// takes a mark away.
pub async fn test(app: &App, principal: &Principal, agent: &str, server: &str) -> Result<Tested> {
    let (pack, spec) = personal_server(app, principal, agent, server).await?;
    let held = holdings(app, principal, pack.id()).await?;
    let not_configured = || {
        Error::Conflict(format!(
            "there is no credential for {server} yet; enter one first"
        ))
    };
    let held = held.of(&spec.id).cloned().ok_or_else(not_configured)?;
    if held.state == CredentialState::Quarantined {
        return Err(Error::Conflict(format!(
            "the credential for {server} cannot be opened; enter it again"
        )));
    }
    let Some(opened) = super::opened(app, principal, pack.id(), &held, &spec).await? else {
        return Err(not_configured());
    };
    let key = key(
        principal.tenant,
        pack.id(),
        &spec.id,
        held.id,
        held.generation,
    );
    // What it was connected with so far proves nothing about now.
    app.mcp.close(&key).await;
    let trial = Trial::begin(app, key);
    let listed = trial.run(&opened.spec, true).await;
    match listed {
        Ok(discovery) => {
            let mut tx = app.db.tenant(principal.tenant).await?;
            store::holdings::verified(&mut tx, held.id, held.generation).await?;
            if held.state == CredentialState::Rejected {
                let fact = Fact::new(principal.user.as_str(), "credential.accepted");
                let fact = fact.at(pack.id().as_str(), spec.id.as_str());
                store::audit::record(&mut tx, principal.tenant, &fact).await?;
            }
            tx.commit().await?;
            changed(app, principal, pack.id()).await;
            if let Some(discovery) = discovery {
                catalogs::learn(app, &trial.key, &spec, &discovery).await?;
            }
            Ok(Tested::ok())
        }
        Err(error) => {
            trial.give_up().await;
            if error.is_credential() {
                reject(app, principal, &trial.key).await?;
            }
            Ok(Tested::failed(Trouble::from(&error)))
        }
    }
}

/// Removes what a user entered and closes the connection made with it. `false` when there was nothing.
pub async fn remove(app: &App, principal: &Principal, agent: &str, server: &str) -> Result<bool> {
    let (pack, spec) = personal_server(app, principal, agent, server).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let removed = store::credentials::delete(&mut tx, pack.id(), &spec.id, &principal.user).await?;
    if let Some((id, _)) = removed {
        catalogs::forget(app, &mut tx, principal.tenant, pack.id(), &spec.id, id).await?;
        let fact = Fact::new(principal.user.as_str(), "credential.removed")
            .at(pack.id().as_str(), spec.id.as_str());
        store::audit::record(&mut tx, principal.tenant, &fact).await?;
    }
    tx.commit().await?;
    let Some((id, generation)) = removed else {
        return Ok(false);
    };
    changed(app, principal, pack.id()).await;
    app.credentials.opened.invalidate(&(id, generation)).await;
    app.mcp
        .close(&key(principal.tenant, pack.id(), &spec.id, id, generation))
        .await;
    Ok(true)
}

/// Removes what a user who has been seen entered for personal servers; how many that were.
pub async fn remove_by_id(app: &App, admin: &Admin, user: &str) -> Result<usize> {
    let user = users::get(app, admin, user).await?.id;
    remove_all(app, admin, &UserId(user.into())).await
}

/// Removes all that a user entered, in their stead, and closes the connections made with it; for how many servers.
pub async fn remove_all(app: &App, admin: &Admin, user: &UserId) -> Result<usize> {
    let tenant = admin.tenant();
    let mut tx = app.db.tenant(tenant).await?;
    let removed = store::holdings::delete_all(&mut tx, user).await?;
    for (agent, server, id, _) in &removed {
        catalogs::forget(app, &mut tx, tenant, agent, server, *id).await?;
        let fact = Fact::new(admin.user().as_str(), "credential.removed")
            .at(agent.as_str(), server.as_str());
        let detail = format!("of {user}");
        store::audit::record(&mut tx, tenant, &fact.detail(&detail)).await?;
    }
    tx.commit().await?;
    for (agent, server, id, generation) in &removed {
        app.credentials
            .holdings
            .invalidate(&(tenant, agent.clone(), user.clone()))
            .await;
        let _ = app.hints.send(Hint::Credentials {
            tenant,
            agent: agent.clone(),
            user: user.clone(),
        });
        app.credentials.opened.invalidate(&(*id, *generation)).await;
        app.mcp
            .close(&key(tenant, agent, server, *id, *generation))
            .await;
    }
    Ok(removed.len())
}

/// A personal server of an agent, for somebody who may have a credential of their own.
async fn personal_server(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
) -> Result<(Arc<Pack>, Arc<ServerSpec>)> {
    let pack = agents::pack(app, principal, agent).await?;
    let spec = pack
        .server(server)
        .cloned()
        .ok_or_else(|| Error::NotFound(Thing::Server(server.to_owned())))?;
    if spec.access_mode != AccessMode::UserControlled {
        return Err(Error::Conflict(format!(
            "server {server} is shared; its credential is the operator's"
        )));
    }
    if !principal.authenticated {
        return Err(Error::Forbidden(
            "a credential of one's own is for signed-in users; sign in and try again".to_owned(),
        ));
    }
    Ok((pack, Arc::new(spec)))
}

fn unfit(unfit: &Unfit) -> Error {
    Error::invalid(format!("fields.{}", unfit.field), unfit.fault.to_string())
}

/// A connection made to see whether something works. The keeper of order leaves it alone meanwhile.
struct Trial<'a> {
    app: &'a App,
    key: Key,
}

impl<'a> Trial<'a> {
    fn begin(app: &'a App, key: Key) -> Self {
        app.credentials.trials().insert(key.clone());
        Self { app, key }
    }

    async fn run(&self, spec: &Arc<ServerSpec>, list: bool) -> Result<Option<Discovery>, McpError> {
        if list {
            return self.app.mcp.discover(&self.key, spec).await.map(Some);
        }
        self.app.mcp.connect(&self.key, spec).await.map(|_| None)
    }

    async fn give_up(&self) {
        self.app.mcp.close(&self.key).await;
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.app.credentials.trials().remove(&self.key);
    }
}
