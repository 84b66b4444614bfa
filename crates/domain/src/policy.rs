//! One decision: may this principal make this call? Pure and ordered.
//! The listing ([`offer`]) and the gate ([`decide`]) go by the same rules, so what a model is shown is what it may call,
//! but for what depends on the arguments of a call.
//!
//! What no rule covers is denied. Of several rules for a call the strictest that applies decides: one that denies it,
//! else the policy that wants the most of others, else a confirmation, which its user gives. A condition that cannot be
//! evaluated makes its rule apply.

mod condition;
mod denial;
mod limit;
mod lookalikes;
pub mod names;
mod replicated;
pub mod trial;

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde::{Deserialize, Serialize};

use self::condition::Known;
pub use self::{
    condition::{CallFacts, Condition, Flaw, Origin, Vars},
    denial::Denial,
    limit::{Amount, CallUsage, Consequence, Limit, LimitScope, LimitedCall, SumKey, SumUse},
    lookalikes::Standing,
    names::SampleCall,
    replicated::{AgentPolicy, OtherPolicies, PolicyDigest, PolicyOverride, ServerPolicy},
};
use super::{
    json::Json,
    pin::HeldTool,
    server::ServerSpec,
    tool::Tool,
    tool_schema::{self, MemberNames, Step, ToolSchema},
};

/// A tool name in which `*` stands for any characters, none included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolPattern(pub String);

impl ToolPattern {
    /// Linear-time glob over the whole name; case matters.
    pub fn matches(&self, tool: &str) -> bool {
        // Most pairs differ in a letter or two: searching for `*` first would take longer than this.
        let pairs = self.0.bytes().zip(tool.bytes());
        let same = pairs
            .take_while(|(wanted, is)| wanted == is && *wanted != b'*')
            .count();
        if self.0.as_bytes().get(same) != Some(&b'*') {
            return same == self.0.len() && same == tool.len();
        }
        let (rest, mut left) = (&self.0[same + 1..], &tool[same..]);
        let mut pieces = rest.split('*').peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                return left.ends_with(piece);
            }
            match left.find(piece) {
                Some(at) => left = &left[at + piece.len()..],
                None => return false,
            }
        }
        true
    }

    pub fn has_wildcard(&self) -> bool {
        self.0.contains('*')
    }
}

fn any_matches(patterns: &[ToolPattern], tool: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(tool))
}

/// `toolAccess` of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolAccess {
    pub default: DefaultAccess,
    /// Legacy: tools for everyone. Never together with `roles` (refused at load).
    pub public: Vec<ToolPattern>,
    /// RBAC: role → tools. `Some` of an empty map is RBAC that grants nothing.
    pub roles: Option<BTreeMap<String, Vec<ToolPattern>>>,
    pub approval: Vec<ApprovalPolicy>,
    /// Calls that their own user confirms. These policies have no approvers.
    pub confirm: Vec<ApprovalPolicy>,
    pub deny: Vec<DenyRule>,
    pub limits: Vec<Limit>,
}

/// `toolAccess.default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DefaultAccess {
    #[default]
    None,
    All,
    /// All tools, for everybody.
    Public,
    /// All tools, for every user of the tenant; guests have what `public` lists.
    Users,
    Admin,
}

impl ToolAccess {
    /// The rule of a reference to the registry that says nothing of access: every tool for the tenant's users.
    pub fn for_users() -> Self {
        Self {
            default: DefaultAccess::Users,
            ..Self::default()
        }
    }

    /// The conditions of all rules.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let of_approval = self.approval.iter().chain(&self.confirm);
        let of_approval = of_approval.filter_map(|rule| rule.when.as_ref());
        let of_deny = self.deny.iter().filter_map(|rule| rule.when.as_ref());
        let of_limits = self.limits.iter().filter_map(|limit| limit.when.as_ref());
        of_approval.chain(of_deny).chain(of_limits)
    }

    /// The policies for which a call may need others, also those of limits.
    pub fn policies(&self) -> impl Iterator<Item = &ApprovalPolicy> {
        let of_limits = self.limits.iter().filter_map(Limit::policy);
        self.approval.iter().chain(of_limits)
    }

    /// Whether every tool is open to this principal without being named.
    fn opens_all(&self, who: &EffectiveAccess) -> bool {
        self.roles.is_none()
            && match self.default {
                DefaultAccess::Public | DefaultAccess::All => true,
                DefaultAccess::Users => !who.is_guest,
                DefaultAccess::Admin | DefaultAccess::None => false,
            }
    }
}

