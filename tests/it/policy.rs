//! Who may call what: `domain::policy::decide` against a second, differently written oracle, over an
//! exhaustive small world and over random large ones.

mod conditions; // what rules look into, and what that may cost
mod names; // that are close to the name of a tool
mod rules; // several rules for one call
mod trials; // what rules would do with examples
mod vectors; // CEL by its specification

use std::collections::{BTreeMap, BTreeSet};

use domain::{
    ids::ServerId,
    pin::{HeldTool, Pin},
    policy::{
        ApprovalPolicy, Decision, DefaultAccess, Denial, EffectiveAccess, OtherPolicies,
        ToolAccess, ToolPattern, is_offered,
    },
    server::{AccessMode, CatalogScope, Endpoint, Remote, ServerSpec, Timeouts},
};
use proptest::prelude::*;

use crate::support::packs::decide_plain;

const TOOLS: [&str; 3] = ["get_rate", "get_balances", "send_money"];
const ROLES: [&str; 3] = ["guest", "employee", "cfo"];
const DEFAULTS: [DefaultAccess; 5] = [
    DefaultAccess::None,
    DefaultAccess::All,
    DefaultAccess::Public,
    DefaultAccess::Users,
    DefaultAccess::Admin,
];

fn patterns(names: &[&str]) -> Vec<ToolPattern> {
    names
        .iter()
        .map(|name| ToolPattern((*name).to_owned()))
        .collect()
}

fn server(tools: Option<Vec<ToolPattern>>, tool_access: Option<ToolAccess>) -> ServerSpec {
    ServerSpec {
        id: ServerId::parse("bank").unwrap(),
        endpoint: Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: "https://bank.example/mcp".parse().unwrap(),
            headers: vec![],
        },
        access_mode: AccessMode::AdminControlled,
        tool_access,
        tools,
        pin: Pin::Hold,
        held: BTreeMap::new(),
        elsewhere: OtherPolicies::default(),
        summaries: BTreeMap::new(),
        required: false,
        per_tenant: false,
        at_start: false,
        timeouts: Timeouts::default(),
        user_config: vec![],
        catalog: CatalogScope::Shared,
        entered: Vec::new(),
        auth: None,
        oauth: None,
        credential_test: None,
        operator_headers: Vec::new(),
        from_variables: Vec::new(),
        has_user_values: false,
        asks_for_sign_in: false,
        run_config: None,
        of_tenant: false,
        load_tools: true,
        load_prompts: true,
        terminate_on_close: true,
    }
}

fn who(roles: &[&str], admin: bool) -> EffectiveAccess {
    EffectiveAccess {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        admin,
        is_guest: roles == ["guest"] && !admin,
    }
}

fn policy(tools: &[&str], self_approval: bool) -> ApprovalPolicy {
    ApprovalPolicy {
        tools: patterns(tools),
        when: None,
        approvers: vec!["cfo".to_owned()],
        timeout_minutes: 60,
        min_approvals: 1,
        self_approval,
    }
}

/// Whose consent a call needs, the strictest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Consent {
    Nobody,
    OwnUser,
    Others,
}

