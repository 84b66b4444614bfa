//! Read-only requests to a server. They change nothing there, so a request whose answer was lost is sent once
//! more.

use std::sync::Arc;

use rmcp::model::{
    ArgumentInfo, ClientRequest, CompleteRequest, CompleteRequestParams, GetPromptRequest,
    GetPromptRequestParams, ListPromptsRequest, ListToolsRequest, PaginatedRequestParams,
    ReadResourceRequest, ReadResourceRequestParams, Reference,
};
use serde_json::{Map, Value, value::RawValue};
use tokio::time::timeout;

use super::{CallError, Key, Mcp, error::Failure};
use domain::server::ServerSpec;

/// One such question.
pub(super) enum Reading<'a> {
    /// One page of `tools/list`.
    Tools {
        cursor: Option<String>,
    },
    /// One page of `prompts/list`.
    Prompts {
        cursor: Option<String>,
    },
    Prompt {
        name: &'a str,
        arguments: &'a Map<String, Value>,
    },
    Resource {
        uri: &'a str,
    },
    /// Values that an argument of a prompt may have.
    Completion {
        prompt: &'a str,
        argument: &'a str,
        value: &'a str,
    },
}

impl Reading<'_> {
    pub(super) fn request(&self) -> ClientRequest {
        let page =
            |cursor: &Option<String>| PaginatedRequestParams::default().with_cursor(cursor.clone());
        match self {
            Self::Tools { cursor } => {
                ClientRequest::ListToolsRequest(ListToolsRequest::with_param(page(cursor)))
            }
            Self::Prompts { cursor } => {
                ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(page(cursor)))
            }
            Self::Prompt { name, arguments } => {
                let params =
                    GetPromptRequestParams::new(*name).with_arguments((*arguments).clone());
                ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
            }
            Self::Resource { uri } => ClientRequest::ReadResourceRequest(ReadResourceRequest::new(
                ReadResourceRequestParams::new(*uri),
            )),
            Self::Completion {
                prompt,
                argument,
                value,
            } => ClientRequest::CompleteRequest(CompleteRequest::new(CompleteRequestParams::new(
                Reference::for_prompt(*prompt),
                ArgumentInfo::new(*argument, *value),
            ))),
        }
    }
}

impl Mcp {
    /// Asks over the connection of a key. The server's request timeout covers everything.
    pub(super) async fn read(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        what: &Reading<'_>,
    ) -> Result<Box<RawValue>, CallError> {
        let time_limit = spec.timeouts.request;
        let read = timeout(time_limit, self.try_to_read(key, spec, what)).await;
        read.unwrap_or(Err(CallError::TimedOut(time_limit)))
    }

    async fn try_to_read(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        what: &Reading<'_>,
    ) -> Result<Box<RawValue>, CallError> {
        let using = self.pool.claim(key, spec);
        let known = using.slot.target.known.clone();
        let _slot = known.call_slots.acquire(None).await;
        let mut tries = 2;
        loop {
            tries -= 1;
            let session = self.pool.session(&using.slot).await?;
            match session.read(what).await {
                Ok(raw) => {
                    using.slot.prove();
                    return Ok(raw);
                }
                Err(failure) => {
                    let renewed = self.pool.renew(&using.slot, &session, failure, tries > 0);
                    renewed.await.map_err(Failure::of_call)?;
                }
            }
        }
    }
}
