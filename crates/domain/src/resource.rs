//! Resources that a tool's result links to. A link is an address of the server's own. Its content is read
//! from that server only, and only because a result linked to it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Links that one result may bring; more are left out.
const MAX_RESOURCES: usize = 64;
/// Bytes of an address, and characters of what is said about it.
const URI: usize = 2000;
const LABEL: usize = 256;

/// What a result says of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLink {
    pub uri: String,
    pub name: Option<String>,
    pub mime_type: Option<String>,
}

/// A link of a conversation: whose it is, and whose result it was in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub server: String,
    pub tool: String,
    pub linked: ResourceLink,
}

/// What was read: text, or bytes in Base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Content {
    pub uri: String,
    #[serde(default, alias = "mimeType", skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
}

/// A resource that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub contents: Vec<Content>,
    /// What a model reads of it: text, cut with a mark; what is no text is named and measured.
    pub text: String,
}

/// The resources that a tool's result links to or holds, in its order.
pub fn links_in(result: &RawValue) -> Vec<ResourceLink> {
    #[derive(Deserialize)]
    struct Outcome<'a> {
        #[serde(borrow, default)]
        content: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Block<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(default)]
        uri: Option<String>,
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        mime_type: Option<String>,
        #[serde(borrow, default)]
        resource: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Embedded {
        uri: String,
        #[serde(default)]
        mime_type: Option<String>,
    }
    // Most results have none, and may be long.
    if !result.get().contains("resource") {
        return Vec::new();
    }
    let Ok(outcome) = serde_json::from_str::<Outcome>(result.get()) else {
        return Vec::new();
    };
    let blocks = outcome
        .content
        .into_iter()
        .filter_map(|raw| serde_json::from_str::<Block>(raw.get()).ok());
    let linked = blocks.filter_map(|block| match block.kind.as_ref() {
        "resource_link" => Some(ResourceLink {
            uri: block.uri?,
            name: block.name,
            mime_type: block.mime_type,
        }),
        "resource" => {
            let Embedded { uri, mime_type } = serde_json::from_str(block.resource?.get()).ok()?;
            Some(ResourceLink {
                uri,
                name: None,
                mime_type,
            })
        }
        _ => None,
    });
    let usable = linked.filter(|link| {
        let uri = &link.uri;
        !uri.is_empty() && uri.len() <= URI && !uri.chars().any(char::is_control)
    });
    usable.take(MAX_RESOURCES).map(labelled).collect()
}

/// With labels that can be shown and stored.
fn labelled(link: ResourceLink) -> ResourceLink {
    let label = |text: String| {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(LABEL)
            .collect::<String>()
    };
    ResourceLink {
        name: link.name.map(label),
        mime_type: link.mime_type.map(label),
        ..link
    }
}