/// The rules of the design once more, as one formula each: (may call, whose consent).
fn oracle(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> (bool, Consent) {
    let in_list = |list: &[ToolPattern]| list.iter().any(|pattern| glob(&pattern.0, tool));
    let listed = server.tools.as_deref().is_none_or(in_list);
    let access = server.tool_access.as_ref();
    let lists_it = |role: &String| {
        access
            .and_then(|a| a.roles.as_ref()?.get(role))
            .is_some_and(|l| in_list(l))
    };
    let by_role = who.roles.iter().any(lists_it);
    let by_nobody =
        access.is_some_and(|a| a.roles.as_ref().is_some_and(|r| !r.keys().any(lists_it)));
    let by_rules_alone = access.is_some_and(|a| match &a.roles {
        Some(_) => by_role || (by_nobody && a.default == DefaultAccess::All),
        None => {
            matches!(a.default, DefaultAccess::All | DefaultAccess::Public)
                || (a.default == DefaultAccess::Users && !who.is_guest)
                || in_list(&a.public)
        }
    });
    let may = listed && (who.admin || by_rules_alone);
    let policies = || access.iter().flat_map(|a| &a.approval);
    let named = || {
        let roles = access
            .iter()
            .flat_map(|a| a.roles.iter().flat_map(|r| r.values()));
        let lists = access
            .iter()
            .map(|a| &a.public)
            .chain(roles)
            .chain(policies().map(|p| &p.tools))
            .chain(server.tools.iter());
        lists
            .flatten()
            .any(|name| name.0 == tool && !tool.contains('*'))
    };
    let guards = |p: &&ApprovalPolicy| {
        in_list(&p.tools) || (!named() && p.tools.iter().any(|name| looks_like(&name.0, tool)))
    };
    let consents = |p: &ApprovalPolicy| {
        p.self_approval
            && p.min_approvals == 1
            && (who.admin || p.approvers.iter().any(|r| who.roles.contains(r)))
    };
    let may = may && !server.held.contains_key(tool);
    let mut confirmed = access.iter().flat_map(|a| &a.confirm).filter(guards);
    let consent = if may && policies().filter(guards).any(|p| !consents(p)) {
        Consent::Others
    } else if may && confirmed.next().is_some() {
        Consent::OwnUser
    } else {
        Consent::Nobody
    };
    (may, consent)
}

/// `*` by recursion rather than by scanning.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len())
            .filter(|at| text.is_char_boundary(*at))
            .any(|at| glob(&pattern[1..], &text[at..])),
        Some(first) => text
            .strip_prefix(first)
            .is_some_and(|rest| glob(&pattern[first.len_utf8()..], rest)),
    }
}

fn is_separator(c: char) -> bool {
    "_-.:/".contains(c)
}

/// Whether a tool can be taken for what a name stands for, letter by letter. Only for the letters of these tests.
fn looks_like(name: &str, tool: &str) -> bool {
    let tools = versions(tool, true);
    if name.contains('*') {
        let is_empty = name.chars().all(|c| c == '*' || is_separator(c));
        let name: Vec<char> = name.chars().collect();
        return !is_empty && tools.iter().any(|tool| spells(&name, 0, tool, 0));
    }
    let letters = |text: &String| -> String {
        let letters = text.chars().filter(|c| !is_separator(*c));
        letters.map(|c| c.to_ascii_lowercase()).collect()
    };
    let names: BTreeSet<_> = versions(name, false).iter().map(letters).collect();
    tools.iter().any(|tool| names.contains(&letters(tool)))
}

/// A name, and each name that it is a version of.
fn versions(name: &str, numbers: bool) -> BTreeSet<String> {
    let name = name.trim_matches(is_separator);
    let base = name.trim_end_matches(|c| is_separator(c) || c == '2');
    let mut shorter = Vec::new();
    if base != name {
        shorter.extend(numbers.then_some(base));
        shorter.extend(base.strip_suffix('v'));
    }
    let numbered = name.strip_prefix('v').filter(|rest| rest.starts_with('2'));
    shorter.extend(numbered.map(|rest| rest.trim_start_matches('2')));
    let shorter = shorter.iter().map(|name| name.trim_matches(is_separator));
    let shorter = shorter.filter(|name| !name.is_empty());
    let mut all: BTreeSet<String> = shorter.flat_map(|name| versions(name, numbers)).collect();
    all.insert(name.to_owned());
    all
}

/// Whether the name from `n` on spells the tool from `t` on.
fn spells(name: &[char], n: usize, tool: &str, t: usize) -> bool {
    let letters: Vec<char> = tool.chars().collect();
    let skipped = |mut at: usize| {
        while letters.get(at).is_some_and(|c| is_separator(*c)) {
            at += 1;
        }
        at
    };
    let begins = |at: usize| {
        let at = skipped(at);
        let before = letters[..at].iter().rposition(|c| !is_separator(*c));
        let Some(before) = before else { return true };
        let hump =
            |a: usize, b: usize| letters[a].is_ascii_lowercase() && letters[b].is_ascii_uppercase();
        let inner = letters[skipped(0)..].iter().any(|c| is_separator(*c))
            || (1..letters.len()).any(|at| hump(at - 1, at));
        let Some(c) = letters.get(at) else {
            return true;
        };
        !inner
            || at - before > 1
            || hump(before, at)
            || letters[before].is_ascii_digit() != c.is_ascii_digit()
    };
    let at = skipped(t);
    match name.get(n) {
        None => at == letters.len(),
        Some('*') => (t..=letters.len()).any(|t| spells(name, n + 1, tool, t)),
        Some(c) if is_separator(*c) => {
            let run =
                |mut steps: std::vec::IntoIter<usize>| steps.find(|at| !is_separator(name[*at]));
            let before = run((0..n).rev().collect::<Vec<_>>().into_iter());
            let after = run((n..name.len()).collect::<Vec<_>>().into_iter());
            let after_star = before.is_some_and(|at| name[at] == '*');
            let before_star = after.is_some_and(|at| name[at] == '*');
            (!after_star || (at > 0 && begins(at)))
                && (!before_star || (at < letters.len() && begins(at)))
                && spells(name, n + 1, tool, at)
        }
        Some(c) => {
            letters.get(at).is_some_and(|is| is.eq_ignore_ascii_case(c))
                && spells(name, n + 1, tool, at + 1)
        }
    }
}

