//! Texts of a server: cut, without hidden characters, and without the credentials of the connection they came over.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::value::RawValue;

use super::error::Failure;
use domain::{
    hidden::{one_line, remove_hidden},
    scrub::Scrubber,
};

/// The most bytes of a server's error message that are kept.
const MAX_MESSAGE: usize = 1024;

/// Removes the credentials of one connection from texts of its server.
#[derive(Default)]
pub(super) struct Redactor {
    /// For the credentials of the server's definition.
    scrubber: Scrubber,
    /// For the access token that was sent last.
    token: ArcSwap<Scrubber>,
}

impl Redactor {
    pub(super) fn new(scrubber: Scrubber) -> Self {
        Self {
            scrubber,
            ..Self::default()
        }
    }

    /// Sets the scrubber for the access token that is about to be sent.
    pub(super) fn set_token(&self, scrubber: Arc<Scrubber>) {
        self.token.store(scrubber);
    }

    pub(super) fn json(&self, raw: Box<RawValue>) -> Box<RawValue> {
        self.token.load().json(self.scrubber.json(raw))
    }

    pub(super) fn failure(&self, failure: Failure) -> Failure {
        failure.scrub(&self.scrubber).scrub(&self.token.load())
    }

    pub(super) fn answer(
        &self,
        answer: Result<Box<RawValue>, Failure>,
    ) -> Result<Box<RawValue>, Failure> {
        match answer {
            Ok(raw) => Ok(self.json(raw)),
            Err(failure) => Err(self.failure(failure)),
        }
    }

    /// The beginning of a text in one line. It is cleaned before it is cut, since half a credential would not be found.
    pub(super) fn excerpt(&self, text: &str) -> String {
        let mut text = text.to_owned();
        self.scrubber.clean(&mut text);
        self.token.load().clean(&mut text);
        clip(&text)
    }
}

/// The beginning of a server's text without hidden characters, with its line ends.
pub(super) fn clip_lines(text: &str) -> String {
    remove_hidden(&text[..text.floor_char_boundary(MAX_MESSAGE)])
}

/// The beginning of a server's text without hidden characters, in one line.
pub(super) fn clip(text: &str) -> String {
    one_line(&text[..text.floor_char_boundary(MAX_MESSAGE)], MAX_MESSAGE)
}
