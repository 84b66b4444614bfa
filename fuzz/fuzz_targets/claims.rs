//! Claims of tokens: whatever an issuer wrote, a role is a part of the claim, a name is not blank, and signing out ends the
//! token that somebody signs out with.
#![no_main]

use std::sync::Arc;

use domain::{ids::{TenantId, UserId}, principal::{Principal, parse_roles}, session::SignOut};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const NOW: i64 = 1_800_000_000;

fuzz_target!(|data: &[u8]| {
    let Ok(Value::Object(claims)) = serde_json::from_slice(data) else { return };
    for claim in claims.values() {
        for role in parse_roles(claim) {
            assert!(!role.is_empty() && role.trim() == role);
            let named = match claim {
                // A string may hold a JSON array, whose items may be escaped.
                Value::String(text) => text.contains(&role) || text.trim_start().starts_with('['),
                Value::Array(items) => items.iter().any(|item| item.as_str().is_some_and(|item| item.trim() == role)),
                _ => false,
            };
            assert!(named, "{role:?} is not in {claim}");
        }
    }
    if let Some(sign_out) = SignOut::of(&claims, NOW) {
        assert!(sign_out.ends(&claims));
    }
    let principal = Principal {
        tenant: TenantId::new(),
        user: UserId("user".into()),
        claims: Arc::new(claims),
        locale: None,
        authenticated: true,
        key: None,
    };
    assert!(!principal.display_name().trim().is_empty());
});
