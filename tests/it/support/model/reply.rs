//! What a scripted model answers: a good answer by default, and every way of spoiling it.

use std::io;

use axum::body::Bytes;
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Hangup, TIME_LIMIT};

/// An answer. Made by [`text`], [`calls`], [`error`], [`events`] or [`raw`], then changed by its methods.
#[derive(Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    body: Content,
    finish: Option<String>,
    usage: Option<(u64, u64)>,
    done: bool,
    index: Index,
    gates: Vec<(usize, Gate)>,
    cut: Option<usize>,
    chunk: Option<usize>,
    stall: bool,
    endless: bool,
}

#[derive(Clone)]
enum Content {
    Answer { text: String, calls: Vec<Call> },
    Events(Vec<Value>),
    Raw(Vec<Bytes>),
}

#[derive(Clone)]
pub struct Call {
    id: Option<String>,
    name: String,
    arguments: String,
}

/// The `index` of streamed calls, which tells their fragments apart.
#[derive(Clone, Copy, Debug)]
pub enum Index {
    Counted,
    /// No index at all; each call comes in one piece.
    Missing,
    /// 0, 3, 6 …
    Gapped,
    /// Counted from there.
    From(u64),
}

/// Says `text`, a word at a time.
pub fn text(text: impl Into<String>) -> Reply {
    Reply::new(Content::Answer {
        text: text.into(),
        calls: Vec::new(),
    })
}

/// Calls tools, all at once, with ids of its own.
pub fn calls<const N: usize>(wanted: [(&str, Value); N]) -> Reply {
    let calls = wanted.map(|(name, arguments)| call(name, arguments.to_string()));
    Reply::new(Content::Answer {
        text: String::new(),
        calls: calls.into(),
    })
}

/// One call with its arguments as text, which need not be JSON. For [`Reply::and_call`].
pub fn call(name: &str, arguments: impl Into<String>) -> Call {
    Call {
        id: None,
        name: name.to_owned(),
        arguments: arguments.into(),
    }
}

impl Call {
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }
}

/// An error status with a provider's usual body.
pub fn error(status: u16, message: &str) -> Reply {
    let body = json!({ "error": { "message": message, "type": "scripted", "code": null } });
    raw([body.to_string()])
        .status(status)
        .header("content-type", "application/json")
}

/// These events as they are, each on its `data:` line; neither an end nor `[DONE]` is added.
pub fn events<const N: usize>(events: [Value; N]) -> Reply {
    Reply::new(Content::Events(events.into()))
}

/// These bytes as they are, one chunk each.
pub fn raw<const N: usize>(chunks: [impl Into<Vec<u8>>; N]) -> Reply {
    Reply::new(Content::Raw(
        chunks.map(|chunk| Bytes::from(chunk.into())).into(),
    ))
}

impl Reply {
    fn new(body: Content) -> Self {
        let plain = matches!(body, Content::Answer { .. });
        Self {
            status: 200,
            headers: Vec::new(),
            body,
            finish: None,
            usage: Some((11, 7)),
            done: plain,
            index: Index::Counted,
            gates: Vec::new(),
            cut: None,
            chunk: None,
            stall: false,
            endless: false,
        }
    }

    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// `Retry-After`, in seconds or as a date.
    pub fn retry_after(self, value: impl Into<String>) -> Self {
        self.header("retry-after", value)
    }

    /// One more call, after what is there.
    pub fn and_call(mut self, call: Call) -> Self {
        if let Content::Answer { calls, .. } = &mut self.body {
            calls.push(call);
        }
        self
    }

    /// Another reason for the end than `stop` or `tool_calls`.
    pub fn finish(mut self, reason: &str) -> Self {
        self.finish = Some(reason.to_owned());
        self
    }

    pub fn usage(mut self, input: u64, output: u64) -> Self {
        self.usage = Some((input, output));
        self
    }

    pub fn without_usage(mut self) -> Self {
        self.usage = None;
        self
    }

    pub fn without_done(mut self) -> Self {
        self.done = false;
        self
    }

    pub fn index(mut self, index: Index) -> Self {
        self.index = index;
        self
    }

    /// Waits at `gate` after `events` events, until the test opens it. Gates are given in the order of their events.
    pub fn gate(mut self, events: usize, gate: &Gate) -> Self {
        self.gates.push((events, gate.clone()));
        self
    }

    /// Closes the connection after `events` events, in the middle of the body.
    pub fn cut(mut self, events: usize) -> Self {
        self.cut = Some(events);
        self
    }

