//! `tools/call`: one call through the gate. The server's result is passed on unchanged. A client that gave a progress
//! token and accepts an event stream receives progress before the answer.
//!
//! A call that waits for consent is answered with a text that says so, or with a task if the client has the extension
//! `io.modelcontextprotocol/tasks` (2026-07-28). The id of a task is the id of its approval request.
//!
//! A call that its user has to confirm is answered with a question for them, if the client can ask (2026-07-28). The client
//! makes the call again with their answer. Only the request that was asked about is decided so: one for the same arguments.

use axum::response::{Response, sse::Event};
use futures_util::{FutureExt, Stream, future::BoxFuture, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use time::format_description::well_known::Rfc3339;
use tracing::Instrument as _;

use super::{
    Client, RpcRequest, json_response,
    message::{self, Failure, RpcError},
    revision,
};
use crate::{
    api::{events, limits::WaitingCall},
    app::{
        chat::flows,
        tools::{
            approvals::{
                self,
                client_calls::{self, ClientCall, KEPT},
                needs_text, time_of,
                view::ApprovalView,
            },
            client_tools::{
                OpenCall, Progress, ProgressReports, ProgressSender, ToolAnswer, ToolRequest,
                Unavailable, progress_channel,
            },
        },
    },
};
use domain::{
    approval::{Choice, Kind, State},
    canonical,
    error::Error,
    ids::ApprovalId,
    jsonrpc,
    message::{CallStatus, ToolResult},
    server::Lifecycle,
    texts::{self, Key},
};

#[derive(Deserialize)]
struct CallParams<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    /// What the user has answered, by the names of the questions.
    #[serde(borrow, default, rename = "inputResponses")]
    responses: Option<&'a RawValue>,
    /// What the question said of itself: the id of the request.
    #[serde(default, rename = "requestState")]
    state: Option<String>,
}

/// The user's answer to the question whether a call is to be made.
struct ConfirmationResponse {
    request: ApprovalId,
    answer: FormAnswer,
}

/// What a form says that a client brings back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FormAnswer {
    Decided(Choice),
    /// The user has closed it.
    Closed,
    /// It was sent without saying yes or no, or with more than that.
    Unclear,
}

impl CallParams<'_> {
    /// Reads the user's answer, if the call brings one.
    fn confirmation(&self) -> Option<ConfirmationResponse> {
        let answer = FormAnswer::read(self.responses?.get())?;
        let request = self.state.as_ref()?.parse().ok()?;
        Some(ConfirmationResponse { request, answer })
    }
}

impl FormAnswer {
    /// Reads the answers to the one form that was sent, `confirm`; `None` where it is not among them.
    fn read(responses: &str) -> Option<Self> {
        if canonical::ambiguity(responses).is_some() {
            return Some(Self::Unclear);
        }
        let responses = serde_json::from_str(responses).unwrap_or_default();
        let Value::Object(responses) = responses else {
            return Some(Self::Unclear);
        };
        let given = responses.get("confirm")?;
        let is_known = |name: &String| ["action", "content", "_meta"].contains(&name.as_str());
        let is_one = given.as_object().is_some_and(|it| it.keys().all(is_known));
        if responses.len() > 1 || !is_one {
            return Some(Self::Unclear);
        }
        let content = match given.get("content") {
            None => None,
            Some(content) => {
                let members = content.as_object().filter(|members| members.len() == 1);
                Some(members.and_then(|members| members.get("confirm")?.as_bool()))
            }
        };
        Some(match (given["action"].as_str(), content) {
            (Some("accept"), Some(Some(true))) => Self::Decided(Choice::Approve),
            (Some("decline"), Some(Some(true))) => Self::Unclear,
            (Some("accept"), Some(Some(false))) | (Some("decline"), _) => {
                Self::Decided(Choice::Reject)
            }
            (Some("cancel"), _) => Self::Closed,
            _ => Self::Unclear,
        })
    }
}

/// A call that owns what it needs, so that it can go on while its answer is streamed.
struct OwnedCall {
    client: Client,
    id: Box<RawValue>,
    name: String,
    arguments: String,
    lifecycle: Lifecycle,
    takes_tasks: bool,
    can_ask_user: bool,
    confirmation: Option<ConfirmationResponse>,
    open: OpenCall,
    _waiting: WaitingCall,
}