fn verdict(decision: &Decision<'_>) -> (bool, Consent) {
    match decision {
        Decision::Deny(_) | Decision::Refuse(_) => (false, Consent::Nobody),
        Decision::Allow(_) => (true, Consent::Nobody),
        Decision::Approve(policy) if policy.is_confirmation() => (true, Consent::OwnUser),
        Decision::Approve(_) => (true, Consent::Others),
    }
}

fn subsets<'a>(items: &[&'a str]) -> Vec<Vec<&'a str>> {
    (0..1 << items.len())
        .map(|bits: usize| {
            items
                .iter()
                .enumerate()
                .filter(|(at, _)| bits >> at & 1 == 1)
                .map(|(_, item)| *item)
                .collect()
        })
        .collect()
}

#[test]
fn every_combination_of_a_small_world_agrees_with_the_oracle() {
    let lists = subsets(&TOOLS);
    let role_maps: Vec<Option<BTreeMap<String, Vec<ToolPattern>>>> = std::iter::once(None)
        .chain(lists.iter().flat_map(|guest| {
            lists.iter().map(move |employee| {
                let roles = [("guest", guest), ("employee", employee)];
                Some(
                    roles
                        .map(|(role, tools)| (role.to_owned(), patterns(tools)))
                        .into(),
                )
            })
        }))
        .collect();
    let confirm = ApprovalPolicy::confirmation(patterns(&["send_*"]), None, 60);
    let approvals = [
        (vec![], vec![]),
        (vec![], vec![confirm.clone()]),
        (vec![policy(&["send_money"], true)], vec![]),
        (vec![policy(&["send_money"], true)], vec![confirm.clone()]),
        (vec![policy(&["send_*"], false)], vec![confirm]),
        (
            vec![ApprovalPolicy {
                min_approvals: 2,
                ..policy(&["send_money"], true)
            }],
            vec![],
        ),
    ];
    let allowlists = [
        None,
        Some(vec![]),
        Some(patterns(&["get_*"])),
        Some(patterns(&["send_money"])),
    ];
    let mut seen = BTreeSet::new();
    for roles in &role_maps {
        for default in DEFAULTS {
            for (approval, confirm) in &approvals {
                for allowlist in &allowlists {
                    for public in if roles.is_none() {
                        &lists[..]
                    } else {
                        &lists[..1]
                    } {
                        let access = ToolAccess {
                            default,
                            public: patterns(public),
                            roles: roles.clone(),
                            approval: approval.clone(),
                            confirm: confirm.clone(),
                            deny: Vec::new(),
                            limits: Vec::new(),
                        };
                        let spec = server(allowlist.clone(), Some(access));
                        // What waits to be accepted is denied, and nothing else becomes another decision.
                        let held = ServerSpec {
                            held: BTreeMap::from([("send_money".to_owned(), HeldTool::default())]),
                            ..spec.clone()
                        };
                        for spec in [spec, held] {
                            for roles in subsets(&ROLES) {
                                for admin in [false, true] {
                                    let effective = who(&roles, admin);
                                    for tool in TOOLS {
                                        let decision = decide_plain(&spec, &effective, tool);
                                        assert_eq!(
                                            verdict(&decision),
                                            oracle(&spec, &effective, tool),
                                            "{spec:?} {effective:?} {tool}: {decision:?}"
                                        );
                                        let offered = is_offered(&spec, &effective, tool);
                                        assert_eq!(offered, verdict(&decision).0);
                                        seen.insert(verdict(&decision));
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), 4, "the small world meets every verdict");
}

fn pattern() -> impl Strategy<Value = String> {
    "[ab*]{0,5}|[abv_2*]{1,5}"
}

fn access() -> impl Strategy<Value = ToolAccess> {
    let list = || prop::collection::vec(pattern().prop_map(ToolPattern), 0..4);
    let roles = prop::option::of(prop::collection::btree_map("[rst]", list(), 0..3));
    let approval = prop::collection::vec((list(), "[rst]", any::<bool>(), 1..3u32), 0..3);
    let confirm = prop::collection::vec(list(), 0..2);
    let default = prop::sample::select(&DEFAULTS[..]);
    (default, list(), roles, approval, confirm).prop_map(
        |(default, public, roles, approval, confirm)| {
            let confirm = confirm
                .into_iter()
                .map(|tools| ApprovalPolicy::confirmation(tools, None, 60));
            let approval =
                approval
                    .into_iter()
                    .map(
                        |(tools, approver, self_approval, min_approvals)| ApprovalPolicy {
                            tools,
                            when: None,
                            approvers: vec![approver],
                            timeout_minutes: 60,
                            min_approvals,
                            self_approval,
                        },
                    );
            ToolAccess {
                default,
                public,
                roles,
                approval: approval.collect(),
                confirm: confirm.collect(),
                deny: Vec::new(),
                limits: Vec::new(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_packs_agree_with_the_oracle(
        access in prop::option::of(access()),
        tools in prop::option::of(prop::collection::vec(pattern().prop_map(ToolPattern), 0..4)),
        roles in prop::collection::btree_set("[rstu]", 0..3),
        admin: bool,
        guest: bool,
        tool in "[ab]{0,6}|[aAbv_2]{1,6}",
    ) {
        let spec = server(tools, access);
        let effective = EffectiveAccess { roles, admin, is_guest: guest && !admin };
        prop_assert_eq!(verdict(&decide_plain(&spec, &effective, &tool)), oracle(&spec, &effective, &tool));
    }

    #[test]
    fn a_pattern_matches_what_the_recursive_glob_matches(pattern in "[abé*]{0,8}", text in "[abé]{0,10}") {
        prop_assert_eq!(ToolPattern(pattern.clone()).matches(&text), glob(&pattern, &text));
    }
}

#[test]
fn a_server_without_tool_access_is_closed_to_all_but_admins() {
    let spec = server(None, None);
    assert_eq!(
        decide_plain(&spec, &who(&["employee"], false), "get_rate"),
        Decision::Deny(Denial::NoToolAccess)
    );
    assert!(matches!(
        decide_plain(&spec, &who(&[], true), "get_rate"),
        Decision::Allow(allowed) if !allowed.is_self_approved()
    ));
}

#[test]
fn an_admin_does_not_get_around_the_allowlist() {
    let spec = server(Some(patterns(&["get_*"])), None);
    assert_eq!(
        decide_plain(&spec, &who(&[], true), "send_money"),
        Decision::Deny(Denial::NotInAllowlist)
    );
}

#[test]
fn an_admin_waits_where_nobody_may_approve_their_own_call() {
    let access = ToolAccess {
        approval: vec![policy(&["send_money"], false)],
        ..ToolAccess::default()
    };
    let spec = server(None, Some(access));
    assert!(matches!(
        decide_plain(&spec, &who(&[], true), "send_money"),
        Decision::Approve(_)
    ));
}

#[test]
fn holding_the_tool_and_an_approver_role_is_recorded_as_self_approved() {
    let roles = BTreeMap::from([("employee".to_owned(), patterns(&["send_money"]))]);
    let access = ToolAccess {
        roles: Some(roles),
        approval: vec![policy(&["send_money"], true)],
        ..ToolAccess::default()
    };
    let spec = server(None, Some(access));
    assert!(matches!(
        decide_plain(&spec, &who(&["employee", "cfo"], false), "send_money"),
        Decision::Allow(allowed) if allowed.is_self_approved()
    ));
    assert!(matches!(
        decide_plain(&spec, &who(&["employee"], false), "send_money"),
        Decision::Approve(_)
    ));
    assert_eq!(
        decide_plain(&spec, &who(&["cfo"], false), "send_money"),
        Decision::Deny(Denial::RoleLacksTool)
    );
}
