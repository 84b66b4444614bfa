//! One step from request to reply: its attempts, the waits between them, and its deadline.
//!
//! A request is sent again only while no text of its answer has been emitted, and only when the endpoint did not answer,
//! asked us to wait, or refused a part of the request that can be left out. After that, the endpoints of `llm.fallback` are
//! asked in turn. All work happens while the stream is polled, so dropping the stream drops the connection.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{Span, field::Empty};
use url::Url;

use super::{
    Delta, Limits, ModelError, StepRequest, Stop, Turn,
    breaker::{Breakers, Permit},
    error::{AttemptError, Outage, RefusedPart, ToolPlace},
    history,
    provider::{self, Reader, Restrictions, fingerprint},
    refusal::refusal_error,
    reply::ReplyBuilder,
    schema::Dialect,
    transport::{self, Events},
};
use domain::{
    answer_format::AnswerFormat, backoff, clock, pack::Llm, run::Usage, trace_context::TRACES,
};

/// The most tools (and answer formats) that are remembered as refused, for each endpoint and model.
const MOST_REFUSED: usize = 1000;
/// How often one step searches for the refused tool when the refusal does not name it.
const MOST_SEARCHES: u32 = 3;

/// The state that all steps of a process share.
pub(super) struct StepContext {
    client: reqwest::Client,
    limits: Limits,
    breakers: Arc<Breakers>,
    /// By endpoint and model.
    profiles: Mutex<HashMap<(String, String), EndpointProfile>>,
}

/// What a model at an endpoint has refused so far. Later steps do not send it again.
#[derive(Default)]
struct EndpointProfile {
    restrictions: Restrictions,
    /// Fingerprints of the tools that are left out: they were refused although written by every rule.
    refused_tools: HashSet<u64>,
    /// Fingerprints of the answer formats that were refused.
    refused_formats: HashSet<u64>,
    /// The most bytes of a request, if one was too long.
    max_request: Option<usize>,
}

impl StepContext {
    pub(super) fn new(client: reqwest::Client, limits: Limits) -> Self {
        Self {
            client,
            limits,
            breakers: Arc::default(),
            profiles: Mutex::default(),
        }
    }

    pub(super) fn paused(&self) -> usize {
        self.breakers.count_open()
    }
}

/// The deltas of one step; see [`crate::Models::step`].
pub(super) fn stream(
    shared: Arc<StepContext>,
    llm: Llm,
    request: StepRequest,
) -> impl Stream<Item = Result<Delta, ModelError>> + Send + Unpin + 'static {
    let step = Step::new(shared, llm, request);
    stream::unfold(Some(step), async |step| {
        let mut step = step?;
        let item = step.next().await;
        let open = matches!(item, Ok(Delta::Text(_)));
        Some((item, open.then_some(step)))
    })
    .boxed()
}

/// Says where a request goes. The rest of its address may hold secrets.
fn record_address(span: &Span, url: &str) {
    if span.is_disabled() {
        return;
    }
    if let Ok(url) = Url::parse(url) {
        span.record("host", url.host_str());
        span.record("port", url.port_or_known_default().map(i64::from));
    }
}

fn record_usage(span: &Span, usage: Usage) {
    span.record("input_tokens", usage.input_tokens);
    span.record("cached_tokens", usage.cached_input_tokens);
    span.record("output_tokens", usage.output_tokens);
}

/// The keys of a model's endpoint in [`StepContext::profiles`] and in the circuit breakers.
fn endpoint_and_circuit(llm: &Llm, request: &StepRequest) -> (String, String) {
    let endpoint = provider::endpoint(llm);
    let tenant = request.tenant.map(|tenant| tenant.to_string());
    let circuit = format!("{} {endpoint}", tenant.unwrap_or_default());
    (endpoint, circuit)
}

struct Step {
    shared: Arc<StepContext>,
    llm: Llm,
    /// The request as it is sent: parts that the endpoint refuses are left out.
    request: StepRequest,
    /// The models that are asked when this one does not answer.
    fallbacks: VecDeque<Llm>,
    /// The request for the fallbacks, with nothing left out; `None` when there are none.
    whole_request: Option<StepRequest>,
    endpoint: String,
    /// The key of the circuit breaker.
    circuit: String,
    deadline: Option<Instant>,
    /// Attempts at the current endpoint.
    attempts: u32,
    /// When the newest attempt began.
    began: std::time::Instant,
    /// The restrictions by which the newest attempt was written.
    restrictions: Restrictions,
    /// The request was too long once and has been made shorter.
    is_halved: bool,
    /// How often the refused tool was searched for.
    searches: u32,
    /// Text has been emitted, so there is no further attempt.
    has_output: bool,
    running: Option<Attempt>,
}

