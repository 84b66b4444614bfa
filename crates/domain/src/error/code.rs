//! The codes of errors: one for each situation that a program treats differently. A code is never renamed.

/// Names each code once.
macro_rules! codes {
    ($($variant:ident = $name:literal,)*) => {
        /// What a program branches on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum ErrorCode {
            $(#[serde(rename = $name)] $variant,)*
        }

        impl ErrorCode {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    // 400: the input cannot be used.
    MissingField = "missing_field",
    UnknownField = "unknown_field",
    WrongType = "wrong_type",
    TooLong = "too_long",
    UnknownReference = "unknown_reference",
    ArgumentsUnfit = "arguments_unfit",
    ReadOnlyField = "read_only_field",
    SecretNeeded = "secret_needed",
    Unsupported = "unsupported",
    Invalid = "invalid",
    MalformedJson = "malformed_json",
    BrokenBody = "broken_body",
    // 400: the request must not simply be sent again.
    TurnFailedAfterCall = "turn_failed_after_call",
    AnswerPending = "answer_pending",
    // 401, 403: who asks.
    Unauthenticated = "unauthenticated",
    Forbidden = "forbidden",
    TenantSuspended = "tenant_suspended",
    UserBlocked = "user_blocked",
    OriginNotAllowed = "origin_not_allowed",
    // 404, 405, 406, 408, 412, 413, 415: the request as HTTP.
    NotFound = "not_found",
    UnknownPath = "unknown_path",
    ModelNotFound = "model_not_found",
    PreviousResponseNotFound = "previous_response_not_found",
    MethodNotAllowed = "method_not_allowed",
    NotAcceptable = "not_acceptable",
    RequestTimeout = "request_timeout",
    PreconditionFailed = "precondition_failed",
    BodyTooLarge = "body_too_large",
    UnsupportedMediaType = "unsupported_media_type",
    // 409: the state of the thing does not allow this.
    DuplicateId = "duplicate_id",
    DuplicateName = "duplicate_name",
    LimitReached = "limit_reached",
    ServerInUse = "server_in_use",
    SecretInUse = "secret_in_use",
    LastIssuer = "last_issuer",
    IssuerNotAllowed = "issuer_not_allowed",
    AlreadyRevoked = "already_revoked",
    WebhookDisabled = "webhook_disabled",
    ConversationBusy = "conversation_busy",
    SessionBusy = "session_busy",
    CallInProgress = "call_in_progress",
    RunOver = "run_over",
    RunCancelled = "run_cancelled",
    QuestionClosed = "question_closed",
    AlreadyDecided = "already_decided",
    AlreadyVoted = "already_voted",
    LookalikeUser = "lookalike_user",
    ApprovalRevoked = "approval_revoked",
    ArgumentsChanged = "arguments_changed",
    ArgumentsUnreadable = "arguments_unreadable",
    OutcomeKnown = "outcome_known",
    NotConnected = "not_connected",
    CredentialUnusable = "credential_unusable",
    ServerShared = "server_shared",
    NoSignIn = "no_sign_in",
    AgentHasNoModel = "agent_has_no_model",
    Refused = "refused",
    RepeatedRequest = "repeated_request",
    AnswerNotKept = "answer_not_kept",
    Conflict = "conflict",
    // 422: another request with the same key, a credential that does not work, a format that the model does not keep.
    IdempotencyKeyReused = "idempotency_key_reused",
    Unauthorized = "unauthorized",
    Unreachable = "unreachable",
    Timeout = "timeout",
    BadTemplate = "bad_template",
    NotMcp = "not_mcp",
    AnswerNotInFormat = "answer_not_in_format",
    // 429: wait as long as `Retry-After` says, or end something first.
    RateLimited = "rate_limited",
    QuotaExceeded = "quota_exceeded",
    TooManyRuns = "too_many_runs",
    TooManyStreams = "too_many_streams",
    TooManyAtOnce = "too_many_at_once",
    // 500 and above: not the caller's doing.
    Internal = "internal",
    Unavailable = "unavailable",
    KeysUnreadable = "keys_unreadable",
    RunFailed = "run_failed",
    SkillFailed = "skill_failed",
    OutcomeUnknown = "outcome_unknown",
    Overloaded = "overloaded",
    Busy = "busy",
    Stopping = "stopping",
}
