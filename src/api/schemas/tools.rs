//! Schemas of tools, skills, prompts and resources.

use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::app::{
    chat::{prompts, resources},
    servers::connections::State,
    tools::{
        approvals::view::ApprovalView,
        skills::{
            self, SkillAvailability,
            outcome::{self, SkillRunStatus},
        },
        toolset::{self, DeniedTool, MissingListReason, MissingToolList, ToolView},
    },
};
use domain::{
    ids::{ConversationId, RunId},
    policy::Denial,
    prompt::PromptArgument,
    resource::Content,
    schemas,
};

schemas! {
    /// A prompt as a frontend lists it.
    struct PromptView for prompts::PromptView {
        server: String,
        /// The server's own name of the prompt.
        name: String,
        title: Option<String>,
        description: String,
        arguments: Vec<PromptArgument>,
        /// What to say in a conversation to use it, followed by `name=value` for each argument.
        command: String,
        #[serde(skip)]
        usage: String,
    }
    /// A resource that a tool's result linked to.
    struct ResourceView for resources::ResourceView {
        server: String,
        /// The tool whose result it was.
        tool: String,
        uri: String,
        name: Option<String>,
        mime_type: Option<String>,
        /// Only where one resource was asked for.
        contents: Option<Vec<Content>>,
    }
    /// A skill as those see it who may run it.
    struct SkillView for skills::SkillView {
        id: String,
        name: String,
        description: String,
        /// What runs it in a chat; arguments follow, as one JSON object or as text.
        command: String,
        server: String,
        tool: String,
        state: SkillAvailability,
        /// JSON Schema of the arguments, when the tool is known. Free text is the argument `input`.
        #[schema(value_type = Option<Object>)]
        input_schema: Option<Box<RawValue>>,
        /// Its calls wait for one of these roles.
        needs_approval_by: Option<Vec<String>>,
    }
    #[serde(rename_all = "snake_case")]
    #[schema(as = SkillReadiness)]
    enum Readiness for skills::SkillAvailability {
        Ready,
        /// Its server needs a credential of the user's own: `/connect`.
        NotConnected,
        /// Its server has not answered yet, or does not have the tool.
        Unavailable,
    }
    /// A run of a skill.
    #[schema(as = SkillRun)]
    struct SkillRunOutcome for outcome::SkillRunOutcome {
        run_id: RunId,
        conversation_id: ConversationId,
        skill: String,
        status: SkillRunStatus,
        /// What the tool said: its structured content as JSON, else its text. Of anything but a success: why.
        text: Option<String>,
        #[schema(value_type = Option<Object>)]
        structured_content: Option<Box<RawValue>>,
        /// The request for consent to its call, when it needs one.
        approval: Option<ApprovalView>,
        changed_at: OffsetDateTime,
        /// Somebody stopped the run, whatever its call came to.
        #[serde(skip)]
        stopped: bool,
    }
    #[serde(rename_all = "snake_case")]
    #[schema(as = SkillStatus)]
    enum SkillRunStatus for outcome::SkillRunStatus {
        Running,
        /// Somebody has to consent first, or has and the call is on its way.
        AwaitingApproval,
        Succeeded,
        /// The tool said that it failed, or its server could not be called.
        Failed,
        /// It was not called: the gate or an approver said no, or nobody said yes in time.
        Refused,
        /// It was called and did not answer. Never repeated by the program.
        OutcomeUnknown,
        Cancelled,
    }
    /// The tools of one server, for people.
    struct ServerTools for toolset::ServerTools {
        server: String,
        /// `shared` or `personal`.
        kind: &'static str,
        #[serde(flatten)]
        state: State,
        tools: Vec<ToolView>,
        /// What discovery left out, and why; only for whoever runs the agent.
        dropped: Vec<String>,
        /// What the pack's allowlist names and the server does not have; only for whoever runs the agent.
        missing: Vec<String>,
        /// Names in the pack's rules for this server that fit none of its tools, each as a sentence; only for whoever
        /// runs the agent.
        unmatched: Vec<String>,
        /// Only with `explain`: tools the principal may not use, and what to change.
        denied: Option<Vec<DeniedTool>>,
        /// Only with `explain`, and only when nothing is known of the server's tools: why.
        unlisted: Option<MissingToolList>,
    }
    struct ToolView for toolset::ToolView {
        /// The server's own name of the tool.
        tool: String,
        /// The name in the model's request.
        name: String,
        title: Option<String>,
        description: String,
        #[schema(value_type = Object)]
        input_schema: Box<RawValue>,
        /// The server's own hints; nobody has checked them.
        #[schema(value_type = Option<Object>)]
        annotations: Option<Box<RawValue>>,
        /// Calls wait for one of these roles.
        needs_approval_by: Option<Vec<String>>,
    }
    struct DeniedTool for toolset::DeniedTool {
        tool: String,
        reason: Denial,
        /// What to change, for the author of the pack.
        remedy: &'static str,
    }
    /// Why there is no list of a server's tools.
    #[serde(rename_all = "snake_case")]
    enum Cause for toolset::MissingListReason {
        ServerDown,
        Connecting,
        NoCredential,
        CredentialNeedsAttention,
        /// The server has answered, and has none.
        NoTools,
    }
    struct Unlisted for toolset::MissingToolList {
        reason: MissingListReason,
        /// What to do about it.
        remedy: &'static str,
    }
}
