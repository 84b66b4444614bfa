//! What a step does after a failed attempt: wait, leave out a field, or give up.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::PoisonError,
};

use serde_json::Value;
use tokio::time::sleep;
use url::Url;

use super::{Step, Unsupported};
use crate::{
    ModelError, StepRequest, Turn,
    error::{AttemptError, Field, ToolPlace},
    history,
    provider::{self, Refused, fingerprint},
    schema::Dialect,
    transport,
};
use domain::{answer_format::AnswerFormat, backoff};

/// Tools that are remembered as refused, by endpoint and model.
const MOST_REFUSED: usize = 1000;
/// Tools that are looked for in one step, because a refusal does not say which it is about.
const MOST_SEARCHES: u32 = 3;

/// What the form of an answer is to a provider.
fn fingerprint_of_format(format: &AnswerFormat) -> u64 {
    let mut hasher = DefaultHasher::new();
    format
        .schema()
        .map(Value::to_string)
        .unwrap_or_default()
        .hash(&mut hasher);
    hasher.finish()
}

impl Step {
    /// Waits before the next attempt, or returns the error when there is none.
    pub(super) async fn recover(&mut self, failure: AttemptError) -> Result<(), ModelError> {
        let AttemptError {
            error,
            is_retryable,
            field,
            ..
        } = failure;
        let is_about_tools = matches!(field, Some(Field::Schemas | Field::Tool(_)))
            && !self.request.tools.is_empty();
        if !self.has_output
            && (field.is_some_and(|field| self.leave_out(&field))
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
        // Where another model can be asked, nobody waits until this one has time.
        let is_asked_to_wait = error.retry_after().is_some() && !self.others.is_empty();
        let last = self.has_output
            || !is_retryable
            || self.attempts >= limits.attempts
            || wait > limits.max_retry_after
            || is_asked_to_wait;
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

    /// Leaves `field` out from now on; `false` when the endpoint complains although it was left out. An image is left out of
    /// this step only: another user's image may be fine.
    fn leave_out(&mut self, field: &Field) -> bool {
        let flag = |refused: &mut Refused| {
            let flag = match field {
                Field::Temperature => &mut refused.params.temperature,
                Field::ReasoningEffort => &mut refused.params.reasoning_effort,
                Field::StreamOptions => &mut refused.params.stream_options,
                Field::LongDescriptions => &mut refused.params.long_descriptions,
                Field::AnyImages => &mut refused.params.images,
                _ => &mut refused.schemas,
            };
            std::mem::replace(flag, true)
        };
        match field {
            Field::Images => self.leave_images_out(),
            Field::AnyImages => {
                self.unsupported(|found| flag(&mut found.refused));
                self.leave_images_out()
            }
            Field::Length => self.halve(),
            Field::Tool(place) => self.leave_tool_out(place),
            Field::Format => self.leave_format_out(),
            Field::Temperature
            | Field::ReasoningEffort
            | Field::StreamOptions
            | Field::LongDescriptions
            | Field::Schemas => {
                let mut sent = self.without.clone();
                self.unsupported(|found| flag(&mut found.refused));
                !flag(&mut sent)
            }
        }
    }

    /// Writes a tool that the endpoint refuses by every rule there is, and leaves out one that it refuses again, from now on;
    /// `false` when the request has no such tool and all are written so already.
    fn leave_tool_out(&mut self, place: &ToolPlace) -> bool {
        let tools = &self.request.tools;
        let dialect = Dialect::of(&self.llm);
        let at = match place {
            ToolPlace::Name(name) => tools
                .iter()
                .position(|tool| dialect.tool_name(&tool.name) == *name),
            ToolPlace::Index(at) => Some(*at).filter(|at| *at < tools.len()),
        };
        let Some(at) = at else {
            return self.leave_out(&Field::Schemas);
        };
        let mark = fingerprint(&tools[at]);
        if !self.without.schemas && !self.without.tools.contains(&mark) {
            let is_remembered = self.unsupported(|found| {
                let marks = &mut found.refused.tools;
                marks.len() < MOST_REFUSED && marks.insert(mark)
            });
            if is_remembered {
                return true;
            }
        }
        self.remove_tool(at);
        true
    }

    /// Leaves a tool out, from now on.
    fn remove_tool(&mut self, at: usize) {
        let tool = self.request.tools.remove(at);
        tracing::warn!(
            tool = tool.name,
            model = self.llm.model,
            "the model's provider refuses the schema of a tool; the tool is left out of its requests"
        );
        self.unsupported(|found| {
            if found.tools.len() < MOST_REFUSED {
                found.tools.insert(fingerprint(&tool));
            }
        });
    }

    /// Finds the first tool that the endpoint refuses, and leaves it out: asks a short question with fewer and fewer tools.
    /// `false` when it is no tool, or one too many.
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

    /// Whether the endpoint takes a request with the first `count` tools, whose answer is not read. `None` when it does not
    /// say.
    async fn takes_tools(&mut self, count: usize) -> Option<bool> {
        let question = StepRequest {
            history: vec![Turn::User("hi".to_owned())],
            tools: self.request.tools[..count].to_vec(),
            ..StepRequest::default()
        };
        let without = self.unsupported(|found| found.refused.clone());
        let request = provider::request(&self.llm, &question, &without).ok()?;
        let header = provider::key(&self.llm).ok()?;
        let shared = &self.shared;
        let opened = transport::open(&shared.client, &self.llm, request, header, shared.limits);
        match opened.await.map_err(|failure| failure.error) {
            Ok(_) => Some(true),
            Err(ModelError::BadRequest(_)) => Some(false),
            Err(_) => None,
        }
    }

    /// Leaves the form of the answer out, from now on for this form; the model was told of it in words, too.
    fn leave_format_out(&mut self) -> bool {
        let Some(format) = self.request.format.take() else {
            return false;
        };
        let refused = fingerprint_of_format(&format);
        self.unsupported(|found| {
            if found.formats.len() < MOST_REFUSED {
                found.formats.insert(refused);
            }
        });
        true
    }

    /// Makes a request that is too long much shorter, once.
    fn halve(&mut self) -> bool {
        let sent = self.request.size();
        if std::mem::replace(&mut self.is_halved, true)
            || !history::halve(&mut self.request.history)
        {
            return false;
        }
        let most = sent / 5 * 4;
        self.unsupported(|found| {
            found.max_request = Some(found.max_request.map_or(most, |known| known.min(most)));
        });
        true
    }

    /// `false` when the request has no images.
    fn leave_images_out(&mut self) -> bool {
        let before = self.request.history.len();
        let is_image = |turn: &Turn| matches!(turn, Turn::Image { .. } | Turn::ToolImage { .. });
        self.request.history.retain(|turn| !is_image(turn));
        self.request.history.len() < before
    }

    /// Leaves out what the endpoint has refused before, and shortens what is too long for it.
    pub(super) fn leave_out_unsupported(&mut self) {
        let (refused, formats, known) = self.unsupported(|found| {
            let formats = found.formats.clone();
            (found.tools.clone(), formats, found.max_request)
        });
        self.request
            .format
            .take_if(|format| formats.contains(&fingerprint_of_format(format)));
        self.request
            .tools
            .retain(|tool| !refused.contains(&fingerprint(tool)));
        if self.without.params.images {
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

    pub(super) fn unsupported<T>(&self, look: impl FnOnce(&mut Unsupported) -> T) -> T {
        let mut unsupported = self
            .shared
            .unsupported
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        look(
            unsupported
                .entry((self.endpoint.clone(), self.llm.model.clone()))
                .or_default(),
        )
    }
}

/// All four providers report an error inside a stream in the same form. A gateway may say beside it that the answer
/// ended with an error.
pub(super) fn is_error(event: &Value) -> bool {
    let error = &event["error"];
    let is_set = error.is_object() || error.as_str().is_some_and(|text| !text.is_empty());
    let choices = event["choices"].as_array();
    let failed = |choice: &Value| choice["finish_reason"] == "error";
    let ends = choices.is_none_or(|choices| choices.is_empty() || choices.iter().any(failed));
    (is_set && ends) || choices.is_some_and(|choices| choices.iter().any(failed))
}
