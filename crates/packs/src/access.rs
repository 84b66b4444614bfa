//! Reads `toolAccess` and lists of tool patterns.
//!
//! A contradiction between rules is refused; a rule without any effect is a warning.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    field::Field,
    native::read_vars,
    object::Object,
    parse_context::{ParseContext, UnsetPolicy},
    report::{Problem, Severity},
};
use domain::{
    config::Environment,
    json::Decimal,
    pack::Authentication,
    policy::{
        ApprovalPolicy, Condition, Consequence, DefaultAccess, DenyRule, Flaw, Limit, LimitScope,
        ToolAccess, ToolPattern, Vars,
    },
    principal::GUEST,
};

const DEFAULTS: [(&str, DefaultAccess); 5] = [
    ("none", DefaultAccess::None),
    ("all", DefaultAccess::All),
    ("public", DefaultAccess::Public),
    ("users", DefaultAccess::Users),
    ("admin", DefaultAccess::Admin),
];

/// The longest time that a limit looks back on, in seconds.
const MAX_LIMIT_SECONDS: u64 = 366 * 86400;

/// The longest time that a request for approval may wait: a year.
const MAX_TIMEOUT_MINUTES: u32 = 525_600;

/// A tool pattern and its place in the document.
pub(super) struct LocatedPattern<'a> {
    pub pattern: ToolPattern,
    /// The pattern as the author wrote it, in quotes.
    pub shown: String,
    pub at: Field<'a>,
}

/// A rule about calls and the places of the tools that it names.
struct LocatedRule<'a, R> {
    rule: R,
    tools: Vec<LocatedPattern<'a>>,
}

fn to_patterns(listed: &[LocatedPattern]) -> Vec<ToolPattern> {
    listed.iter().map(|listed| listed.pattern.clone()).collect()
}

/// Reads a list of tool names, in which `*` stands for any characters. A repeated name is a warning.
pub(super) fn read_patterns<'a>(field: &Field<'a>) -> Vec<LocatedPattern<'a>> {
    let mut listed: Vec<LocatedPattern> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(text) = item.non_blank_text() else {
            continue;
        };
        if text
            .value
            .contains(|c: char| c.is_whitespace() || c.is_control())
        {
            item.error(
                format!("{} is not the name of a tool", text.shown),
                "write one tool an item, without blanks",
            );
        } else if listed.iter().any(|other| other.pattern.0 == text.value) {
            item.warn(
                format!("{} is listed twice", text.shown),
                "remove one of them",
            );
        } else {
            listed.push(LocatedPattern {
                pattern: ToolPattern(text.value),
                shown: text.shown,
                at: item,
            });
        }
    }
    listed
}

/// Who may call which tool of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAccess {
    pub tool_access: Option<ToolAccess>,
    /// The allowlist of the server.
    pub tools: Option<Vec<ToolPattern>>,
}

/// Reads the `toolAccess` and the `tools` that the admins of a tenant give to a server, by the rules of a pack. The
/// problems have errors if there is no access.
pub fn read_access(
    written: &serde_json::Value,
    who: &Authentication,
) -> (Option<ServerAccess>, Vec<Problem>) {
    read_text(&written.to_string(), |object| {
        read_server_access(object, who)
    })
}

/// The rules of a server that are tried, and the values that their conditions name.
#[derive(Clone, Debug)]
pub struct TriedRules {
    pub access: ServerAccess,
    /// In place of the pack's.
    pub vars: Option<Vars>,
}

/// Reads the `toolAccess`, the `tools` and the `vars` of YAML, by the rules of a pack. The problems have errors if there
/// are no rules.
pub fn read_rules_of_server(
    text: &str,
    who: &Authentication,
) -> (Option<TriedRules>, Vec<Problem>) {
    read_text(text, |object| TriedRules {
        vars: read_vars(object),
        access: read_server_access(object, who),
    })
}

