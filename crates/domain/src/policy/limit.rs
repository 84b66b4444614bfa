//! Limits over time (`limits`): how much, or how often, may be called in a while. The sum is one of decimals, which the
//! database adds up; a double would lose cents.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{ApprovalPolicy, Condition, DenyRule, EffectiveAccess, ToolPattern};
use crate::{
    ids::{AgentId, ServerId, UserId},
    json::{Decimal, Json, Number},
};

/// The most digits of an amount, before and behind the point.
const MAX_DIGITS: i64 = 30;

#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum LimitScope {
    User,
    /// Everybody's who holds one of the roles of the user.
    Role,
    /// Everybody's, for each tool by itself.
    Tool,
    Tenant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub fn keys(&self, of: &LimitedCall<'_>) -> Vec<[u8; 32]> {
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
