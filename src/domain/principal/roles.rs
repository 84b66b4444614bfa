//! The roles and claims of a user, read from a token.

use std::collections::BTreeSet;

use serde_json::Value;

use super::tool_accesses;
use crate::domain::pack::Pack;

/// Claims that say who somebody is, and which session they came with.
const ALWAYS_KEPT: [&str; 8] = [
    "iss",
    "sub",
    "iat",
    "exp",
    "name",
    "given_name",
    "preferred_username",
    "email_verified",
];

/// The claims that are kept of a credential: those that packs name, and those that are always needed.
pub fn claims_named_by<'a>(packs: impl IntoIterator<Item = &'a Pack>) -> BTreeSet<String> {
    let mut named: BTreeSet<String> = ALWAYS_KEPT.into_iter().map(str::to_owned).collect();
    for pack in packs {
        let auth = &pack.flows.authentication;
        named.insert(auth.user_id_attribute.clone());
        named.extend(auth.roles_attribute.clone());
    }
    named
}

/// Every role that a pack mentions: in `toolAccess.roles`, as an approver, or as the default role.
pub fn roles_named_by(pack: &Pack) -> BTreeSet<&str> {
    let mut named: BTreeSet<&str> = pack
        .flows
        .authentication
        .default_role
        .iter()
        .map(String::as_str)
        .collect();
    for access in tool_accesses(pack) {
        named.extend(
            access
                .roles
                .iter()
                .flat_map(|roles| roles.keys())
                .map(String::as_str),
        );
        named.extend(
            access
                .approval
                .iter()
                .flat_map(|policy| &policy.approvers)
                .map(String::as_str),
        );
    }
    named
}

/// The roles in a claim: a JSON array as it is; a string that starts with `[` is a JSON array (malformed:
/// no roles, with a warning), any other string is CSV. Items are trimmed, blanks dropped, case kept.
pub fn parse_roles(claim: &Value) -> Vec<String> {
    let items: Vec<String> = match claim {
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        Value::String(text) if text.trim_start().starts_with('[') => {
            match serde_json::from_str::<Vec<Value>>(text) {
                Ok(items) => items
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
                Err(_) => {
                    tracing::warn!(
                        "the roles claim starts with `[` and is not a JSON array; treated as no roles"
                    );
                    Vec::new()
                }
            }
        }
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    items
        .into_iter()
        .map(|role| role.trim().to_owned())
        .filter(|role| !role.is_empty())
        .collect()
}
