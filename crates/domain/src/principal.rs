//! Who is asking: a tenant, an immutable user id, verified claims and a locale. What that means to one
//! pack (roles, admin) is a [`EffectiveAccess`], computed here from the claims the pack names.

mod audience;
mod roles;
mod scopes;

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use self::{
    audience::Audience,
    roles::{claims_named_by, find_claim, is_left_out, keep_claims, parse_roles, roles_named_by},
    scopes::{Scope, Scopes},
};
use super::{
    audit,
    error::Error,
    hidden::clean_name,
    ids::{ApiKeyId, TenantId, UserId},
    pack::{Authentication, CHOSEN_CLAIMS, Pack},
    policy::{EffectiveAccess, ToolAccess},
    secret::Secret,
};

/// What the id of a program's user begins with: behind it is the name of its key. No issuer and no frontend may use it.
pub const KEY_USER: &str = "key:";
/// The only role of a guest.
pub const GUEST: &str = "guest";
/// What the ids of guests begin with. The guests of a tenant share places for runs under this name.
pub const GUEST_USER: &str = "guest:";

/// The share of the slots for runs that a user has. All guests of a tenant have one share together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FairShareKey {
    pub tenant: TenantId,
    pub user: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Principal {
    pub tenant: TenantId,
    pub user: UserId,
    /// Verified by the issuer or by a frontend key; empty for a guest.
    pub claims: Arc<Map<String, Value>>,
    pub locale: Option<String>,
    /// `false`: a guest, who may talk only to packs that do not require authentication.
    pub authenticated: bool,
    /// The API key that vouched for them; absent: the issuer of a token did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ApiKeyId>,
    /// What their credential was made for. What they ask for keeps it, however much later that is carried out.
    #[serde(default, skip_serializing_if = "Audience::is_service")]
    pub audience: Audience,
}

