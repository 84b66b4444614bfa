//! `resources/read`: reads the resource at an address that the server itself has named.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CallError, Key, Mcp, error::Failure, interceptor::object, outcome, reading::Reading};
use domain::{
    resource::{Content, Resource},
    server::ServerSpec,
};

/// Bytes of one answer, and parts of it.
const BYTES: usize = 4 * 1024 * 1024;
const PARTS: usize = 100;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    #[serde(borrow, default)]
    contents: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

impl Mcp {
    /// Reads a resource. Nothing is changed by reading, so it is asked for once more when the connection was lost
    /// before an answer.
    pub async fn resource(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        uri: &str,
    ) -> Result<Resource, CallError> {
        let raw = self.read(key, spec, &Reading::Resource { uri }).await?;
        read(&raw).map_err(Failure::of_call)
    }
}

fn read(raw: &RawValue) -> Result<Resource, Failure> {
    let refused = |message: String| Failure::Refused {
        code: None,
        message,
    };
    if raw.get().len() > BYTES {
        return Err(refused(format!(
            "the resource has more than {BYTES} bytes, which are too many to hand on"
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
    if outcome.contents.len() > PARTS {
        return Err(refused(format!("the resource has more than {PARTS} parts")));
    }
    let contents = outcome
        .contents
        .iter()
        .map(|part| object(part.get()))
        .collect::<Result<Vec<Content>, _>>();
    let contents = contents.map_err(unreadable)?;
    let words = outcome
        .contents
        .iter()
        .map(|part| outcome::resource_text(part));
    let text = outcome::cut(words.collect::<Vec<_>>().join("\n"), outcome::MAX_TEXT);
    Ok(Resource { contents, text })
}
