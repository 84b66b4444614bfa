//! Who is asking: a tenant, an immutable user id, verified claims and a locale. What that means to one
//! pack (roles, admin) is a [`Standing`], computed here from the claims the pack names.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    ids::{TenantId, UserId},
    pack::{Authentication, Pack},
    policy::Standing,
};

/// The one role of somebody who is not authenticated.
pub const GUEST: &str = "guest";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Principal {
    pub tenant: TenantId,
    pub user: UserId,
    /// Verified by the issuer or by a frontend key; empty for a guest.
    pub claims: Arc<Map<String, Value>>,
    pub locale: Option<String>,
    /// `false`: a guest, who may talk only to packs that do not require authentication.
    pub authenticated: bool,
}

impl Principal {
    /// A claim as text: strings as they are, numbers and booleans in JSON's spelling.
    pub fn claim(&self, name: &str) -> Option<String> {
        match self.claims.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// What to call the person: `name`, `given_name`, `preferred_username`, else the user id.
    pub fn display_name(&self) -> String {
        let claims = ["name", "given_name", "preferred_username"];
        let named = claims.iter().filter_map(|claim| self.claim(claim)).find(|name| !name.trim().is_empty());
        named.unwrap_or_else(|| if self.authenticated { self.user.to_string() } else { GUEST.to_owned() })
    }

    /// Roles and admin right in one pack (DESIGN section 3). Roles that the pack does not name are
    /// dropped; a guest has exactly [`GUEST`] and is never an admin.
    pub fn standing(&self, pack: &Pack) -> Standing {
        if !self.authenticated {
            return Standing { roles: BTreeSet::from([GUEST.to_owned()]), admin: false };
        }
        let auth = &pack.flows.authentication;
        let named = roles_named_by(pack);
        let roles = self.claimed_roles(auth).into_iter().filter(|role| named.contains(role.as_str())).collect();
        Standing { roles, admin: self.is_admin(auth) }
    }

    fn is_admin(&self, auth: &Authentication) -> bool {
        let id = if auth.user_id_attribute == "sub" {
            Some(self.user.to_string())
        } else if auth.user_id_attribute == "email" && self.claims.get("email_verified") == Some(&Value::Bool(false)) {
            None
        } else {
            self.claim(&auth.user_id_attribute)
        };
        id.is_some_and(|id| auth.admin_users.contains(&id))
    }

    fn claimed_roles(&self, auth: &Authentication) -> Vec<String> {
        let claim = auth.roles_attribute.as_ref().and_then(|name| self.claims.get(name));
        match claim {
            Some(claim) => parse_roles(claim),
            None => auth.default_role.iter().cloned().collect(),
        }
    }
}

/// Every role that a pack mentions: in `toolAccess.roles`, as an approver, or as the default role.
pub fn roles_named_by(pack: &Pack) -> BTreeSet<&str> {
    let accesses = pack.servers.iter().filter_map(|server| server.tool_access.as_ref());
    let mut named: BTreeSet<&str> = pack.flows.authentication.default_role.iter().map(String::as_str).collect();
    for access in accesses {
        named.extend(access.roles.iter().flat_map(|roles| roles.keys()).map(String::as_str));
        named.extend(access.approval.iter().flat_map(|policy| &policy.approvers).map(String::as_str));
    }
    named
}

/// The roles in a claim: a JSON array as it is; a string that starts with `[` is a JSON array (malformed:
/// no roles, with a warning), any other string is CSV. Items are trimmed, blanks dropped, case kept.
pub fn parse_roles(claim: &Value) -> Vec<String> {
    let items: Vec<String> = match claim {
        Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::String(text) if text.trim_start().starts_with('[') => match serde_json::from_str::<Vec<Value>>(text) {
            Ok(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Err(_) => {
                tracing::warn!("the roles claim starts with `[` and is not a JSON array; treated as no roles");
                Vec::new()
            }
        },
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    items.into_iter().map(|role| role.trim().to_owned()).filter(|role| !role.is_empty()).collect()
}
