//! Limits over time (`limits`): how much, or how often, may be called in a while. The sum is one of decimals, which the
//! database adds up; a double would lose cents.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    ApprovalPolicy, CallFacts, Condition, DenyRule, EffectiveAccess, JudgedCall, ToolPattern,
};
use crate::{
    ids::{AgentId, ServerId, UserId},
    json::{Decimal, Json, Number},
    server::ServerSpec,
};

/// The most digits of an amount, before and behind the point.
const MAX_DIGITS: i64 = 30;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    pub tools: Vec<ToolPattern>,
    /// Only the calls for which this holds. Absent: all.
    pub when: Option<Condition>,
    /// The steps to the argument whose values are added up. Absent: calls are counted.
    pub sum: Option<Vec<String>>,
    pub per: LimitScope,
    pub over: Duration,
    /// The most in that time.
    pub most: Decimal,
    /// What becomes of a call that would be too much.
    pub then: Consequence,
}

/// Whose calls are added up, at one server of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum LimitScope {
    User,
    /// Everybody's who holds one of the roles of the user.
    Role,
    /// Everybody's, for each tool by itself.
    Tool,
    Tenant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consequence {
    Deny(DenyRule),
    Approve(ApprovalPolicy),
}

impl Limit {
    pub(super) fn policy(&self) -> Option<&ApprovalPolicy> {
        match &self.then {
            Consequence::Approve(policy) => Some(policy),
            Consequence::Deny(_) => None,
        }
    }

    pub(super) fn denial(&self) -> Option<&DenyRule> {
        match &self.then {
            Consequence::Deny(rule) => Some(rule),
            Consequence::Approve(_) => None,
        }
    }

    /// What a call adds. `None` for an amount that cannot be read, is below zero or has too many digits: such a call is
    /// too much.
    pub fn amount(&self, arguments: &Json) -> Option<Decimal> {
        let Some(path) = &self.sum else {
            return Decimal::read("1");
        };
        let mut value = arguments;
        for name in path {
            value = value.get(name)?;
        }
        match value {
            Json::Number(number) => Decimal::read(number.as_str()),
            Json::Text(text) => Decimal::read(Number::parse(text)?.as_str()),
            _ => None,
        }
    }

    /// What the sums of a call are kept under. `most` is no part of it, so that it can be raised.
    fn keys(&self, of: &LimitedCall<'_>) -> Vec<SumKey> {
        let scope: &'static str = self.per.into();
        let tools: Vec<_> = self.tools.iter().map(|tool| tool.0.as_str()).collect();
        let when = self.when.as_ref().map(Condition::source);
        let key = |whose: &str| {
            let rule = (&tools, when, &self.sum, scope, self.over.as_secs());
            let call = (of.agent.as_str(), of.server.as_str(), rule, whose);
            let text = serde_json::to_vec(&call).unwrap_or_default();
            Sha256::digest(text).into()
        };
        match self.per {
            LimitScope::User => vec![key(of.user.as_str())],
            LimitScope::Tool => vec![key(of.tool)],
            LimitScope::Role if !of.who.roles.is_empty() => {
                of.who.roles.iter().map(|role| key(role)).collect()
            }
            LimitScope::Role | LimitScope::Tenant => vec![key("")],
        }
    }
}

/// What a sum is kept under.
pub type SumKey = [u8; 32];

/// A sum, and what a call adds to it.
#[derive(Clone, Debug)]
pub struct SumUse {
    pub key: SumKey,
    /// The time before each call that counts.
    pub over: Duration,
    /// `None` for one that nobody can add up.
    pub amount: Option<Decimal>,
}

/// The limits that a call counts for. Limits that differ in `most` and `then` alone are tiers of one sum, to which the call
/// is added once. The gate, which keeps sums in the database, and trials, which keep them in memory, both judge by it.
pub struct CallUsage<'a> {
    /// Each with its place among those of the server, what the call adds, and its sums.
    limits: Vec<(usize, &'a Limit, Option<Decimal>, Vec<SumKey>)>,
    /// Each sum once, in one order, in which they can be locked.
    pub sums: Vec<SumUse>,
}

impl<'a> CallUsage<'a> {
    pub fn new(server: &'a ServerSpec, call: &LimitedCall<'_>, facts: &CallFacts<'_>) -> Self {
        let judged = JudgedCall::new(call.who, facts);
        let limits = server.limits(call.tool);
        let limits = limits.filter(|(_, limit)| judged.is_of(limit.when.as_ref()));
        let limits: Vec<_> = limits
            .map(|(at, limit)| (at, limit, limit.amount(facts.arguments), limit.keys(call)))
            .collect();
        let mut sums = BTreeMap::new();
        for (_, limit, amount, keys) in &limits {
            for key in keys {
                sums.entry(*key).or_insert_with(|| SumUse {
                    key: *key,
                    over: limit.over,
                    amount: amount.clone(),
                });
            }
        }
        Self {
            limits,
            sums: sums.into_values().collect(),
        }
    }

    /// The places of the limits that the call would exceed, by what other calls have added to its sums.
    pub fn list_exceeded(&self, used: &HashMap<SumKey, Amount>) -> Vec<usize> {
        let limits = self.limits.iter().filter(|(_, limit, amount, keys)| {
            let Some(amount) = amount else { return true };
            let (amount, most) = (Amount::from(amount), Amount::from(&limit.most));
            let used = |key| used.get(key).copied().unwrap_or_default();
            keys.iter().any(|key| used(key).plus(amount) > most)
        });
        limits.map(|(at, ..)| *at).collect()
    }
}

/// A sum of decimals: its whole part, and its fraction in units of 10⁻³⁰. No call adds more digits than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
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
    /// A sum as the database writes it, in digits and a point.
    pub fn of_row(sum: &str) -> Self {
        let (whole, fraction) = sum.split_once('.').unwrap_or((sum, ""));
        Self {
            // More than that is more than any limit.
            whole: whole.parse().unwrap_or(u128::MAX),
            fraction: format!("{fraction:0<30}").parse().unwrap_or_default(),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let fraction = self.fraction + other.fraction;
        let whole = self.whole.saturating_add(other.whole);
        Self {
            whole: whole.saturating_add(fraction / ONE),
            fraction: fraction % ONE,
        }
    }

    /// Takes a part out again.
    pub(super) fn minus(self, part: Self) -> Self {
        let borrow = u128::from(self.fraction < part.fraction);
        Self {
            whole: self.whole - part.whole - borrow,
            fraction: self.fraction + borrow * ONE - part.fraction,
        }
    }
}

/// Whose call it is, and of what.
pub struct LimitedCall<'a> {
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a str,
    pub user: &'a UserId,
    pub who: &'a EffectiveAccess,
}

impl Decimal {
    /// Reads an amount of at most 30 digits on each side of the point, not below zero.
    pub fn read(number: &str) -> Option<Self> {
        let amount = Self::parse(number)?;
        let zero = Self::parse("0")?;
        (amount >= zero && amount.has_digits_within(MAX_DIGITS)).then_some(amount)
    }
}
