//! `tools/list`, `prompts/list`, `prompts/get` and completion. Lists come from memory, and the JSON of each tool is
//! written once. Prompts have names like those of tools.

use std::{borrow::Cow, fmt::Write as _};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::{
    Client, RpcRequest,
    call::with_result_type,
    message::{self, Failure, RpcError},
    revision::TTL_MS,
};
use crate::app::tools::toolset::NamedTool;
use domain::{
    prompt::{PromptArgument, ServerPrompt},
    server::{Lifecycle, ServerSpec},
};

/// The number of tools on a page.
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

/// The server of a tool or prompt, and the name there.
#[derive(Serialize)]
pub(super) struct Origin<'a> {
    #[serde(rename = "chatelaine/server")]
    pub server: &'a str,
    /// The name at the server.
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
        let after = page.cursor.as_deref().map(read_cursor).transpose()?;
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
        end_list(&mut json, request.lifecycle);
        Ok(json)
    }

    fn tool_json<'t>(&self, spec: &ServerSpec, named: &'t NamedTool) -> &'t str {
        let own = self.tools.uses_own_name(named);
        named.json(own, || {
            let tool = named.shown_tool();
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

/// Ends the JSON of a list. From 2026-07-28 on it says how long and by whom the list may be cached.
pub(super) fn end_list(json: &mut String, lifecycle: Lifecycle) {
    if lifecycle == Lifecycle::Stateless {
        json.push_str(&format!(
            r#","ttlMs":{TTL_MS},"cacheScope":"private","resultType":"complete""#
        ));
    }
    json.push('}');
}

/// Reads a cursor: the model's name of the last tool before the page.
fn read_cursor(cursor: &str) -> Result<String, RpcError> {
    let decoded = URL_SAFE_NO_PAD.decode(cursor).ok();
    let name = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    name.ok_or_else(|| RpcError::invalid_params("the cursor is none of ours"))
}

#[derive(Serialize)]
struct PromptJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    arguments: &'a [PromptArgument],
    #[serde(rename = "_meta")]
    meta: Origin<'a>,
}

#[derive(Deserialize)]
struct GetParams {
    name: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct CompleteParams {
    r#ref: CompleteRef,
    argument: Argument,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum CompleteRef {
    #[serde(rename = "ref/prompt")]
    Prompt { name: String },
    #[serde(rename = "ref/resource")]
    Resource,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    value: String,
}

impl Client {
    /// Completes an argument of a prompt with values from the prompt's server.
    pub(super) async fn complete(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let params: CompleteParams = message::params(request.params)?;
        let CompleteRef::Prompt { name } = params.r#ref else {
            return Err(RpcError::invalid_params("there are no resource templates here").into());
        };
        let (app, principal) = (&self.state.app, &self.principal);
        let (argument, value) = (&params.argument.name, &params.argument.value);
        let values = self.tools.complete(app, principal, &name, argument, value);
        let values = values.await.map_err(RpcError::invalid_params)?;
        let none = || r#"{"completion":{"values":[],"hasMore":false}}"#.to_owned();
        let values = values.map_or_else(none, |raw| String::from(Box::<str>::from(raw)));
        Ok(with_result_type(values, request.lifecycle))
    }

    /// Lists all prompts on one page: a catalog has few of them.
    pub(super) fn list_prompts(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let page: Page = message::params(request.params)?;
        if page.cursor.is_some() {
            return Err(RpcError::invalid_params("the list has one page").into());
        }
        let mut json = String::from(r#"{"prompts":["#);
        let prompts = self.tools.toolset.named_prompts(self.tools.own_names);
        for (at, (name, spec, prompt)) in prompts.iter().enumerate() {
            let ServerPrompt {
                title,
                description,
                arguments,
                ..
            } = &***prompt;
            let prompt = PromptJson {
                name,
                title: title.as_deref(),
                description,
                arguments,
                meta: Origin {
                    server: spec.id.as_str(),
                    name: &prompt.name,
                },
            };
            let comma = if at > 0 { "," } else { "" };
            let text = serde_json::to_string(&prompt).expect("a prompt is plain JSON");
            let _ = write!(json, "{comma}{text}");
        }
        json.push(']');
        end_list(&mut json, request.lifecycle);
        Ok(json)
    }

    pub(super) async fn get_prompt(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let params: GetParams = message::params(request.params)?;
        let arguments = params.arguments.unwrap_or_default();
        let (app, principal) = (&self.state.app, &self.principal);
        let got = self.tools.prompt(app, principal, &params.name, &arguments);
        let raw = got.await.map_err(RpcError::invalid_params)?;
        let raw = String::from(Box::<str>::from(raw));
        Ok(with_result_type(raw, request.lifecycle))
    }
}