/// Calls of these tools need somebody's consent: that of others, or a confirmation of the user who makes them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalPolicy {
    pub tools: Vec<ToolPattern>,
    /// Only the calls for which this holds. Absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Roles whose holders may decide. Empty for a confirmation, and for nothing else (refused at load).
    pub approvers: Vec<String>,
    pub timeout_minutes: u32,
    pub min_approvals: u32,
    /// The call of a requester who holds an approver role counts as that requester's own approval.
    pub self_approval: bool,
}

impl ApprovalPolicy {
    /// The policy of calls that their own user confirms. Nobody else has a part in it.
    pub fn confirmation(
        tools: Vec<ToolPattern>,
        when: Option<Condition>,
        timeout_minutes: u32,
    ) -> Self {
        Self {
            tools,
            when,
            approvers: Vec::new(),
            timeout_minutes,
            min_approvals: 1,
            self_approval: true,
        }
    }

    pub fn is_confirmation(&self) -> bool {
        self.approvers.is_empty()
    }

    /// Whether asking for the call is itself one of the approvals that the policy wants.
    pub fn counts_requester(&self, who: &EffectiveAccess) -> bool {
        self.self_approval && self.approvers.iter().any(|role| who.roles.contains(role))
    }

    /// Whether asking for the call is all that the policy wants. A confirmation wants an answer, of admins too.
    fn is_satisfied_by(&self, who: &EffectiveAccess) -> bool {
        let counts = self.counts_requester(who) || who.admin && self.self_approval;
        self.min_approvals <= 1 && counts && !self.is_confirmation()
    }

    /// Orders policies by how much they want of others.
    fn strictness(&self) -> impl Ord {
        let few = Reverse(self.approvers.len());
        let needs_others = !self.is_confirmation();
        (needs_others, self.min_approvals, !self.self_approval, few)
    }
}

/// Calls of these tools are not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenyRule {
    pub tools: Vec<ToolPattern>,
    /// Only the calls for which this holds. Absent: all.
    pub when: Option<Condition>,
    /// Why, for the model and its user.
    pub reason: String,
}

/// Why nothing is changed while the policy of another replica is not known.
pub const RULES_UNKNOWN: &str = "the rules are being updated; try again in some minutes";

static UPDATING: LazyLock<DenyRule> = LazyLock::new(|| DenyRule {
    tools: Vec::new(),
    when: None,
    reason: RULES_UNKNOWN.to_owned(),
});

/// Who asks, as one pack sees them: roles computed from the claims, and whether `adminUsers` names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EffectiveAccess {
    pub roles: BTreeSet<String>,
    pub admin: bool,
    /// Nobody vouched for them. A user whose token names a role `guest` is none.
    pub is_guest: bool,
}

#[derive(Debug, PartialEq)]
pub enum Decision<'a> {
    /// The principal does not have the tool.
    Deny(Denial),
    /// The principal has the tool, and a rule forbids this call of it.
    Refuse(&'a DenyRule),
    Allow(Allowed<'a>),
    Approve(&'a ApprovalPolicy),
}

/// What a principal may do with a tool, whatever the arguments of a call are.
#[derive(Debug, PartialEq)]
pub enum Offer<'a> {
    Deny(Denial),
    Call,
    /// Each call needs consent, or only some do. `policy` may be a confirmation.
    Approve {
        policy: &'a ApprovalPolicy,
        always: bool,
    },
}

impl<'a> Offer<'a> {
    /// The strictest of the policies that calls may need to satisfy.
    pub fn policy(&self) -> Option<&'a ApprovalPolicy> {
        match self {
            Self::Approve { policy, .. } => Some(policy),
            Self::Deny(_) | Self::Call => None,
        }
    }

    /// The roles whose approval calls, or some of them, need.
    pub fn approvers(&self) -> Option<Vec<String>> {
        let policy = self.policy().filter(|policy| !policy.is_confirmation());
        policy.map(|policy| policy.approvers.clone())
    }

    /// Whether calls need no approval, and the user confirms them, or some of them.
    pub fn needs_confirmation(&self) -> bool {
        self.policy().is_some_and(ApprovalPolicy::is_confirmation)
    }
}

