//! Where a client wants an answer to end: at one of its `stop` texts, or at `max_tokens`.
//!
//! An agent's answer has several steps, and a tool call must not be cut. So the limits hold for the text that the
//! client is sent, and not for a step of the model. Tokens of that text are estimated.

/// Bytes of a token, on average.
const TOKEN: usize = 4;

#[derive(Debug, Default)]
pub(in crate::api) struct Limiter {
    stops: Vec<String>,
    /// Bytes that may still be sent.
    left: Option<usize>,
    /// Text that may be the beginning of a stop text.
    held: String,
    /// Why the answer ended here, as OpenAI names it.
    reason: Option<&'static str>,
}

impl Limiter {
    pub fn new(stops: Vec<String>, max_tokens: Option<u64>) -> Self {
        let bytes = |tokens| usize::try_from(tokens).unwrap_or(usize::MAX);
        Self {
            stops,
            left: max_tokens.map(|tokens| bytes(tokens).saturating_mul(TOKEN)),
            ..Self::default()
        }
    }

    /// Why nothing more is sent; `None` as long as the answer goes on.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Takes a piece of the answer and returns the text that can be sent now.
    pub fn pass(&mut self, text: &str) -> String {
        if self.reason.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop));
        let ready = match found.min() {
            Some(at) => {
                self.reason = Some("stop");
                at
            }
            None => self.held.len() - self.unsure(),
        };
        let rest = self.held.split_off(ready);
        let sent = std::mem::replace(&mut self.held, rest);
        self.shorten(sent)
    }

    /// The end of the answer: no stop text comes any more.
    pub fn flush(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if self.reason.is_some() {
            String::new()
        } else {
            self.shorten(held)
        }
    }

    /// Bytes at the end that may be the beginning of a stop text.
    fn unsure(&self) -> usize {
        let beginning = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|at| self.held.ends_with(&stop[..*at])).max()
        };
        let longest = self.stops.iter().filter_map(beginning).max();
        longest.unwrap_or_default()
    }

    fn shorten(&mut self, mut text: String) -> String {
        let Some(left) = &mut self.left else {
            return text;
        };
        if text.len() > *left {
            text.truncate(text.floor_char_boundary(*left));
            self.reason = Some("length");
        }
        *left -= text.len();
        text
    }
}
