//! What a credential holds, decrypted for as long as it is used: the values of fields, or a sign-in.

use std::sync::Arc;

use super::{copy_of, credential, forget_marked, of_user};
use crate::{
    app::{App, platform::keys::OpenError},
    domain::{
        credential::{CredentialMeta, CredentialRef},
        error::{Error, ErrorCode, Result},
        ids::AgentId,
        oauth::{Authorization, OAuthConfig, from_sealable},
        pack::Pack,
        personal::{self, Values},
        principal::Principal,
        scrub::Scrubber,
        server::{AccessMode, ServerAuth, ServerSpec, UserSignIn},
    },
};

/// A decrypted credential: the server as it is for its user.
pub(super) struct DecryptedCredential {
    /// The pack's server that it was made from.
    pub(super) base: Arc<ServerSpec>,
    pub(super) spec: Arc<ServerSpec>,
    content: Content,
}

/// What a credential holds. The tokens of a sign-in change without it and are looked up when they are needed.
#[derive(Clone)]
enum Content {
    Values(Values),
    SignIn(CredentialRef),
}

/// Decrypts a credential once for as long as it is used; `None` when it cannot be.
pub(super) async fn decrypt(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    held: &CredentialMeta,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Arc<DecryptedCredential>>> {
    let generation = (held.id, held.current());
    if let Some(known) = app.credentials.decrypted.get(&generation).await {
        if Arc::ptr_eq(&known.base, spec) || known.base == *spec {
            return Ok(Some(known));
        }
        // The pack has changed since.
        let Ok(effective) = known.content.effective(spec) else {
            return Ok(None);
        };
        let decrypted = Arc::new(DecryptedCredential {
            base: spec.clone(),
            spec: Arc::new(effective),
            content: known.content.clone(),
        });
        app.credentials
            .decrypted
            .insert(generation, decrypted.clone())
            .await;
        return Ok(Some(decrypted));
    }
    let credential = credential(principal, agent, &spec.id, held);
    let load = async {
        let text = app.keys.open_credential(&credential).await?;
        let content = match from_sealable::<Authorization>(&text) {
            Ok(_) => Content::SignIn(credential.clone()),
            Err(_) => Content::Values(Values::from_sealable(&text).map_err(Error::internal)?),
        };
        let effective = content.effective(spec)?;
        Ok::<_, OpenError>(Arc::new(DecryptedCredential {
            base: spec.clone(),
            spec: Arc::new(effective),
            content,
        }))
    };
    match app
        .credentials
        .decrypted
        .try_get_with(generation, load)
        .await
    {
        Ok(decrypted) => Ok(Some(decrypted)),
        Err(error) => match &*error {
            OpenError::Unopenable(_) => {
                forget_marked(app, &credential).await;
                Ok(None)
            }
            OpenError::Failed(error) => Err(copy_of(error)),
        },
    }
}

impl DecryptedCredential {
    /// What was entered in fields; nothing for a sign-in.
    pub(super) fn values(&self) -> Option<&Values> {
        match &self.content {
            Content::Values(values) => Some(values),
            Content::SignIn(_) => None,
        }
    }
}

/// Finds what a user has entered for the servers of a pack, wherever it is repeated.
pub async fn scrubber(app: &App, principal: &Principal, pack: &Pack) -> Result<Scrubber> {
    let personal = |spec: &&ServerSpec| spec.access_mode == AccessMode::UserControlled;
    let mut entered = Vec::new();
    for spec in pack.servers.iter().filter(personal) {
        let credentials = of_user(app, principal, pack.id()).await?;
        let Some(held) = credentials.active(&spec.id) else {
            continue;
        };
        let spec = Arc::new(spec.clone());
        // What does not fit its server any more, or cannot be decrypted, is no reason to refuse a conversation.
        if let Ok(Some(known)) = decrypt(app, principal, pack.id(), held, &spec).await {
            entered.extend(known.spec.entered.iter().cloned());
        }
    }
    Ok(Scrubber::new(&entered))
}

impl Content {
    /// The server as it is reached with this content.
    fn effective(&self, spec: &ServerSpec) -> Result<ServerSpec> {
        match self {
            Self::Values(values) => personal::effective(spec, values).map_err(|unfit| {
                Error::conflict(
                    ErrorCode::CredentialUnusable,
                    format!(
                        "what was entered for {} does not fit it any more: {}",
                        spec.id, unfit.fault
                    ),
                )
            }),
            Self::SignIn(credential) => {
                let secret = |oauth: &OAuthConfig| oauth.client_secret.clone();
                Ok(ServerSpec {
                    auth: Some(ServerAuth::User(UserSignIn {
                        credential: credential.clone(),
                        client_secret: spec.oauth.as_ref().and_then(secret),
                    })),
                    ..spec.clone()
                })
            }
        }
    }
}