/// Reads a text that is no file.
fn read_text<R>(text: &str, read: impl FnOnce(&mut Object<'_>) -> R) -> (Option<R>, Vec<Problem>) {
    let env = Environment::default();
    let context = ParseContext::new("", text, &env, UnsetPolicy::Refused).without_excerpts();
    let root = context.parse();
    let found = root.as_ref().and_then(|root| {
        let mut object = Field::new(&context, root, "").object()?;
        let found = read(&mut object);
        object.finish();
        Some(found)
    });
    let (problems, _) = context.finish();
    let is_refused = problems.iter().any(|it| it.severity == Severity::Error);
    (found.filter(|_| !is_refused), problems)
}

fn read_server_access(object: &mut Object, who: &Authentication) -> ServerAccess {
    let tools = object.optional("tools").map(|field| read_patterns(&field));
    let tool_access = object
        .optional("toolAccess")
        .and_then(|field| read(&field, tools.as_deref(), who));
    ServerAccess {
        tool_access,
        tools: tools.as_deref().map(to_patterns),
    }
}

/// Reads one `toolAccess`. `allowlist` is the `tools` of the same server, if it has any.
pub(super) fn read(
    field: &Field,
    allowlist: Option<&[LocatedPattern]>,
    who: &Authentication,
) -> Option<ToolAccess> {
    let mut object = field.object()?;
    let default_field = object.optional("default");
    let default = default_field
        .as_ref()
        .and_then(|field| field.one_of(&DEFAULTS));
    let public_field = object.optional("public");
    let public = public_field.as_ref().map(read_patterns).unwrap_or_default();
    let roles_field = object.optional("roles");
    let roles = roles_field
        .as_ref()
        .and_then(|field| read_roles(field, who));
    let approval = object
        .optional("approval")
        .map(|field| read_approvals(&field, who))
        .unwrap_or_default();
    let confirm = object
        .optional("confirm")
        .map(|field| read_rules(&field, read_confirmation))
        .unwrap_or_default();
    let deny = object
        .optional("deny")
        .map(|field| read_rules(&field, read_deny))
        .unwrap_or_default();
    let limits = object
        .optional("limits")
        .map(|field| read_rules(&field, |field| read_limit(field, who)))
        .unwrap_or_default();
    object.finish();
    check_combination(
        default_field.as_ref(),
        default,
        public_field.as_ref(),
        roles_field.as_ref(),
    );
    let access = ToolAccess {
        default: default.unwrap_or_default(),
        public: to_patterns(&public),
        roles: roles.as_ref().map(|roles| {
            roles
                .iter()
                .map(|(role, tools)| (role.clone(), to_patterns(tools)))
                .collect()
        }),
        approval: approval.iter().map(|it| it.rule.clone()).collect(),
        confirm: confirm.iter().map(|it| it.rule.clone()).collect(),
        deny: deny.iter().map(|it| it.rule.clone()).collect(),
        limits: limits.iter().map(|it| it.rule.clone()).collect(),
    };
    let role_tools = roles.iter().flat_map(BTreeMap::values).flatten();
    let approval_tools = approval.iter().flat_map(|located| &located.tools);
    let confirm_tools = confirm.iter().flat_map(|located| &located.tools);
    let deny_tools = deny.iter().flat_map(|located| &located.tools);
    let limit_tools = limits.iter().flat_map(|located| &located.tools);
    let allowed = allowlist.unwrap_or_default();
    warn_unguarded_lookalikes(
        public.iter().chain(role_tools.clone()).chain(allowed),
        &approval_tools,
    );
    warn_outside_allowlist(
        public
            .iter()
            .chain(role_tools)
            .chain(approval_tools.clone())
            .chain(confirm_tools.clone())
            .chain(deny_tools)
            .chain(limit_tools),
        allowlist,
    );
    warn_ungranted(approval_tools.chain(confirm_tools.clone()), &access);
    warn_never_confirmed(confirm_tools, &access);
    Some(access)
}

/// Refuses `public` beside `roles`, and warns of a `default` or `public` that has no effect.
fn check_combination(
    default_field: Option<&Field>,
    default: Option<DefaultAccess>,
    public_field: Option<&Field>,
    roles_field: Option<&Field>,
) {
    if let (Some(public), Some(_)) = (public_field, roles_field) {
        public.error(
            "does not go with `roles`",
            "write it as a role, such as `roles: { guest: [...] }`",
        );
    }
    let without_effect = [
        DefaultAccess::Public,
        DefaultAccess::Users,
        DefaultAccess::Admin,
    ];
    if let (Some(field), Some(_), Some(default)) = (default_field, roles_field, default)
        && without_effect.contains(&default)
    {
        field.warn(
            "counts as `none` beside `roles`",
            "write `none`, or `all` for the tools that no role lists",
        );
    }
    if let (Some(field), Some(DefaultAccess::Public | DefaultAccess::All), None) =
        (public_field, default, roles_field)
    {
        field.warn(
            "has no effect, since `default` opens every tool",
            "remove one of them",
        );
    }
}

fn read_roles<'a>(
    field: &Field<'a>,
    who: &Authentication,
) -> Option<BTreeMap<String, Vec<LocatedPattern<'a>>>> {
    let mut roles = BTreeMap::new();
    for (role, tools) in field.entries()? {
        if role.trim().is_empty() || role.trim() != role {
            tools.error(
                format!("{role:?} is not the name of a role"),
                "write it without blanks around it",
            );
        }
        warn_unreachable_role(role, &format!("{role:?}"), who, &tools);
        roles.insert(role.to_owned(), read_patterns(&tools));
    }
    Some(roles)
}

