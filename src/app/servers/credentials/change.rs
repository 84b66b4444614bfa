//! Enter, test, replace. Test first, then replace in one statement: a bad new token never destroys a
//! good old one, and what fails its test is not kept.

use std::{collections::BTreeMap, sync::Arc};

use uuid::Uuid;

use super::{
    TestOutcome, catalogs, changed, content::decrypt, credential, key, of_user, reject,
    trial::ConnectionTrial, whose,
};
use crate::{
    app::{
        App,
        platform::keys,
        servers::{agents, oauth},
    },
    domain::{
        audit::Fact,
        connection::ConnectionTestError,
        credential::{CredentialRef, CredentialState},
        error::{Error, ErrorCode, Result, Thing},
        ids::{ConversationId, CredentialId},
        oauth::{Authorization, to_sealable},
        pack::Pack,
        personal::{self, FieldError, InvalidField, Values},
        principal::Principal,
        secret::Secret,
        server::{AccessMode, CatalogScope, ServerSpec},
    },
    store,
};

/// Tests what a user entered and, when it works, puts it in force in place of what they had.
pub async fn put(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
    entered: &BTreeMap<String, Secret>,
) -> Result<TestOutcome> {
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
) -> Result<TestOutcome> {
    let effective = match personal::effective(spec, values) {
        Ok(effective) => effective,
        Err(InvalidField {
            fault: FieldError::NotForHeaders,
            ..
        }) => return Ok(TestOutcome::failed(ConnectionTestError::BadTemplate)),
        Err(error) => return Err(unfit(&error)),
    };
    let new = NewCredential {
        effective: Arc::new(effective),
        text: values.to_sealable(),
        sign_in: None,
    };
    replace(app, principal, pack, spec, new).await
}

/// Tokens, and the flow in which their user signed in.
pub struct NewSignIn {
    pub tokens: Authorization,
    pub flow: (ConversationId, Uuid),
}

/// Puts a sign-in in force in place of what the user had. Only a definite no of the server keeps it from that: the
/// authorization server has vouched for it. One that ended meanwhile is a conflict ([`ErrorCode::NoSignIn`]).
pub async fn put_sign_in(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &Arc<ServerSpec>,
    sign_in: NewSignIn,
) -> Result<TestOutcome> {
    let effective = spec.with_bearer(&sign_in.tokens.access_token);
    let new = NewCredential {
        effective: Arc::new(effective),
        text: to_sealable(&sign_in.tokens),
        sign_in: Some(sign_in),
    };
    replace(app, principal, pack, spec, new).await
}

/// What is to be put in force.
struct NewCredential {
    /// The server as it is tried.
    effective: Arc<ServerSpec>,
    /// To be sealed.
    text: Secret,
    sign_in: Option<NewSignIn>,
}

/// Tests a new credential and puts it in force in place of the one before.
async fn replace(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &Arc<ServerSpec>,
    new: NewCredential,
) -> Result<TestOutcome> {
    let one_at_a_time = (whose(principal, pack.id()), spec.id.clone());
    let turn = app
        .credentials
        .changing
        .get_with(one_at_a_time, async { Arc::default() })
        .await;
    let _turn = turn.lock().await;
    let (credential, replaces) = next_generation(app, principal, pack, spec).await?;
    let trial = ConnectionTrial::begin(app, key(&credential));
    let must_list = must_list(app, principal, pack, spec).await?;
    let discovery = match trial.run(&new.effective, must_list).await {
        Ok(discovery) => discovery,
        Err(error) if new.sign_in.is_some() && !error.is_credential() => None,
        Err(error) => {
            trial.give_up().await;
            tracing::info!(server = %spec.id, reason = ConnectionTestError::from(&error).code().as_str(), "what a user entered does not work");
            return Ok(TestOutcome::failed(ConnectionTestError::from(&error)));
        }
    };
    let kept = store_credential(app, &credential, &new, replaces).await;
    if kept.is_err() || new.sign_in.is_some() {
        // The connection of a sign-in gets its tokens from the row.
        trial.give_up().await;
    }
    kept?;
    changed(app, principal.tenant, pack.id(), &principal.user).await;
    if let Some(generation) = replaces {
        let old = CredentialRef {
            generation,
            ..credential
        };
        app.mcp.close(&key(&old)).await;
    }
    if let Some(discovery) = discovery {
        catalogs::learn(app, &trial.key, spec, &discovery).await?;
    }
    Ok(TestOutcome::ok())
}

