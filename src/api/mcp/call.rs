//! `tools/call`: one call through the gate. The server's result is passed on as it came. A client that gave a progress
//! token and takes an event stream hears of progress before the answer.

mod result;

use axum::response::{Response, sse::Event};
use futures_util::{FutureExt, Stream, future::BoxFuture, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use self::result::of_result;
pub(super) use self::result::{of_consent, with_result_type};
use super::{
    Client, RpcRequest,
    era::{self, Era},
    json_response,
    message::{self, Failure, RpcError},
    tasks,
};
use crate::{
    api::{events, limits::WaitingCall},
    app::{
        chat::flows,
        tools::client_tools::{
            OpenCall, Progress, ProgressReports, ProgressSender, ToolAnswer, ToolRequest,
            Unavailable, progress_channel,
        },
    },
};

#[derive(Deserialize)]
struct CallParams<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// A call that owns what it needs, so that it can go on while its answer is streamed.
struct OwnedCall {
    client: Client,
    id: Box<RawValue>,
    name: String,
    arguments: String,
    era: Era,
    takes_tasks: bool,
    open: OpenCall,
    _waiting: WaitingCall,
}

impl Client {
    /// A call with its response, which may be a stream.
    pub(super) async fn call(&self, request: &RpcRequest<'_>) -> Result<Response, Failure> {
        let token = request.meta.progress.filter(|_| request.streams);
        let call = self.owned_call(request)?;
        let Some(token) = token else {
            let (progress, _) = progress_channel();
            let result = call.run(progress).await?;
            let answer = message::result_json(request.id, &result);
            return Ok(json_response(StatusCode::OK, answer));
        };
        let (progress, reports) = progress_channel();
        let token = token.to_owned();
        let id = call.id.clone();
        let work = async move {
            match call.run(progress).await {
                Ok(result) => Some(message::result_json(&id, &result)),
                Err(Failure::Cancelled) => None,
                Err(failure) => Some(failure.into_rpc().json(Some(&id))),
            }
        };
        Ok(events::answer(progress_then_answer(
            work.boxed(),
            reports,
            token,
        )))
    }

    /// From 2026-07-28 on, headers repeat the arguments that a tool marks: whoever forwards the request looks only at
    /// them, and they must say what the body says.
    pub(super) fn check_params(
        &self,
        headers: &HeaderMap,
        request: &RpcRequest<'_>,
    ) -> Result<(), Failure> {
        if !request.era.is_modern() {
            return Ok(());
        }
        let params: CallParams = message::params(request.params)?;
        let arguments = params.arguments.map_or("{}", RawValue::get);
        let app = &self.state.app;
        for expected in self.tools.param_headers(app, &params.name, arguments) {
            era::check_param(headers, &expected)?;
        }
        Ok(())
    }

    /// The result of a call that is one of a batch.
    pub(super) async fn call_at_once(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let (progress, _) = progress_channel();
        self.owned_call(request)?.run(progress).await
    }

    /// Why a tool is not there. A personal server is connected by the link.
    async fn of_unavailable(&self, unavailable: Unavailable) -> Result<RpcError, Failure> {
        let Some(server) = unavailable.server else {
            return Ok(RpcError::invalid_params(unavailable.text));
        };
        let (app, pack) = (&self.state.app, &self.tools.pack);
        let link = flows::link(app, &self.principal, pack, &server).await?;
        let Some(link) = link else {
            return Ok(RpcError::invalid_params(unavailable.text));
        };
        let text = format!(
            "not executed: {server} is not connected. Give the user this link, on which they enter what {server} needs: \
             {link} Then they name the code of that page in their conversation {:?} with this agent.",
            flows::LINKS_TITLE
        );
        let data = json!({ "notConnected": server, "link": link });
        Ok(RpcError::invalid_params(text).with_data(data))
    }

    fn owned_call(&self, request: &RpcRequest<'_>) -> Result<OwnedCall, Failure> {
        let params: CallParams = message::params(request.params)?;
        let arguments = params.arguments.map_or("{}", RawValue::get).to_owned();
        let waiting = self.state.limits.begin_call(&self.principal)?;
        let agent = self.tools.toolbox.agent();
        let open = OpenCall::begin(&self.state.app, &self.principal, agent, request.id.get());
        // A slow server holds no place that others need.
        self.place.release();
        Ok(OwnedCall {
            client: self.clone(),
            id: request.id.to_owned(),
            name: params.name,
            arguments,
            era: request.era,
            takes_tasks: request.meta.has_extension(tasks::EXTENSION),
            open,
            _waiting: waiting,
        })
    }
}

impl OwnedCall {
    async fn run(self, progress: ProgressSender) -> Result<String, Failure> {
        let Client {
            state,
            principal,
            tools,
            ..
        } = &self.client;
        let request = ToolRequest {
            name: &self.name,
            arguments: &self.arguments,
            progress,
            cancel: self.open.cancel.clone(),
        };
        let answer = tools.call(&state.app, principal, request).await;
        if self.open.cancel.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        let result = match answer? {
            ToolAnswer::Result(result) => of_result(result),
            ToolAnswer::Consent(call) if self.takes_tasks && call.is_open() => {
                return Ok(tasks::created(&call.view));
            }
            ToolAnswer::Consent(call) => of_consent(*call),
            ToolAnswer::Unavailable(unavailable) => {
                return Err(self.client.of_unavailable(unavailable).await?.into());
            }
        };
        Ok(with_result_type(result, self.era))
    }
}

/// Reports in the server's order, and the answer after them, if the client still wants one. Dropped, the call is given up.
fn progress_then_answer(
    work: BoxFuture<'static, Option<String>>,
    reports: ProgressReports,
    token: Box<RawValue>,
) -> impl Stream<Item = Event> {
    stream::unfold(Some((work, reports, token)), |state| async move {
        let (mut work, mut reports, token) = state?;
        tokio::select! {
            biased;
            Some(report) = reports.next() => {
                let event = message_event(&progress_json(&report, &token));
                Some((event, Some((work, reports, token))))
            }
            answer = &mut work => answer.map(|answer| (message_event(&answer), None)),
        }
    })
}

/// One message of an event stream.
pub(super) fn message_event(json: &str) -> Event {
    // Between two tokens of JSON a carriage return is a blank; in an event it would end a line.
    Event::default()
        .event("message")
        .data(json.replace('\r', " "))
}

fn progress_json(report: &Progress, token: &RawValue) -> String {
    let mut params = json!({ "progress": report.progress });
    if let Some(total) = report.total {
        params["total"] = total.into();
    }
    if let Some(message) = &report.message {
        params["message"] = message.as_str().into();
    }
    params["progressToken"] = serde_json::from_str(token.get()).unwrap_or(Value::Null);
    message::notification_json("notifications/progress", &params)
}