/// Warns of a role that no user can have.
fn warn_unreachable_role(role: &str, shown: &str, who: &Authentication, field: &Field) {
    let guests = role == GUEST && !who.required;
    if who.roles_attribute.is_none() && who.default_role.as_deref() != Some(role) && !guests {
        field.warn(
            format!("nobody can hold the role {shown}"),
            "name the claim that holds roles in `flows.authentication.rolesAttribute`",
        );
    }
}

/// Warns of patterns that name no tool of the allowlist.
fn warn_outside_allowlist<'l, 'a: 'l>(
    patterns: impl Iterator<Item = &'l LocatedPattern<'a>>,
    allowlist: Option<&[LocatedPattern]>,
) {
    let Some(allowlist) = allowlist else { return };
    for listed in patterns {
        if !allowlist
            .iter()
            .any(|allowed| overlap(&allowed.pattern.0, &listed.pattern.0))
        {
            listed.at.warn(
                format!("{} is not in the server's `tools`", listed.shown),
                "add it there, or remove it here",
            );
        }
    }
}

/// Warns of a tool name that a person could mistake for a name in an approval policy. Because the pack names both, they
/// are different tools, and the policy does not cover this one.
fn warn_unguarded_lookalikes<'l, 'a: 'l>(
    named: impl Iterator<Item = &'l LocatedPattern<'a>>,
    guards: &(impl Iterator<Item = &'l LocatedPattern<'a>> + Clone),
) {
    let mut warned = BTreeSet::new();
    for listed in named.filter(|listed| !listed.pattern.has_wildcard()) {
        let tool = &listed.pattern.0;
        if guards.clone().any(|guard| guard.pattern.matches(tool)) {
            continue;
        }
        let guard = guards
            .clone()
            .find(|guard| guard.pattern.can_be_taken_for(tool));
        if let Some(guard) = guard.filter(|_| warned.insert(tool)) {
            listed.at.warn(
                format!(
                    "{} can be taken for {} in `approval`, and its calls need no approval, because it is named here",
                    listed.shown, guard.shown
                ),
                "name it in the policy, too, unless that is meant",
            );
        }
    }
}

/// Warns of approval policies and confirmations for tools that no role may call, so that no call is ever made.
fn warn_ungranted<'l, 'a: 'l>(
    tools: impl Iterator<Item = &'l LocatedPattern<'a>>,
    access: &ToolAccess,
) {
    let (Some(roles), false) = (&access.roles, access.default == DefaultAccess::All) else {
        return;
    };
    for listed in tools {
        if !roles
            .values()
            .flatten()
            .any(|granted| overlap(&granted.0, &listed.pattern.0))
        {
            listed.at.warn(
                format!("no role may call {}, so nobody will ask", listed.shown),
                "add it under a role",
            );
        }
    }
}

