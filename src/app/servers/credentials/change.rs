//! Enter, test, replace and remove credentials.
//!
//! A credential is tested first and then replaced in one statement: a bad new token never destroys a good old one,
//! and a credential that fails its test is not kept. The test is a request in which the server tells a false
//! credential from a right one ([`is_test_conclusive`]). Where no such request exists, the new credential is a
//! candidate: calls are made with it, and the old one stays until the first of these calls succeeds ([`prove`]).
//!
//! Removal deletes the rows, closes the connections and revokes the tokens of sign-ins where they came from.

use std::{collections::BTreeMap, sync::Arc};

use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{
    App,
    accounts::users,
    platform::keys::contexts,
    servers::{
        agents, connections,
        credentials::{
            TestOutcome, announce_change, catalogs, close_older, credential_ref, decrypt, of_user,
            reject,
            trial::{ConnectionTrial, is_test_conclusive},
            user_of_agent,
        },
        oauth,
    },
};
use domain::{
    audit::Fact,
    connection::ConnectionTestError,
    credential::{CredentialMeta, CredentialRef, CredentialState},
    error::{Error, ErrorCode, Missing, Result},
    ids::{ConversationId, CredentialId, TenantId, UserId},
    oauth::{Authorization, to_sealable},
    pack::Pack,
    personal::{self, FieldError, InvalidField, Values},
    principal::{Admin, Principal},
    secret::Secret,
    server::{AccessMode, CatalogScope, ServerSpec},
};
use mcp::Key;
use store::credentials::DeletedCredential;

/// Tests the values that a user entered and, when they work, puts them in force in place of the old ones.
pub async fn put(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
    entered: &BTreeMap<String, Secret>,
) -> Result<TestOutcome> {
    let (pack, spec) = find_personal_server(app, principal, agent, server).await?;
    let values =
        Values::check(&spec.user_config, entered).map_err(|error| invalid_field(&error))?;
    put_checked(app, principal, &pack, &spec, &values).await
}

/// Like [`put`], for values that were checked one by one.
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
        Err(error) => return Err(invalid_field(&error)),
    };
    let new = NewCredential {
        effective: Arc::new(effective),
        text: values.to_sealable(),
        values: Some(values),
        sign_in: None,
    };
    replace(app, principal, pack, spec, new).await
}

/// New tokens, and the flow in which their user signed in.
pub struct NewSignIn {
    pub tokens: Authorization,
    pub flow: (ConversationId, Uuid),
}

/// Puts a sign-in in force in place of the user's old credential. Only a definite refusal of the server prevents that,
/// because the authorization server has vouched for the user. A sign-in that ended meanwhile is a conflict
/// ([`ErrorCode::NoSignIn`]).
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
        values: None,
        sign_in: Some(sign_in),
    };
    replace(app, principal, pack, spec, new).await
}

/// A new credential that is not in force yet.
struct NewCredential<'a> {
    /// The server as it is reached with the credential.
    effective: Arc<ServerSpec>,
    /// The content to seal.
    text: Secret,
    /// Absent for a sign-in.
    values: Option<&'a Values>,
    sign_in: Option<NewSignIn>,
}

/// How a new credential comes into force.
#[derive(Clone, Copy)]
enum Placement {
    /// In place of the generation `old`. Unless the new one `is_proven`, its first call will show whether it is good.
    Replaces { old: Option<u64>, is_proven: bool },
    /// As a candidate beside a proven generation, until its first call succeeds.
    Beside(u64),
}

