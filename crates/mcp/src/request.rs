//! The requests of this client, and the state of one that waits for its answer.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU8, Ordering},
};

use http::{HeaderName, HeaderValue};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap},
};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::Notify;

use super::{ProgressSender, answer::Answer, lock, peer::LiveQuestions};
use domain::{
    elicitation, ids::TenantId, revision::Revision, server::Lifecycle, trace_context::TraceContext,
};

/// The request with which a server asks the user a question.
pub(super) const ELICIT: &str = "elicitation/create";
/// The member of `_meta` with the idempotency key of a call.
const IDEMPOTENCY_KEY: &str = "chatelaine/idempotencyKey";
/// The headers of W3C Trace Context. Members of `_meta` have the same names in all revisions, without a prefix (SEP-414).
const TRACEPARENT: &str = "traceparent";
/// The most declined questions of one call that are reported to its user.
const MAX_DECLINED: usize = 4;

/// A request to a server.
pub(super) enum Request<'a> {
    /// Begins without a handshake, from revision 2026-07-28 on.
    Discover,
    /// Begins a session, up to revision 2025-11-25.
    Initialize,
    Ping,
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
    /// Suggested values for an argument of a prompt.
    Completion {
        prompt: &'a str,
        argument: &'a str,
        value: &'a str,
    },
    /// A call of a tool, with its arguments exactly as they are given.
    Call {
        tool: &'a str,
        arguments: &'a RawValue,
        /// The answer to the questions with which the server answered the same call before.
        answer: Option<&'a elicitation::Answer>,
    },
    /// A subscription to changes of lists.
    Listen {
        tools: bool,
        prompts: bool,
    },
}

impl Request<'_> {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Discover => "server/discover",
            Self::Initialize => "initialize",
            Self::Ping => "ping",
            Self::Tools { .. } => "tools/list",
            Self::Prompts { .. } => "prompts/list",
            Self::Prompt { .. } => "prompts/get",
            Self::Resource { .. } => "resources/read",
            Self::Completion { .. } => "completion/complete",
            Self::Call { .. } => "tools/call",
            Self::Listen { .. } => "subscriptions/listen",
        }
    }

    /// What the header `Mcp-Name` repeats.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Prompt { name, .. } | Self::Call { tool: name, .. } => Some(name),
            Self::Resource { uri } => Some(uri),
            _ => None,
        }
    }

    pub(super) fn is_handshake(&self) -> bool {
        matches!(self, Self::Discover | Self::Initialize)
    }

    /// Writes the request. `revision` is that of the connection, unless it begins.
    pub(super) fn to_json(
        &self,
        id: i64,
        revision: Option<Revision>,
        open: &OpenRequest,
    ) -> String {
        #[derive(Serialize)]
        struct Envelope<'a> {
            jsonrpc: &'static str,
            id: i64,
            method: &'static str,
            params: Params<'a>,
        }
        let revision = match self {
            Self::Discover => Some(Revision::STATELESS),
            _ => revision.filter(|revision| revision.lifecycle() == Lifecycle::Stateless),
        };
        let envelope = Envelope {
            jsonrpc: "2.0",
            id,
            method: self.method(),
            params: Params {
                request: self,
                meta: Meta {
                    progress_token: open.progress.as_ref().map(|_| id),
                    idempotency_key: open.idempotency_key.as_deref(),
                    trace: open.trace.as_ref(),
                    revision,
                    can_ask_user: open.can_ask_user,
                },
            },
        };
        serde_json::to_string(&envelope).expect("requests are plain JSON")
    }
}

/// The parameters of a request.
struct Params<'a> {
    request: &'a Request<'a>,
    meta: Meta<'a>,
}

impl Serialize for Params<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut params = serializer.serialize_map(None)?;
        match self.request {
            Request::Discover | Request::Ping => {}
            Request::Initialize => {
                let version = Revision::LAST_HANDSHAKE.as_str();
                params.serialize_entry("protocolVersion", version)?;
                // Declared once for the whole connection. A question during a call whose user cannot be asked is declined.
                params.serialize_entry("capabilities", &Capabilities { can_ask_user: true })?;
                params.serialize_entry("clientInfo", &client_info())?;
            }
            Request::Tools { cursor } | Request::Prompts { cursor } => {
                if let Some(cursor) = cursor {
                    params.serialize_entry("cursor", cursor)?;
                }
            }
            Request::Prompt { name, arguments } => {
                params.serialize_entry("name", name)?;
                params.serialize_entry("arguments", arguments)?;
            }
            Request::Resource { uri } => params.serialize_entry("uri", uri)?,
            Request::Completion {
                prompt,
                argument,
                value,
            } => {
                params.serialize_entry("ref", &json!({ "type": "ref/prompt", "name": prompt }))?;
                let argument = json!({ "name": argument, "value": value });
                params.serialize_entry("argument", &argument)?;
            }
            Request::Call {
                tool,
                arguments,
                answer,
            } => {
                params.serialize_entry("name", tool)?;
                params.serialize_entry("arguments", arguments)?;
                if let Some(elicitation::Answer { responses, state }) = answer {
                    if !responses.is_empty() {
                        params.serialize_entry("inputResponses", responses)?;
                    }
                    if let Some(state) = state {
                        params.serialize_entry("requestState", state)?;
                    }
                }
            }
            Request::Listen { tools, prompts } => {
                let mut filter = Map::new();
                if *tools {
                    filter.insert("toolsListChanged".to_owned(), true.into());
                }
                if *prompts {
                    filter.insert("promptsListChanged".to_owned(), true.into());
                }
                params.serialize_entry("notifications", &filter)?;
            }
        }
        if !self.meta.is_empty() {
            params.serialize_entry("_meta", &self.meta)?;
        }
        params.end()
    }
}

