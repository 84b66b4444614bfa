//! `tools/list`: from memory, each tool written once.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Client, RpcRequest,
    era::{Era, TTL_MS},
    message::{self, Failure, RpcError},
};
use crate::{app::tools::toolset::NamedTool, domain::server::ServerSpec};

/// Tools of one page.
const PAGE: usize = 250;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    #[serde(rename = "_meta")]
    meta: Origin<'a>,
}

/// Which tool of which server it is.
#[derive(Serialize)]
pub(super) struct Origin<'a> {
    #[serde(rename = "chatelaine/server")]
    pub server: &'a str,
    /// The server's own name.
    #[serde(rename = "chatelaine/name")]
    pub name: &'a str,
}

#[derive(Deserialize)]
pub(super) struct Page<'a> {
    #[serde(borrow, default)]
    pub cursor: Option<Cow<'a, str>>,
}

impl Client {
    pub(super) fn list_tools(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let page: Page = message::params(request.params)?;
        let after = page.cursor.as_deref().map(name_of).transpose()?;
        let mut tools = self.tools.iter(&self.state.app);
        if let Some(after) = after
            && !tools.any(|(_, named)| named.name == after)
        {
            let why = "the cursor is of a list that has changed; list from the start";
            return Err(RpcError::invalid_params(why).into());
        }
        let mut json = String::with_capacity(16 * 1024);
        json.push_str(r#"{"tools":["#);
        let (mut count, mut last) = (0, "");
        let mut next = tools.next();
        while let Some((spec, named)) = next.filter(|_| count < PAGE) {
            if count > 0 {
                json.push(',');
            }
            json.push_str(self.tool_json(spec, named));
            (count, last) = (count + 1, &named.name);
            next = tools.next();
        }
        json.push(']');
        if next.is_some() {
            json.push_str(&format!(
                r#","nextCursor":"{}""#,
                URL_SAFE_NO_PAD.encode(last)
            ));
        }
        end_list(&mut json, request.era);
        Ok(json)
    }

    fn tool_json<'t>(&self, spec: &ServerSpec, named: &'t NamedTool) -> &'t str {
        let own = self.tools.uses_own_name(named);
        named.json(own, || {
            let tool = &named.tool;
            let json = ToolJson {
                name: self.tools.name(named),
                title: tool.title.as_deref(),
                description: &tool.description,
                input_schema: &tool.input_schema,
                output_schema: tool.output_schema.as_deref(),
                annotations: tool.annotations.as_deref(),
                meta: Origin {
                    server: spec.id.as_str(),
                    name: &tool.name,
                },
            };
            serde_json::to_string(&json).expect("a tool is plain JSON")
        })
    }
}

/// Writes the end of a list: how long it may be kept, and by whom, from 2026-07-28 on.
pub(super) fn end_list(json: &mut String, era: Era) {
    if era.is_modern() {
        json.push_str(&format!(
            r#","ttlMs":{TTL_MS},"cacheScope":"private","resultType":"complete""#
        ));
    }
    json.push('}');
}

/// The model's name of the last tool before a page.
fn name_of(cursor: &str) -> Result<String, RpcError> {
    let decoded = URL_SAFE_NO_PAD.decode(cursor).ok();
    let name = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    name.ok_or_else(|| RpcError::invalid_params("the cursor is none of ours"))
}