/// Tests a new credential and puts it in force in place of the one before.
async fn replace(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &Arc<ServerSpec>,
    new: NewCredential<'_>,
) -> Result<TestOutcome> {
    let one_at_a_time = (user_of_agent(principal, pack.id()), spec.id.clone());
    let lock = app
        .credentials
        .change_locks
        .get_with(one_at_a_time, async { Arc::default() })
        .await;
    let _guard = lock.lock().await;
    let (credential, old) = next_generation(app, principal, pack, spec).await?;
    let trial = ConnectionTrial::begin(app, credential.clone());
    record_test(app, &credential, spec).await?;
    let discovery = match trial.run(&new.effective).await {
        Ok(discovery) => Some(discovery),
        Err(error) if new.sign_in.is_some() && !error.is_credential_refused() => None,
        Err(error) => {
            trial.give_up().await;
            tracing::info!(server = %spec.id, reason = error.reason().code().as_str(), "what a user entered does not work");
            return Ok(TestOutcome::failed(error.reason()));
        }
    };
    // An authorization server has vouched for a sign-in.
    let is_proven = match new.values {
        Some(values) => is_test_conclusive(app, principal, pack.id(), spec, values).await?,
        None => true,
    };
    let placement = match &old {
        Some(old) if !is_proven && old.state == CredentialState::Active && old.is_proven => {
            Placement::Beside(old.generation)
        }
        old => Placement::Replaces {
            old: old.as_ref().map(|old| old.generation),
            is_proven,
        },
    };
    let kept = store_credential(app, &credential, &new, placement).await;
    if kept.is_err() || new.sign_in.is_some() {
        // The connection of a sign-in gets its tokens from the row.
        trial.give_up().await;
    }
    kept?;
    announce_change(app, principal.tenant, pack.id(), &principal.user).await;
    close_older(app, &credential).await;
    if let Some(discovery) = discovery
        && is_list_wanted(app, principal, pack, spec).await?
    {
        let listed = catalogs::store_catalog(app, &trial.credential, spec, &discovery);
        let (catalog, stored) = listed.await;
        stored?;
        connections::note_listed(app, Key::Personal(trial.credential.clone()), catalog).await;
    }
    Ok(match placement {
        Placement::Replaces {
            is_proven: true, ..
        } => TestOutcome::ok(),
        Placement::Replaces { .. } => TestOutcome::unproven(false),
        Placement::Beside(_) => TestOutcome::unproven(true),
    })
}

/// Writes the audit line of a tool that is called to test a credential.
async fn record_test(app: &App, credential: &CredentialRef, spec: &ServerSpec) -> Result<()> {
    let Some(test) = &spec.credential_test else {
        return Ok(());
    };
    let mut tx = app.db.tenant(credential.tenant).await?;
    let fact = Fact::new(credential.user.as_str(), "credential.tested");
    let fact = fact.at(credential.agent.as_str(), credential.server.as_str());
    store::audit::record(&mut tx, credential.tenant, &fact.detail(&test.tool)).await?;
    tx.commit().await
}

/// The next generation of a credential, and the credential that exists now.
async fn next_generation(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
) -> Result<(CredentialRef, Option<CredentialMeta>)> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let old = store::credentials::list_of_user(&mut tx, pack.id(), &principal.user).await?;
    drop(tx);
    let old = old
        .into_iter()
        .find(|stored| stored.server == spec.id.as_str());
    let (id, generation) = old.as_ref().map_or((CredentialId::new(), 1), |old| {
        (old.id, old.last_generation + 1)
    });
    let credential = CredentialRef {
        tenant: principal.tenant,
        user: principal.user.clone(),
        agent: pack.id().clone(),
        server: spec.id.clone(),
        id,
        generation,
    };
    Ok((credential, old))
}

/// Whether a new list should be put in force. A shared list that exists already serves everybody and stays.
async fn is_list_wanted(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    spec: &ServerSpec,
) -> Result<bool> {
    let known = catalogs::load_known(app, principal.tenant, pack.id(), &[(spec, None)]).await?;
    Ok(spec.catalog != CatalogScope::Shared || known.iter().all(Option::is_none))
}

