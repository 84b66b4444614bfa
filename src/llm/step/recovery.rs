//! What a step does after a failed attempt: wait, leave out a field, or give up.

use std::sync::PoisonError;

use serde_json::Value;
use tokio::time::sleep;
use url::Url;

use super::Step;
use crate::{
    domain::backoff,
    llm::{
        ModelError, Turn,
        error::{AttemptError, Field},
        provider::{self, UnsupportedParams},
    },
};

impl Step {
    /// Waits before the next attempt, or returns the error when there is none.
    pub(super) async fn recover(&mut self, failure: AttemptError) -> Result<(), ModelError> {
        let AttemptError {
            error,
            is_retryable,
            field,
            ..
        } = failure;
        if !self.has_output && field.is_some_and(|field| self.leave_out(field)) {
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
        let last = self.has_output
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

    /// Leaves `field` out from now on; `false` when the endpoint complains although it was left out. Images are left out
    /// of this step only: another user's image may be fine.
    fn leave_out(&mut self, field: Field) -> bool {
        if field == Field::Images {
            let before = self.request.history.len();
            let is_image = |turn: &Turn| matches!(turn, Turn::Image { .. });
            self.request.history.retain(|turn| !is_image(turn));
            return self.request.history.len() < before;
        }
        let flag = |without: &mut UnsupportedParams| match field {
            Field::Temperature => std::mem::replace(&mut without.temperature, true),
            Field::StreamOptions => std::mem::replace(&mut without.stream_options, true),
            Field::Images => true,
        };
        let mut sent = self.without;
        self.unsupported(flag);
        !flag(&mut sent)
    }

    pub(super) fn unsupported<T>(&self, look: impl FnOnce(&mut UnsupportedParams) -> T) -> T {
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

/// All four providers report an error inside a stream in the same form.
pub(super) fn is_error(event: &Value) -> bool {
    let error = &event["error"];
    let is_set = error.is_object() || error.as_str().is_some_and(|text| !text.is_empty());
    is_set && event["choices"].as_array().is_none_or(Vec::is_empty)
}
