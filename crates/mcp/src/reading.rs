//! Read-only requests to a server, and the reading of resources. They change nothing on the server, so a request whose
//! answer was lost is sent once more.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{CallError, Key, Mcp, error::Failure, outcome, pool::Pool, request::Request};
use domain::{
    jsonrpc::object,
    resource::{Content, Resource},
    server::ServerSpec,
};

impl Mcp {
    /// Sends a read-only request over the connection of a key. The server's request timeout covers everything, connecting
    /// included.
    pub(super) async fn read(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        request: &Request<'_>,
    ) -> Result<Box<RawValue>, CallError> {
        let time_limit = spec.timeouts.request;
        let read = timeout(time_limit, self.read_untimed(key, spec, request)).await;
        read.unwrap_or(Err(CallError::TimedOut(time_limit)))
    }

    async fn read_untimed(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        request: &Request<'_>,
    ) -> Result<Box<RawValue>, CallError> {
        let using = self.pool.claim(key, spec);
        let known = using.slot.target.known.clone();
        let _slot = known.call_slots.acquire(None).await;
        let mut tries = 2;
        loop {
            tries -= 1;
            let session = self.pool.session(&using.slot).await?;
            match session.read(request).await {
                Ok(raw) => {
                    using.slot.mark_credential_good();
                    return Ok(raw);
                }
                Err(failure) => {
                    Pool::renew(&using.slot, &session, failure, tries > 0)
                        .map_err(Failure::into_call_error)?;
                }
            }
        }
    }
}

/// The most bytes of a resource.
const MAX_RESOURCE: usize = 4 * 1024 * 1024;
/// The most parts of a resource.
const MAX_PARTS: usize = 100;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    #[serde(borrow, default)]
    contents: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

impl Mcp {
    /// Reads a resource (`resources/read`) at an address that the server itself has named.
    pub async fn read_resource(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        uri: &str,
    ) -> Result<Resource, CallError> {
        let raw = self.read(key, spec, &Request::Resource { uri }).await?;
        parse_resource(&raw).map_err(Failure::into_call_error)
    }
}

fn parse_resource(raw: &RawValue) -> Result<Resource, Failure> {
    let refused = |message: String| Failure::Refused {
        code: None,
        message,
    };
    if raw.get().len() > MAX_RESOURCE {
        return Err(refused(format!(
            "the resource has more than {MAX_RESOURCE} bytes, which are too many to hand on"
        )));
    }
    let unreadable = |_| {
        refused("the resource cannot be read: its answer is not what the protocol says".to_owned())
    };
    let outcome: Outcome = object(raw.get()).map_err(unreadable)?;
    if let Some(kind) = outcome.result_type.filter(|kind| kind != "complete") {
        return Err(refused(format!(
            "the server answered with {kind:?}, which a resource cannot be read with here"
        )));
    }
    if outcome.contents.len() > MAX_PARTS {
        return Err(refused(format!(
            "the resource has more than {MAX_PARTS} parts"
        )));
    }
    let contents = outcome
        .contents
        .iter()
        .map(|part| object(part.get()))
        .collect::<Result<Vec<Content>, _>>();
    let contents = contents.map_err(unreadable)?;
    let texts = outcome
        .contents
        .iter()
        .map(|part| outcome::resource_text(part));
    let text = outcome::cut(texts.collect::<Vec<_>>().join("\n"), outcome::MAX_TEXT);
    Ok(Resource { contents, text })
}