impl Client {
    /// Makes a call and answers it, perhaps with a stream.
    pub(super) async fn call(&self, request: &RpcRequest<'_>) -> Result<Response, Failure> {
        let token = request.meta.progress.filter(|_| request.accepts_stream);
        let call = self.begin_call(request)?;
        let Some(token) = token else {
            let (progress, _) = progress_channel();
            let result = call.run(progress).await?;
            let answer = jsonrpc::write_result(request.id, &result);
            return Ok(json_response(StatusCode::OK, answer));
        };
        let (progress, reports) = progress_channel();
        let token = token.to_owned();
        let id = call.id.clone();
        let work = async move {
            match call.run(progress).await {
                Ok(result) => Some(jsonrpc::write_result(&id, &result)),
                Err(Failure::Cancelled) => None,
                Err(failure) => Some(failure.into_rpc().json(Some(&id))),
            }
        };
        Ok(events::answer(progress_then_answer(
            work.in_current_span().boxed(),
            reports,
            token,
        )))
    }

    /// Checks the headers that repeat arguments (2026-07-28): a proxy reads only the headers, so they must agree with
    /// the body. A tool's schema marks the arguments that are repeated.
    pub(super) fn check_param_headers(
        &self,
        headers: &HeaderMap,
        request: &RpcRequest<'_>,
    ) -> Result<(), Failure> {
        if request.lifecycle == Lifecycle::Handshake {
            return Ok(());
        }
        let params: CallParams = message::params(request.params)?;
        let arguments = params.arguments.map_or("{}", RawValue::get);
        let app = &self.state.app;
        for expected in self.tools.param_headers(app, &params.name, arguments) {
            revision::check_param(headers, &expected)?;
        }
        Ok(())
    }

    /// Makes a call of a batch. Returns its result.
    pub(super) async fn call_at_once(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let (progress, _) = progress_channel();
        self.begin_call(request)?.run(progress).await
    }