/// Proof that [`decide`] allowed one tool of one server. Only [`decide`] makes one.
#[derive(Debug, PartialEq)]
pub struct Allowed<'a> {
    server: &'a ServerSpec,
    tool: &'a str,
    self_approved: bool,
}

impl<'a> Allowed<'a> {
    pub fn server(&self) -> &'a ServerSpec {
        self.server
    }

    pub fn tool(&self) -> &'a str {
        self.tool
    }

    /// Whether an approval policy names the tool and the principal's own role satisfied it.
    pub fn is_self_approved(&self) -> bool {
        self.self_approved
    }
}

/// Decides about one call of one principal.
pub fn decide<'a>(
    server: &'a ServerSpec,
    who: &EffectiveAccess,
    tool: &'a str,
    facts: &CallFacts<'_>,
) -> Decision<'a> {
    if let Err(denial) = admit(server, who, tool) {
        return Decision::Deny(denial);
    }
    // Nobody is asked for consent either: the approvers of a rule that is not known may be others.
    if server.elsewhere.is_unknown && !facts.only_reads {
        return Decision::Refuse(&UPDATING);
    }
    let call = JudgedCall::new(who, facts);
    let mut denied = server.deny_rules(tool);
    if let Some(rule) = denied.find(|rule| call.is_of(rule.when.as_ref())) {
        return Decision::Refuse(rule);
    }
    let limits = server.limits(tool);
    let limits =
        limits.filter(|(at, limit)| facts.exceeded.contains(at) && call.is_of(limit.when.as_ref()));
    let exceeded: Vec<_> = limits.map(|(_, limit)| limit).collect();
    if let Some(rule) = exceeded.iter().find_map(|limit| limit.denial()) {
        return Decision::Refuse(rule);
    }
    let policies = server.approval_policies(tool);
    let policies = policies.filter(|policy| call.is_of(policy.when.as_ref()));
    let of_limits = exceeded.iter().filter_map(|limit| limit.policy());
    let wanted: Vec<_> = policies.chain(of_limits).collect();
    match strictest(&wanted, who) {
        Some(policy) => Decision::Approve(policy),
        None => Decision::Allow(Allowed {
            server,
            tool,
            self_approved: !wanted.is_empty(),
        }),
    }
}

/// A call whose values conditions see. They are made when the first condition asks for them.
struct JudgedCall<'f> {
    who: &'f EffectiveAccess,
    facts: &'f CallFacts<'f>,
    known: OnceCell<Known>,
}

impl<'f> JudgedCall<'f> {
    fn new(who: &'f EffectiveAccess, facts: &'f CallFacts<'f>) -> Self {
        Self {
            who,
            facts,
            known: OnceCell::new(),
        }
    }

    /// Whether a rule is about it: one without a condition, or whose condition holds or cannot be evaluated.
    fn is_of(&self, when: Option<&Condition>) -> bool {
        when.is_none_or(|when| {
            let known = |vars| {
                let facts = CallFacts {
                    vars,
                    ..*self.facts
                };
                Known::new(&facts, self.who.roles.iter())
            };
            let holds = match when.vars() {
                Some(vars) => when.holds(&known(vars)),
                None => when.holds(self.known.get_or_init(|| known(self.facts.vars))),
            };
            holds != Some(false)
        })
    }
}

/// What a principal may do with a tool. A rule that depends on a call may apply.
pub fn offer<'a>(server: &'a ServerSpec, who: &EffectiveAccess, tool: &str) -> Offer<'a> {
    if let Err(denial) = find_denial(server, who, tool) {
        return Offer::Deny(denial);
    }
    let policies = server.approval_policies(tool);
    let (sure, some): (Vec<_>, Vec<_>) = policies.partition(|it| it.when.is_none());
    let of_limits = server.limits(tool).filter_map(|(_, limit)| limit.policy());
    let all: Vec<_> = sure.iter().copied().chain(some).chain(of_limits).collect();
    match strictest(&all, who) {
        Some(policy) => Offer::Approve {
            policy,
            always: strictest(&sure, who).is_some(),
        },
        None => Offer::Call,
    }
}

