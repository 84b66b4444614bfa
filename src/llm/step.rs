//! One step from request to reply: attempts, waits and the deadline around them.
//!
//! A request is repeated only while nothing of its answer was given out, and only when the endpoint gave none or
//! asked for patience. Everything below runs in the poll of the stream: dropping it drops the connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};
use url::Url;

use super::{
    Delta, Limits, ModelError, StepRequest,
    breaker::{Breakers, Permit},
    error::{Failure, Field, refused},
    provider::{self, Reader, Without},
    reply::Draft,
    transport::{self, Events},
};
use crate::domain::{backoff, clock, pack::Llm};

/// What all steps of a process share.
pub(super) struct Shared {
    client: reqwest::Client,
    limits: Limits,
    breakers: Arc<Breakers>,
    /// Endpoint and model → what they turned out not to take.
    learned: Mutex<HashMap<(String, String), Without>>,
}

impl Shared {
    pub(super) fn new(client: reqwest::Client, limits: Limits) -> Self {
        Self {
            client,
            limits,
            breakers: Arc::default(),
            learned: Mutex::default(),
        }
    }
}

pub(super) fn stream(
    shared: Arc<Shared>,
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

struct Step {
    shared: Arc<Shared>,
    llm: Llm,
    request: StepRequest,
    endpoint: String,
    deadline: Option<Instant>,
    attempts: u32,
    /// What the newest attempt left out.
    without: Without,
    /// Something was given out: from here on there is no second attempt.
    shown: bool,
    running: Option<Attempt>,
}

/// A request that was sent, or is about to be.
struct Attempt {
    permit: Permit,
    /// `None` until the endpoint answers.
    events: Option<Events>,
    reader: Reader,
    draft: Draft,
    /// The provider ended the answer before the stream ends.
    is_over: bool,
}

impl Step {
    fn new(shared: Arc<Shared>, llm: Llm, request: StepRequest) -> Self {
        let endpoint = provider::endpoint(&llm);
        Self {
            shared,
            llm,
            request,
            endpoint,
            deadline: None,
            attempts: 0,
            without: Without::default(),
            shown: false,
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
            self.settle(attempt.permit, true);
        }
        Err(ModelError::TimedOut)
    }

    async fn advance(&mut self) -> Result<Delta, ModelError> {
        loop {
            match self.attempt().await {
                Ok(delta) => {
                    self.shown = true;
                    return Ok(delta);
                }
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Goes on with the request that is running, or sends one.
    async fn attempt(&mut self) -> Result<Delta, Failure> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        // The attempt stays in `self` while this waits, so that the deadline finds it.
        let result = match self.read().await {
            Ok(Some(text)) => return Ok(Delta::Text(text)),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        };
        let attempt = self.running.take().expect("the attempt that just ended");
        let reply =
            result.and_then(|()| attempt.draft.finish(&self.request).map_err(Failure::from));
        self.settle(
            attempt.permit,
            reply.as_ref().is_err_and(|failure| failure.is_outage),
        );
        reply.map(Delta::Done)
    }

    fn start(&mut self) -> Result<Attempt, Failure> {
        let breakers = &self.shared.breakers;
        let permit = breakers.admit(&self.endpoint).map_err(|left| Failure {
            is_retryable: false,
            ..ModelError::Unavailable {
                reason: String::new(),
                retry_after: Some(left),
            }
            .into()
        })?;
        self.attempts += 1;
        self.without = self.learned(|without| *without);
        Ok(Attempt {
            permit,
            events: None,
            reader: Reader::new(self.llm.provider),
            draft: Draft::default(),
            is_over: false,
        })
    }

    /// The next piece of text of the running attempt; `None` at the end of its answer.
    async fn read(&mut self) -> Result<Option<String>, Failure> {
        let Some(attempt) = &mut self.running else {
            return Ok(None);
        };
        let key = self.llm.api_key.as_ref();
        let events = match &mut attempt.events {
            Some(events) => events,
            none => {
                let request = provider::request(&self.llm, &self.request, self.without)?;
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
                return Err(refused(None, &HeaderMap::new(), &event, key));
            }
            attempt.is_over = attempt.reader.read(&event, &mut attempt.draft)?;
        }
    }

    fn settle(&self, permit: Permit, is_outage: bool) {
        if is_outage {
            permit.fail(
                self.shared.limits.breaker_failures,
                self.shared.limits.breaker_pause,
            );
        } else {
            permit.succeed();
        }
    }

    /// Waits for the next attempt, or says why there is none.
    async fn recover(&mut self, failure: Failure) -> Result<(), ModelError> {
        let Failure {
            error,
            is_retryable,
            field,
            ..
        } = failure;
        if !self.shown && field.is_some_and(|field| self.learn(field)) {
            self.attempts -= 1;
            return Ok(());
        }
        let limits = self.shared.limits;
        let wait = error.retry_after().unwrap_or_default().max(backoff::delay(
            limits.backoff,
            limits.max_retry_after,
            self.attempts,
            rand::random(),
        ));
        let last = self.shown
            || !is_retryable
            || self.attempts >= limits.attempts
            || wait > limits.max_retry_after;
        let (provider, host) = (
            provider::name(self.llm.provider),
            self.llm.base_url.as_ref().and_then(Url::host_str),
        );
        let (model, attempt, code) = (self.llm.model.as_str(), self.attempts, error.code());
        tracing::warn!(
            provider,
            host,
            model,
            attempt,
            code,
            last,
            "model request failed"
        );
        if last {
            return Err(error);
        }
        sleep(wait).await;
        Ok(())
    }

    /// Leaves `field` out from now on; `false` when the endpoint complains although it was left out.
    fn learn(&self, field: Field) -> bool {
        let flag = |without: &mut Without| match field {
            Field::Temperature => std::mem::replace(&mut without.temperature, true),
            Field::StreamOptions => std::mem::replace(&mut without.stream_options, true),
        };
        let mut sent = self.without;
        self.learned(flag);
        !flag(&mut sent)
    }

    fn learned<T>(&self, look: impl FnOnce(&mut Without) -> T) -> T {
        let mut learned = self
            .shared
            .learned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        look(
            learned
                .entry((self.endpoint.clone(), self.llm.model.clone()))
                .or_default(),
        )
    }
}

/// All four providers report an error in the middle of a stream alike.
fn is_error(event: &Value) -> bool {
    let error = &event["error"];
    let is_set = error.is_object() || error.as_str().is_some_and(|text| !text.is_empty());
    is_set && event["choices"].as_array().is_none_or(Vec::is_empty)
}