/// A request that was sent, or is about to be.
struct Attempt {
    /// From the request to the end of its answer.
    span: Span,
    permit: Permit,
    /// `None` until the endpoint answers.
    events: Option<Events>,
    reader: Reader,
    draft: ReplyBuilder,
    /// The answer is complete although the stream goes on.
    is_over: bool,
}

impl Step {
    fn new(shared: Arc<StepContext>, mut llm: Llm, request: StepRequest) -> Self {
        let fallbacks = VecDeque::from(std::mem::take(&mut llm.fallback));
        let (endpoint, circuit) = endpoint_and_circuit(&llm, &request);
        Self {
            shared,
            llm,
            whole_request: (!fallbacks.is_empty()).then(|| request.clone()),
            request,
            fallbacks,
            endpoint,
            circuit,
            deadline: None,
            attempts: 0,
            began: clock::instant(),
            restrictions: Restrictions::default(),
            is_halved: false,
            searches: 0,
            has_output: false,
            running: None,
        }
    }

    /// The next delta, or the error that ends the step. Applies the deadline.
    async fn next(&mut self) -> Result<Delta, ModelError> {
        let limit = self.shared.limits.step;
        let deadline = *self
            .deadline
            .get_or_insert_with(|| Instant::from_std(clock::instant()) + limit);
        if let Ok(item) = timeout_at(deadline, self.advance()).await {
            return item;
        }
        if let Some(attempt) = self.running.take() {
            attempt.span.record("code", ModelError::TimedOut.code());
            self.measure("chatelaine_model_request_seconds");
            let outage = attempt.events.is_none().then_some(Outage::Silent);
            self.report_to_breaker(attempt.permit, outage);
        }
        self.log_failure(&ModelError::TimedOut, None, true);
        Err(ModelError::TimedOut)
    }

    /// Says in the log what failed where, and after what time, without a word of the provider. The span of the caller
    /// says for whom.
    fn log_failure(&self, error: &ModelError, status: Option<u16>, last: bool) {
        metrics::counter!("chatelaine_model_failures_total", "code" => error.code()).increment(1);
        tracing::warn!(
            provider = provider::name(self.llm.provider),
            host = self.llm.base_url.as_ref().and_then(Url::host_str),
            model = self.llm.model.as_str(),
            attempt = self.attempts,
            code = error.code(),
            status,
            ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            last,
            "model request failed"
        );
    }

    /// Records the time since the newest attempt began.
    fn measure(&self, name: &'static str) {
        let provider = provider::name(self.llm.provider);
        metrics::histogram!(name, "provider" => provider)
            .record(self.began.elapsed().as_secs_f64());
    }