/// Warns of tools whose calls all need the approval of others, so that nobody is asked to confirm one.
fn warn_never_confirmed<'l, 'a: 'l>(
    tools: impl Iterator<Item = &'l LocatedPattern<'a>>,
    access: &ToolAccess,
) {
    let others = access.approval.iter().filter(|policy| {
        policy.when.is_none() && (!policy.self_approval || policy.min_approvals > 1)
    });
    let others: Vec<_> = others.flat_map(|policy| &policy.tools).collect();
    for listed in tools {
        if others.iter().any(|other| other.matches(&listed.pattern.0)) {
            listed.at.warn(
                format!(
                    "all calls of {} need approval, and such a call is not confirmed as well",
                    listed.shown
                ),
                "remove it here, or say `when` the approval applies",
            );
        }
    }
}

/// Whether one name can match both patterns.
fn overlap(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // `row[j]` says whether `a[i..]` and `b[j..]` overlap. Both loops run from the end to the start.
    let mut row = vec![false; b.len() + 1];
    for i in (0..=a.len()).rev() {
        let below = row.clone();
        for j in (0..=b.len()).rev() {
            row[j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                (Some(b'*'), other) => below[j] || (other.is_some() && row[j + 1]),
                (other, Some(b'*')) => row[j + 1] || (other.is_some() && below[j]),
                (Some(x), Some(y)) => x == y && below[j + 1],
                _ => false,
            };
        }
    }
    row[0]
}

/// Reads `approval`: which calls need consent, from whom, and for how long they wait. Two policies for all calls must
/// not name the same tool.
fn read_approvals<'a>(
    field: &Field<'a>,
    who: &Authentication,
) -> Vec<LocatedRule<'a, ApprovalPolicy>> {
    let policies = read_rules(field, |field| read_approval(field, who));
    for (at, policy) in policies.iter().enumerate() {
        let earlier = policies[..at].iter();
        let earlier = earlier.filter(|it| it.rule.when.is_none() && policy.rule.when.is_none());
        let earlier: Vec<_> = earlier.flat_map(|it| &it.tools).collect();
        for new in &policy.tools {
            let twice = |old: &&&LocatedPattern| overlap(&new.pattern.0, &old.pattern.0);
            if let Some(old) = earlier.iter().find(twice) {
                let line = old.at.at.line;
                let what = if old.pattern == new.pattern {
                    format!(
                        "{} has an approval policy already, on line {line}",
                        new.shown
                    )
                } else {
                    format!(
                        "{} and {} on line {line} can name the same tool",
                        new.shown, old.shown
                    )
                };
                new.at.error(
                    what,
                    "give every tool one policy, or say `when` each applies",
                );
            }
        }
    }
    policies
}

/// Reads a list of rules about calls.
fn read_rules<'a, R>(
    field: &Field<'a>,
    read: impl Fn(&Field<'a>) -> Option<LocatedRule<'a, R>>,
) -> Vec<LocatedRule<'a, R>> {
    let items = field.list().unwrap_or_default();
    items.iter().filter_map(read).collect()
}

/// Reads the `tools` of a rule about calls.
fn read_rule_tools<'a>(object: &mut Object<'a>, what: &str) -> Vec<LocatedPattern<'a>> {
    let field = object.required(
        "tools",
        &format!("name the tools {what}: `tools: [send_money]`"),
    );
    let tools = field.as_ref().map(read_patterns).unwrap_or_default();
    if let Some(field) = field.filter(|_| tools.is_empty()) {
        refuse_empty(&field, &format!("name the tools {what}"));
    }
    tools
}

/// Reads `when`. A rule whose condition is not understood is refused.
fn read_condition(object: &mut Object) -> Option<Condition> {
    let field = object.optional("when")?;
    let text = field.non_blank_text()?;
    match Condition::parse(&text.value) {
        Ok(condition) => {
            report_flaw(&field, &text.shown, &condition);
            Some(condition)
        }
        Err(_) if text.from_env => {
            field.error("is no condition with the value of its variable", "");
            None
        }
        Err(problem) => {
            field.error(
                format!("{} is no condition: {problem}", text.shown),
                "write CEL, such as `args.amount > 1000`",
            );
            None
        }
    }
}

