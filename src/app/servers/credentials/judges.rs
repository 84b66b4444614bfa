//! Whether a server tells a false credential from a right one in the test of a credential. It is asked once, with a false
//! one that looks like what a user entered and is no account's ([`Values::falsify`]), so that nobody is locked out; the
//! answer is remembered for all replicas.
//!
//! Invariant: where this is not known, no test of a credential is called a success.

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use super::trial::ConnectionTrial;
use crate::{
    app::App,
    domain::{
        error::Result,
        ids::{AgentId, CredentialId},
        owner::ConnectionOwner,
        personal::{self, Values},
        principal::Principal,
        server::{Endpoint, ServerSpec},
    },
    mcp::Key,
    store::{self, credential_judges::Lives},
};

/// How long an answer is believed. A server that lets everybody in may be mended; one that was away is asked again soon.
const LIVES: Lives = Lives {
    judges: Duration::from_secs(7 * 86_400),
    is_blind: Duration::from_secs(86_400),
    unknown: Duration::from_secs(600),
};

/// Whether the test that `values` passed would have failed with a false credential.
pub(super) async fn judges(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
    values: &Values,
) -> Result<bool> {
    let is_child = matches!(spec.endpoint, Endpoint::Stdio { .. });
    if is_child && spec.credential_test.is_none() {
        return Ok(false);
    }
    let Some(falsified) = values.falsify(&spec.user_config) else {
        return Ok(false);
    };
    let (tenant, asked) = (principal.tenant, digest_of(spec));
    // Two users who connect at once do not ask twice.
    let place = (tenant, agent.clone(), spec.id.clone());
    let turn = app
        .credentials
        .judging
        .get_with(place, async { Arc::default() });
    let turn = turn.await;
    let _turn = turn.lock().await;
    let mut tx = app.db.tenant(tenant).await?;
    let known = store::credential_judges::get(&mut tx, agent, &spec.id, &asked, LIVES).await?;
    if let Some(known) = known {
        return Ok(known);
    }
    if !store::credential_judges::claim(&mut tx, agent, &spec.id, &asked, LIVES).await? {
        return Ok(false);
    }
    tx.commit().await?;
    let Ok(effective) = personal::effective(spec, &falsified) else {
        return Ok(false);
    };
    let key = Key {
        tenant,
        agent: agent.clone(),
        server: spec.id.clone(),
        owner: ConnectionOwner::Credential {
            id: CredentialId::new(),
            generation: 0,
        },
    };
    let trial = ConnectionTrial::begin(app, key);
    let tried = trial.run(&Arc::new(effective)).await;
    trial.give_up().await;
    let judges = match tried {
        Err(error) if error.is_judgement() => true,
        // Nothing is known; the claim keeps others from asking at once.
        Err(error) if error.is_trouble() => return Ok(false),
        // It may be about the credential or about anything else.
        Ok(_) | Err(_) => false,
    };
    if !judges {
        tracing::warn!(server = %spec.id, %agent, "a test of a credential at this server proves nothing; the first call of a user shows whether theirs is good");
    }
    let mut tx = app.db.tenant(tenant).await?;
    store::credential_judges::put(&mut tx, agent, &spec.id, &asked, judges).await?;
    tx.commit().await?;
    Ok(judges)
}

/// What is asked: another address or another test is another question.
fn digest_of(spec: &ServerSpec) -> Vec<u8> {
    let mut digest = Sha256::new();
    let mut part = |part: &str| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    match &spec.endpoint {
        Endpoint::Remote { url, .. } => part(&url[..url::Position::AfterPath]),
        Endpoint::Stdio { command, .. } => part(command),
    }
    if let Some(test) = &spec.credential_test {
        part(&test.tool);
        part(&serde_json::Value::Object(test.arguments.clone()).to_string());
    }
    digest.finalize().to_vec()
}
