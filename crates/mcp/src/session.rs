//! One live MCP session: the handshake in either era, and one request at a time through the interceptor.
//!
//! Invariant: a request is sent at most once here. Whether it may be sent again is for the pool to say,
//! from what the pending request knows.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rmcp::{
    ClientHandler, ErrorData, Peer, RoleClient,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientCapabilities, ClientConfig,
        ClientRequest, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult,
        ElicitationAction, ErrorCode, GetExtensions, Implementation, ListRootsRequestMethod,
        PingRequest, ProtocolVersion, RequestId, RequestMetaObject,
    },
    service::{
        NotificationContext, PeerRequestOptions, RequestContext, RunningService, ServiceError,
    },
};
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Era, Key,
    error::{Failure, SessionDoubt},
    interceptor::{ELICIT, Interceptor, PendingRequest, can_elicit, clipped, locked},
    reading::Reading,
};
use domain::{clock, elicitation::Dismissal};

/// How long the end of a session may take before it is left to itself.
const CLOSING: Duration = Duration::from_secs(3);
/// The member of `_meta` that is the same when a request is.
const IDEMPOTENCY_KEY: &str = "chatelaine/idempotencyKey";

/// A connected server.
pub(super) struct Session {
    peer: Peer<RoleClient>,
    interceptor: Arc<Interceptor>,
    service: Mutex<Option<RunningService<RoleClient, Handler>>>,
    pub(super) era: Era,
    pub(super) protocol: String,
    pub(super) since: Instant,
    pub(super) has_prompts: bool,
    /// A request ran out of time: ask for an answer to a ping before the next one.
    unresponsive: AtomicBool,
    /// A call was answered in it.
    has_served: AtomicBool,
    /// Ends what runs beside the session.
    _aside: DropGuard,
}

/// Our side of the protocol: the lists changing, and questions to the user of a call.
pub(super) struct Handler {
    pub(super) interceptor: Arc<Interceptor>,
    pub(super) key: Key,
    pub(super) changes: broadcast::Sender<Key>,
}

