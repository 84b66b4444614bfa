//! Key sets (JWKS) of issuers: fetched through the egress guard, kept for five minutes.
//!
//! Each URL has one fetch at a time, which continues when its caller leaves. A key that is missing from the set, or
//! that does not fit a signature, causes an early fetch at most every 30 seconds. When a fetch fails, the known keys
//! stay in use.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwapOption;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use time::{Duration, OffsetDateTime};
use tokio::sync::OwnedMutexGuard;
use url::Url;

use crate::app::accounts::authentication::unauthenticated;
use domain::{
    clock::Clock,
    error::{Error, Result},
};
use egress::{Egress, EgressError, Limits, Request, parse_url};

const FRESH: Duration = Duration::minutes(5);
/// Least time between two fetches for a key that is not in the set or does not fit.
const UNKNOWN_KEY_PAUSE: Duration = Duration::seconds(30);
/// Least time between a failed fetch and the next one.
const FAILURE_PAUSE: Duration = Duration::seconds(5);
const MAX_KEYS: usize = 100;
const LIMITS: Limits = Limits {
    connect: std::time::Duration::from_secs(3),
    deadline: Some(std::time::Duration::from_secs(5)),
    idle: None,
    max_body: 256 * 1024,
    redirects: 5,
};

pub(super) struct KeySets {
    egress: Egress,
    clock: Clock,
    slots: Mutex<HashMap<KeySource, Arc<Slot>>>,
}

/// The address of a key set, and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeySource {
    pub url: String,
    /// See [`domain::account::Issuer::of_tenant`].
    pub of_tenant: Option<bool>,
}

/// The key set of one URL.
#[derive(Default)]
struct Slot {
    set: ArcSwapOption<KeySet>,
    /// Held while fetching.
    history: Arc<tokio::sync::Mutex<History>>,
}

#[derive(Clone, Copy, Default)]
struct History {
    failed: Option<OffsetDateTime>,
    /// The last fetch for a key that was not in the set or did not fit.
    forced: Option<OffsetDateTime>,
}

struct KeySet {
    keys: Vec<Key>,
    fetched: OffsetDateTime,
}

struct Key {
    id: Option<String>,
    jwk: Jwk,
    decoding: Arc<DecodingKey>,
}

impl KeySets {
    /// Checks that keys may be fetched from an address, by the rules of its writer.
    pub(super) fn check_url(
        &self,
        url: &url::Url,
        of_tenant: Option<bool>,
    ) -> Result<(), EgressError> {
        self.egress_for(url, of_tenant).check_url(url)
    }

    /// The client for an address, with the rules of its writer, which also hold for redirects. An address without a
    /// known writer counts as a tenant's if a tenant may use it.
    fn egress_for(&self, url: &url::Url, of_tenant: Option<bool>) -> Egress {
        let of_tenants = self.egress.for_tenants();
        if of_tenant.unwrap_or_else(|| of_tenants.check_url(url).is_ok()) {
            of_tenants
        } else {
            self.egress.clone()
        }
    }

    pub(super) fn new(egress: Egress, clock: Clock) -> Self {
        Self {
            egress,
            clock,
            slots: Mutex::default(),
        }
    }