    /// The error for a tool that is not available. For a personal server that is not connected it has a link on which
    /// the user connects it.
    async fn unavailable_error(&self, unavailable: Unavailable) -> Result<RpcError, Failure> {
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

    fn begin_call(&self, request: &RpcRequest<'_>) -> Result<OwnedCall, Failure> {
        let params: CallParams = message::params(request.params)?;
        let arguments = params.arguments.map_or("{}", RawValue::get).to_owned();
        // A client that shows no questions has no answer to one.
        let can_ask_user = request.meta.can_ask_user();
        let confirmation = params.confirmation().filter(|_| can_ask_user);
        let waiting = self.state.limits.begin_call(&self.principal)?;
        let agent = self.tools.toolset.agent();
        let open = OpenCall::begin(&self.state.app, &self.principal, agent, request.id.get());
        // A slow server must not hold a permit that others need.
        self.permit.release();
        Ok(OwnedCall {
            client: self.clone(),
            id: request.id.to_owned(),
            name: params.name,
            arguments,
            lifecycle: request.lifecycle,
            takes_tasks: request.meta.has_extension(TASKS_EXTENSION),
            can_ask_user,
            confirmation,
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
        let mut answer = answer?;
        if let (ToolAnswer::Consent(call), Some(given)) = (&mut answer, &self.confirmation) {
            let decided = self.open.cancel.clone();
            let decided = decided
                .run_until_cancelled(Box::pin(self.confirm(call, given)))
                .await;
            decided.ok_or(Failure::Cancelled)??;
        }
        let result = match answer {
            ToolAnswer::Result(result) => write_result(result),
            ToolAnswer::Consent(call)
                if self.can_ask_user && self.is_to_ask() && call.asks_user() =>
            {
                return self.ask_to_confirm(&call).await;
            }
            ToolAnswer::Consent(call) if self.takes_tasks && call.is_open() => {
                return Ok(created_task(&call.view));
            }
            ToolAnswer::Consent(call) => write_waiting_call(*call),
            ToolAnswer::Unavailable(unavailable) => {
                return Err(self.client.unavailable_error(unavailable).await?.into());
            }
        };
        Ok(with_result_type(result, self.lifecycle))
    }
}

impl OwnedCall {
    /// Whether the user has given no answer yet, or none that decides.
    fn is_to_ask(&self) -> bool {
        let given = self.confirmation.as_ref();
        given.is_none_or(|given| given.answer == FormAnswer::Unclear)
    }

    /// Gives the user's answer to the request that it is about, and waits for what comes of it. `call` is then as it
    /// stands. An answer about another request, which had other arguments or is over, decides nothing.
    async fn confirm(
        &self,
        call: &mut ClientCall,
        given: &ConfirmationResponse,
    ) -> Result<(), Failure> {
        let Client {
            state,
            principal,
            tools,
            ..
        } = &self.client;
        let app = &state.app;
        let FormAnswer::Decided(choice) = given.answer else {
            return Ok(());
        };
        if call.view.id != given.request || !call.asks_user() {
            return Ok(());
        }
        approvals::confirm_for_client(app, principal, call.view.id, choice).await?;
        let agent = tools.toolset.agent();
        *call = client_calls::outcome(app, principal, agent, call.view.id).await?;
        Ok(())
    }

    /// Asks the client to ask its user. The client's next request brings the answer and what `requestState` says.
    async fn ask_to_confirm(&self, call: &ClientCall) -> Result<String, Failure> {
        let Client {
            state, principal, ..
        } = &self.client;
        let id = call.view.id.to_string();
        let view = approvals::get(&state.app, principal, &id).await?;
        let texts = texts::of(&self.client.tools.pack, principal);
        let message = match &self.confirmation {
            None => view.text_with_arguments(),
            Some(_) => {
                let why = texts.render(Key::ConfirmFormUnclear, &[]);
                format!("{}\n{why}", view.text_with_arguments())
            }
        };
        let question = texts.render(Key::ConfirmForm, &[]);
        Ok(json!({
            "resultType": "input_required",
            "inputRequests": { "confirm": { "method": "elicitation/create", "params": {
                "mode": "form",
                "message": message,
                "requestedSchema": {
                    "type": "object",
                    "properties": { "confirm": { "type": "boolean", "title": question } },
                    "required": ["confirm"],
                },
            } } },
            "requestState": id,
        })
        .to_string())
    }
}

/// A stream of the progress reports in the server's order, and then the answer, unless the client has cancelled the
/// call. Dropping the stream gives the call up.
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

/// Writes one message of an event stream.
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
    jsonrpc::write_notification("notifications/progress", &params)
}

/// Writes the result of a call: the server's own, or the text of the service where there is none.
fn write_result(result: ToolResult) -> String {
    match result.raw {
        Some(raw) => String::from(Box::<str>::from(raw)),
        None => text_result(
            &result.for_model(),
            result.status != CallStatus::Succeeded,
            &json!({ "chatelaine/status": result.status.into_str() }),
        ),
    }
}

/// Writes the result of a call that needs somebody's consent: its outcome, or that it still waits.
fn write_waiting_call(call: ClientCall) -> String {
    let ClientCall { view, result } = call;
    if let Some(raw) = result {
        return String::from(Box::<str>::from(raw));
    }
    let text = if view.finished_at.is_some() {
        format!("not executed, and the request is over: {}", view.text)
    } else if view.kind == Kind::Confirmation {
        format!(
            "not executed yet: the user has to confirm this call ({}) until {}, there or with /confirm {} in a chat: {} \
             Nobody can confirm it for them. Make the same call with the same arguments again to get its outcome; it is \
             not made twice.",
            view.code,
            time_of(view.expires_at),
            view.code,
            view.link,
        )
    } else {
        format!(
            "not executed yet: this call waits for approval {} by {} until {}{}. {} Make the same call with the same \
             arguments again to get its outcome; it is not made twice.",
            view.code,
            view.approvers.join(" or "),
            time_of(view.expires_at),
            needs_text(view.min_approvals, Some(view.approvals)),
            view.link,
        )
    };
    let about = json!({ "chatelaine/approval": {
        "id": view.id,
        "code": view.code,
        "kind": view.kind,
        "state": view.state,
        "approvers": view.approvers,
        "minApprovals": view.min_approvals,
        "approvals": view.approvals,
        "expiresAt": time_of(view.expires_at),
        "link": view.link,
    }});
    // Marked as an error: a client would expect a success to have the structure of the tool's results.
    text_result(&text, true, &about)
}

fn text_result(text: &str, is_error: bool, meta: &Value) -> String {
    json!({
        "content": [{ "type": "text", "text": text }],
        "isError": is_error,
        "_meta": meta,
    })
    .to_string()
}

/// Adds the member `resultType`, which every result has from 2026-07-28 on.
pub(super) fn with_result_type(result: String, lifecycle: Lifecycle) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        #[serde(default)]
        result_type: Option<serde::de::IgnoredAny>,
    }
    let has_type =
        || serde_json::from_str::<Typed>(&result).is_ok_and(|typed| typed.result_type.is_some());
    if lifecycle == Lifecycle::Handshake || (result.contains("resultType") && has_type()) {
        return result;
    }
    let Some(rest) = result.trim_start().strip_prefix('{') else {
        return result;
    };
    let comma = if rest.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    format!(r#"{{"resultType":"complete"{comma}{rest}"#)
}

pub(super) const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// How long a client waits between two requests for a task.
const POLL_MS: u64 = 2000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskParams {
    task_id: String,
}

/// Writes the task that a client gets in place of a result.
fn created_task(view: &ApprovalView) -> String {
    let mut task = task_json(view, "working");
    task["resultType"] = "task".into();
    task.to_string()
}

fn task_json(view: &ApprovalView, status: &str) -> Value {
    let time = |at: time::OffsetDateTime| at.format(&Rfc3339).unwrap_or_default();
    let kept = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
    let ttl = i64::try_from((view.expires_at - view.created_at).whole_milliseconds());
    json!({
        "taskId": view.id,
        "status": status,
        "statusMessage": format!("{} {}", view.text, view.link),
        "createdAt": time(view.created_at),
        "lastUpdatedAt": time(view.changed_at),
        "ttlMs": ttl.unwrap_or_default().max(0).saturating_add(kept),
        "pollIntervalMs": POLL_MS,
    })
}

impl Client {
    pub(super) async fn get_task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let call = self.call_of_task(request).await?;
        let status = match call.view.state {
            State::Cancelled => "cancelled",
            _ if call.is_open() => "working",
            // A refused call is completed too: its result says that it was refused.
            _ => "completed",
        };
        let mut task = task_json(&call.view, status);
        task["resultType"] = "complete".into();
        if status == "completed" {
            let result = write_waiting_call(call);
            task["result"] = serde_json::from_str(&result).unwrap_or_default();
        }
        Ok(task.to_string())
    }