/// The credential to come, and the generation that it replaces.
async fn next_generation(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
) -> Result<(CredentialRef, Option<u64>)> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let old = store::credentials::of_user(&mut tx, pack.id(), &principal.user).await?;
    drop(tx);
    let old = old.into_iter().find(|held| held.server == spec.id.as_str());
    let (id, generation) = old
        .as_ref()
        .map_or((CredentialId::new(), 1), |old| (old.id, old.generation + 1));
    let credential = CredentialRef {
        tenant: principal.tenant,
        user: principal.user.clone(),
        agent: pack.id().clone(),
        server: spec.id.clone(),
        id,
        generation,
    };
    Ok((credential, old.map(|old| old.generation)))
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

/// Seals a new credential and puts it in force in place of the generation that was seen.
async fn store_credential(
    app: &App,
    credential: &CredentialRef,
    new: &NewCredential,
    replaces: Option<u64>,
) -> Result<()> {
    let (tenant, context) = (credential.tenant, keys::context(credential));
    let sealed = keys::seal(app, tenant, &context, &new.text).await?;
    let mut tx = app.db.tenant(tenant).await?;
    if let Some(sign_in) = &new.sign_in
        && !store::oauth_sign_ins::is_in_force(&mut tx, sign_in.flow).await?
    {
        let why = "the user signed out while they signed in; sign in again";
        return Err(Error::conflict(ErrorCode::NoSignIn, why));
    }
    store::credentials::put(&mut tx, credential, &sealed, replaces).await?;
    if let Some(NewSignIn { tokens, .. }) = &new.sign_in {
        let refresh_at = oauth::tokens::refresh_at(tokens);
        store::authorizations::describe(&mut tx, credential, tokens, refresh_at).await?;
    }
    let detail = format!("generation {}", credential.generation);
    let action = if replaces.is_some() {
        "credential.replaced"
    } else {
        "credential.stored"
    };
    let fact = Fact::new(credential.user.as_str(), action)
        .at(credential.agent.as_str(), credential.server.as_str());
    store::audit::record(&mut tx, tenant, &fact.detail(&detail)).await?;
    tx.commit().await
}

/// Tests the stored credential. A rejection marks it; an outage changes nothing; a success removes the
/// mark.
pub async fn test(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
) -> Result<TestOutcome> {
    let (pack, spec) = personal_server(app, principal, agent, server).await?;
    let held = of_user(app, principal, pack.id()).await?;
    let not_configured = || {
        Error::conflict(
            ErrorCode::NotConnected,
            format!("there is no credential for {server} yet; enter one first"),
        )
    };
    let held = held.of(&spec.id).cloned().ok_or_else(not_configured)?;
    if held.state == CredentialState::Quarantined {
        return Err(Error::conflict(
            ErrorCode::CredentialUnusable,
            format!("the credential for {server} cannot be opened; enter it again"),
        ));
    }
    let Some(decrypted) = decrypt(app, principal, pack.id(), &held, &spec).await? else {
        return Err(not_configured());
    };
    let key = key(&credential(principal, pack.id(), &spec.id, &held));
    // An existing connection proves nothing about the present state of the credential.
    app.mcp.close(&key).await;
    let trial = ConnectionTrial::begin(app, key);
    let listed = trial.run(&decrypted.spec, true).await;
    match listed {
        Ok(discovery) => {
            let mut tx = app.db.tenant(principal.tenant).await?;
            store::credentials::verify(&mut tx, held.id, held.generation).await?;
            if held.state == CredentialState::Rejected {
                let fact = Fact::new(principal.user.as_str(), "credential.accepted");
                let fact = fact.at(pack.id().as_str(), spec.id.as_str());
                store::audit::record(&mut tx, principal.tenant, &fact).await?;
            }
            tx.commit().await?;
            changed(app, principal.tenant, pack.id(), &principal.user).await;
            if let Some(discovery) = discovery {
                catalogs::learn(app, &trial.key, &spec, &discovery).await?;
            }
            Ok(TestOutcome::ok())
        }
        Err(error) => {
            trial.give_up().await;
            if error.is_credential() {
                reject(app, principal, &trial.key).await?;
            }
            Ok(TestOutcome::failed(ConnectionTestError::from(&error)))
        }
    }
}

/// A personal server of an agent, for somebody who may have a credential of their own.
pub(super) async fn personal_server(
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
        return Err(Error::conflict(
            ErrorCode::ServerShared,
            format!("server {server} is shared; its credential is the operator's"),
        ));
    }
    if !principal.authenticated {
        return Err(Error::Forbidden(
            "a credential of one's own is for signed-in users; sign in and try again".to_owned(),
        ));
    }
    Ok((pack, Arc::new(spec)))
}

fn unfit(unfit: &InvalidField) -> Error {
    Error::invalid(format!("fields.{}", unfit.field), unfit.fault.to_string())
}
