//! How a key set is fetched, and which of its keys are used.

use std::sync::Arc;

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::{Key, LIMITS, MAX_KEYS};
use crate::{
    domain::error::Result,
    egress::{Egress, Request},
};

/// Whether a key may check signatures of an algorithm: family, curve, and its own `alg` and `use`.
pub(super) fn fits(jwk: &Jwk, algorithm: Algorithm) -> bool {
    let shape = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => algorithm.family() == AlgorithmFamily::Rsa,
        AlgorithmParameters::EllipticCurve(key) => matches!(
            (&key.curve, algorithm),
            (EllipticCurve::P256, Algorithm::ES256) | (EllipticCurve::P384, Algorithm::ES384)
        ),
        AlgorithmParameters::OctetKeyPair(key) => {
            matches!(
                (&key.curve, algorithm),
                (EllipticCurve::Ed25519, Algorithm::EdDSA)
            )
        }
        _ => false,
    };
    let named = jwk
        .common
        .key_algorithm
        .as_ref()
        .is_none_or(|named| named.to_string() == format!("{algorithm:?}"));
    let signs = jwk
        .common
        .public_key_use
        .as_ref()
        .is_none_or(|usage| *usage == PublicKeyUse::Signature);
    shape && named && signs
}

/// Reads a key set; keys that cannot be used are left out, as its issuer may have others for other uses.
pub(super) async fn fetch(egress: &Egress, url: Url) -> Result<Vec<Key>, String> {
    #[derive(Deserialize)]
    struct Document {
        keys: Vec<Value>,
    }
    let request = Request {
        limits: LIMITS,
        ..Request::get(url).header("accept", "application/json")
    };
    let answer = egress
        .send(request)
        .await
        .map_err(|error| error.to_string())?;
    if answer.status.as_u16() != 200 {
        return Err(format!("the answer was {}", answer.status));
    }
    let body = answer.bytes().await.map_err(|error| error.to_string())?;
    let document: Document =
        serde_json::from_slice(&body).map_err(|_| "the answer is not a JSON Web Key Set")?;
    Ok(document
        .keys
        .into_iter()
        .take(MAX_KEYS)
        .filter_map(usable)
        .collect())
}

fn usable(key: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(key).ok()?;
    if let AlgorithmParameters::OctetKey(_) | AlgorithmParameters::Other(_) = &jwk.algorithm {
        return None;
    }
    let decoding = Arc::new(DecodingKey::from_jwk(&jwk).ok()?);
    Some(Key {
        id: jwk.common.key_id.clone(),
        jwk,
        decoding,
    })
}
