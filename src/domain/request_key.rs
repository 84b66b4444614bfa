//! What makes two requests the same one, so that a request which is sent again begins nothing twice.

use super::ids::{ConversationId, MessageId, RunId};

/// How long a request is remembered.
pub const REMEMBERED_HOURS: i32 = 24;

/// The name that a client gave a request, or that its attempts have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub key: String,
    /// SHA-256 of method, path and body.
    pub digest: [u8; 32],
    pub origin: Origin,
}

/// Where the key of a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client named the request: `Idempotency-Key`.
    Named,
    /// An SDK counts its attempts and names none: the digest is the key. The number of this attempt, from 0.
    Attempt(u32),
}

impl RequestKey {
    /// Whether an earlier request may be the same one. A first attempt is a request of its own.
    pub fn may_be_repeated(&self) -> bool {
        self.origin != Origin::Attempt(0)
    }

    /// Whether this request takes the key over from an earlier one.
    pub fn replaces(&self) -> bool {
        matches!(self.origin, Origin::Attempt(_))
    }
}

/// What a request began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub conversation: ConversationId,
    pub run: Option<RunId>,
    pub message: Option<MessageId>,
    /// How often the request was sent again.
    pub repeats: i32,
}
