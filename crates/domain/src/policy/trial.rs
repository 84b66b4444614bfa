//! Trying a policy: what would become of calls, one after the other, and which rule would decide. Nothing is called and
//! nothing is kept. The decision is the one of [`decide`]; only the sums of limits are added up in memory, by the times
//! of the calls, where the gate asks the database.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
};

use time::OffsetDateTime;

use super::{
    ApprovalPolicy, CallFacts, Condition, Consequence, Decision, Denial, DenyRule, EffectiveAccess,
    LimitedCall, ToolAccess, decide, limits_of_call,
};
use crate::{
    ids::{AgentId, UserId},
    json::Decimal,
    server::ServerSpec,
};

/// A call that a policy is tried with.
pub struct TriedCall<'a> {
    pub agent: &'a AgentId,
    pub server: &'a ServerSpec,
    pub tool: &'a str,
    pub user: &'a UserId,
    pub who: &'a EffectiveAccess,
    /// Without the limits that it exceeds, which the trial finds out.
    pub facts: CallFacts<'a>,
}

/// What would become of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The requester's own role satisfies every policy that applies.
    AllowAsApprover,
    Approve {
        roles: Vec<String>,
        votes: u32,
        rule: Option<RulePlace>,
    },
    /// The person who calls is asked.
    Confirm {
        rule: Option<RulePlace>,
    },
    Refuse {
        reason: String,
        rule: Option<RulePlace>,
    },
    /// The person does not have the tool.
    Deny(Denial),
}

/// A rule in `toolAccess`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    /// `approval`, `confirm`, `deny` or `limits`.
    pub list: &'static str,
    /// The place in that list, from 0.
    pub at: usize,
    pub when: Option<String>,
}

/// What has been added up so far. Calls are to come in the order of their times.
#[derive(Default)]
pub struct Trial {
    sums: HashMap<[u8; 32], RollingSum>,
}

/// The sum of the calls in the time of a limit.
#[derive(Default)]
struct RollingSum {
    uses: VecDeque<(OffsetDateTime, Amount)>,
    sum: Amount,
}

/// A decimal: its whole part, and its fraction in units of 10⁻³⁰. No call adds more digits than that.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Amount {
    whole: u128,
    fraction: u128,
}

const ONE: u128 = 10_u128.pow(30);

impl From<&Decimal> for Amount {
    fn from(decimal: &Decimal) -> Self {
        let (whole, fraction) = decimal.split();
        Self { whole, fraction }
    }
}

impl Amount {
    fn plus(self, other: Self) -> Self {
        let fraction = self.fraction + other.fraction;
        Self {
            whole: self.whole + other.whole + fraction / ONE,
            fraction: fraction % ONE,
        }
    }

    /// Takes a part out again.
    fn minus(self, part: Self) -> Self {
        let borrow = u128::from(self.fraction < part.fraction);
        Self {
            whole: self.whole - part.whole - borrow,
            fraction: self.fraction + borrow * ONE - part.fraction,
        }
    }
}

impl RollingSum {
    /// The sum of what was added after a time.
    fn since(&mut self, time: OffsetDateTime) -> Amount {
        while let Some((_, amount)) = self.uses.pop_front_if(|(at, _)| *at <= time) {
            self.sum = self.sum.minus(amount);
        }
        self.sum
    }

    fn add(&mut self, at: OffsetDateTime, amount: Amount) {
        self.uses.push_back((at, amount));
        self.sum = self.sum.plus(amount);
    }
}

impl Trial {
    /// What would become of a call. One that is not refused counts for the calls after it, also if it would have waited:
    /// whoever approves it lets it count.
    pub fn judge(&mut self, call: &TriedCall<'_>) -> Verdict {
        let exceeded = self.list_exceeded(call);
        let facts = CallFacts {
            exceeded: &exceeded,
            ..call.facts
        };
        let decision = decide(call.server, call.who, call.tool, &facts);
        let verdict = Verdict::new(call.server, &decision);
        if !matches!(verdict, Verdict::Refuse { .. } | Verdict::Deny(_)) {
            self.add(call);
        }
        verdict
    }

    /// Adds a call that was made.
    pub fn add(&mut self, call: &TriedCall<'_>) {
        for (_, limit) in limits_of_call(call.server, call.who, call.tool, &call.facts) {
            let Some(amount) = limit.amount(call.facts.arguments) else {
                continue;
            };
            for key in limit.keys(&call.limited()) {
                let sum = self.sums.entry(key).or_default();
                sum.add(call.facts.now, (&amount).into());
            }
        }
    }