    /// The key with an id (or the only one, when the token names none) that fits an algorithm.
    pub(super) async fn find(
        &self,
        source: &KeySource,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<DecodingKey>> {
        let slot = self.slot(source);
        let pick = || {
            slot.set
                .load()
                .as_ref()
                .and_then(|set| set.pick(id, algorithm))
        };
        let stale = match pick() {
            Some(key) if slot.is_fresh(self.clock.now()) => return Ok(key),
            stale => stale,
        };
        // A caller whose key was good five minutes ago does not wait for the fetch of another caller.
        let guard = if stale.is_some() {
            slot.history.clone().try_lock_owned().ok()
        } else {
            Some(slot.history.clone().lock_owned().await)
        };
        if let Some(history) = guard {
            self.refresh(source, &slot, history, pick().is_some()).await;
        }
        match pick() {
            Some(key) => Ok(key),
            None if slot.set.load().is_some() => unauthenticated(match id {
                Some(_) => "the token is signed with a key that its issuer does not publish",
                None => {
                    "the token's header has no `kid` that says which of its issuer's keys signed it"
                }
            }),
            None => Err(Error::Unavailable(
                "the keys of the token's issuer cannot be fetched; try again soon".into(),
            )),
        }
    }

    /// The key with this id in a newer set, for a token whose signature does not fit the known key: an issuer may have
    /// replaced a key without changing its id. The set is fetched as rarely as for a key that is not in it.
    pub(super) async fn find_newer(
        &self,
        source: &KeySource,
        id: Option<&str>,
        algorithm: Algorithm,
        known: &Arc<DecodingKey>,
    ) -> Option<Arc<DecodingKey>> {
        let slot = self.slot(source);
        let newer = || {
            let key = slot.set.load().as_ref()?.pick(id, algorithm)?;
            (!Arc::ptr_eq(&key, known)).then_some(key)
        };
        let history = slot.history.clone().lock_owned().await;
        if let Some(key) = newer() {
            return Some(key);
        }
        self.refresh(source, &slot, history, false).await;
        newer()
    }

    fn slot(&self, source: &KeySource) -> Arc<Slot> {
        let mut slots = self.slots.lock().expect("no holder of this lock panics");
        slots.entry(source.clone()).or_default().clone()
    }

    /// Fetches the set if the pauses allow it. `found` says whether the wanted key is in the present set.
    async fn refresh(
        &self,
        source: &KeySource,
        slot: &Arc<Slot>,
        mut history: OwnedMutexGuard<History>,
        found: bool,
    ) {
        let now = self.clock.now();
        let within = |at: Option<OffsetDateTime>, pause| at.is_some_and(|at| now < at + pause);
        let fresh = slot.is_fresh(now);
        let forced = fresh && !found;
        if (fresh && found) || within(history.failed, FAILURE_PAUSE) {
            return;
        }
        if forced {
            if within(history.forced, UNKNOWN_KEY_PAUSE) {
                return;
            }
            history.forced = Some(now);
        }
        let (source, slot) = (source.clone(), slot.clone());
        let parsed = parse_url(&source.url);
        let client = parsed.map(|url| (self.egress_for(&url, source.of_tenant), url));
        let fetching = tokio::spawn(async move {
            let fetched = match client {
                Ok((egress, url)) => fetch(&egress, url).await,
                Err(error) => Err(error.to_string()),
            };
            match fetched {
                Ok(keys) => {
                    slot.set
                        .store(Some(Arc::new(KeySet { keys, fetched: now })));
                    history.failed = None;
                }
                Err(cause) => {
                    tracing::warn!(
                        url = source.url,
                        cause,
                        "an issuer's keys could not be fetched"
                    );
                    history.failed = Some(now);
                }
            }
        });
        // The runtime reports a panic; the set stays as it was.
        let _ = fetching.await;
    }
}

impl Slot {
    fn is_fresh(&self, now: OffsetDateTime) -> bool {
        self.set
            .load()
            .as_ref()
            .is_some_and(|set| now < set.fetched + FRESH)
    }
}

impl KeySet {
    fn pick(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<DecodingKey>> {
        let mut fitting = self.keys.iter().filter(|key| fits(&key.jwk, algorithm));
        match id {
            Some(id) => fitting
                .find(|key| key.id.as_deref() == Some(id))
                .map(|key| key.decoding.clone()),
            None => fitting
                .next()
                .filter(|_| fitting.next().is_none())
                .map(|key| key.decoding.clone()),
        }
    }
}

/// Whether a key may check signatures of an algorithm: family, curve, and its own `alg` and `use`.
fn fits(jwk: &Jwk, algorithm: Algorithm) -> bool {
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

/// Fetches a key set. Keys that cannot be used are left out: an issuer may publish keys for other purposes.
/// Fetches a key set once, by the rules of its writer, and forgets it. The error is why no token of its issuer can be
/// verified.
pub(super) async fn probe(egress: &Egress, source: &KeySource) -> std::result::Result<(), String> {
    let sets = KeySets::new(egress.clone(), Clock::System);
    let url = parse_url(&source.url).map_err(|error| error.to_string())?;
    let keys = fetch(&sets.egress_for(&url, source.of_tenant), url).await?;
    if keys.is_empty() {
        return Err("it has no key that can be used".to_owned());
    }
    Ok(())
}

async fn fetch(egress: &Egress, url: Url) -> Result<Vec<Key>, String> {
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
        .filter_map(read_key)
        .collect())
}

fn read_key(key: Value) -> Option<Key> {
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