impl ServerSpec {
    /// Whether rules look into the arguments of a call.
    pub fn has_conditions(&self, tool: &str) -> bool {
        self.conditions_of(tool).next().is_some() || self.has_limits(tool)
    }

    /// Whether a condition, a limit, a confirmation or an approval can apply to calls of the tool.
    pub fn is_guarded(&self, tool: &str) -> bool {
        self.approval_policies(tool).next().is_some()
            || self.deny_rules(tool).next().is_some()
            || self.has_limits(tool)
    }

    /// Why two readers could read different arguments, where rules guard the tool: what is judged may then not be what
    /// the server does. `None` for `schema` where no list of the tools is known.
    pub fn find_ambiguity(
        &self,
        tool: &str,
        schema: Option<&ToolSchema>,
        arguments: &Json,
        vars: &Vars,
    ) -> Option<String> {
        if !self.is_guarded(tool) {
            return None;
        }
        let mut of_sums = MemberNames::default();
        for path in self.limits(tool).filter_map(|(_, limit)| limit.sum.clone()) {
            of_sums.insert(path.into_iter().map(Step::Member));
        }
        let computed = self.conditions_of(tool);
        let computed: Vec<_> = computed
            .filter_map(|it| it.computed_arguments(vars))
            .collect();
        let conditions = self.conditions_of(tool).map(Condition::arguments);
        let rules: Vec<_> = conditions.chain(&computed).chain([&of_sums]).collect();
        match schema {
            Some(schema) => schema.find_ambiguity(arguments, &rules),
            None => tool_schema::find_ambiguity(arguments, &rules),
        }
    }

    /// Whether a list of the pack that lets tools in names this one without a wildcard.
    pub fn grants_by_name(&self, tool: &str) -> bool {
        let access = self.tool_access.iter();
        let lists = access.flat_map(|access| {
            let roles = access.roles.iter().flat_map(|roles| roles.values());
            std::iter::once(&access.public).chain(roles)
        });
        let mut names = self.tools.iter().chain(lists).flatten();
        names.any(|name| name.0 == tool && !name.has_wildcard())
    }

    /// Whether a rule lets anybody but admins have a tool.
    pub fn admits_anybody(&self, tool: &str) -> bool {
        let admits = |access: &ToolAccess| match &access.roles {
            None => {
                matches!(
                    access.default,
                    DefaultAccess::Public | DefaultAccess::All | DefaultAccess::Users
                ) || any_matches(&access.public, tool)
            }
            Some(roles) => {
                access.default == DefaultAccess::All
                    || roles.values().any(|tools| any_matches(tools, tool))
            }
        };
        let is_listed = |tools: &Vec<ToolPattern>| any_matches(tools, tool);
        self.load_tools
            && self.tools.as_ref().is_none_or(is_listed)
            && self.tool_access.as_ref().is_some_and(admits)
            && !self.denies_all_calls(tool)
    }

    pub fn has_limits(&self, tool: &str) -> bool {
        self.limits(tool).next().is_some()
    }

    /// Whether a call that may have been executed may be sent again: its server says that this changes nothing more, and no
    /// rule asks for consent to calls of the tool or counts them.
    pub fn may_repeat(&self, tool: &Tool) -> bool {
        let mut policies = self.approval_policies(&tool.name);
        tool.is_repeatable() && policies.next().is_none() && !self.has_limits(&tool.name)
    }

    /// The conditions of the rules that guard a tool.
    fn conditions_of(&self, tool: &str) -> impl Iterator<Item = &Condition> {
        let of_deny = self.deny_rules(tool).filter_map(|rule| rule.when.as_ref());
        let policies = self.approval_policies(tool);
        let limits = self.limits(tool);
        let of_limits = limits.filter_map(|(_, limit)| limit.when.as_ref());
        let of_approval = policies.filter_map(|rule| rule.when.as_ref());
        of_deny.chain(of_approval).chain(of_limits)
    }
}

