//! The caller of a request: the bearer token or the key, and the user that it stands for.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use sha2::{Digest, Sha256};

use super::{Accounts, Headers, keys};
use domain::{
    account::{ChatSettings, FRONTEND_USER, ISSUER_USER},
    audit,
    error::{Error, Result},
    header,
    hidden::first_hidden,
    ids::{ApiKeyId, UserId},
    principal::{Admin, GUEST_USER, KEY_USER, Principal, Scope, Scopes, keep_claims},
};

/// A caller whose credential was checked.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Principal,
    pub scopes: Scopes,
    /// The key that was used, if it was one.
    pub key: Option<ApiKeyId>,
    /// The frontend's own id of the conversation.
    pub conversation_key: Option<String>,
    /// How an OpenAI client is answered.
    pub chat: ChatSettings,
    /// Whether the caller is a frontend: it acts for users who have no credential of their own here.
    pub is_frontend: bool,
}

impl Caller {
    /// Refuses a credential that was not made for this.
    pub fn require(&self, scope: Scope) -> Result<()> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        Err(Error::Forbidden(format!(
            "this needs a credential with the scope `{}`",
            scope.into_str()
        )))
    }

    pub fn admin(&self) -> Result<Admin> {
        self.principal.admin(self.scopes)
    }
}

impl Accounts {
    /// Finds the caller that sent these headers; `address` is where the request came from, if that is known, and
    /// `endpoint` the agent whose MCP endpoint it came to, if it came to one. Errors: `Unauthenticated` says why there is
    /// no valid caller; `Unavailable` says that the check cannot be made now; `Limited` says that the address sent too
    /// many unknown credentials.
    pub async fn authenticate(
        &self,
        headers: &Headers<'_>,
        address: Option<IpAddr>,
        endpoint: Option<&str>,
    ) -> Result<Caller> {
        let credential = bearer(headers)?;
        let digest = Sha256::digest(credential).into();
        let by_token = !credential.starts_with(keys::MARK);
        let mut caller = if by_token {
            self.shared
                .token_caller(credential, digest, address)
                .await?
        } else {
            self.shared
                .key_caller(credential, digest, headers, address)
                .await?
        };
        caller.principal.audience.require(endpoint)?;
        self.shared
            .check_session(&caller.principal, by_token)
            .await?;
        // An older token may hold claims of its user that have changed since.
        caller.principal = self.newest(&caller.principal).await?;
        Ok(caller)
    }
}

/// The credential of a request, which must have exactly one.
pub(super) fn bearer<'a>(headers: &Headers<'a>) -> Result<&'a str> {
    let sent = headers("authorization");
    let value = match sent.as_slice() {
        [] => {
            return unauthenticated(
                "no credential: send the header `Authorization: Bearer <token or key>`",
            );
        }
        [value] => *value,
        _ => return unauthenticated("more than one `Authorization` header: send one"),
    };
    let (scheme, credential) = str::from_utf8(value)
        .ok()
        .filter(|text| header::can_carry(text))
        .and_then(|text| text.split_once(' '))
        .unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") || credential.trim().is_empty() {
        return unauthenticated(
            "the `Authorization` header is not of the form `Bearer <token or key>`",
        );
    }
    Ok(credential.trim())
}

pub(super) fn unauthenticated<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Unauthenticated(why.into()))
}

/// Checks a user id of an issuer or a frontend. `whose` names its source in errors, such as `the claim sub`.
pub(super) fn user_id(text: &str, whose: &str) -> Result<UserId> {
    if text.is_empty() || text.len() > 255 {
        return unauthenticated(format!("{whose} is not a user id of 1 to 255 bytes"));
    }
    // Such an id would look like another user's.
    if text.trim() != text {
        return unauthenticated(format!(
            "{whose} begins or ends with white space, which no user id does"
        ));
    }
    if let Some(hidden) = first_hidden(text) {
        return unauthenticated(format!(
            "{whose} holds the character U+{:04X}, which cannot be seen in a user id",
            u32::from(hidden)
        ));
    }
    let reserved = [KEY_USER, GUEST_USER, ISSUER_USER, FRONTEND_USER];
    if let Some(prefix) = reserved.iter().find(|prefix| text.starts_with(**prefix)) {
        return unauthenticated(format!("{whose} starts with `{prefix}`, which is reserved"));
    }
    // The audit trail must not mistake a user for one of these actors.
    if [audit::OPERATOR, audit::SYSTEM].contains(&text) {
        return unauthenticated(format!("{whose} is {text:?}, which is reserved"));
    }
    Ok(UserId(text.into()))
}

/// A caller's text for a message: quoted and of limited length.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(120).collect();
    format!("{short:?}")
}

/// Drops all claims of a principal that are not in `named`.
pub(super) fn drop_unnamed(principal: &mut Principal, named: Option<&BTreeSet<String>>) {
    if let Some(named) = named {
        keep_claims(Arc::make_mut(&mut principal.claims), named);
    }
}