    /// The next delta, with as many attempts as it takes.
    async fn advance(&mut self) -> Result<Delta, ModelError> {
        loop {
            match self.continue_attempt().await {
                Ok(delta) => {
                    if !std::mem::replace(&mut self.has_output, true) {
                        self.measure("chatelaine_model_first_text_seconds");
                    }
                    return Ok(delta);
                }
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Continues the running attempt, or starts one; the next delta.
    async fn continue_attempt(&mut self) -> Result<Delta, AttemptError> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        // The attempt stays in `self` while this waits, so that the deadline finds it.
        let result = match self.read().await {
            Ok(Some(text)) => return Ok(Delta::Text(text)),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        };
        let mut attempt = self.running.take().expect("the attempt that just ended");
        let is_done = attempt.events.as_ref().is_some_and(Events::is_done);
        if attempt.draft.stop.is_none() && is_done && attempt.draft.is_whole() {
            attempt.draft.stop = Some(Stop::End);
        }
        let reply = result.and_then(|()| {
            attempt
                .draft
                .finish(
                    &self.request,
                    Dialect::for_model(&self.llm),
                    &self.restrictions,
                )
                .map_err(AttemptError::from)
        });
        self.measure("chatelaine_model_request_seconds");
        match &reply {
            Ok(reply) => record_usage(&attempt.span, reply.usage),
            Err(failure) => {
                attempt.span.record("code", failure.error.code());
                attempt
                    .span
                    .record("http_status", failure.status.map(i64::from));
            }
        }
        self.report_to_breaker(
            attempt.permit,
            reply.as_ref().err().and_then(|failure| failure.outage),
        );
        let reply = reply?;
        for (kind, tokens) in [
            (
                "input",
                reply.usage.input_tokens - reply.usage.cached_input_tokens,
            ),
            ("cached_input", reply.usage.cached_input_tokens),
            ("output", reply.usage.output_tokens),
        ] {
            metrics::counter!("chatelaine_model_tokens_total", "kind" => kind)
                .increment(tokens.max(0).cast_unsigned());
        }
        Ok(Delta::Done(reply))
    }

    /// Begins an attempt, unless the circuit breaker forbids it. The request is sent by [`Step::read`].
    fn start(&mut self) -> Result<Attempt, AttemptError> {
        self.began = clock::instant();
        let breakers = &self.shared.breakers;
        let permit = breakers
            .try_acquire(&self.circuit)
            .map_err(|left| ModelError::Paused { retry_after: left })?;
        self.attempts += 1;
        self.restrictions = self.with_profile(|profile| profile.restrictions.clone());
        self.apply_profile();
        Ok(Attempt {
            span: self.span_of_attempt(),
            permit,
            events: None,
            reader: Reader::new(self.llm.provider),
            draft: ReplyBuilder::default(),
            is_over: false,
        })
    }

    /// The span of a request to the model, for traces.
    fn span_of_attempt(&self) -> Span {
        tracing::error_span!(
            target: TRACES,
            "model",
            provider = provider::name(self.llm.provider),
            model = self.llm.model,
            host = Empty,
            port = Empty,
            attempt = i64::from(self.attempts),
            input_tokens = Empty,
            cached_tokens = Empty,
            output_tokens = Empty,
            http_status = Empty,
            code = Empty,
        )
    }

    /// The next text of the running attempt, whose request is sent first; `None` at the end of the answer.
    async fn read(&mut self) -> Result<Option<String>, AttemptError> {
        let Some(attempt) = &mut self.running else {
            return Ok(None);
        };
        let key = self.llm.api_key.as_ref();
        let events = match &mut attempt.events {
            Some(events) => events,
            none => {
                let request =
                    provider::write_request(&self.llm, &self.request, &self.restrictions)?;
                record_address(&attempt.span, &request.url);
                let header = provider::key_header(&self.llm)?;
                let shared = &self.shared;
                let opened =
                    transport::open(&shared.client, &self.llm, request, header, shared.limits);
                none.insert(opened.await?)
            }
        };
        loop {
            if let Some(text) = attempt.draft.take_text() {
                return Ok(Some(text));
            }
            if attempt.is_over {
                return Ok(None);
            }
            let Some(event) = events.next().await? else {
                return Ok(None);
            };
            if is_error_event(&event) {
                return Err(refusal_error(None, &HeaderMap::new(), &event, key));
            }
            attempt.is_over = attempt.reader.read(&event, &mut attempt.draft)?;
            if attempt.draft.size() > self.shared.limits.max_reply {
                return Err(ModelError::TooLarge.into());
            }
        }
    }

    /// Switches to the next fallback; `false` when there is none.
    fn fall_back(&mut self) -> bool {
        let (Some(llm), Some(request)) = (self.fallbacks.pop_front(), &self.whole_request) else {
            return false;
        };
        self.llm = llm;
        self.request = request.clone();
        (self.endpoint, self.circuit) = endpoint_and_circuit(&self.llm, &self.request);
        self.attempts = 0;
        self.is_halved = false;
        self.searches = 0;
        true
    }

    fn report_to_breaker(&self, permit: Permit, outage: Option<Outage>) {
        match outage {
            None => permit.succeed(),
            Some(outage) => permit.fail(outage, self.request.user.as_ref(), self.shared.limits),
        }
    }

    /// Prepares the next attempt after a failed one: leaves out what was refused, waits, or switches to a fallback. Returns
    /// the error when there is no further attempt.
    async fn recover(&mut self, failure: AttemptError) -> Result<(), ModelError> {
        let AttemptError {
            error,
            is_retryable,
            status,
            refused_part,
            ..
        } = failure;
        let is_about_tools = matches!(
            refused_part,
            Some(RefusedPart::Schemas | RefusedPart::Tool(_))
        ) && !self.request.tools.is_empty();
        if !self.has_output
            && (refused_part.is_some_and(|part| self.leave_out(&part))
                || (is_about_tools && self.leave_unnamed_tool_out().await))
        {
            self.attempts -= 1;
            return Ok(());
        }
        let error = match error {
            ModelError::BadRequest(message) if is_about_tools => ModelError::RefusedTools(message),
            error => error,
        };
        let limits = self.shared.limits;
        let wait = error.retry_after().unwrap_or_default().max(backoff::delay(
            limits.backoff,
            limits.max_retry_after,
            self.attempts,
            rand::random(),
        ));
        // Asking a fallback at once is better than waiting for this model.
        let should_fall_back = error.retry_after().is_some() && !self.fallbacks.is_empty();
        let last = self.has_output
            || !is_retryable
            || self.attempts >= limits.attempts
            || (self.request.is_repeated_by_client && error.passes_after().is_some())
            || wait > limits.max_retry_after
            || should_fall_back;
        self.log_failure(&error, status, last);
        if last {
            if self.has_output || !self.fall_back() {
                return Err(error);
            }
            let model = self.llm.model.as_str();
            tracing::warn!(model, "another model is asked");
            metrics::counter!("chatelaine_model_fallbacks_total").increment(1);
            return Ok(());
        }
        sleep(wait).await;
        Ok(())
    }

    /// Leaves a refused part out of this request and of all later ones to the endpoint; `false` when it was left out already.
    /// An image is left out of this step only, since another user's image may be fine.
    fn leave_out(&mut self, part: &RefusedPart) -> bool {
        let set_flag = |restrictions: &mut Restrictions| {
            let flag = match part {
                RefusedPart::Temperature => &mut restrictions.params.temperature,
                RefusedPart::ReasoningEffort => &mut restrictions.params.reasoning_effort,
                RefusedPart::StreamOptions => &mut restrictions.params.stream_options,
                RefusedPart::LongDescriptions => &mut restrictions.params.long_descriptions,
                RefusedPart::AnyImages => &mut restrictions.params.images,
                _ => &mut restrictions.all_tools_strict,
            };
            std::mem::replace(flag, true)
        };
        match part {
            RefusedPart::Images => self.leave_images_out(),
            RefusedPart::AnyImages => {
                self.with_profile(|profile| set_flag(&mut profile.restrictions));
                self.leave_images_out()
            }
            RefusedPart::Length => self.halve(),
            RefusedPart::Tool(place) => self.leave_tool_out(place),
            RefusedPart::Format => self.leave_format_out(),
            RefusedPart::Temperature
            | RefusedPart::ReasoningEffort
            | RefusedPart::StreamOptions
            | RefusedPart::LongDescriptions
            | RefusedPart::Schemas => {
                let mut sent = self.restrictions.clone();
                self.with_profile(|profile| set_flag(&mut profile.restrictions));
                !set_flag(&mut sent)
            }
        }
    }

    /// Handles the refusal of one tool. From now on, its schema is written by the strictest rules; a tool that is refused
    /// although it is written so is left out. `false` when the request has no such tool and all are written so already.
    fn leave_tool_out(&mut self, place: &ToolPlace) -> bool {
        let tools = &self.request.tools;
        let dialect = Dialect::for_model(&self.llm);
        let at = match place {
            ToolPlace::Name(name) => tools
                .iter()
                .position(|tool| dialect.tool_name(&tool.name) == *name),
            ToolPlace::Index(at) => Some(*at).filter(|at| *at < tools.len()),
        };
        let Some(at) = at else {
            return self.leave_out(&RefusedPart::Schemas);
        };
        let mark = fingerprint(&tools[at]);
        if !self.restrictions.all_tools_strict && !self.restrictions.strict_tools.contains(&mark) {
            let is_remembered = self.with_profile(|profile| {
                let marks = &mut profile.restrictions.strict_tools;
                marks.len() < MOST_REFUSED && marks.insert(mark)
            });
            if is_remembered {
                return true;
            }
        }
        self.remove_tool(at);
        true
    }

    /// Leaves a tool out of this request and of all later ones to the endpoint.
    fn remove_tool(&mut self, at: usize) {
        let tool = self.request.tools.remove(at);
        tracing::warn!(
            tool = tool.name,
            model = self.llm.model,
            "the model's provider refuses the schema of a tool; the tool is left out of its requests"
        );
        self.with_profile(|profile| {
            if profile.refused_tools.len() < MOST_REFUSED {
                profile.refused_tools.insert(fingerprint(&tool));
            }
        });
    }

    /// Finds the first tool that the endpoint refuses, and leaves it out. `false` when no tool is the reason, or after
    /// [`MOST_SEARCHES`].
    async fn leave_unnamed_tool_out(&mut self) -> bool {
        self.searches += 1;
        if self.searches > MOST_SEARCHES {
            return false;
        }
        let Some(at) = self.find_refused_tool().await else {
            return false;
        };
        self.remove_tool(at);
        true
    }

    /// The index of the first refused tool, found by bisection with short requests.
    async fn find_refused_tool(&mut self) -> Option<usize> {
        let (mut taken, mut refused) = (0, self.request.tools.len());
        if !self.takes_tools(taken).await? || self.takes_tools(refused).await? {
            return None;
        }
        while refused - taken > 1 {
            let half = usize::midpoint(taken, refused);
            if self.takes_tools(half).await? {
                taken = half;
            } else {
                refused = half;
            }
        }
        Some(taken)
    }

    /// Whether the endpoint accepts a short request with the first `count` tools. Its answer is not read. `None`: the
    /// request failed for another reason.
    async fn takes_tools(&mut self, count: usize) -> Option<bool> {
        let question = StepRequest {
            history: vec![Turn::User("hi".to_owned())],
            tools: self.request.tools[..count].to_vec(),
            ..StepRequest::default()
        };
        let restrictions = self.with_profile(|profile| profile.restrictions.clone());
        let request = provider::write_request(&self.llm, &question, &restrictions).ok()?;
        let header = provider::key_header(&self.llm).ok()?;
        let shared = &self.shared;
        let opened = transport::open(&shared.client, &self.llm, request, header, shared.limits);
        match opened.await.map_err(|failure| failure.error) {
            Ok(_) => Some(true),
            Err(ModelError::BadRequest(_)) => Some(false),
            Err(_) => None,
        }
    }

    /// Leaves the answer format out of this request and of all later ones with the same format. The prompt describes the
    /// format too, so the model still knows it.
    fn leave_format_out(&mut self) -> bool {
        let Some(format) = self.request.format.take() else {
            return false;
        };
        let refused = fingerprint_of_format(&format);
        self.with_profile(|profile| {
            if profile.refused_formats.len() < MOST_REFUSED {
                profile.refused_formats.insert(refused);
            }
        });
        true
    }

    /// Makes a request that is too long about half as long, and remembers that this endpoint takes less. `false` when that
    /// was done before or nothing can be left out.
    fn halve(&mut self) -> bool {
        let sent = self.request.size();
        if std::mem::replace(&mut self.is_halved, true)
            || !history::halve(&mut self.request.history)
        {
            return false;
        }
        let most = sent / 5 * 4;
        self.with_profile(|profile| {
            profile.max_request = Some(profile.max_request.map_or(most, |known| known.min(most)));
        });
        true
    }

    /// Removes all images from the request; `false` when it has none.
    fn leave_images_out(&mut self) -> bool {
        let before = self.request.history.len();
        let is_image = |turn: &Turn| matches!(turn, Turn::Image { .. } | Turn::ToolImage { .. });
        self.request.history.retain(|turn| !is_image(turn));
        self.request.history.len() < before
    }

    /// Leaves out what the endpoint has refused before, and shortens the history to what the endpoint takes.
    fn apply_profile(&mut self) {
        let (refused, formats, known) = self.with_profile(|profile| {
            let formats = profile.refused_formats.clone();
            (profile.refused_tools.clone(), formats, profile.max_request)
        });
        self.request
            .format
            .take_if(|format| formats.contains(&fingerprint_of_format(format)));
        self.request
            .tools
            .retain(|tool| !refused.contains(&fingerprint(tool)));
        if self.restrictions.params.images {
            self.leave_images_out();
        }
        let most = self.shared.limits.max_request;
        let fixed = self.request.fixed_size();
        history::fit(
            &mut self.request.history,
            fixed,
            known.map_or(most, |known| known.min(most)),
        );
    }

    fn with_profile<T>(&self, access: impl FnOnce(&mut EndpointProfile) -> T) -> T {
        let mut profiles = self
            .shared
            .profiles
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        access(
            profiles
                .entry((self.endpoint.clone(), self.llm.model.clone()))
                .or_default(),
        )
    }
}

/// Whether an event of a stream reports an error, in the form that all four providers share: a member `error`. Some
/// gateways end the answer with `finish_reason: "error"` instead.
fn is_error_event(event: &Value) -> bool {
    let error = &event["error"];
    let is_set = error.is_object() || error.as_str().is_some_and(|text| !text.is_empty());
    let choices = event["choices"].as_array();
    let failed = |choice: &Value| choice["finish_reason"] == "error";
    let ends = choices.is_none_or(|choices| choices.is_empty() || choices.iter().any(failed));
    (is_set && ends) || choices.is_some_and(|choices| choices.iter().any(failed))
}

/// A hash by which an answer format is remembered as refused.
fn fingerprint_of_format(format: &AnswerFormat) -> u64 {
    let mut hasher = DefaultHasher::new();
    format
        .schema()
        .map(Value::to_string)
        .unwrap_or_default()
        .hash(&mut hasher);
    hasher.finish()
}