    /// The places of the limits that a call would exceed.
    fn list_exceeded(&mut self, call: &TriedCall<'_>) -> Vec<usize> {
        let mut exceeded = Vec::new();
        for (at, limit) in limits_of_call(call.server, call.who, call.tool, &call.facts) {
            let amount = limit.amount(call.facts.arguments);
            let is_exceeded = amount.is_none_or(|amount| {
                let (amount, most) = (Amount::from(&amount), Amount::from(&limit.most));
                let keys = limit.keys(&call.limited()).into_iter();
                let mut sums = keys.map(|key| {
                    let sum = self.sums.get_mut(&key);
                    sum.map(|sum| sum.since(call.facts.now - limit.over))
                });
                sums.any(|sum| sum.unwrap_or_default().plus(amount) > most)
            });
            if is_exceeded {
                exceeded.push(at);
            }
        }
        exceeded
    }
}

impl TriedCall<'_> {
    fn limited(&self) -> LimitedCall<'_> {
        LimitedCall {
            agent: self.agent,
            server: &self.server.id,
            tool: self.tool,
            user: self.user,
            who: self.who,
        }
    }
}

impl Verdict {
    fn new(server: &ServerSpec, decision: &Decision<'_>) -> Self {
        let access = server.tool_access.as_ref();
        match decision {
            Decision::Allow(allowed) if allowed.is_self_approved() => Self::AllowAsApprover,
            Decision::Allow(_) => Self::Allow,
            Decision::Deny(denial) => Self::Deny(*denial),
            Decision::Refuse(denied) => Self::Refuse {
                reason: denied.reason.clone(),
                rule: access.and_then(|access| access.find_denial(denied)),
            },
            Decision::Approve(policy) if policy.is_confirmation() => Self::Confirm {
                rule: access.and_then(|access| access.find_policy(policy)),
            },
            Decision::Approve(policy) => Self::Approve {
                roles: policy.approvers.clone(),
                votes: policy.min_approvals,
                rule: access.and_then(|access| access.find_policy(policy)),
            },
        }
    }
}

/// Where the rules are that decisions name.
impl ToolAccess {
    fn find_denial(&self, wanted: &DenyRule) -> Option<RulePlace> {
        let mut rules = self.deny.iter().enumerate();
        let found = rules.find(|(_, rule)| std::ptr::eq(*rule, wanted));
        let found = found.map(|(at, rule)| place("deny", at, rule.when.as_ref()));
        found.or_else(|| {
            self.find_limit(|then| match then {
                Consequence::Deny(rule) => std::ptr::eq(rule, wanted),
                Consequence::Approve(_) => false,
            })
        })
    }

    fn find_policy(&self, wanted: &ApprovalPolicy) -> Option<RulePlace> {
        let lists = [("approval", &self.approval), ("confirm", &self.confirm)];
        let found = lists.into_iter().find_map(|(list, policies)| {
            let mut policies = policies.iter().enumerate();
            let (at, policy) = policies.find(|(_, policy)| std::ptr::eq(*policy, wanted))?;
            Some(place(list, at, policy.when.as_ref()))
        });
        found.or_else(|| {
            self.find_limit(|then| match then {
                Consequence::Approve(policy) => std::ptr::eq(policy, wanted),
                Consequence::Deny(_) => false,
            })
        })
    }

    fn find_limit(&self, is_it: impl Fn(&Consequence) -> bool) -> Option<RulePlace> {
        let mut limits = self.limits.iter().enumerate();
        let (at, limit) = limits.find(|(_, limit)| is_it(&limit.then))?;
        Some(place("limits", at, limit.when.as_ref()))
    }
}

fn place(list: &'static str, at: usize, when: Option<&Condition>) -> RulePlace {
    RulePlace {
        list,
        at,
        when: when.map(|when| when.source().to_owned()),
    }
}

impl fmt::Display for RulePlace {
    /// `approval[1] when args.amount > 1000`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.list, self.at)?;
        match &self.when {
            Some(when) => write!(f, " when {when}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Verdict {
    /// `it waits for cfo, ceo (2 votes), by approval[1] when args.amount > 1000`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("it is made"),
            Self::AllowAsApprover => {
                f.write_str("it is made, approved by the requester's own role")
            }
            Self::Approve { roles, votes, rule } => {
                let roles = roles.join(", ");
                let plural = if *votes == 1 { "" } else { "s" };
                write!(f, "it waits for {roles} ({votes} vote{plural})")?;
                write_rule(f, rule.as_ref())
            }
            Self::Confirm { rule } => {
                f.write_str("it waits for the user's own confirmation")?;
                write_rule(f, rule.as_ref())
            }
            Self::Refuse { reason, rule } => {
                write!(f, "it is refused: {reason}")?;
                write_rule(f, rule.as_ref())
            }
            Self::Deny(denial) => {
                write!(f, "the person does not have the tool: {}", denial.remedy())
            }
        }
    }
}

fn write_rule(f: &mut fmt::Formatter<'_>, rule: Option<&RulePlace>) -> fmt::Result {
    match rule {
        Some(rule) => write!(f, ", by {rule}"),
        None => Ok(()),
    }
}
