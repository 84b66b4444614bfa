//! Trying policies: what would become of examples, and of the calls that a tenant keeps. Nothing is called, and nothing
//! is changed.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use super::kept_calls::{self, KeptCall};
use crate::app::{
    App,
    servers::{agents, pins},
};
use domain::{
    audit::Fact,
    error::{Error, Result},
    ids::TenantId,
    json::Json,
    pack::Pack,
    policy::{
        CallFacts, Origin, Vars,
        trial::{Trial, TriedCall, Verdict},
    },
    principal::{Admin, Audience, Principal},
    server::ServerSpec,
};
use packs::{Example, Expected, Problem};
use store::kept_calls::Selection;

/// The most bytes of a policy and of a file of examples.
const MAX_TEXT: usize = 64 * 1024;
/// The most examples of a request.
const MAX_EXAMPLES: usize = 200;
/// When a trial that found another one under way may be tried again.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// The most calls before those of a page that limits add up.
const MAX_EARLIER: i64 = 5_000;
/// How many calls are in memory at once, with arguments of 64 KiB each.
const CALLS_AT_ONCE: i64 = 100;
/// A page of calls ends early when their arguments have more bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A call of somebody, as it is judged.
pub struct JudgedCall<'a> {
    pub server: &'a str,
    pub tool: &'a str,
    pub arguments: &'a Json,
    pub principal: &'a Principal,
    pub origin: Origin,
    pub at: OffsetDateTime,
}

/// Judges a call by the rules of a pack; the error names a server that the pack does not have.
pub fn judge(
    trial: &mut Trial,
    pack: &Pack,
    vars: &Vars,
    call: &JudgedCall<'_>,
) -> Result<Verdict> {
    with_facts(pack, vars, call, |tried| trial.judge(tried))
}

fn with_facts<R>(
    pack: &Pack,
    vars: &Vars,
    call: &JudgedCall<'_>,
    work: impl FnOnce(&TriedCall<'_>) -> R,
) -> Result<R> {
    let server = find_server(pack, call.server)?;
    let who = call.principal.access(pack);
    Ok(work(&TriedCall {
        agent: pack.id(),
        server,
        tool: call.tool,
        user: &call.principal.user,
        who: &who,
        facts: CallFacts {
            arguments: call.arguments,
            claims: &call.principal.claims,
            origin: call.origin,
            now: call.at,
            vars,
            exceeded: &[],
            only_reads: false,
        },
    }))
}

fn find_server<'p>(pack: &'p Pack, id: &str) -> Result<&'p ServerSpec> {
    let found = pack.servers.iter().find(|server| server.id.as_str() == id);
    found.ok_or_else(|| {
        let known: Vec<_> = pack
            .servers
            .iter()
            .map(|server| server.id.as_str())
            .collect();
        let known = known.join(", ");
        Error::invalid(
            "server",
            format!("{} has no server {id:?}; it has {known}", pack.id()),
        )
    })
}

/// What would become of an example, and whether that is what it expects.
pub fn judge_example(
    pack: &Pack,
    example: &Example,
    now: OffsetDateTime,
) -> Result<(Verdict, bool)> {
    let mut claims = example.claims.clone();
    if !example.roles.is_empty() {
        let Some(claim) = &pack.flows.authentication.roles_attribute else {
            return Err(Error::invalid(
                "roles",
                format!(
                    "nobody has roles at {}: it names no `rolesAttribute`",
                    pack.id()
                ),
            ));
        };
        let mut roles = claims
            .get(claim)
            .map(domain::principal::parse_roles)
            .unwrap_or_default();
        roles.extend(example.roles.clone());
        claims.insert(claim.clone(), roles.into());
    }
    let principal = Principal {
        tenant: TenantId(Uuid::nil()),
        user: example.user.clone(),
        claims: Arc::new(claims),
        locale: None,
        authenticated: !example.is_guest,
        key: None,
        audience: Audience::default(),
    };
    let call = |arguments| JudgedCall {
        server: example.server.as_str(),
        tool: &example.tool,
        arguments,
        principal: &principal,
        origin: example.origin,
        at: example.time.unwrap_or(now),
    };
    let vars = example.vars.as_ref().unwrap_or(&pack.vars);
    let mut trial = Trial::default();
    for arguments in &example.earlier {
        with_facts(pack, vars, &call(arguments), |earlier| trial.add(earlier))?;
    }
    let verdict = judge(&mut trial, pack, vars, &call(&example.arguments))?;
    let is_expected = is_as_expected(&verdict, &example.expected);
    Ok((verdict, is_expected))
}

