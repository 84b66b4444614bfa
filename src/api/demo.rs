//! The people of the demo, for the web client. Only `chatelaine demo` has this route: whoever has the link that the
//! demo prints may sign in as any of its people.

use std::{collections::BTreeMap, sync::OnceLock};

use axum::extract::State;
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::{ApiState, extract::Anonymous, problem::Problem};
use domain::{error::ErrorCode, secret::Secret};

/// The tokens of the demo's people, and the key that the link to them has.
pub struct Demo {
    key: Secret,
    people: OnceLock<DemoPeople>,
}

/// Whom one can be in the demo.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub struct DemoPeople {
    /// Person → token.
    pub people: BTreeMap<String, String>,
    /// Person → a token of theirs for the notes, a personal server.
    pub notes: BTreeMap<String, String>,
}

impl Demo {
    /// A demo with a new key, and without people.
    pub fn new() -> Self {
        Self {
            key: Secret::new(hex::encode(rand::random::<[u8; 16]>())),
            people: OnceLock::new(),
        }
    }

    /// Sets the tokens of the people, once.
    pub fn set_people(&self, people: DemoPeople) {
        let _ = self.people.set(people);
    }

    /// The link to the page that offers the people. The key is in the fragment, which a browser never sends.
    pub fn link(&self, url: &str) -> String {
        format!("{}/#demo={}", url.trim_end_matches('/'), self.key.expose())
    }
}

impl Default for Demo {
    fn default() -> Self {
        Self::new()
    }
}

/// The people of the demo, with a token for each.
///
/// Only the demo has this path, and no document names it.
#[utoipa::path(get, path = "/v1/demo/people", operation_id = "listDemoPeople", tag = "demo",
    responses((status = 200, body = DemoPeople)))]
pub(super) async fn people(
    State(state): State<ApiState>,
    _: Anonymous,
    headers: HeaderMap,
) -> Result<axum::Json<DemoPeople>, Problem> {
    let sent = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .unwrap_or_default();
    let demo = state.demo.as_deref();
    let known = demo.filter(|demo| bool::from(sent.as_bytes().ct_eq(demo.key.expose().as_bytes())));
    let people = known.and_then(|demo| demo.people.get()).ok_or_else(|| {
        let detail = "open the link that `chatelaine demo` printed at its last start";
        Problem::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthenticated, detail)
    })?;
    Ok(axum::Json(people.clone()))
}
