//! A connected server: sends single requests, answers the server's own requests, and follows its lists.
//!
//! Invariant: a session sends each request at most once. Its callers decide whether to send it again.

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
        PingRequest, ProtocolVersion, RequestId, RequestMetaObject, SubscriptionFilter,
    },
    service::{
        NotificationContext, PeerRequestOptions, RequestContext, RunningService, ServiceError,
    },
};
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Key, Lifecycle,
    error::{Failure, SessionDoubt},
    interceptor::{ELICIT, Interceptor, PendingRequest, clip, elicitation_capabilities, lock},
    reading::ReadRequest,
};
use domain::{backoff, clock, elicitation::Dismissal};

/// How long closing a session is waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// The pauses before a subscription to list changes is opened again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// A subscription that lasted this long resets the count of failures.
const GOOD_SUBSCRIPTION: Duration = Duration::from_secs(60);
/// After this many failures in a row, the server is not asked for a subscription again on this connection.
const MAX_FAILURES: u32 = 6;
/// The member of `_meta` with the idempotency key of a call.
const IDEMPOTENCY_KEY: &str = "chatelaine/idempotencyKey";

/// A connected server.
pub(super) struct Session {
    peer: Peer<RoleClient>,
    interceptor: Arc<Interceptor>,
    service: Mutex<Option<RunningService<RoleClient, Handler>>>,
    pub(super) lifecycle: Lifecycle,
    /// The revision of the protocol, such as `2026-07-28`.
    pub(super) protocol: String,
    pub(super) since: Instant,
    pub(super) has_prompts: bool,
    /// A request timed out, so a ping must be answered before the next request.
    unresponsive: AtomicBool,
    /// A call was answered in this session.
    has_served: AtomicBool,
    /// Ends the background tasks of the session.
    _tasks: DropGuard,
}