/// Whether a principal has a tool: it is listed for them, and they may call it with some arguments.
pub fn is_offered(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> bool {
    find_denial(server, who, tool).is_ok()
}

fn find_denial(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> Result<(), Denial> {
    admit(server, who, tool)?;
    if server.denies_all_calls(tool) {
        return Err(Denial::DeniedByRule);
    }
    Ok(())
}

/// The policy that wants the most of others, of those that the principal does not satisfy alone; the first of equals.
fn strictest<'a>(
    policies: &[&'a ApprovalPolicy],
    who: &EffectiveAccess,
) -> Option<&'a ApprovalPolicy> {
    let open = policies.iter().rev().copied();
    let open = open.filter(|policy| !policy.is_satisfied_by(who));
    open.max_by_key(|policy| policy.strictness())
}

/// Whether the principal has the tool, without the rules about calls of it.
fn admit(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> Result<(), Denial> {
    if !server.load_tools {
        return Err(Denial::NotInAllowlist);
    }
    admit_to_loaded(server, who, tool)?;
    // The last reason, so that only those hear of it who would have the tool.
    if server.held.contains_key(tool) {
        return Err(Denial::Held);
    }
    Ok(())
}

/// Why a tool is held that this principal lacks only because it is not as somebody accepted it.
pub fn find_held_back<'s>(
    server: &'s ServerSpec,
    who: &EffectiveAccess,
    tool: &str,
) -> Option<&'s HeldTool> {
    let is_held = find_denial(server, who, tool) == Err(Denial::Held);
    server.held.get(tool).filter(|_| is_held)
}

/// The same, whether or not the tools of the server are loaded.
fn admit_to_loaded(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> Result<(), Denial> {
    admit_by(
        server.tools.as_deref(),
        server.tool_access.as_ref(),
        who,
        tool,
    )?;
    let admits = |it: &ServerPolicy| {
        admit_by(it.tools.as_deref(), it.tool_access.as_ref(), who, tool).is_ok()
    };
    if !server.elsewhere.admitting.iter().all(|other| admits(other)) {
        return Err(Denial::OtherReplica);
    }
    Ok(())
}

fn admit_by(
    allowlist: Option<&[ToolPattern]>,
    access: Option<&ToolAccess>,
    who: &EffectiveAccess,
    tool: &str,
) -> Result<(), Denial> {
    if allowlist.is_some_and(|allowlist| !any_matches(allowlist, tool)) {
        return Err(Denial::NotInAllowlist);
    }
    if who.admin {
        return Ok(());
    }
    admits(access.ok_or(Denial::NoToolAccess)?, who, tool)
}

/// Whether this principal may hear that a tool is outside the server's allowlist: it is, and the server keeps nothing
/// else from them, so that the answer tells nothing of what others may call.
pub fn may_see_unlisted(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> bool {
    let outside = server
        .tools
        .as_ref()
        .is_some_and(|allowlist| !any_matches(allowlist, tool));
    let access = server.tool_access.as_ref();
    outside && (who.admin || access.is_some_and(|access| access.opens_all(who)))
}

/// Whether a server's prompts are for this principal. No rule of the pack names prompts, so the rules of the
/// tools decide: a principal who may use at least one tool of the server may use its prompts. Where the
/// server has no tools or they are not loaded, only a rule that allows every tool includes its prompts.
pub fn offers_prompts<'t>(
    server: &ServerSpec,
    who: &EffectiveAccess,
    tools: impl IntoIterator<Item = &'t str>,
) -> bool {
    // Whether the tools are loaded is a switch of its own.
    let may =
        |tool: &str| admit_to_loaded(server, who, tool).is_ok() && !server.denies_all_calls(tool);
    let mut tools = tools.into_iter().peekable();
    server.load_prompts
        && if tools.peek().is_none() {
            may("")
        } else {
            tools.any(may)
        }
}

/// Rules 4 and 5, without approval.
fn admits(access: &ToolAccess, who: &EffectiveAccess, tool: &str) -> Result<(), Denial> {
    let Some(roles) = &access.roles else {
        return if access.opens_all(who) || any_matches(&access.public, tool) {
            Ok(())
        } else if access.default == DefaultAccess::Users {
            Err(Denial::GuestsExcluded)
        } else {
            Err(Denial::NotPublic)
        };
    };
    let own = who.roles.iter().filter_map(|role| roles.get(role));
    if own.into_iter().any(|tools| any_matches(tools, tool)) {
        return Ok(());
    }
    let listed = roles.values().any(|tools| any_matches(tools, tool));
    match (listed, access.default) {
        (true, _) => Err(Denial::RoleLacksTool),
        (false, DefaultAccess::All) => Ok(()),
        (false, _) => Err(Denial::NoRoleListsTool),
    }
}
