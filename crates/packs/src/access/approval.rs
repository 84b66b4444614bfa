//! The approvals of `toolAccess`: which calls wait for whom, and for how long.

use super::{LocatedPattern, overlap, patterns, plain, warn_unreachable_role};
use crate::field::Field;
use domain::{pack::Authentication, policy::ApprovalPolicy};

/// A year.
const MAX_TIMEOUT_MINUTES: u32 = 525_600;

type Policy<'a> = (ApprovalPolicy, Vec<LocatedPattern<'a>>);

pub(super) fn approvals<'a>(field: &Field<'a>, who: &Authentication) -> Vec<Policy<'a>> {
    let mut policies: Vec<Policy> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(policy) = approval(&item, who) else {
            continue;
        };
        for new in &policy.1 {
            let twice = |old: &&LocatedPattern| overlap(&new.pattern.0, &old.pattern.0);
            if let Some(old) = policies.iter().flat_map(|(_, tools)| tools).find(twice) {
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
                new.at.error(what, "give every tool one policy");
            }
        }
        policies.push(policy);
    }
    policies
}

pub(super) fn approval<'a>(field: &Field<'a>, who: &Authentication) -> Option<Policy<'a>> {
    let mut object = field.object()?;
    let tools_field = object.required(
        "tools",
        "name the tools that need consent: `tools: [send_money]`",
    );
    let tools = tools_field.as_ref().map(patterns).unwrap_or_default();
    if let Some(field) = tools_field.filter(|_| tools.is_empty()) {
        refuse_empty(&field, "name the tools that need consent");
    }
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
        .and_then(|f| f.whole(&(1..=20)))
        .unwrap_or(1);
    let self_approval = object.optional("selfApproval");
    if min_approvals > 1 && self_approval.is_none() {
        field.warn(
            format!(
                "`minApprovals` is {min_approvals} and `selfApproval` is not said, so the call of somebody who may \
                 approve counts as one approval"
            ),
            "write `selfApproval: false`, or `selfApproval: true` if that is meant",
        );
    }
    let policy = ApprovalPolicy {
        tools: plain(&tools),
        approvers: approvers.into_iter().map(|role| role.value).collect(),
        timeout_minutes: object
            .optional("timeoutMinutes")
            .and_then(|f| f.whole(&(1..=MAX_TIMEOUT_MINUTES)))
            .unwrap_or(60),
        min_approvals,
        self_approval: self_approval.is_none_or(|field| field.boolean().unwrap_or_default()),
    };
    object.finish();
    Some((policy, tools))
}

/// Reports an empty list, unless its items were refused already.
fn refuse_empty(field: &Field, hint: &str) {
    if field.list().is_some_and(|items| items.is_empty()) {
        field.error("the list is empty", hint);
    }
}