/// Seals a new credential and stores it as its placement says.
async fn store_credential(
    app: &App,
    credential: &CredentialRef,
    new: &NewCredential<'_>,
    placement: Placement,
) -> Result<()> {
    let (tenant, context) = (credential.tenant, contexts::of_credential(credential));
    let sealed = app.keys.seal(tenant, &context, &new.text).await?;
    let mut tx = app.db.tenant(tenant).await?;
    if let Some(sign_in) = &new.sign_in
        && !store::oauth_sign_ins::is_in_force(&mut tx, sign_in.flow.0, sign_in.flow.1).await?
    {
        let why = "the user signed out while they signed in; sign in again";
        return Err(Error::conflict(ErrorCode::NoSignIn, why));
    }
    let action = match placement {
        Placement::Replaces { old, is_proven } => {
            store::credentials::put(&mut tx, credential, &sealed, old).await?;
            if !is_proven {
                let (id, generation) = (credential.id, credential.generation);
                store::credentials::mark_unverified(&mut tx, id, generation).await?;
            }
            if old.is_some() {
                "credential.replaced"
            } else {
                "credential.stored"
            }
        }
        Placement::Beside(old) => {
            store::credentials::put_candidate(&mut tx, credential, &sealed, old).await?;
            "credential.stored"
        }
    };
    if let Some(NewSignIn { tokens, .. }) = &new.sign_in {
        let refresh_at = oauth::tokens::refresh_at(tokens);
        store::authorizations::mark_sign_in(&mut tx, credential, tokens, refresh_at).await?;
    }
    let detail = format!("generation {}", credential.generation);
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
    let (pack, spec) = find_personal_server(app, principal, agent, server).await?;
    let stored = of_user(app, principal, pack.id()).await?;
    let not_configured = || {
        Error::conflict(
            ErrorCode::NotConnected,
            format!("there is no credential for {server} yet; enter one first"),
        )
    };
    let stored = stored.get(&spec.id).cloned().ok_or_else(not_configured)?;
    if stored.state == CredentialState::Quarantined {
        return Err(Error::conflict(
            ErrorCode::CredentialUnusable,
            format!("the credential for {server} cannot be opened; enter it again"),
        ));
    }
    let Some(decrypted) = decrypt(app, principal, pack.id(), &stored, &spec).await? else {
        return Err(not_configured());
    };
    let credential = credential_ref(principal, pack.id(), &spec.id, &stored);
    // An existing connection proves nothing about the present state of the credential.
    app.mcp.close(&Key::Personal(credential.clone())).await;
    let trial = ConnectionTrial::begin(app, credential.clone());
    record_test(app, &credential, &spec).await?;
    let discovery = match trial.run(&decrypted.spec).await {
        Ok(discovery) => discovery,
        Err(error) => {
            trial.give_up().await;
            if error.is_credential_refused() {
                reject(app, principal, &trial.credential).await?;
            }
            return Ok(TestOutcome::failed(error.reason()));
        }
    };
    let is_proven = match decrypted.values() {
        Some(values) => is_test_conclusive(app, principal, pack.id(), &spec, values).await?,
        None => true,
    };
    accept(app, &credential, &stored, is_proven).await?;
    if is_list_wanted(app, principal, &pack, &spec).await? || is_proven {
        let listed = catalogs::store_catalog(app, &trial.credential, &spec, &discovery);
        let (catalog, stored) = listed.await;
        stored?;
        connections::note_listed(app, Key::Personal(trial.credential.clone()), catalog).await;
    }
    Ok(if is_proven {
        TestOutcome::ok()
    } else {
        TestOutcome::unproven(stored.candidate.is_some())
    })
}

/// Notes that a test or a call with a credential succeeded. A credential that `is_proven` takes the place of the one
/// before it; one that was rejected may be used again.
async fn accept(
    app: &App,
    credential: &CredentialRef,
    stored: &CredentialMeta,
    is_proven: bool,
) -> Result<()> {
    let (id, generation) = (credential.id, credential.generation);
    let was_rejected = stored.state == CredentialState::Rejected;
    if !is_proven && !was_rejected {
        return Ok(());
    }
    let mut tx = app.db.tenant(credential.tenant).await?;
    let is_promoted = is_proven && store::credentials::promote(&mut tx, id, generation).await?;
    if !is_promoted {
        store::credentials::mark_verified(&mut tx, id, generation).await?;
    }
    if !is_proven {
        store::credentials::mark_unverified(&mut tx, id, generation).await?;
    }
    let action = match (is_promoted, was_rejected) {
        (true, _) => Some("credential.replaced"),
        (false, true) => Some("credential.accepted"),
        (false, false) => None,
    };
    if let Some(action) = action {
        let fact = Fact::new(credential.user.as_str(), action);
        let fact = fact.at(credential.agent.as_str(), credential.server.as_str());
        store::audit::record(&mut tx, credential.tenant, &fact).await?;
    }
    tx.commit().await?;
    announce_change(app, credential.tenant, &credential.agent, &credential.user).await;
    if is_promoted {
        close_older(app, credential).await;
    }
    Ok(())
}

