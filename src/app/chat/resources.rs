//! Resources to which tool results of a conversation have linked. The user reads them over the API. The model reads
//! them, and the text files of the user, with a tool that is offered only when there is something to read. Both can
//! read exactly the linked addresses, from the server that named them, and only while the user may use the tool whose
//! result had the link.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{json, value::to_raw_value};

use super::attachments;
use crate::app::{
    App,
    servers::agents,
    tools::{
        gate::reads::{self, ReadContext},
        toolset::{self, Toolset, truncate_text},
    },
};
use domain::{
    error::{Error, Result},
    ids::ConversationId,
    json::Json,
    message::{CallStatus, ToolCall, ToolResult},
    principal::Principal,
    resource::{Content, Link, Resource},
};
use llm::ToolDef;

/// The name of the model's tool. A server's tools are called `<server>__<tool>`, so none of them has it.
pub const TOOL: &str = "read_resource";
/// Characters of an unknown address that an error quotes.
const SHOWN: usize = 200;

/// A resource to which the result of a tool has linked.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ResourceView {
    pub server: String,
    /// The tool whose result had the link.
    pub tool: String,
    pub uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Only where one resource was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<Vec<Content>>,
}

/// Which resource to read. If two servers have linked the same address and no server is named, the last link counts.
#[derive(Clone, Copy, Debug)]
pub struct ResourceSelector<'a> {
    pub uri: &'a str,
    pub server: Option<&'a str>,
}

impl ResourceView {
    fn new(link: Link, contents: Option<Vec<Content>>) -> Self {
        let Link {
            server,
            tool,
            linked,
        } = link;
        Self {
            server,
            tool,
            uri: linked.uri,
            name: linked.name,
            mime_type: linked.mime_type,
            contents,
        }
    }
}

/// Lists the resources to which tool results of a conversation have linked, the newest first.
pub async fn list(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
) -> Result<Vec<ResourceView>> {
    let toolset = select_toolset(app, principal, id).await?;
    let links = links(app, principal, id, None)
        .await?
        .into_iter()
        .filter(|link| may_read(&toolset, link));
    Ok(links.map(|link| ResourceView::new(link, None)).collect())
}

/// Reads one resource of [`list`].
pub async fn read(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
    which: ResourceSelector<'_>,
) -> Result<ResourceView> {
    let toolset = select_toolset(app, principal, id).await?;
    let Some(link) = find(app, principal, &toolset, id, which).await? else {
        return Err(Error::not_found(format!(
            "a tool result of this conversation that links to {:?}",
            quote(&which)
        )));
    };
    let context = ReadContext {
        principal,
        toolset: &toolset,
        run: None,
    };
    let read = fetch(app, &context, &link)
        .await
        .map_err(Error::Unavailable)?;
    Ok(ResourceView::new(link, Some(read.contents)))
}

/// The definition of the model's tool; absent when there is no resource and no text file to read.
pub fn definition(toolset: &Toolset, links: &[Link], has_file: bool) -> Result<Option<ToolDef>> {
    if !has_file && !links.iter().any(|link| may_read(toolset, link)) {
        return Ok(None);
    }
    let schema = json!({
        "type": "object",
        "properties": {
            "uri": { "type": "string", "description": "exactly as the message or the result said it" },
            "server": { "type": "string", "description": "whose it is, if several servers linked to the same uri" },
        },
        "required": ["uri"],
    });
    Ok(Some(ToolDef {
        name: TOOL.to_owned(),
        description: "Reads a file that the user has attached, or a resource that a tool result of this conversation \
                      linked to. No other uri can be read."
            .to_owned(),
        schema: to_raw_value(&schema).map_err(Error::internal)?.into(),
    }))
}

/// Answers a call of the model's tool.
pub async fn call(
    app: &Arc<App>,
    context: &ReadContext<'_>,
    id: ConversationId,
    call: &ToolCall,
) -> Result<ToolResult> {
    let result = |status, text: String| ToolResult::new(&call.call_id, status, text);
    let arguments = call.arguments();
    let Some(uri) = arguments.get("uri").and_then(Json::as_text) else {
        return Ok(result(
            CallStatus::Denied,
            format!("not read: {TOOL} needs the argument `uri`"),
        ));
    };
    match attachments::read(app, context.principal, id, uri).await? {
        Some(Ok(text)) => return Ok(result(CallStatus::Succeeded, text)),
        Some(Err(why)) => return Ok(result(CallStatus::Denied, why)),
        None => {}
    }
    let which = ResourceSelector {
        uri,
        server: arguments.get("server").and_then(Json::as_text),
    };
    let Some(link) = find(app, context.principal, context.toolset, id, which).await? else {
        let text = format!(
            "not read: no tool result of this conversation links to {:?}",
            quote(&which)
        );
        return Ok(result(CallStatus::Denied, text));
    };
    Ok(match fetch(app, context, &link).await {
        Ok(read) => result(CallStatus::Succeeded, read.text.replace('\0', "\u{fffd}")),
        Err(reason) => result(CallStatus::Failed, format!("failed: {reason}")),
    })
}

async fn fetch(app: &Arc<App>, context: &ReadContext<'_>, link: &Link) -> Result<Resource, String> {
    let gone = || format!("the server {} is not there any more", link.server);
    let (spec, _) = context
        .toolset
        .by_pair(&link.server, &link.tool)
        .ok_or_else(gone)?;
    reads::resource(app, context, spec, &link.tool, &link.linked.uri).await
}

async fn find(
    app: &App,
    principal: &Principal,
    toolset: &Toolset,
    id: ConversationId,
    which: ResourceSelector<'_>,
) -> Result<Option<Link>> {
    if which.uri.contains('\0') {
        return Ok(None);
    }
    let mut links = links(app, principal, id, Some(which.uri))
        .await?
        .into_iter();
    Ok(links.find(|link| {
        which.server.is_none_or(|server| server == link.server) && may_read(toolset, link)
    }))
}

/// Whether the user may still use the tool whose result had the link, by the same decision as for calls.
fn may_read(toolset: &Toolset, link: &Link) -> bool {
    toolset.by_pair(&link.server, &link.tool).is_some()
}

async fn links(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    uri: Option<&str>,
) -> Result<Vec<Link>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::resources::list(&mut tx, id, uri).await
}

/// The toolset of the principal for the agent of their conversation.
async fn select_toolset(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
) -> Result<Arc<Toolset>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    drop(tx);
    let pack = agents::pack(app, principal, conversation.agent.as_str()).await?;
    toolset::select(app, principal, &pack).await
}

/// The address in an error, cut when it is long.
fn quote(which: &ResourceSelector<'_>) -> String {
    truncate_text(which.uri, SHOWN)
}
