//! One step from request to reply: attempts, waits and the deadline around them.
//!
//! A request is repeated only while no text of its answer has been emitted, and only when the endpoint did
//! not answer or asked us to wait. After that the endpoints of `llm.fallback` are asked in turn. All work happens while
//! the stream is polled, so dropping the stream drops the connection.

mod recovery;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use self::recovery::is_error;
use super::{
    Delta, Limits, ModelError, StepRequest, Stop,
    breaker::{Breakers, Permit},
    error::{AttemptError, Outage, refusal_error},
    provider::{self, Reader, Refused},
    reply::ReplyBuilder,
    schema::Dialect,
    transport::{self, Events},
};
use domain::{clock, pack::Llm};

/// The state that all steps of a process share.
pub(super) struct StepContext {
    client: reqwest::Client,
    limits: Limits,
    breakers: Arc<Breakers>,
    /// Endpoint and model → what they do not accept.
    unsupported: Mutex<HashMap<(String, String), Unsupported>>,
}

/// What a model at an endpoint does not accept, as its refusals have shown.
#[derive(Default)]
struct Unsupported {
    refused: Refused,
    /// Tools that it has refused twice, hashed.
    tools: HashSet<u64>,
    /// The forms of answers, hashed.
    formats: HashSet<u64>,
    /// The largest request, in bytes, if one was too long.
    max_request: Option<usize>,
}

impl StepContext {
    pub(super) fn new(client: reqwest::Client, limits: Limits) -> Self {
        Self {
            client,
            limits,
            breakers: Arc::default(),
            unsupported: Mutex::default(),
        }
    }
}

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

/// The endpoint of a model, and the key of its circuit breaker.
fn endpoint_and_circuit(llm: &Llm, request: &StepRequest) -> (String, String) {
    let endpoint = provider::endpoint(llm);
    let tenant = request.tenant.map(|tenant| tenant.to_string());
    let circuit = format!("{} {endpoint}", tenant.unwrap_or_default());
    (endpoint, circuit)
}

struct Step {
    shared: Arc<StepContext>,
    llm: Llm,
    request: StepRequest,
    /// The models that are asked when this one says nothing, and what they are asked.
    others: VecDeque<Llm>,
    whole_request: Option<StepRequest>,
    endpoint: String,
    /// The key of the circuit breaker.
    circuit: String,
    deadline: Option<Instant>,
    attempts: u32,
    /// What the newest attempt left out.
    without: Refused,
    /// The request was too long once and has been made shorter.
    is_halved: bool,
    /// How often a tool was looked for that a refusal did not name.
    searches: u32,
    /// Text has been emitted, so there is no further attempt.
    has_output: bool,
    running: Option<Attempt>,
}

/// A request that was sent, or is about to be.
struct Attempt {
    permit: Permit,
    /// `None` until the endpoint answers.
    events: Option<Events>,
    reader: Reader,
    draft: ReplyBuilder,
    /// The provider ended the answer before the stream ends.
    is_over: bool,
}

impl Step {
    fn new(shared: Arc<StepContext>, mut llm: Llm, request: StepRequest) -> Self {
        let others = VecDeque::from(std::mem::take(&mut llm.fallback));
        let (endpoint, circuit) = endpoint_and_circuit(&llm, &request);
        Self {
            shared,
            llm,
            // Only with another endpoint is the request needed again as it came.
            whole_request: (!others.is_empty()).then(|| request.clone()),
            request,
            others,
            endpoint,
            circuit,
            deadline: None,
            attempts: 0,
            without: Refused::default(),
            is_halved: false,
            searches: 0,
            has_output: false,
            running: None,
        }
    }

    async fn next(&mut self) -> Result<Delta, ModelError> {
        let limit = self.shared.limits.step;
        let deadline = *self
            .deadline
            .get_or_insert_with(|| Instant::from_std(clock::instant()) + limit);
        if let Ok(item) = timeout_at(deadline, self.advance()).await {
            return item;
        }
        if let Some(attempt) = self.running.take() {
            let outage = attempt.events.is_none().then_some(Outage::Silent);
            self.report_to_breaker(attempt.permit, outage);
        }
        Err(ModelError::TimedOut)
    }

    async fn advance(&mut self) -> Result<Delta, ModelError> {
        loop {
            match self.attempt().await {
                Ok(delta) => {
                    self.has_output = true;
                    return Ok(delta);
                }
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Goes on with the request that is running, or sends one.
    async fn attempt(&mut self) -> Result<Delta, AttemptError> {
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
                .finish(&self.request, Dialect::of(&self.llm), &self.without)
                .map_err(AttemptError::from)
        });
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

    fn start(&mut self) -> Result<Attempt, AttemptError> {
        let breakers = &self.shared.breakers;
        let permit = breakers
            .try_acquire(&self.circuit)
            .map_err(|left| ModelError::Paused { retry_after: left })?;
        self.attempts += 1;
        self.without = self.unsupported(|found| found.refused.clone());
        self.leave_out_unsupported();
        Ok(Attempt {
            permit,
            events: None,
            reader: Reader::new(self.llm.provider),
            draft: ReplyBuilder::default(),
            is_over: false,
        })
    }

    /// The next piece of text of the running attempt; `None` at the end of its answer.
    async fn read(&mut self) -> Result<Option<String>, AttemptError> {
        let Some(attempt) = &mut self.running else {
            return Ok(None);
        };
        let key = self.llm.api_key.as_ref();
        let events = match &mut attempt.events {
            Some(events) => events,
            none => {
                let request = provider::request(&self.llm, &self.request, &self.without)?;
                let header = provider::key(&self.llm)?;
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
            if is_error(&event) {
                return Err(refusal_error(None, &HeaderMap::new(), &event, key));
            }
            attempt.is_over = attempt.reader.read(&event, &mut attempt.draft)?;
            if attempt.draft.size() > self.shared.limits.max_reply {
                return Err(ModelError::TooLarge.into());
            }
        }
    }

    /// Goes on with the next endpoint; `false` when there is none.
    fn fall_back(&mut self) -> bool {
        let (Some(llm), Some(request)) = (self.others.pop_front(), &self.whole_request) else {
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
}
