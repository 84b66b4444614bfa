//! Trying a policy: what would become of calls, one after the other, and which rule would decide. Nothing is called and
//! nothing is kept. The decision is the one of [`decide`]; only the sums of limits are added up in memory, by the times
//! of the calls, where the gate asks the database.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
};

use time::OffsetDateTime;

use super::{
    Amount, ApprovalPolicy, CallFacts, CallUsage, Condition, Consequence, Decision, Denial,
    DenyRule, EffectiveAccess, LimitedCall, SumKey, ToolAccess, decide,
};
use crate::{
    ids::{AgentId, UserId},
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
    sums: HashMap<SumKey, RollingSum>,
}

/// The sum of the calls in the time of a limit.
#[derive(Default)]
struct RollingSum {
    uses: VecDeque<(OffsetDateTime, Amount)>,
    sum: Amount,
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
        let ambiguity =
            call.server
                .find_ambiguity(call.tool, None, call.facts.arguments, call.facts.vars);
        let exceeded = self.list_exceeded(call);
        let facts = CallFacts {
            exceeded: &exceeded,
            ..call.facts
        };
        let decision = decide(call.server, call.who, call.tool, &facts);
        let verdict = match (ambiguity, &decision) {
            (Some(reason), Decision::Allow(_) | Decision::Approve(_) | Decision::Refuse(_)) => {
                Verdict::Refuse { reason, rule: None }
            }
            _ => Verdict::new(call.server, &decision),
        };
        if !matches!(verdict, Verdict::Refuse { .. } | Verdict::Deny(_)) {
            self.add(call);
        }
        verdict
    }

    /// Adds a call that was made.
    pub fn add(&mut self, call: &TriedCall<'_>) {
        for sum in call.usage().sums {
            if let Some(amount) = &sum.amount {
                let known = self.sums.entry(sum.key).or_default();
                known.add(call.facts.now, amount.into());
            }
        }
    }

    /// The places of the limits that a call would exceed.
    fn list_exceeded(&mut self, call: &TriedCall<'_>) -> Vec<usize> {
        let usage = call.usage();
        let used = usage.sums.iter().filter_map(|sum| {
            let known = self.sums.get_mut(&sum.key)?;
            Some((sum.key, known.since(call.facts.now - sum.over)))
        });
        let used = used.collect();
        usage.list_exceeded(&used)
    }
}

impl TriedCall<'_> {
    fn usage(&self) -> CallUsage<'_> {
        let call = LimitedCall {
            agent: self.agent,
            server: &self.server.id,
            tool: self.tool,
            user: self.user,
            who: self.who,
        };
        CallUsage::new(self.server, &call, &self.facts)
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