impl Principal {
    /// A claim as text: strings as they are, numbers and booleans in JSON's spelling.
    pub fn claim(&self, name: &str) -> Option<String> {
        match find_claim(&self.claims, name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// A name for logs and traces that is the same each time and says nothing: ids of users are often e-mail addresses.
    pub fn pseudonym(&self) -> String {
        let hash = Sha256::digest(format!("{}/{}", self.tenant, self.user));
        hex::encode(&hash[..6])
    }

    /// The issuer of the token that they came with, if they came with one.
    pub fn issuer(&self) -> Option<&str> {
        let issuer = self.claims.get("iss")?.as_str();
        issuer.filter(|_| self.key.is_none())
    }

    /// What to call the person: `name`, `given_name`, `preferred_username`, else the user id; one line, see
    /// [`clean_name`].
    pub fn display_name(&self) -> String {
        let claims = ["name", "given_name", "preferred_username"];
        let named = claims
            .iter()
            .filter_map(|claim| self.claim(claim))
            .find_map(|name| clean_name(&name));
        // A program is called by its key, and nobody else is called so.
        let named = named.map(|name| {
            if name.starts_with(KEY_USER) {
                format!("“{name}”")
            } else {
                name
            }
        });
        named.unwrap_or_else(|| {
            if self.authenticated {
                self.user.display_name()
            } else {
                GUEST.to_owned()
            }
        })
    }

    /// The key that is all that is known of the caller: that of a guest or a program. A frontend's key speaks for others.
    pub fn own_key(&self) -> Option<ApiKeyId> {
        let user = self.user.as_str();
        let is_key = user.starts_with(GUEST_USER) || user.starts_with(KEY_USER);
        self.key.filter(|_| is_key)
    }

    /// Whether no person is named: the key of a program, which may speak for many people.
    pub fn names_nobody(&self) -> bool {
        self.key.is_some() && self.user.as_str().starts_with(KEY_USER)
    }

    /// The share of the slots that the runs of this principal take.
    pub fn fair_share_key(&self) -> FairShareKey {
        let user = if self.authenticated {
            self.user.as_str()
        } else {
            GUEST_USER
        };
        FairShareKey {
            tenant: self.tenant,
            user: user.to_owned(),
        }
    }

    /// Roles and admin right in one pack. Roles that the pack does not name are
    /// dropped; a guest has exactly [`GUEST`] and is never an admin.
    pub fn access(&self, pack: &Pack) -> EffectiveAccess {
        if !self.authenticated {
            return EffectiveAccess {
                roles: BTreeSet::from([GUEST.to_owned()]),
                admin: false,
                is_guest: true,
            };
        }
        let auth = &pack.flows.authentication;
        let named = roles_named_by(pack);
        let roles = self
            .claimed_roles(auth)
            .into_iter()
            .filter(|role| named.contains(role.as_str()))
            .collect();
        EffectiveAccess {
            roles,
            admin: self.is_admin(auth),
            is_guest: false,
        }
    }

    fn is_admin(&self, auth: &Authentication) -> bool {
        let id = match auth.user_id_attribute.as_str() {
            "sub" => Some(self.user.to_string()),
            "email" if self.claim("email_verified").as_deref() != Some("true") => None,
            chosen
                if CHOSEN_CLAIMS.contains(&chosen) && !self.is_of_issuer(&auth.trusted_issuers) =>
            {
                None
            }
            claim => self.claim(claim),
        };
        id.is_some_and(|id| auth.admin_users.contains(&id))
    }

    fn is_of_issuer(&self, issuers: &[String]) -> bool {
        let issuer = self.issuer();
        issuer.is_some_and(|issuer| issuers.iter().any(|trusted| trusted == issuer))
    }

    fn claimed_roles(&self, auth: &Authentication) -> Vec<String> {
        let claim = auth
            .roles_attribute
            .as_ref()
            .and_then(|name| find_claim(&self.claims, name));
        match claim {
            Some(claim) => parse_roles(claim),
            None => auth.default_role.iter().cloned().collect(),
        }
    }
}

/// The right to manage a tenant. Holding one proves the check: [`Principal::admin`] is the only way to get
/// one.
#[derive(Clone, Debug)]
pub struct Admin {
    tenant: TenantId,
    user: UserId,
}

impl Admin {
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Who acts, for the audit trail.
    pub fn user(&self) -> &UserId {
        &self.user
    }
}

impl Principal {
    /// The power to manage the tenant, for an authenticated principal whose credential has the scope.
    pub fn admin(&self, scopes: Scopes) -> Result<Admin, Error> {
        if self.authenticated && scopes.has(Scope::Admin) {
            Ok(Admin {
                tenant: self.tenant,
                user: self.user.clone(),
            })
        } else {
            Err(Error::Forbidden(
                "this needs a credential with the scope `admin`".to_owned(),
            ))
        }
    }
}

/// The right to manage the installation. Its holder belongs to no tenant.
#[derive(Clone, Debug)]
pub struct Operator(());

impl Operator {
    /// For a caller that sends the token of the settings. The comparison takes the same time however much of
    /// a wrong token is right.
    pub fn by_token(token: &Secret, sent: &str) -> Result<Self, Error> {
        let digest = |text: &str| Sha256::digest(text);
        if bool::from(
            digest(token.expose())
                .as_slice()
                .ct_eq(digest(sent).as_slice()),
        ) {
            return Ok(Self(()));
        }
        Err(Error::Unauthenticated(
            "this needs the operator's token (CHATELAINE_OPERATOR_TOKEN)".to_owned(),
        ))
    }

    /// For a caller that has the database, such as the command line.
    pub fn at_the_database() -> Self {
        Self(())
    }

    /// The right to manage a tenant in place of its admins. The audit trail names the operator.
    pub fn admin_of(&self, tenant: TenantId) -> Admin {
        Admin {
            tenant,
            user: UserId(audit::OPERATOR.into()),
        }
    }
}

impl Admin {
    /// Whether it is the operator who acts.
    pub fn is_operator(&self) -> bool {
        self.user.as_str() == audit::OPERATOR
    }
}

/// The rules of a pack's own servers and of those that it takes from the tenant's registry.
pub(super) fn tool_accesses(pack: &Pack) -> impl Iterator<Item = &ToolAccess> {
    let own = pack.servers.iter();
    let own = own.map(|server| (&server.tool_access, &server.elsewhere));
    let references = pack.references.iter();
    let references = references.map(|it| (&it.tool_access, &it.elsewhere));
    own.chain(references).flat_map(|(access, elsewhere)| {
        let others = elsewhere.admitting.iter();
        access
            .iter()
            .chain(others.flat_map(|other| &other.tool_access))
    })
}