fn is_as_expected(verdict: &Verdict, expected: &Expected) -> bool {
    match (verdict, expected) {
        (Verdict::Allow | Verdict::AllowAsApprover, Expected::Allow)
        | (Verdict::Confirm { .. }, Expected::Confirm)
        | (Verdict::Deny(_), Expected::Deny { reason: None }) => true,
        (
            Verdict::Approve { roles, votes, .. },
            Expected::Approve {
                roles: wanted,
                votes: count,
            },
        ) => {
            let has_roles = wanted.as_ref().is_none_or(|wanted| {
                wanted.len() == roles.len() && roles.iter().all(|role| wanted.contains(role))
            });
            has_roles && count.is_none_or(|count| count == *votes)
        }
        (Verdict::Refuse { reason, .. }, Expected::Deny { reason: wanted }) => {
            wanted.as_ref().is_none_or(|wanted| wanted == reason)
        }
        _ => false,
    }
}

/// What an admin wants to try.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrial {
    /// The server whose rules `policy` replaces.
    #[serde(default)]
    pub server: Option<String>,
    /// Rules in YAML, as they stand in a pack: `toolAccess`, `tools` and `vars`. Absent: those in force.
    #[serde(default)]
    pub policy: Option<String>,
    /// Examples in YAML, as for `chatelaine policy test`; `agent` may be left out.
    #[serde(default)]
    pub examples: Option<String>,
    /// The calls of how many days to judge, 1 to 366; `null` for none.
    #[serde(default)]
    pub days: Option<u16>,
    /// Only the calls after this page: its `next`.
    #[serde(default)]
    pub cursor: Option<Uuid>,
    /// How many calls, 1 to 500; 100 unless given.
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TrialResult {
    /// For how many days calls are kept. Absent: none is kept, and only examples can be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_days: Option<i32>,
    pub examples: Vec<TriedExample>,
    /// Kept calls, the oldest first.
    pub calls: Vec<TriedKeptCall>,
    /// There are more calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Uuid>,
    /// Limits did not see all the calls before this page, because they are too many.
    pub limits_are_partial: bool,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TriedExample {
    /// Its line in the text.
    pub line: usize,
    pub server: String,
    pub tool: String,
    pub outcome: Outcome,
    /// Whether that is what the example expects.
    pub is_expected: bool,
}

/// A kept call, with what its rules say of it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TriedKeptCall {
    pub id: Uuid,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub user: String,
    pub server: String,
    pub tool: String,
    #[schema(value_type = Value)]
    pub arguments: Box<RawValue>,
    /// By the rules in force.
    pub in_force: Outcome,
    /// By the rules that are tried.
    pub tried: Outcome,
}

/// What would become of a call.
#[derive(Debug, Serialize, PartialEq, Eq, utoipa::ToSchema)]
pub struct Outcome {
    pub decision: TrialDecision,
    /// Whom the call would wait for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// How many approvals it would need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub votes: Option<u32>,
    /// Why it would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The rule that decides: `approval[1] when args.amount > 1000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialDecision {
    Allow,
    Approve,
    /// The person who calls is asked.
    Confirm,
    Refuse,
    /// The person does not have the tool.
    NoTool,
    /// Its server has changed the tool, and nobody has accepted that yet.
    Held,
}

impl Outcome {
    fn plain(decision: TrialDecision) -> Self {
        Self {
            decision,
            approvers: Vec::new(),
            votes: None,
            reason: None,
            rule: None,
        }
    }

    fn held() -> Self {
        Self::plain(TrialDecision::Held)
    }
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        let plain = Self::plain;
        match verdict {
            Verdict::Allow | Verdict::AllowAsApprover => plain(TrialDecision::Allow),
            Verdict::Approve { roles, votes, rule } => Self {
                approvers: roles,
                votes: Some(votes),
                rule: rule.map(|rule| rule.to_string()),
                ..plain(TrialDecision::Approve)
            },
            Verdict::Confirm { rule } => Self {
                rule: rule.map(|rule| rule.to_string()),
                ..plain(TrialDecision::Confirm)
            },
            Verdict::Refuse { reason, rule } => Self {
                reason: Some(reason),
                rule: rule.map(|rule| rule.to_string()),
                ..plain(TrialDecision::Refuse)
            },
            Verdict::Deny(denial) => Self {
                reason: Some(denial.remedy().to_owned()),
                ..plain(TrialDecision::NoTool)
            },
        }
    }
}

/// The tenants with a trial over kept calls under way: one each, because it opens many calls.
#[derive(Default)]
pub struct TrialsUnderWay(Mutex<HashSet<TenantId>>);

/// The place of a trial, until it is dropped.
struct TrialPlace<'a> {
    trials: &'a TrialsUnderWay,
    tenant: TenantId,
}

