//! Schemas of tenants, their users, keys, usage and webhooks.

use time::OffsetDateTime;

use crate::{
    account::{self, Frontend, ServerSignIn, ShownCalls, UserCredential},
    audit,
    ids::{AuditId, RunId},
    retention, schemas,
    usage::Limit,
};

schemas! {
    /// A tenant's own days. What is absent is as the installation's settings have it.
    struct Retention for retention::Retention {
        /// Conversations of users, by their last message.
        conversations: Option<Limit>,
        /// The same of guests.
        guest_conversations: Option<Limit>,
        /// Runs that ended. Their messages stay with the conversation.
        runs: Option<Limit>,
        /// The arguments of closed approvals, and the claims of their requesters.
        approval_arguments: Option<Limit>,
        /// Lines of the audit trail.
        audit: Option<Limit>,
    }
    /// Days in force. What is absent is kept for ever.
    #[schema(as = RetentionInForce)]
    struct Days for retention::Days {
        conversations: Option<i32>,
        guest_conversations: Option<i32>,
        runs: Option<i32>,
        approval_arguments: Option<i32>,
        audit: Option<i32>,
    }
    /// A user of a tenant, as far as rows tell of them.
    struct SeenUser for account::SeenUser {
        id: String,
        /// When they last did something that is written down; with nothing better, the beginning of that day (UTC).
        last_seen: Option<OffsetDateTime>,
        conversations: i64,
        /// The personal servers that they configured.
        credentials: Vec<UserCredential>,
        /// Their calls that wait for approval, or for being made.
        open_approvals: i64,
        /// Since 00:00 UTC.
        runs_today: i64,
        tokens_today: i64,
        tool_calls_today: i64,
        /// Since when no credential of theirs is taken; absent: they are not blocked.
        blocked_at: Option<OffsetDateTime>,
        /// Who blocked them.
        blocked_by: Option<String>,
    }
    /// That somebody has a credential, and how it is; never what is in it.
    struct UserCredential for account::UserCredential {
        agent: String,
        server: String,
        /// `active`, `rejected` by the server, or `quarantined`: it cannot be opened.
        state: String,
        /// Where the user signed in at the server; absent for what was entered in fields.
        sign_in: Option<ServerSignIn>,
    }
    /// A sign-in of a user at a server; never its tokens.
    struct ServerSignIn for account::ServerSignIn {
        issuer: String,
        /// What the user allowed.
        scopes: Vec<String>,
        since: OffsetDateTime,
    }
    /// A frontend whose headers are known.
    #[serde(rename_all = "kebab-case")]
    enum Frontend for account::Frontend {
        OpenWebui,
        Librechat,
    }
    /// What somebody says about a frontend's headers: those of a known one, of which some are others, or all by name.
    #[serde(deny_unknown_fields)]
    struct FrontendSettings for account::FrontendSettings {
        preset: Option<Frontend>,
        /// The header with the immutable id of the user.
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        user_id: Option<String>,
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        name: Option<String>,
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        email: Option<String>,
        /// The header that becomes the claim `roles`.
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        roles: Option<String>,
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        locale: Option<String>,
        /// The header with the frontend's own id of the conversation.
        #[schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
        conversation: Option<String>,
        /// An e-mail address in the header counts as verified. Absent: as for the keys of this name before, at first
        /// `false`.
        trust_email: Option<bool>,
        /// An issuer, or the name of another frontend's key, whose users are this frontend's users, too. Absent: as for the
        /// keys of this name before; at first the frontend has users of its own.
        shares_users_with: Option<String>,
    }
    /// The request headers in which a frontend says who its user is. They count only together with the
    /// frontend's key.
    #[serde(deny_unknown_fields)]
    struct FrontendHeaders for account::FrontendHeaders {
        /// The immutable id of the user. A request without it is refused.
        user_id: String,
        name: Option<String>,
        email: Option<String>,
        /// Becomes the claim `roles`.
        roles: Option<String>,
        locale: Option<String>,
        /// The frontend's own id of the conversation.
        conversation: Option<String>,
    }
    /// How OpenAI clients that use a key are answered.
    #[serde(deny_unknown_fields)]
    struct ChatSettings for account::ChatSettings {
        /// A run goes on when its client closes the connection. Otherwise it is stopped.
        #[schema(required = false)]
        keep_running: bool,
        #[schema(required = false)]
        tool_calls: ShownCalls,
    }
    /// How tool calls are shown in the text of an answer.
    #[serde(rename_all = "lowercase")]
    enum ShownCalls for account::ShownCalls {
        None,
        /// A line for each call.
        Text,
        /// The element `<details type="tool_calls">`, which Open WebUI draws as a box that can be opened.
        Details,
    }
    /// A line of a tenant's trail.
    #[schema(as = AuditLine)]
    struct Line for audit::Line {
        id: AuditId,
        /// When it was done; of a call, when it was sent.
        at: OffsetDateTime,
        /// A user's id, `operator` for whoever runs the installation, `system` for the program itself.
        actor: String,
        /// What was done: `tool.call`, `credential.stored`, `key.revoked` …
        action: String,
        agent: Option<String>,
        run_id: Option<RunId>,
        server: Option<String>,
        tool: Option<String>,
        /// SHA-256 of the arguments, in hex.
        args_sha256: Option<String>,
        /// `succeeded`, or of a call also `failed`, `denied`, `outcome_unknown` and `cancelled`.
        outcome: String,
        detail: Option<String>,
    }
}
