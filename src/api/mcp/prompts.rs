//! Prompts of servers, under names as those of tools.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Client, RpcRequest,
    call::with_result_type,
    message::{self, Failure, RpcError},
    tools::{Origin, Page, end_list},
};
use crate::domain::prompt::{PromptArgument, ServerPrompt};

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
    /// Values for an argument of a prompt, from the prompt's server.
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
        Ok(with_result_type(values, request.era))
    }

    /// All prompts on one page: catalogs keep few of them.
    pub(super) fn list_prompts(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let page: Page = message::params(request.params)?;
        if page.cursor.is_some() {
            return Err(RpcError::invalid_params("the list has one page").into());
        }
        let mut json = String::from(r#"{"prompts":["#);
        let prompts = self.tools.toolbox.named_prompts(self.tools.own_names);
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
        end_list(&mut json, request.era);
        Ok(json)
    }

    pub(super) async fn prompt(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let params: GetParams = message::params(request.params)?;
        let arguments = params.arguments.unwrap_or_default();
        let (app, principal) = (&self.state.app, &self.principal);
        let got = self.tools.prompt(app, principal, &params.name, &arguments);
        let raw = got.await.map_err(RpcError::invalid_params)?;
        let raw = String::from(Box::<str>::from(raw));
        Ok(with_result_type(raw, request.era))
    }
}