impl TrialsUnderWay {
    fn tenants(&self) -> MutexGuard<'_, HashSet<TenantId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Busy` while another trial of the tenant is under way on this replica.
    fn begin(&self, tenant: TenantId) -> Result<TrialPlace<'_>> {
        if !self.tenants().insert(tenant) {
            return Err(Error::Busy {
                reason:
                    "another trial with the calls of this tenant is under way; wait for its end"
                        .to_owned(),
                retry_after: TRY_AGAIN,
            });
        }
        Ok(TrialPlace {
            trials: self,
            tenant,
        })
    }
}

impl Drop for TrialPlace<'_> {
    fn drop(&mut self) {
        self.trials.tenants().remove(&self.tenant);
    }
}

/// Tries a policy with examples and with calls that the tenant has kept. `Busy` while the calls of the tenant are tried.
pub async fn try_policy(
    app: &App,
    admin: &Admin,
    principal: &Principal,
    agent: &str,
    new: &NewTrial,
) -> Result<TrialResult> {
    let pack = agents::pack(app, principal, agent).await?;
    let tried = replace_rules(&pack, new)?;
    let examples = read_examples(&pack, new.examples.as_deref())?;
    let now = app.clock.now();
    let mut judged = Vec::with_capacity(examples.len());
    for example in &examples {
        let (verdict, is_expected) = judge_example(&tried, example, now)
            .map_err(|error| of_line(&error, example.at.line))?;
        judged.push(TriedExample {
            line: example.at.line,
            server: example.server.to_string(),
            tool: example.tool.clone(),
            outcome: verdict.into(),
            is_expected,
        });
    }
    let tenant = app.accounts.tenant(admin.tenant()).await?;
    let kept_days = tenant
        .retention
        .effective(&app.config.retention())
        .call_arguments;
    let mut result = TrialResult {
        kept_days,
        examples: judged,
        calls: Vec::new(),
        next: None,
        limits_are_partial: false,
    };
    if let Some(days) = new.days {
        // An admin reads what others have asked for.
        let detail = format!("{agent}: the calls of {days} days");
        let fact = Fact::new(admin.user().as_str(), "policy.tried").detail(&detail);
        let mut tx = app.db.tenant(admin.tenant()).await?;
        store::audit::record(&mut tx, admin.tenant(), &fact).await?;
        tx.commit().await?;
        let _place = app.policy_trials.begin(admin.tenant())?;
        judge_kept(app, admin.tenant(), &pack, &tried, days, new, &mut result).await?;
    }
    Ok(result)
}

fn of_line(error: &Error, line: usize) -> Error {
    Error::invalid("examples", format!("line {line}: {error}"))
}

fn read_examples(pack: &Pack, text: Option<&str>) -> Result<Vec<Example>> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return Ok(Vec::new());
    };
    check_length("examples", text)?;
    let examples = packs::read_examples("examples", text, Some(pack.id()));
    let examples = examples.map_err(|report| invalid("examples", &report.problems))?;
    if examples.len() > MAX_EXAMPLES {
        return Err(Error::invalid(
            "examples",
            format!(
                "has {} examples, and {MAX_EXAMPLES} are the most",
                examples.len()
            ),
        ));
    }
    if let Some(other) = examples.iter().find(|example| example.agent != *pack.id()) {
        let line = other.at.line;
        return Err(Error::invalid(
            "examples",
            format!("line {line} is about another agent"),
        ));
    }
    Ok(examples)
}

fn check_length(field: &'static str, text: &str) -> Result<()> {
    if text.len() > MAX_TEXT {
        let problem = format!("has {} bytes, and {MAX_TEXT} are the most", text.len());
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}

fn invalid(field: &'static str, problems: &[Problem]) -> Error {
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    Error::invalid(field, problems.join("\n"))
}

/// The pack with other rules for one server.
fn replace_rules(pack: &Arc<Pack>, new: &NewTrial) -> Result<Arc<Pack>> {
    let Some(text) = new.policy.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Ok(pack.clone());
    };
    check_length("policy", text)?;
    let server = new.server.as_deref();
    let server = server.ok_or_else(|| {
        Error::invalid(
            "server",
            "must name the server whose rules `policy` replaces",
        )
    })?;
    find_server(pack, server)?;
    let (rules, problems) = packs::read_rules_of_server(text, &pack.flows.authentication);
    let rules = rules.ok_or_else(|| invalid("policy", &problems))?;
    let mut tried = Pack::clone(pack);
    let servers = tried.servers.iter_mut();
    for spec in servers.filter(|spec| spec.id.as_str() == server) {
        spec.tool_access.clone_from(&rules.access.tool_access);
        if rules.access.tools.is_some() {
            spec.tools.clone_from(&rules.access.tools);
        }
    }
    if let Some(vars) = rules.vars {
        tried.vars = vars;
    }
    Ok(Arc::new(tried))
}

