//! One step from request to reply: attempts, waits and the deadline around them.
//!
//! A request is repeated only while nothing of its answer was given out, and only when the endpoint gave none or
//! asked for patience. Everything below runs in the poll of the stream: dropping it drops the connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream};
use rig_core::{
    ProviderError,
    completion::CompletionRequest,
    streaming::{CompletionStream, Item},
};
use tokio::time::{Instant, sleep, timeout_at};
use url::Url;

use super::{
    Delta, Limits, ModelError, Reply, StepRequest,
    breaker::{Breakers, Permit},
    error::{Failure, Field},
    history,
    provider::{self, Without},
    quiet::{listener, quiet, quietly},
    reply::Draft,
    transport::Guarded,
};
use crate::domain::{clock, pack::Llm};

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
    /// `request` for the library; made once, at the first poll.
    prepared: Option<CompletionRequest>,
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
    stream: CompletionStream,
    permit: Permit,
    draft: Draft,
}

impl Step {
    fn new(shared: Arc<Shared>, llm: Llm, request: StepRequest) -> Self {
        let endpoint = provider::endpoint(&llm);
        Self {
            shared,
            llm,
            request,
            prepared: None,
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
            self.running = Some(self.open()?);
        }
        // Stays in `self` while waiting, so that the deadline finds it.
        while let Some(attempt) = &mut self.running
            && let Some(Ok(item)) = quiet(attempt.stream.next()).await
        {
            if let Item::Event(event) = item
                && let Some(text) = attempt.draft.absorb(event)
            {
                return Ok(Delta::Text(text));
            }
        }
        self.finish().await.map(Delta::Done)
    }

    fn open(&mut self) -> Result<Attempt, Failure> {
        let permit = self
            .shared
            .breakers
            .admit(&self.endpoint)
            .map_err(|left| Failure {
                again: false,
                ..ModelError::Unavailable {
                    reason: String::new(),
                    retry_after: Some(left),
                }
                .into()
            })?;
        self.attempts += 1;
        let request = self
            .prepared
            .get_or_insert_with(|| history::request(&self.llm, &self.request))
            .clone();
        self.without = self.learned(|without| *without);
        let http = Guarded {
            client: self.shared.client.clone(),
            key: provider::key(&self.llm)?,
            limits: self.shared.limits,
            listener: listener(),
        };
        let stream = quietly(|| provider::open(&self.llm, http, request, self.without))?;
        Ok(Attempt {
            stream,
            permit,
            draft: Draft::default(),
        })
    }

    /// The stream is over, by its end or by an error; only its fold knows whether the provider ended it.
    async fn finish(&mut self) -> Result<Reply, Failure> {
        let Attempt {
            stream,
            permit,
            draft,
        } = self.running.take().expect("the attempt that just ended");
        let reply = match quiet(stream.finish()).await {
            Ok(response) => draft
                .finish(&response, self.llm.provider, &self.request)
                .map_err(Failure::from),
            Err(error) if refusal(&error) => Ok(draft.filtered(&self.request)),
            Err(error) => Err(Failure::of(&error, self.llm.api_key.as_ref())),
        };
        self.settle(permit, reply.as_ref().is_err_and(|failure| failure.dead));
        reply
    }

    fn settle(&self, permit: Permit, dead: bool) {
        if dead {
            permit.dead(
                self.shared.limits.breaker_failures,
                self.shared.limits.breaker_pause,
            );
        } else {
            permit.alive();
        }
    }

    /// Waits for the next attempt, or says why there is none.
    async fn recover(&mut self, failure: Failure) -> Result<(), ModelError> {
        let Failure {
            error,
            again,
            field,
            ..
        } = failure;
        if !self.shown && field.is_some_and(|field| self.learn(field)) {
            self.attempts -= 1;
            return Ok(());
        }
        let limits = self.shared.limits;
        let wait = error
            .retry_after()
            .unwrap_or_default()
            .max(backoff(limits.backoff, self.attempts));
        let last = self.shown
            || !again
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

/// The provider withheld the answer; no fault of anyone's.
fn refusal(error: &ProviderError) -> bool {
    error
        .provider_response()
        .is_some_and(|response| response.refusal)
}

/// `base`, doubled with each attempt, less a random part of up to a half.
fn backoff(base: Duration, attempt: u32) -> Duration {
    base.saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .mul_f64(rand::random_range(0.5..1.0))
}