/// The member `_meta` of a request.
struct Meta<'a> {
    progress_token: Option<i64>,
    idempotency_key: Option<&'a str>,
    trace: Option<&'a TraceContext>,
    /// The revision, if every request names it.
    revision: Option<Revision>,
    can_ask_user: bool,
}

impl Meta<'_> {
    fn is_empty(&self) -> bool {
        self.progress_token.is_none()
            && self.idempotency_key.is_none()
            && self.trace.is_none()
            && self.revision.is_none()
    }
}

impl Serialize for Meta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut meta = serializer.serialize_map(None)?;
        if let Some(token) = self.progress_token {
            meta.serialize_entry("progressToken", &token)?;
        }
        if let Some(key) = self.idempotency_key {
            meta.serialize_entry(IDEMPOTENCY_KEY, key)?;
        }
        if let Some(trace) = self.trace {
            meta.serialize_entry(TRACEPARENT, &trace.traceparent)?;
        }
        if let Some(revision) = self.revision {
            let capabilities = Capabilities {
                can_ask_user: self.can_ask_user,
            };
            let (version, info) = (revision.as_str(), client_info());
            meta.serialize_entry("io.modelcontextprotocol/protocolVersion", version)?;
            meta.serialize_entry("io.modelcontextprotocol/clientInfo", &info)?;
            meta.serialize_entry("io.modelcontextprotocol/clientCapabilities", &capabilities)?;
        }
        meta.end()
    }
}

/// The capabilities of this client. Users are asked with forms and with links.
struct Capabilities {
    can_ask_user: bool,
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = if self.can_ask_user {
            r#"{"elicitation":{"form":{},"url":{}}}"#
        } else {
            "{}"
        };
        let raw: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

#[derive(Serialize)]
struct ClientInfo {
    name: &'static str,
    version: &'static str,
}

fn client_info() -> ClientInfo {
    ClientInfo {
        name: "chatelaine",
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// The header of a trace.
fn trace_header(trace: &TraceContext) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_static(TRACEPARENT);
    Some((name, trace.traceparent.parse().ok()?))
}

/// A request that waits for its answer: what it carries beside its parameters, and how far it has come. It is sent at most
/// once.
#[derive(Default)]
pub(super) struct OpenRequest {
    pub(super) is_call: bool,
    /// The tenant whose user makes the call.
    pub(super) tenant: Option<TenantId>,
    /// The `Mcp-Param-*` headers, and those of the trace.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) progress: Option<ProgressSender>,
    /// Goes into `_meta`, so that a server can recognise a repeated call.
    pub(super) idempotency_key: Option<String>,
    /// Goes into `_meta`, too.
    pub(super) trace: Option<TraceContext>,
    /// The user of this call can be asked; the request says so to the server.
    pub(super) can_ask_user: bool,
    /// Takes the questions that the server asks during this call.
    pub(super) live_questions: Option<Arc<LiveQuestions>>,
    /// The questions of the server during this call that were declined without asking the user.
    declined: Mutex<Vec<String>>,
    delivery: AtomicU8,
    sent: Notify,
    answer: Mutex<Option<Answer>>,
    answered: Notify,
}

/// [`OpenRequest::delivery`]: nothing has left this machine, and something may.
const UNSENT: u8 = 0;
/// The first byte may have left.
const SENT: u8 = 1;
/// Nothing has left, and nothing will.
const GIVEN_UP: u8 = 2;

impl OpenRequest {
    /// A call of a tool.
    pub(super) fn for_call(
        mut headers: Vec<(HeaderName, HeaderValue)>,
        progress: Option<ProgressSender>,
        idempotency_key: Option<String>,
        trace: Option<TraceContext>,
    ) -> Self {
        headers.extend(trace.iter().filter_map(trace_header));
        Self {
            is_call: true,
            headers,
            progress,
            idempotency_key,
            trace,
            ..Self::default()
        }
    }

    /// Records that the first byte is about to leave this machine. `false`: it must not, since nobody waits for the answer.
    pub(super) fn mark_sent(&self) -> bool {
        if !self.leave_unsent(SENT) {
            // A second attempt of the same request with another access token is sent, too.
            return self.was_sent();
        }
        self.sent.notify_waiters();
        true
    }

    /// Records that nobody waits for the answer. Whether something may have left this machine; if not, nothing will.
    pub(super) fn give_up(&self) -> bool {
        !self.leave_unsent(GIVEN_UP) && self.was_sent()
    }

    fn leave_unsent(&self, to: u8) -> bool {
        self.delivery
            .compare_exchange(UNSENT, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(super) fn was_sent(&self) -> bool {
        self.delivery.load(Ordering::SeqCst) == SENT
    }

    /// Waits until the request leaves this machine.
    pub(super) async fn wait_until_sent(&self) {
        let sent = self.sent.notified();
        if !self.was_sent() {
            sent.await;
        }
    }

    /// Sets the answer, unless there is one already.
    pub(super) fn settle(&self, answer: Answer) {
        lock(&self.answer).get_or_insert(answer);
        self.answered.notify_one();
    }

    pub(super) fn is_answered(&self) -> bool {
        lock(&self.answer).is_some()
    }

    pub(super) fn take_answer(&self) -> Option<Answer> {
        lock(&self.answer).take()
    }

    /// Waits for [`OpenRequest::settle`].
    pub(super) async fn wait_for_answer(&self) {
        self.answered.notified().await;
    }

    pub(super) fn decline(&self, message: String) {
        let mut declined = lock(&self.declined);
        if declined.len() < MAX_DECLINED {
            declined.push(message);
        }
    }

    pub(super) fn take_declined(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.declined))
    }
}