/// Judges one page of kept calls, by the rules in force and by those that are tried.
async fn judge_kept(
    app: &App,
    tenant: TenantId,
    pack: &Arc<Pack>,
    tried: &Arc<Pack>,
    days: u16,
    new: &NewTrial,
    result: &mut TrialResult,
) -> Result<()> {
    if !(1..=366).contains(&days) {
        return Err(Error::invalid("days", "must be a number from 1 to 366"));
    }
    let limit = new.limit.unwrap_or(100);
    if !(1..=500).contains(&limit) {
        return Err(Error::invalid("limit", "must be a number from 1 to 500"));
    }
    let held = pins::list_held(app, tenant, pack).await?;
    let mut trials = [(pack, Trial::default()), (tried, Trial::default())];
    let mut which = Selection {
        agent: Some(pack.id()),
        user: None,
        since: app.clock.now() - time::Duration::days(days.into()),
        after: new.cursor,
        before: None,
        limit: limit.min(CALLS_AT_ONCE),
    };
    let (mut left, mut bytes, mut is_first) = (limit, 0, true);
    loop {
        let page = kept_calls::list(&app.db, &app.keys, tenant, which).await?;
        // Limits look back on the calls before this page.
        let longest = trials.iter().filter_map(|(pack, _)| longest_limit(pack));
        if is_first && let (Some(longest), Some(first)) = (longest.max(), page.calls.first()) {
            let earlier = Selection {
                since: first.at - longest,
                before: Some(first.id),
                ..which
            };
            result.limits_are_partial = add_earlier(app, tenant, earlier, &mut trials).await?;
        }
        for call in page.calls {
            let is_held = held.contains(&(call.server.clone(), call.tool.clone()));
            let Some([in_force, tried]) = judge_both(&mut trials, &call, is_held)? else {
                continue;
            };
            let arguments = call.arguments.to_raw();
            bytes += arguments.get().len();
            result.calls.push(TriedKeptCall {
                id: call.id,
                at: call.at,
                user: call.principal.user.to_string(),
                server: call.server.to_string(),
                tool: call.tool.clone(),
                arguments,
                in_force,
                tried,
            });
        }
        left -= which.limit;
        if page.next.is_none() || left <= 0 || bytes > MAX_BYTES {
            result.next = page.next;
            return Ok(());
        }
        (which.after, which.limit) = (page.next, left.min(CALLS_AT_ONCE));
        is_first = false;
    }
}

/// What the rules in force and those that are tried say of a call. `None` for a server that the pack does not have any
/// more.
fn judge_both(
    trials: &mut [(&Arc<Pack>, Trial); 2],
    call: &KeptCall,
    is_held: bool,
) -> Result<Option<[Outcome; 2]>> {
    let [(pack, in_force), (other, tried)] = trials;
    if find_server(pack, call.server.as_str()).is_err() {
        return Ok(None);
    }
    if is_held {
        return Ok(Some([Outcome::held(), Outcome::held()]));
    }
    let now = judge(in_force, pack, &pack.vars, &judged(call))?;
    let would = judge(tried, other, &other.vars, &judged(call))?;
    Ok(Some([now.into(), would.into()]))
}

/// Adds the calls before a page to the sums of limits, a page at a time. Returns whether they were too many, so that only
/// the last of them were added.
async fn add_earlier(
    app: &App,
    tenant: TenantId,
    earlier: Selection<'_>,
    trials: &mut [(&Arc<Pack>, Trial); 2],
) -> Result<bool> {
    let (Some(agent), Some(before)) = (earlier.agent, earlier.before) else {
        return Ok(false);
    };
    let mut tx = app.db.tenant(tenant).await?;
    let since = earlier.since;
    let older = store::kept_calls::find_older(&mut tx, agent, before, since, MAX_EARLIER).await?;
    drop(tx);
    let mut which = Selection {
        after: older,
        limit: CALLS_AT_ONCE,
        ..earlier
    };
    loop {
        let page = kept_calls::list(&app.db, &app.keys, tenant, which).await?;
        for call in &page.calls {
            for (pack, trial) in &mut *trials {
                // A call of a server that the pack does not have any more counts for no limit.
                let _ = judge(trial, pack, &pack.vars, &judged(call));
            }
        }
        which.after = page.next;
        if page.next.is_none() {
            return Ok(older.is_some());
        }
    }
}

/// How far the limits of a pack look back, if it has any.
fn longest_limit(pack: &Pack) -> Option<Duration> {
    let accesses = pack
        .servers
        .iter()
        .filter_map(|server| server.tool_access.as_ref());
    accesses
        .flat_map(|access| &access.limits)
        .map(|limit| limit.over)
        .max()
}

/// A kept call, as it is judged.
pub fn judged(call: &KeptCall) -> JudgedCall<'_> {
    JudgedCall {
        server: call.server.as_str(),
        tool: &call.tool,
        arguments: &call.arguments,
        principal: &call.principal,
        origin: call.origin,
        at: call.at,
    }
}