/// Accepts a credential that waited for its first successful call.
pub async fn prove(app: &App, principal: &Principal, used: &CredentialRef) -> Result<()> {
    let credentials = of_user(app, principal, &used.agent).await?;
    match credentials.in_force(used) {
        Some(stored) if stored.awaits_first_call() => accept(app, used, stored, true).await,
        _ => Ok(()),
    }
}

/// A personal server of an agent, for a principal who may have a credential of their own.
pub(super) async fn find_personal_server(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
) -> Result<(Arc<Pack>, Arc<ServerSpec>)> {
    let pack = agents::pack(app, principal, agent).await?;
    let spec = pack
        .server(server)
        .cloned()
        .ok_or_else(|| Error::NotFound(Missing::Server(server.to_owned())))?;
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

fn invalid_field(unfit: &InvalidField) -> Error {
    Error::invalid(format!("fields.{}", unfit.field), unfit.fault.to_string())
}

/// Removes a user's credential for one server and closes its connection. `false` when there was none.
pub async fn remove(app: &App, principal: &Principal, agent: &str, server: &str) -> Result<bool> {
    let (pack, spec) = find_personal_server(app, principal, agent, server).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let only = Some((pack.id(), &spec.id));
    store::oauth_sign_ins::end(&mut tx, Some(&principal.user), only).await?;
    let removed = store::credentials::delete(&mut tx, &principal.user, only).await?;
    let is_any = !removed.is_empty();
    let fact = Fact::new(principal.user.as_str(), "credential.removed");
    finish_removal(app, tx, removed, &fact).await?;
    Ok(is_any)
}

/// Removes all credentials of a user of the admin's tenant and returns their number. `NotFound` for an unknown user.
pub async fn remove_by_id(app: &App, admin: &Admin, user: &str) -> Result<usize> {
    let user = users::get(app, admin, user).await?.id;
    remove_all(app, admin.tenant(), &UserId(user.into()), admin.user()).await
}

/// Removes all credentials of a user, closes their connections and returns their number. `by` is the actor of the
/// audit lines.
pub async fn remove_all(app: &App, tenant: TenantId, user: &UserId, by: &UserId) -> Result<usize> {
    let mut tx = app.db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
    let removed = store::credentials::delete(&mut tx, user, None).await?;
    let count = removed.len();
    let detail = format!("of {user}");
    let fact = Fact::new(by.as_str(), "credential.removed").detail(&detail);
    finish_removal(app, tx, removed, &fact).await?;
    Ok(count)
}

/// Ends the sign-ins at servers that were made before `until`: those of one user, or those of a whole tenant. Values
/// that users entered in fields stay. `by` is the actor of the audit lines.
pub async fn end_sign_ins(
    app: &App,
    tenant: TenantId,
    user: Option<&UserId>,
    until: OffsetDateTime,
    by: &str,
) -> Result<()> {
    loop {
        let mut tx = app.db.tenant(tenant).await?;
        let removed = store::credentials::delete_sign_ins(&mut tx, user, until).await?;
        if removed.is_empty() {
            return Ok(());
        }
        let fact = Fact::new(by, "credential.removed").detail("the sign-in ended");
        finish_removal(app, tx, removed, &fact).await?;
    }
}

/// Completes a removal: writes one audit line per credential, deletes the catalogs listed with them, commits, closes
/// their connections on every replica, and revokes their tokens.
async fn finish_removal(
    app: &App,
    mut tx: store::Tx,
    removed: Vec<DeletedCredential>,
    fact: &Fact<'_>,
) -> Result<()> {
    for DeletedCredential { credential, .. } in &removed {
        catalogs::forget(app, &mut tx, credential).await?;
        let fact = (*fact).at(credential.agent.as_str(), credential.server.as_str());
        store::audit::record(&mut tx, credential.tenant, &fact).await?;
    }
    tx.commit().await?;
    let mut sign_ins = Vec::new();
    for DeletedCredential { credential, tokens } in removed {
        let generation = (credential.id, credential.generation);
        announce_change(app, credential.tenant, &credential.agent, &credential.user).await;
        app.credentials.decrypted.invalidate(&generation).await;
        app.mcp.close(&Key::Personal(credential.clone())).await;
        close_older(app, &credential).await;
        sign_ins.extend(tokens.map(|tokens| (credential, tokens)));
    }
    oauth::revoke_in_background(app, sign_ins).await;
    Ok(())
}