/// Reports a condition that cannot mean what it says. One that names what there is not is refused: a rule against
/// calls of an origin that is misspelt is none. What is the same for all calls is a warning.
fn report_flaw(field: &Field, shown: &str, condition: &Condition) {
    let vars = field.vars();
    match condition.find_flaw(vars.as_ref()) {
        None => {}
        Some(Flaw::Unknown(what)) => field.error(
            format!("{shown} cannot be meant: {what}"),
            "correct the name, or add the value to `vars`",
        ),
        Some(Flaw::NoAnswer) => field.fault(
            format!("{shown} is neither true nor false, so the rule always applies"),
            "write a comparison, such as `args.amount > 1000`",
        ),
        Some(Flaw::Constant(true)) => field.warn(
            format!("{shown} is true for all calls"),
            "leave `when` out if that is meant",
        ),
        Some(Flaw::Constant(false)) => field.warn(
            format!("{shown} is false for all calls, so the rule never applies"),
            "remove the rule if that is meant",
        ),
    }
}

fn read_deny<'a>(field: &Field<'a>) -> Option<LocatedRule<'a, DenyRule>> {
    let mut object = field.object()?;
    let tools = read_rule_tools(&mut object, "whose calls are denied");
    let when = read_condition(&mut object);
    let reason = object.required(
        "reason",
        "say why, for the model and its user: `reason: only in office hours`",
    );
    let reason = reason.and_then(|field| field.non_blank_text());
    object.finish();
    let rule = DenyRule {
        tools: to_patterns(&tools),
        when,
        reason: reason.map(|text| text.value).unwrap_or_default(),
    };
    Some(LocatedRule { rule, tools })
}

const SCOPES: [(&str, LimitScope); 4] = [
    ("user", LimitScope::User),
    ("role", LimitScope::Role),
    ("tool", LimitScope::Tool),
    ("tenant", LimitScope::Tenant),
];

/// Reads how much, or how often, may be called in a while. `then: approve` has the fields of an approval policy.
fn read_limit<'a>(field: &Field<'a>, who: &Authentication) -> Option<LocatedRule<'a, Limit>> {
    let mut object = field.object()?;
    let tools = read_rule_tools(&mut object, "that are limited");
    let when = read_condition(&mut object);
    let sum = object
        .optional("sum")
        .and_then(|field| read_argument(&field));
    let per = object.required("per", "write `user`, `role`, `tool` or `tenant`");
    let per = per.and_then(|field| field.one_of(&SCOPES));
    let over = object.required("over", "write for how long: `over: 24h`");
    let over = over.and_then(|field| read_duration(&field));
    let most = object.required("most", "write how much: `most: 5000`");
    let most = most.and_then(|field| {
        let most = Decimal::read(field.as_written());
        if most.is_none() {
            field.error(
                "is not a number of at most 30 digits",
                "write `5000` or `0.50`",
            );
        }
        most
    });
    let then = object.required("then", "write `deny` or `approve`");
    let approves = then.and_then(|field| field.one_of(&[("deny", false), ("approve", true)]))?;
    let then = if approves {
        let mut policy = read_policy(&mut object, who);
        policy.tools = to_patterns(&tools);
        Consequence::Approve(policy)
    } else {
        let reason = object.optional("reason");
        let reason = reason.and_then(|field| field.non_blank_text());
        Consequence::Deny(DenyRule {
            tools: to_patterns(&tools),
            when: None,
            reason: reason.map_or_else(|| "a limit is reached".to_owned(), |text| text.value),
        })
    };
    object.finish();
    let rule = Limit {
        tools: to_patterns(&tools),
        when,
        sum,
        per: per?,
        over: over?,
        most: most?,
        then,
    };
    Some(LocatedRule { rule, tools })
}