    /// Takes the approval request of a task back. A task that has ended stays as it is.
    pub(super) async fn cancel_task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let call = self.call_of_task(request).await?;
        if call.is_open() {
            let cancelled = approvals::cancel(&self.state.app, &self.principal, call.view.id);
            match cancelled.await {
                Ok(_) | Err(Error::Conflict(..)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(r#"{"resultType":"complete"}"#.to_owned())
    }

    /// Accepts an update without an effect: a task never asks its client for input.
    pub(super) async fn update_task(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        self.call_of_task(request).await?;
        Ok(r#"{"resultType":"complete"}"#.to_owned())
    }

    async fn call_of_task(&self, request: &RpcRequest<'_>) -> Result<ClientCall, Failure> {
        if !request.meta.has_extension(TASKS_EXTENSION) {
            let required = json!({ "extensions": { TASKS_EXTENSION: {} } });
            return Err(RpcError::missing_capability(&required).into());
        }
        let params: TaskParams = message::params(request.params)?;
        let unknown = || RpcError::invalid_params("there is no such task");
        let id: ApprovalId = params.task_id.parse().map_err(|_| unknown())?;
        let agent = self.tools.toolset.agent();
        let call = client_calls::outcome(&self.state.app, &self.principal, agent, id).await;
        match call {
            Err(Error::NotFound(_)) => Err(unknown().into()),
            call => Ok(call?),
        }
    }
}
