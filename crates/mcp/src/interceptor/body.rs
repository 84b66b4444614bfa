//! The bytes of the messages that we send.

use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, ClientCapabilities, ClientJsonRpcMessage,
    ClientRequest, ElicitationCapability, FormElicitationCapability, GetMeta, JsonRpcVersion2_0,
    RequestId, RequestMetaObject, UrlElicitationCapability,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::PendingRequest;

/// That users can be asked, by a form and by a link.
pub(crate) fn can_elicit() -> ClientCapabilities {
    let elicitation = ElicitationCapability::new()
        .with_form(FormElicitationCapability::new())
        .with_url(UrlElicitationCapability::new());
    let mut capabilities = ClientCapabilities::default();
    capabilities.elicitation = Some(elicitation);
    capabilities
}

/// A tool call whose arguments are sent as they are: rmcp would read them into a map, which changes how numbers are
/// spelt.
#[derive(Serialize)]
struct RawCall<'a> {
    jsonrpc: &'a JsonRpcVersion2_0,
    id: &'a RequestId,
    method: &'a CallToolRequestMethod,
    params: RawCallParams<'a>,
}

#[derive(Serialize)]
struct RawCallParams<'a> {
    #[serde(flatten)]
    params: &'a CallToolRequestParams,
    arguments: &'a RawValue,
    #[serde(rename = "_meta")]
    meta: &'a RequestMetaObject,
}

/// The bytes of a message. The arguments of a call stand in it as they were given.
pub(crate) fn body_of(
    message: &ClientJsonRpcMessage,
    pending: Option<&PendingRequest>,
) -> Result<String, serde_json::Error> {
    let ClientJsonRpcMessage::Request(envelope) = message else {
        return serde_json::to_string(message);
    };
    let arguments = pending.and_then(|pending| pending.arguments.as_deref());
    match (&envelope.request, arguments) {
        (ClientRequest::CallToolRequest(call), Some(arguments)) => {
            serde_json::to_string(&RawCall {
                jsonrpc: &envelope.jsonrpc,
                id: &envelope.id,
                method: &call.method,
                params: RawCallParams {
                    params: &call.params,
                    arguments,
                    meta: envelope.request.get_meta(),
                },
            })
        }
        // The older revisions say once, for all calls of a connection, that users can be asked. What comes in the
        // course of a call whose user cannot be asked is declined. The newer revision says it with each call, so
        // that the handler's own capabilities are none.
        (ClientRequest::InitializeRequest(initialize), _) => {
            let mut initialize = initialize.clone();
            initialize.params.capabilities = can_elicit();
            let request = ClientRequest::InitializeRequest(initialize);
            serde_json::to_string(&ClientJsonRpcMessage::request(request, envelope.id.clone()))
        }
        _ => serde_json::to_string(message),
    }
}