    /// Sends everything in chunks of `bytes`, wherever characters and lines may end.
    pub fn in_chunks_of(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Sends nothing more after what there is, and keeps the connection open.
    pub fn stall(mut self) -> Self {
        self.stall = true;
        self
    }

    /// Begins anew whenever it was said, without end.
    pub fn endless(mut self) -> Self {
        self.endless = true;
        self
    }

    /// The body; an error in it cuts the connection.
    pub(super) fn stream(
        self,
        serial: usize,
        hangup: Hangup,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let (pieces, endless) = (self.pieces(serial).into_iter(), self.endless);
        let pieces: Box<dyn Iterator<Item = Piece> + Send> = if endless {
            Box::new(pieces.cycle())
        } else {
            Box::new(pieces)
        };
        stream::unfold((pieces, hangup), async |(mut pieces, mut hangup)| {
            loop {
                match pieces.next() {
                    Some(Piece::Bytes(bytes)) => return Some((Ok(bytes), (pieces, hangup))),
                    Some(Piece::Gate(gate)) => gate.pass().await,
                    Some(Piece::Stall) => std::future::pending().await,
                    Some(Piece::Cut) => {
                        // What was said so far goes out before the connection does.
                        tokio::task::yield_now().await;
                        hangup.ended = true;
                        return Some((
                            Err(io::Error::other("cut by the script")),
                            (pieces, hangup),
                        ));
                    }
                    None => {
                        hangup.ended = true;
                        return None;
                    }
                }
            }
        })
    }

    fn pieces(&self, serial: usize) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = self.lines(serial).into_iter().map(Piece::Bytes).collect();
        if let Some(size) = self.chunk {
            let whole: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| piece.bytes().to_vec())
                .collect();
            pieces = whole
                .chunks(size)
                .map(|chunk| Piece::Bytes(Bytes::copy_from_slice(chunk)))
                .collect();
        }
        for (after, gate) in self.gates.iter().rev() {
            pieces.insert(*after, Piece::Gate(gate.clone()));
        }
        if let Some(after) = self.cut {
            pieces.truncate(after);
            pieces.push(Piece::Cut);
        }
        if self.stall {
            pieces.push(Piece::Stall);
        }
        pieces
    }

    fn lines(&self, serial: usize) -> Vec<Bytes> {
        let events = match &self.body {
            Content::Raw(chunks) => return chunks.clone(),
            Content::Events(events) => events.clone(),
            Content::Answer { text, calls } => self.answer(text, calls, serial),
        };
        let mut lines: Vec<Bytes> = events
            .iter()
            .map(|event| Bytes::from(format!("data: {event}\n\n")))
            .collect();
        if self.done {
            lines.push(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        lines
    }

    /// A good stream: the role, the words, the calls in two fragments each, the reason, the usage.
    fn answer(&self, text: &str, calls: &[Call], serial: usize) -> Vec<Value> {
        let chunk = |delta: Value, reason: Option<&str>| {
            json!({
                "id": format!("chatcmpl-{serial}"), "object": "chat.completion.chunk", "created": 0, "model": "scripted",
                "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }],
            })
        };
        let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), None)];
        events.extend(
            text.split_inclusive(' ')
                .map(|word| chunk(json!({ "content": word }), None)),
        );
        for (at, call) in calls.iter().enumerate() {
            let fragments = self.fragments(call, at, serial);
            events.extend(
                fragments
                    .into_iter()
                    .map(|fragment| chunk(json!({ "tool_calls": [fragment] }), None)),
            );
        }
        let reason = if calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        };
        events.push(chunk(
            json!({}),
            Some(self.finish.as_deref().unwrap_or(reason)),
        ));
        if let Some((input, output)) = self.usage {
            events.push(json!({
                "id": format!("chatcmpl-{serial}"), "object": "chat.completion.chunk", "choices": [],
                "usage": { "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output },
            }));
        }
        events
    }

    fn fragments(&self, call: &Call, at: usize, serial: usize) -> Vec<Value> {
        let id = call
            .id
            .clone()
            .unwrap_or_else(|| format!("call_{serial:04}_{at:04}"));
        let mut head = json!({ "id": id, "type": "function", "function": { "name": call.name, "arguments": "" } });
        let at = at as u64;
        let index = match self.index {
            Index::Missing => {
                head["function"]["arguments"] = json!(call.arguments);
                return vec![head];
            }
            Index::Counted => at,
            Index::Gapped => at * 3,
            Index::From(first) => first + at,
        };
        head["index"] = json!(index);
        let middle = call.arguments.len() / 2;
        let middle = (0..=middle)
            .rev()
            .find(|at| call.arguments.is_char_boundary(*at))
            .unwrap_or(0);
        let (left, right) = call.arguments.split_at(middle);
        let rest = |text: &str| json!({ "index": index, "function": { "arguments": text } });
        vec![head, rest(left), rest(right)]
    }
}

#[derive(Clone)]
enum Piece {
    Bytes(Bytes),
    Gate(Gate),
    Stall,
    Cut,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            _ => &[],
        }
    }
}

/// A place in an answer where the model waits for the test.
#[derive(Clone, Default)]
pub struct Gate {
    reached: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every answer through, those that wait and those that will come.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until an answer stands at the gate.
    pub async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        let stood = tokio::time::timeout(TIME_LIMIT, reached.wait_for(|count| *count > 0))
            .await
            .is_ok();
        assert!(stood, "no answer came to the gate in {TIME_LIMIT:?}");
    }

    async fn pass(&self) {
        self.reached.send_modify(|count| *count += 1);
        let mut open = self.open.subscribe();
        drop(open.wait_for(|open| *open).await);
    }
}
