//! Who calls with a key, and in whose name.

use std::{net::IpAddr, sync::Arc};

use subtle::ConstantTimeEq;

use super::{MARK, PREFIX_BYTES, SECRET_BYTES};
use crate::{
    app::accounts::{
        CachedRow, Caller, GUEST_USER, Headers, Shared,
        authentication::{drop_unnamed, unauthenticated},
        frontends,
    },
    domain::{
        account::{ApiKey, KeyKind},
        error::{Error, Result},
        ids::UserId,
        principal::{KEY_USER, Principal},
    },
    store,
};

impl Shared {
    pub(in crate::app::accounts) async fn key_caller(
        &self,
        text: &str,
        digest: [u8; 32],
        headers: &Headers<'_>,
        address: Option<IpAddr>,
    ) -> Result<Caller> {
        let now = self.clock.now();
        let known = match self.keys.get(&digest).await {
            Some(known) if known.is_recent(now) => known,
            _ => {
                let known = Arc::new(CachedRow {
                    what: self.look_up(text, digest, address).await?,
                    since: now,
                });
                self.keys.insert(digest, known.clone()).await;
                known
            }
        };
        let key = &known.what;
        if key.revoked_at.is_some() || self.revoked_keys.contains_key(&key.id) {
            return unauthenticated(format!("the API key {} is revoked", key.prefix));
        }
        if !key.is_live(now) {
            return unauthenticated(format!("the API key {} has expired", key.prefix));
        }
        let mut caller = caller_of_key(key, headers)?;
        if caller.is_frontend {
            drop_unnamed(&mut caller.principal, self.named_claims().as_deref());
        }
        Ok(caller)
    }

    async fn look_up(
        &self,
        text: &str,
        digest: [u8; 32],
        address: Option<IpAddr>,
    ) -> Result<ApiKey> {
        let unknown = || {
            Error::Unauthenticated(
                "the API key is unknown; check that it was copied whole".to_owned(),
            )
        };
        let prefix = prefix_of(text).ok_or_else(unknown)?;
        if self.lookups.is_unknown(&digest) {
            return Err(unknown());
        }
        let _turn = self.lookups.begin(digest, address).await?;
        let mut tx = self.db.system().await?;
        let found = store::api_keys::by_prefix(&mut tx, prefix).await?;
        match found {
            Some((key, hash)) if bool::from(hash.as_slice().ct_eq(&digest)) => {
                self.lookups.was_good(digest).await;
                Ok(key)
            }
            _ => {
                self.lookups.was_unknown(digest).await;
                Err(unknown())
            }
        }
    }
}

/// The prefix of a well-formed key.
fn prefix_of(text: &str) -> Option<&str> {
    let (prefix, secret) = text.strip_prefix(MARK)?.split_once('_')?;
    let hex = |part: &str, bytes: usize| {
        part.len() == 2 * bytes && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    (hex(prefix, PREFIX_BYTES) && hex(secret, SECRET_BYTES)).then_some(prefix)
}

fn caller_of_key(key: &ApiKey, headers: &Headers<'_>) -> Result<Caller> {
    let (principal, conversation_key) = match &key.speaker {
        KeyKind::Frontend(settings) => frontends::user(key, settings, headers)?,
        KeyKind::Service(claims) => {
            let locale = claims
                .get("locale")
                .and_then(|locale| locale.as_str())
                .map(str::to_owned);
            let user = UserId(format!("{KEY_USER}{}", key.name).into());
            let claims = Arc::new(claims.clone());
            (
                Principal {
                    tenant: key.tenant,
                    user,
                    claims,
                    locale,
                    authenticated: true,
                    key: Some(key.id),
                },
                None,
            )
        }
        KeyKind::Guest => {
            let user = UserId(format!("{GUEST_USER}{}", key.id).into());
            let claims = Arc::default();
            (
                Principal {
                    tenant: key.tenant,
                    user,
                    claims,
                    locale: None,
                    authenticated: false,
                    key: Some(key.id),
                },
                None,
            )
        }
    };
    Ok(Caller {
        principal,
        scopes: key.scopes,
        key: Some(key.id),
        conversation_key,
        chat: key.chat,
        is_frontend: matches!(key.speaker, KeyKind::Frontend(_)),
    })
}