/// Handles the requests and notifications of a server: questions to users, and changed lists.
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
        let answer = self.answer_question(&context).await;
        Ok(serde_json::from_value(answer)
            .unwrap_or_else(|_| ElicitResult::new(ElicitationAction::Decline)))
    }

    /// Answers questions (`elicitation/create`) whose parameters rmcp cannot parse; our own reading of them is more lenient.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == ELICIT {
            return Ok(CustomResult::new(self.answer_question(&context).await));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            clip(&request.method),
            None,
        ))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        // Fails when there is no receiver.
        let _ = self.changes.send(self.key.clone());
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.changes.send(self.key.clone());
    }

    fn get_info(&self) -> ClientConfig {
        let client = Implementation::new("chatelaine", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), client)
            .with_protocol_version(rmcp::model::ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

impl Handler {
    /// The answer to a question of the server, or a cancellation when the server withdraws the question.
    async fn answer_question(&self, context: &RequestContext<RoleClient>) -> serde_json::Value {
        let answered = context
            .ct
            .run_until_cancelled(self.interceptor.answer_to(&context.id))
            .await;
        answered.unwrap_or_else(|| serde_json::json!({ "action": Dismissal::Cancel }))
    }
}

impl Session {
    /// A session over a service whose handshake is done. Starts its background tasks.
    pub(super) fn new(
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
        let version = clip(info.protocol_version.as_str());
        if !ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version) {
            return Err(Failure::Refused {
                code: None,
                message: format!(
                    "the server speaks revision {version:?} of the protocol, which this program does not"
                ),
            });
        }
        let ended = CancellationToken::new();
        let lifecycle = if info.protocol_version.has_initialize() {
            Lifecycle::Handshake
        } else {
            Lifecycle::Stateless
        };
        let (tools, prompts) = (
            info.capabilities.tools.as_ref(),
            info.capabilities.prompts.as_ref(),
        );
        let tools_change = tools.and_then(|tools| tools.list_changed) == Some(true);
        let prompts_change = prompts.and_then(|prompts| prompts.list_changed) == Some(true);
        if lifecycle == Lifecycle::Stateless && (tools_change || prompts_change) {
            let handler = service.service();
            tokio::spawn(follow_changes(
                peer.clone(),
                list_filter(tools_change, prompts_change),
                handler.key.clone(),
                handler.changes.clone(),
                ended.clone(),
            ));
        }
        tokio::spawn({
            let (interceptor, service, ended) = (
                interceptor.clone(),
                service.cancellation_token(),
                ended.clone(),
            );
            async move {
                tokio::select! {
                    () = interceptor.wait_for_overrun() => service.cancel(),
                    () = ended.cancelled() => {}
                }
            }
        });
        Ok(Self {
            peer,
            interceptor,
            service: Mutex::new(Some(service)),
            lifecycle,
            protocol: version,
            since: clock::instant(),
            has_prompts: prompts.is_some(),
            unresponsive: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            _tasks: ended.drop_guard(),
        })
    }

    /// Why the session was closed from this side because of what the server sent; `None` when it was not.
    pub(super) fn overrun_reason(&self) -> Option<&str> {
        self.interceptor.overrun_reason()
    }

    /// Whether the transport is closed.
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

    /// Sends a read-only request.
    pub(super) async fn read(&self, request: &ReadRequest<'_>) -> Result<Box<RawValue>, Failure> {
        self.request(request.to_message(), &Arc::default()).await
    }

    /// Whether a read-only request may be sent again after this failure.
    pub(super) fn may_read_again(&self, failure: &Failure) -> bool {
        match failure {
            Failure::NotSent(_) => true,
            Failure::Status { .. } | Failure::WebPage(_) | Failure::Lost(_) => self.is_dead(),
            _ => false,
        }
    }

    /// Sends a ping to find out whether the session is lost, after a refusal that may mean so.
    pub(super) async fn examine(&self, doubt: &SessionDoubt, time_limit: Duration) -> Examination {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        match tokio::time::timeout(time_limit, self.request(ping, &Arc::default())).await {
            Ok(Ok(_)) => Examination::Alive,
            Ok(Err(Failure::SessionInDoubt(refused))) if refused.is_same(doubt) => {
                Examination::Lost
            }
            Ok(Err(Failure::SessionInDoubt(refused))) => Examination::Unclear(refused.words),
            Ok(Err(failure)) => Examination::Unclear(failure.into_call_error().to_string()),
            Err(_) => Examination::Unclear(format!(
                "the server did not answer a ping within {} s",
                time_limit.as_secs_f32()
            )),
        }
    }

    /// Sends a ping to an unresponsive session. Any answer shows that the server is there.
    pub(super) async fn probe(&self, time_limit: Duration) -> Result<(), Failure> {
        // Revision 2026-07-28 has no ping; an error for the unknown method is an answer too.
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

    /// Sends one request and waits for its result. Dropping the future cancels the request.
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
        if pending.can_ask_user {
            meta.set_client_capabilities(elicitation_capabilities());
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
        let response = handle.await_response().await;
        waiting.finish();
        if let Some(answer) = pending.take_answer() {
            return self.interceptor.scrub_answer(answer);
        }
        match response {
            Err(ServiceError::McpError(error)) => {
                let message = clip(&error.message);
                self.interceptor.scrub_answer(Err(Failure::Refused {
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

    /// Ends the session: notifies the server and stops the child process.
    pub(super) async fn close(&self) {
        let service = lock(&self.service).take();
        if let Some(mut service) = service {
            // After the timeout, dropping the service ends the rest.
            let _ = service.close_with_timeout(CLOSE_TIMEOUT).await;
        }
    }
}

/// What a ping has shown about a session that may be lost.
pub(super) enum Examination {
    /// The ping was refused exactly like the request: the server refuses the session before it reads requests.
    Lost,
    /// The ping was answered, so the session is not lost.
    Alive,
    /// The ping did not show which; the text says why.
    Unclear(String),
}

/// A request whose answer is awaited. Dropping it cancels the request.
struct WaitingRequest<'a> {
    session: &'a Session,
    id: Option<RequestId>,
    pending: Arc<PendingRequest>,
}

impl WaitingRequest<'_> {
    fn finish(&mut self) {
        if let Some(id) = self.id.take() {
            self.session.interceptor.forget(&id, &self.pending);
        }
    }
}

impl Drop for WaitingRequest<'_> {
    /// Notifies the server that the answer is not needed any more.
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

/// The subscription to changes of these lists.
fn list_filter(tools: bool, prompts: bool) -> SubscriptionFilter {
    let mut filter = SubscriptionFilter::builder();
    if tools {
        filter = filter.tools_list_changed();
    }
    if prompts {
        filter = filter.prompts_list_changed();
    }
    filter.build()
}

/// Reports changes of a server's lists until the session ends. Servers of revision 2026-07-28 send them only to
/// subscriptions, which must be opened again when they end.
async fn follow_changes(
    peer: Peer<RoleClient>,
    filter: SubscriptionFilter,
    key: Key,
    changes: broadcast::Sender<Key>,
    session_ended: CancellationToken,
) {
    let _ = session_ended
        .run_until_cancelled(keep_subscribed(&peer, &filter, &key, &changes))
        .await;
}

async fn keep_subscribed(
    peer: &Peer<RoleClient>,
    filter: &SubscriptionFilter,
    key: &Key,
    changes: &broadcast::Sender<Key>,
) {
    let mut failures = 0;
    while failures < MAX_FAILURES && !peer.is_transport_closed() {
        let opened = clock::instant();
        listen(peer, filter, key, changes, failures > 0).await;
        failures = if opened.elapsed() >= GOOD_SUBSCRIPTION {
            1
        } else {
            failures + 1
        };
        let pause = backoff::delay(FIRST_PAUSE, LONGEST_PAUSE, failures, rand::random());
        tokio::time::sleep(pause).await;
    }
}

/// One subscription, until it ends. `may_have_missed`: there was none before, so a change is reported at once.
async fn listen(
    peer: &Peer<RoleClient>,
    filter: &SubscriptionFilter,
    key: &Key,
    changes: &broadcast::Sender<Key>,
    may_have_missed: bool,
) {
    let Ok(mut stream) = peer.listen(filter.clone()).await else {
        return;
    };
    if may_have_missed {
        let _ = changes.send(key.clone());
    }
    while let Ok(Some(_)) = stream.next().await {
        let _ = changes.send(key.clone());
    }
}
