//! The roles and claims of a user, read from a token.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::tool_accesses;
use crate::{
    pack::Pack,
    policy::{Condition, ToolAccess},
};

/// Claims that are not in the token, each with the source that has it.
const CLAIM_NAMES: &str = "_claim_names";
/// That the claim `groups` is not in the token.
const HAS_GROUPS: &str = "hasgroups";

/// Claims that say who somebody is, and which session they came with.
const ALWAYS_KEPT: [&str; 10] = [
    "iss",
    "sub",
    "iat",
    "exp",
    "name",
    "given_name",
    "preferred_username",
    "email_verified",
    // Which claims an issuer has left out (OpenID Connect Core 5.6.2; Entra ID, for people in many groups).
    CLAIM_NAMES,
    HAS_GROUPS,
];

/// The claims that are kept of a credential: those that packs name, and those that are always needed.
pub fn claims_named_by<'a>(packs: impl IntoIterator<Item = &'a Pack>) -> BTreeSet<String> {
    let mut named: BTreeSet<String> = ALWAYS_KEPT.into_iter().map(str::to_owned).collect();
    for pack in packs {
        let auth = &pack.flows.authentication;
        named.insert(auth.user_id_attribute.clone());
        named.extend(auth.roles_attribute.clone());
        let conditions = tool_accesses(pack).flat_map(ToolAccess::conditions);
        named.extend(conditions.flat_map(Condition::claims).cloned());
    }
    named
}

/// The claim of this name. If no claim has the name, its dots are steps into objects: `realm_access.roles`. A key of an
/// object may have dots itself; the longest one that fits is tried first.
pub fn find_claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(claim) = claims.get(name) {
        return Some(claim);
    }
    name.rmatch_indices('.').find_map(|(at, _)| {
        let (key, rest) = (&name[..at], &name[at + 1..]);
        find_claim(claims.get(key)?.as_object()?, rest)
    })
}

/// Whether the issuer has left this claim out of the token because it is too large, and said so.
pub fn is_left_out(claims: &Map<String, Value>, name: &str) -> bool {
    let elsewhere = claims.get(CLAIM_NAMES).and_then(Value::as_object);
    let has_groups = name == "groups"
        && claims
            .get(HAS_GROUPS)
            .is_some_and(|has| *has == true || has == "true");
    find_claim(claims, name).is_none()
        && (has_groups || elsewhere.is_some_and(|names| names.contains_key(name)))
}

/// Drops the claims that nobody names. What a name finds in an object is kept under that name.
pub fn keep_claims(claims: &mut Map<String, Value>, named: &BTreeSet<String>) {
    let inner: Vec<(String, Value)> = named
        .iter()
        .filter(|name| !claims.contains_key(*name))
        .filter_map(|name| Some((name.clone(), find_claim(claims, name)?.clone())))
        .collect();
    claims.retain(|name, _| named.contains(name));
    claims.extend(inner);
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
                .policies()
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