#[expect(
    deprecated,
    reason = "older servers still ask for roots, and are to be refused"
)]
impl ClientHandler for Handler {
    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let answer = self.answer(&context).await;
        Ok(serde_json::from_value(answer)
            .unwrap_or_else(|_| ElicitResult::new(ElicitationAction::Decline)))
    }

    /// A question that rmcp does not understand as one is for us to read, too.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == ELICIT {
            return Ok(CustomResult::new(self.answer(&context).await));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            clipped(&request.method),
            None,
        ))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // Nobody may be listening.
        let _ = self.changes.send(self.key.clone());
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.changes.send(self.key.clone());
    }

    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("chatelaine", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
            .with_protocol_version(rmcp::model::ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

impl Handler {
    /// Ends early when the server does not want the answer any more.
    async fn answer(&self, context: &RequestContext<RoleClient>) -> serde_json::Value {
        let answered = context
            .ct
            .run_until_cancelled(self.interceptor.answer_to(&context.id))
            .await;
        answered.unwrap_or_else(|| serde_json::json!({ "action": Dismissal::Cancel }))
    }
}

impl Session {
    /// A service whose handshake is done.
    pub(super) fn of(
        service: RunningService<RoleClient, Handler>,
        interceptor: Arc<Interceptor>,
    ) -> Result<Self, Failure> {
        if let Some(reason) = interceptor.close_reason() {
            return Err(Failure::Lost(reason.to_owned()));
        }
        let peer = service.peer().clone();
        let info = peer
            .peer_info()
            .ok_or_else(|| Failure::Lost("the server did not introduce itself".to_owned()))?;
        let version = clipped(info.protocol_version.as_str());
        if !ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version) {
            return Err(Failure::Refused {
                code: None,
                message: format!(
                    "the server speaks revision {version:?} of the protocol, which this program does not"
                ),
            });
        }
        let aside = CancellationToken::new();
        let era = if info.protocol_version.has_initialize() {
            Era::Legacy
        } else {
            Era::Modern
        };
        let (tools, prompts) = (
            info.capabilities.tools.as_ref(),
            info.capabilities.prompts.as_ref(),
        );
        let tools_change = tools.and_then(|tools| tools.list_changed) == Some(true);
        let prompts_change = prompts.and_then(|prompts| prompts.list_changed) == Some(true);
        if era == Era::Modern && (tools_change || prompts_change) {
            let handler = service.service();
            tokio::spawn(super::changes::follow(
                peer.clone(),
                super::changes::filter(tools_change, prompts_change),
                handler.key.clone(),
                handler.changes.clone(),
                aside.clone(),
            ));
        }
        tokio::spawn({
            let (interceptor, service, aside) = (
                interceptor.clone(),
                service.cancellation_token(),
                aside.clone(),
            );
            async move {
                tokio::select! {
                    () = interceptor.overrun() => service.cancel(),
                    () = aside.cancelled() => {}
                }
            }
        });
        Ok(Self {
            peer,
            interceptor,
            service: Mutex::new(Some(service)),
            era,
            protocol: version,
            since: clock::instant(),
            has_prompts: prompts.is_some(),
            unresponsive: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            _aside: aside.drop_guard(),
        })
    }

    /// Why the session was closed for what the server sent, if it was.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        self.interceptor.overrun_reason()
    }

    /// Whether the transport below is gone.
    pub(super) fn is_dead(&self) -> bool {
        self.peer.is_transport_closed()
    }

    pub(super) fn mark_unresponsive(&self) {
        self.unresponsive.store(true, Ordering::SeqCst);
    }

    pub(super) fn mark_served(&self) {
        self.has_served.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::SeqCst)
    }

    pub(super) fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::SeqCst)
    }

    /// One question that changes nothing.
    pub(super) async fn read(&self, what: &Reading<'_>) -> Result<Box<RawValue>, Failure> {
        self.request(what.request(), &Arc::default()).await
    }

    /// Whether something that changes nothing may be asked again after this.
    pub(super) fn may_read_again(&self, failure: &Failure) -> bool {
        match failure {
            Failure::NotSent(_) => true,
            Failure::Status { .. } | Failure::WebPage(_) | Failure::Lost(_) => self.is_dead(),
            _ => false,
        }
    }

    /// Asks this session for an answer to a ping, after a refusal that leaves it in doubt.
    pub(super) async fn examine(&self, doubt: &SessionDoubt, time_limit: Duration) -> Examination {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        match tokio::time::timeout(time_limit, self.request(ping, &Arc::default())).await {
            Ok(Ok(_)) => Examination::Alive,
            Ok(Err(Failure::SessionInDoubt(refused))) if refused.is_same(doubt) => {
                Examination::Lost
            }
            Ok(Err(Failure::SessionInDoubt(refused))) => Examination::Unclear(refused.words),
            Ok(Err(failure)) => Examination::Unclear(failure.of_call().to_string()),
            Err(_) => Examination::Unclear(format!(
                "the server did not answer a ping within {} s",
                time_limit.as_secs_f32()
            )),
        }
    }

    /// An answer to a ping: any answer will do.
    pub(super) async fn probe(&self, time_limit: Duration) -> Result<(), Failure> {
        // The newer revision has no ping; that it does not know it is an answer too.
        let ping = ClientRequest::PingRequest(PingRequest::default());
        match tokio::time::timeout(time_limit, self.request(ping, &Arc::default())).await {
            Ok(
                Ok(_)
                | Err(
                    Failure::Refused { .. }
                    | Failure::Status { status: ..500, .. }
                    | Failure::Busy { .. }
                    | Failure::Unauthorized
                    | Failure::SignInRequired(_)
                    | Failure::Forbidden
                    | Failure::ScopeRequired(_),
                ),
            ) => {
                self.unresponsive.store(false, Ordering::SeqCst);
                Ok(())
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Silent(format!(
                "the server gave no sign of life within {} ms",
                time_limit.as_millis()
            ))),
        }
    }

    /// Sends one request and waits for what becomes of it. Dropped before that, it is cancelled.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        pending: &Arc<PendingRequest>,
    ) -> Result<Box<RawValue>, Failure> {
        let mut meta = RequestMetaObject::default();
        if let Some(key) = &pending.idempotency_key {
            meta.0
                .insert(IDEMPOTENCY_KEY.to_owned(), key.as_str().into());
        }
        if pending.asks {
            meta.set_client_capabilities(can_elicit());
        }
        request.extensions_mut().insert(pending.clone());
        let options = PeerRequestOptions::no_options().with_meta(meta);
        let sending = self.peer.send_request_with_option(request, options).await;
        let handle =
            sending.map_err(|_| Failure::NotSent("the connection is closed".to_owned()))?;
        let mut waiting = WaitingRequest {
            session: self,
            id: Some(handle.id.clone()),
            pending: pending.clone(),
        };
        let told = handle.await_response().await;
        waiting.answered();
        if let Some(answer) = pending.take() {
            return self.interceptor.scrubbed(answer);
        }
        match told {
            Err(ServiceError::McpError(error)) => {
                let message = clipped(&error.message);
                self.interceptor.scrubbed(Err(Failure::Refused {
                    code: Some(error.code.0.into()),
                    message,
                }))
            }
            _ if !pending.was_sent() => Err(Failure::NotSent(
                "the connection was closed before the request was sent".to_owned(),
            )),
            _ => {
                let reason = self.interceptor.close_reason();
                let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                Err(Failure::Lost(format!(
                    "the connection was closed before the answer came{reason}"
                )))
            }
        }
    }

    /// Ends the session: tells the server, stops the child.
    pub(super) async fn close(&self) {
        let service = locked(&self.service).take();
        if let Some(mut service) = service {
            // What is left ends by itself when the service is dropped.
            let _ = service.close_with_timeout(CLOSING).await;
        }
    }
}

/// What a ping shows of a session that is in doubt.
pub(super) enum Examination {
    /// Refused in the same way: the server refuses the session before it reads a request, and did nothing.
    Lost,
    /// Answered: the refusal was the request's own.
    Alive,
    /// Why it is not known which of both it was.
    Unclear(String),
}

/// A request that somebody waits for.
struct WaitingRequest<'a> {
    session: &'a Session,
    id: Option<RequestId>,
    pending: Arc<PendingRequest>,
}

impl WaitingRequest<'_> {
    fn answered(&mut self) {
        if let Some(id) = self.id.take() {
            self.session.interceptor.forget(&id, &self.pending);
        }
    }
}

impl Drop for WaitingRequest<'_> {
    /// Whoever waited went away: the server need not go on.
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        self.session.interceptor.forget(&id, &self.pending);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let peer = self.session.peer.clone();
        runtime.spawn(async move {
            let reason = Some("nobody waits for the answer any more".to_owned());
            let params = CancelledNotificationParam::new(Some(id), reason);
            let _ = peer
                .send_notification(CancelledNotification::new(params).into())
                .await;
        });
    }
}
