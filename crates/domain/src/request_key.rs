//! What identifies a request, so that a request that is sent again does not start the same work twice.

use std::time::{Duration, Instant};

use super::ids::{ConversationId, MessageId, ReplicaId, RunId};

/// How long a request is remembered.
pub const REMEMBERED_HOURS: i32 = 24;
/// For so many seconds after a turn has failed that had called tools, or has ended without its client, an equal request is
/// not begun again. Clients that repeat what failed do so within this time.
pub const REFUSED_SECONDS: i32 = 90;

/// The key that a client gave a request, or the digest that its attempts have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub key: String,
    /// SHA-256 of method, path and body.
    pub digest: [u8; 32],
    pub origin: KeySource,
    /// The client saw where its turn was stopped, because it read the answer as it came. When it asks again, it means to.
    pub sees_stop: bool,
    /// The body names its message, so an equal request is the same one.
    pub names_message: bool,
    /// When the request arrived.
    pub arrived: Instant,
    /// The run of an earlier equal request, beside which this one may begin another.
    pub replaced: Option<RunId>,
    /// Who holds the client's connection.
    pub server: Option<RequestServer>,
}

/// The replica that holds the connection of a request's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestServer {
    pub replica: ReplicaId,
    /// For how long it says so at a time.
    pub lease: Duration,
}

/// Where the key of a request comes from, which says what an earlier request with the same key means for it:
///
/// | source                  | joins the earlier run | takes the key over | its client may come back |
/// |-------------------------|-----------------------|--------------------|--------------------------|
/// | `Named`                 | yes                   | no                 | yes                      |
/// | `Attempt(0)`            | no                    | yes                | yes                      |
/// | `Attempt(1)` and higher | yes                   | yes                | yes                      |
/// | `Body`                  | no                    | yes                | no                       |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The client named the request: `Idempotency-Key`.
    Named,
    /// An SDK counts its attempts and gives no key, so the digest is the key. The number of this attempt,
    /// from 0.
    Attempt(u32),
    /// The client neither names its requests nor counts its attempts, so the digest is the key.
    Body,
}

impl RequestKey {
    /// The key as the client wrote it.
    pub fn name(&self) -> &str {
        self.key
            .split_once(':')
            .map_or(self.key.as_str(), |(_, name)| name)
    }

    /// Whether the request may be a repetition, which gets the answer of the earlier one instead of a run of its own.
    pub fn joins_earlier_run(&self) -> bool {
        !matches!(self.origin, KeySource::Attempt(0) | KeySource::Body)
    }

    /// Whether the client may come back for its answer with a request that joins this one.
    pub fn may_come_back(&self) -> bool {
        self.origin != KeySource::Body
    }

    /// Whether the request, when it begins a run of its own, takes the key over from an earlier one. A key that a client
    /// named stays with the first request.
    pub fn takes_over(&self) -> bool {
        self.origin != KeySource::Named
    }
}

/// The work that a request began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRun {
    pub conversation: ConversationId,
    pub run: Option<RunId>,
    pub message: Option<MessageId>,
    /// How often the request was sent again.
    pub repeats: i32,
}