/// Reads `args.amount`, the way to an argument; what comes behind `args`.
fn read_argument(field: &Field) -> Option<Vec<String>> {
    let text = field.non_blank_text()?;
    let path = text.value.strip_prefix("args.").map(|path| path.split('.'));
    let path: Option<Vec<_>> = path.map(|path| path.map(str::to_owned).collect());
    let path = path.filter(|path| path.iter().all(|name| !name.is_empty()));
    if path.is_none() {
        field.error(
            format!("{} is not the way to an argument", text.shown),
            "write `args.amount`, or leave it out to count calls",
        );
    }
    path
}

/// Reads minutes, hours or days.
fn read_duration(field: &Field) -> Option<Duration> {
    let text = field.non_blank_text()?;
    let units = [("m", 60), ("h", 3600), ("d", 86400)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        let count: u64 = text.value.strip_suffix(unit)?.parse().ok()?;
        count.checked_mul(seconds)
    });
    let duration = seconds.filter(|seconds| (1..=MAX_LIMIT_SECONDS).contains(seconds));
    if duration.is_none() {
        field.error(
            format!("{} is not a time of up to 366 days", text.shown),
            "write `30m`, `24h` or `7d`",
        );
    }
    duration.map(Duration::from_secs)
}

fn read_approval<'a>(
    field: &Field<'a>,
    who: &Authentication,
) -> Option<LocatedRule<'a, ApprovalPolicy>> {
    let mut object = field.object()?;
    let tools = read_rule_tools(&mut object, "that need consent");
    let when = read_condition(&mut object);
    let rule = ApprovalPolicy {
        tools: to_patterns(&tools),
        when,
        ..read_policy(&mut object, who)
    };
    object.finish();
    Some(LocatedRule { rule, tools })
}

/// Reads which calls their own user confirms, and for how long they wait.
fn read_confirmation<'a>(field: &Field<'a>) -> Option<LocatedRule<'a, ApprovalPolicy>> {
    let mut object = field.object()?;
    let tools = read_rule_tools(&mut object, "whose calls the user confirms");
    let when = read_condition(&mut object);
    let timeout = read_timeout(&mut object);
    object.finish();
    let rule = ApprovalPolicy::confirmation(to_patterns(&tools), when, timeout);
    Some(LocatedRule { rule, tools })
}

/// Reads for how many minutes a call waits.
fn read_timeout(object: &mut Object) -> u32 {
    object
        .optional("timeoutMinutes")
        .and_then(|f| f.whole_number(&(1..=MAX_TIMEOUT_MINUTES)))
        .unwrap_or(60)
}

/// Reads who has to consent, and how.
fn read_policy(object: &mut Object, who: &Authentication) -> ApprovalPolicy {
    let approvers_field = object.required(
        "approvers",
        "name the roles that may consent: `approvers: [manager]`",
    );
    let approvers = approvers_field
        .as_ref()
        .map(Field::texts)
        .unwrap_or_default();
    if let Some(field) = &approvers_field {
        if approvers.is_empty() {
            refuse_empty(field, "name at least one role that may consent");
        }
        for role in &approvers {
            warn_unreachable_role(&role.value, &role.shown, who, field);
        }
    }
    let min_approvals = object
        .optional("minApprovals")
        .and_then(|f| f.whole_number(&(1..=20)))
        .unwrap_or(1);
    let self_approval = object.optional("selfApproval");
    if min_approvals > 1 && self_approval.is_none() {
        object.field.warn(
            format!(
                "`minApprovals` is {min_approvals} and `selfApproval` is not said, so the call of somebody who may \
                 approve counts as one approval"
            ),
            "write `selfApproval: false`, or `selfApproval: true` if that is meant",
        );
    }
    ApprovalPolicy {
        tools: Vec::new(),
        when: None,
        approvers: approvers.into_iter().map(|role| role.value).collect(),
        timeout_minutes: read_timeout(object),
        min_approvals,
        self_approval: self_approval.is_none_or(|field| field.boolean().unwrap_or_default()),
    }
}

/// Reports an empty list, unless its items were refused already.
fn refuse_empty(field: &Field, hint: &str) {
    if field.list().is_some_and(|items| items.is_empty()) {
        field.error("the list is empty", hint);
    }
}
