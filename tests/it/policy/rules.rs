//! Several rules for one call: the strictest that applies decides, and no rule makes another one weaker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use domain::{
    ids::{AgentId, UserId},
    json::{Decimal, Json},
    pin::HeldTool,
    policy::{
        Amount, ApprovalPolicy, CallFacts, CallUsage, Condition, Consequence, Decision, DenyRule,
        Limit, LimitScope, LimitedCall, Offer, Origin, ToolAccess, Vars, decide, find_held_back,
        is_offered, offer,
    },
    tool::Tool,
    tool_schema::ToolSchema,
};
use proptest::prelude::*;
use serde_json::{Map, json, value::RawValue};
use time::OffsetDateTime;

use super::{
    DefaultAccess, Denial, EffectiveAccess, ServerSpec, patterns, policy, server, subsets, who,
};

#[derive(Clone, Debug)]
enum Rule {
    Approval(ApprovalPolicy),
    Confirm(ApprovalPolicy),
    Deny(DenyRule),
    Limit(Limit),
    /// The tool is not as somebody accepted it.
    Hold,
}

fn with(rules: &[Rule]) -> ServerSpec {
    let mut access = ToolAccess {
        default: DefaultAccess::Public,
        ..ToolAccess::default()
    };
    let mut held = BTreeMap::new();
    for rule in rules {
        match rule.clone() {
            Rule::Approval(policy) => access.approval.push(policy),
            Rule::Confirm(policy) => access.confirm.push(policy),
            Rule::Deny(rule) => access.deny.push(rule),
            Rule::Limit(limit) => access.limits.push(limit),
            Rule::Hold => drop(held.insert("send_money".to_owned(), HeldTool::default())),
        }
    }
    ServerSpec {
        held,
        ..server(None, Some(access))
    }
}

fn approval(when: Option<&str>, approvers: &[&str], votes: u32, self_approval: bool) -> Rule {
    Rule::Approval(ApprovalPolicy {
        when: when.map(|when| Condition::parse(when).unwrap()),
        approvers: approvers.iter().map(|role| (*role).to_owned()).collect(),
        min_approvals: votes,
        ..policy(&["send_money"], self_approval)
    })
}

fn confirm(tool: &str, when: Option<&str>) -> Rule {
    let when = when.map(|when| Condition::parse(when).unwrap());
    Rule::Confirm(ApprovalPolicy::confirmation(patterns(&[tool]), when, 60))
}

fn deny(tool: &str, when: Option<&str>) -> Rule {
    Rule::Deny(DenyRule {
        tools: patterns(&[tool]),
        when: when.map(|when| Condition::parse(when).unwrap()),
        reason: "not at night".to_owned(),
    })
}

/// A limit whose consequence is that of this rule.
fn limit(when: Option<&str>, then: &Rule) -> Rule {
    Rule::Limit(Limit {
        tools: patterns(&["send_money"]),
        when: when.map(|when| Condition::parse(when).unwrap()),
        sum: Some(vec!["amount".to_owned()]),
        per: LimitScope::User,
        over: Duration::from_secs(3600),
        most: Decimal::read("10").unwrap(),
        then: match then.clone() {
            Rule::Approval(policy) | Rule::Confirm(policy) => Consequence::Approve(policy),
            Rule::Deny(rule) => Consequence::Deny(rule),
            Rule::Limit(limit) => limit.then,
            Rule::Hold => panic!("it is nothing that a limit does"),
        },
    })
}

/// The decision about a call with these arguments. `full`: it would exceed every limit.
fn decide_on<'a>(
    spec: &'a ServerSpec,
    who: &EffectiveAccess,
    arguments: &str,
    full: bool,
) -> Decision<'a> {
    let limits = spec
        .tool_access
        .as_ref()
        .map_or(0, |access| access.limits.len());
    let exceeded: Vec<_> = (0..limits).filter(|_| full).collect();
    let (arguments, claims, vars) = (Json::parse(arguments).unwrap(), Map::new(), Vars::default());
    let facts = CallFacts {
        arguments: &arguments,
        claims: &claims,
        origin: Origin::Chat,
        now: OffsetDateTime::UNIX_EPOCH,
        vars: &vars,
        exceeded: &exceeded,
        only_reads: false,
    };
    decide(spec, who, "send_money", &facts)
}

type Holds = fn(Option<i64>) -> Option<bool>;

/// The conditions of the small world, and what they are of an amount; `None` cannot be told.
const CONDITIONS: [(&str, Holds); 3] = [
    ("args.amount > 2", |amount| Some(amount? > 2)),
    ("has(args.amount)", |amount| Some(amount.is_some())),
    ("args.amount <= 2", |amount| Some(amount? <= 2)),
];

fn applies(when: Option<&Condition>, amount: Option<i64>) -> bool {
    let Some(when) = when else { return true };
    let (_, holds) = CONDITIONS
        .iter()
        .find(|(source, _)| *source == when.source())
        .unwrap();
    holds(amount).unwrap_or(true)
}

/// The rule that decides, as the design says it.
fn oracle(rules: &[Rule], who: &EffectiveAccess, amount: Option<i64>, full: bool) -> Option<Rule> {
    let mut of_call = Vec::new();
    for rule in rules {
        match rule {
            Rule::Approval(policy) | Rule::Confirm(policy)
                if applies(policy.when.as_ref(), amount) =>
            {
                of_call.push(rule.clone());
            }
            Rule::Deny(denial) if applies(denial.when.as_ref(), amount) => {
                of_call.push(rule.clone());
            }
            Rule::Hold => of_call.push(Rule::Hold),
            _ => {}
        }
    }
    for rule in rules {
        match rule {
            Rule::Limit(limit) if full && applies(limit.when.as_ref(), amount) => {
                of_call.push(match limit.then.clone() {
                    Consequence::Approve(policy) => Rule::Approval(policy),
                    Consequence::Deny(denial) => Rule::Deny(denial),
                });
            }
            _ => {}
        }
    }
    let rank = |rule: &Rule| match rule {
        Rule::Limit(_) => (0, 0, false, 0),
        Rule::Hold => (4, 0, false, 0),
        Rule::Deny(_) => (3, 0, false, 0),
        // Whoever asks, and whatever their roles are.
        Rule::Confirm(_) => (1, 0, false, 0),
        Rule::Approval(policy) => {
            let holds = policy.approvers.iter().any(|role| who.roles.contains(role));
            let consents =
                policy.self_approval && policy.min_approvals == 1 && (holds || who.admin);
            let few = 9 - policy.approvers.len();
            (
                if consents { 0 } else { 2 },
                policy.min_approvals,
                !policy.self_approval,
                few,
            )
        }
    };
    let mut strictest: Option<Rule> = None;
    for rule in of_call.into_iter().filter(|rule| rank(rule).0 > 0) {
        if strictest
            .as_ref()
            .is_none_or(|other| rank(&rule) > rank(other))
        {
            strictest = Some(rule);
        }
    }
    strictest
}

fn all_rules() -> Vec<Rule> {
    let [large, given, small] = CONDITIONS.map(|(source, _)| source);
    vec![
        approval(None, &["cfo"], 1, true),
        approval(Some(large), &["cfo", "employee"], 2, true),
        approval(Some(small), &["employee"], 1, true),
        approval(Some(given), &["cfo"], 1, false),
        confirm("send_*", None),
        confirm("send_money", Some(large)),
        deny("send_money", Some(large)),
        deny("send_*", Some(given)),
        limit(Some(given), &approval(None, &["boss"], 1, false)),
        limit(Some(large), &deny("send_money", None)),
        Rule::Hold,
    ]
}

#[test]
fn of_every_set_of_rules_the_strictest_decides() {
    let all = all_rules();
    let mut seen = BTreeSet::new();
    for bits in 0..1 << all.len() {
        let chosen: Vec<_> = (0..all.len())
            .filter(|at| bits >> at & 1 == 1)
            .map(|at| all[at].clone())
            .collect();
        let spec = with(&chosen);
        for roles in subsets(&["employee", "cfo"]) {
            for admin in [false, true] {
                let effective = who(&roles, admin);
                for (amount, full) in [
                    (None, false),
                    (None, true),
                    (Some(1), false),
                    (Some(1), true),
                    (Some(5), false),
                    (Some(5), true),
                ] {
                    let arguments = amount.map_or_else(
                        || "{}".to_owned(),
                        |amount| format!(r#"{{"amount":{amount}}}"#),
                    );
                    let decision = decide_on(&spec, &effective, &arguments, full);
                    let wanted = oracle(&chosen, &effective, amount, full);
                    let is_it = match (&decision, &wanted) {
                        (
                            Decision::Approve(is),
                            Some(Rule::Approval(wanted) | Rule::Confirm(wanted)),
                        ) => *is == wanted,
                        (Decision::Allow(_), None)
                        | (Decision::Refuse(_), Some(Rule::Deny(_)))
                        | (Decision::Deny(Denial::Held), Some(Rule::Hold)) => true,
                        _ => false,
                    };
                    assert!(
                        is_it,
                        "{chosen:?} {effective:?} {amount:?}: {decision:?}, {wanted:?}"
                    );
                    seen.insert(strictness(&decision));
                    // What is allowed whatever the call is has no rule that may apply.
                    match offer(&spec, &effective, "send_money") {
                        Offer::Call => assert!(!matches!(decision, Decision::Approve(_))),
                        // What is not listed is not called.
                        Offer::Deny(_) => assert_eq!(strictness(&decision), 3),
                        Offer::Approve { .. } => {}
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), 4);
}

/// What may have been executed before its session was lost is made once more only where that changes nothing, by what its
/// server says, and where no rule asks for consent to calls of the tool or counts them.
#[test]
fn of_every_set_of_rules_and_hints_what_is_harmless_and_unguarded_may_be_repeated() {
    let hints = [
        (json!({}), false),
        (json!({ "readOnlyHint": true }), true),
        (json!({ "idempotentHint": true }), true),
        (
            json!({ "readOnlyHint": false, "idempotentHint": false }),
            false,
        ),
        (
            json!({ "readOnlyHint": "true", "destructiveHint": false }),
            false,
        ),
    ];
    let all = all_rules();
    for bits in 0..1 << all.len() {
        let chosen: Vec<_> = (0..all.len())
            .filter(|at| bits >> at & 1 == 1)
            .map(|at| all[at].clone())
            .collect();
        let spec = with(&chosen);
        let guards =
            |rule: &Rule| matches!(rule, Rule::Approval(_) | Rule::Confirm(_) | Rule::Limit(_));
        let is_guarded = chosen.iter().any(guards);
        for (hints, is_harmless) in &hints {
            let tool = Tool {
                name: "send_money".to_owned(),
                title: None,
                description: "Sends money.".to_owned(),
                input_schema: RawValue::from_string("{}".to_owned()).unwrap(),
                output_schema: None,
                annotations: Some(RawValue::from_string(hints.to_string()).unwrap()),
                icons: None,
                meta: None,
                hash: None,
            };
            assert_eq!(
                spec.may_repeat(&tool),
                *is_harmless && !is_guarded,
                "{chosen:?} {hints}"
            );
        }
    }
}

/// A payment of somebody, and whether it is approved if somebody has to approve it.
type Payment = (&'static str, u32, bool);

/// What the tiers of one sum say of a payment by plain addition, highest answer first.
fn oracle_of_tiers(tiers: &[(u32, bool)], paid: u32, amount: u32) -> u8 {
    let exceeded = tiers.iter().filter(|(most, _)| paid + amount > *most);
    let answers = exceeded.map(|(_, approves)| if *approves { 2 } else { 3 });
    answers.max().unwrap_or(0)
}

/// Every order of three payments of two people, under every set of tiers of one sum and for one person or all of them:
/// what was made before is added up once, whatever made it, and each tier answers for itself.
#[test]
fn every_order_of_payments_agrees_with_an_oracle_that_adds_them_up() {
    // The most, and whether somebody approves what is more; else it is denied.
    const TIERS: [(u32, bool); 3] = [(4, true), (7, false), (9, false)];
    let payments: Vec<Payment> = ["ann", "ben"]
        .into_iter()
        .flat_map(|who| [1, 4].map(|amount| (who, amount)))
        .flat_map(|(who, amount)| [true, false].map(|approved| (who, amount, approved)))
        .collect();
    let mut seen = BTreeSet::new();
    for bits in 0..1 << TIERS.len() {
        let tiers: Vec<_> = (0..TIERS.len())
            .filter(|at| bits >> at & 1 == 1)
            .map(|at| TIERS[at])
            .collect();
        for per in [LimitScope::User, LimitScope::Tenant] {
            let rules = tiers.iter().map(|(most, approves)| {
                let then = if *approves {
                    approval(None, &["boss"], 1, false)
                } else {
                    deny("send_money", None)
                };
                let Rule::Limit(rule) = limit(None, &then) else {
                    panic!("it is one")
                };
                let most = Decimal::read(&most.to_string()).unwrap();
                Rule::Limit(Limit { per, most, ..rule })
            });
            let spec = with(&rules.collect::<Vec<_>>());
            for at in 0..payments.len().pow(3) {
                let order = [at, at / payments.len(), at / payments.len().pow(2)];
                let order = order.map(|at| payments[at % payments.len()]);
                seen.extend(pay_in_order(&spec, &tiers, per, &order));
            }
        }
    }
    assert_eq!(seen, [0, 2, 3].into());
}

/// Makes them one after the other, with sums as a database keeps them; the strictness of each decision.
fn pay_in_order(
    spec: &ServerSpec,
    tiers: &[(u32, bool)],
    per: LimitScope,
    order: &[Payment],
) -> Vec<u8> {
    let (claims, vars) = (Map::new(), Vars::default());
    let (agent, access) = (AgentId::parse("bank").unwrap(), EffectiveAccess::default());
    let (mut sums, mut paid) = (HashMap::<_, u32>::new(), BTreeMap::<_, u32>::new());
    let mut answers = Vec::new();
    for (who, amount, is_approved) in order {
        let user = UserId((*who).into());
        let arguments = Json::parse(&format!(r#"{{"amount":{amount}}}"#)).unwrap();
        let facts = CallFacts {
            arguments: &arguments,
            claims: &claims,
            origin: Origin::Chat,
            now: OffsetDateTime::UNIX_EPOCH,
            vars: &vars,
            exceeded: &[],
            only_reads: false,
        };
        let call = LimitedCall {
            agent: &agent,
            server: &spec.id,
            tool: "send_money",
            user: &user,
            who: &access,
        };
        let usage = CallUsage::new(spec, &call, &facts);
        let used = sums
            .iter()
            .map(|(key, sum)| (*key, Amount::of_row(&sum.to_string())));
        let exceeded = usage.list_exceeded(&used.collect());
        let facts = CallFacts {
            exceeded: &exceeded,
            ..facts
        };
        let answer = strictness(&decide(spec, &access, "send_money", &facts));
        let whose = if per == LimitScope::User { who } else { "all" };
        let total = paid.entry(whose).or_default();
        assert_eq!(
            answer,
            oracle_of_tiers(tiers, *total, *amount),
            "{tiers:?} {per:?} {order:?}: {who} {amount}"
        );
        answers.push(answer);
        if answer == 0 || answer == 2 && *is_approved {
            *total += amount;
            for sum in &usage.sums {
                *sums.entry(sum.key).or_default() += amount;
            }
        }
    }
    answers
}

fn strictness(decision: &Decision<'_>) -> u8 {
    match decision {
        Decision::Allow(_) => 0,
        Decision::Approve(policy) if policy.is_confirmation() => 1,
        Decision::Approve(_) => 2,
        Decision::Refuse(_) | Decision::Deny(_) => 3,
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let names =
        prop::sample::select(&["send_money", "send_*", "sendmoney", "send_money_v2", "pay"][..]);
    let when = prop::option::of(prop::sample::select(&CONDITIONS[..]).prop_map(|it| it.0));
    let roles = prop::sample::subsequence(vec!["employee", "cfo", "boss"], 1..=3);
    (
        names,
        when,
        roles,
        1..3u32,
        any::<bool>(),
        0..6u8,
        any::<bool>(),
    )
        .prop_map(|(name, when, roles, votes, own, kind, limits)| {
            let mut rule = match kind {
                0 | 1 => deny(name, when),
                2 => return confirm(name, when),
                3 => return Rule::Hold,
                _ => approval(when, &roles, votes, own),
            };
            if let Rule::Approval(policy) = &mut rule {
                policy.tools = patterns(&[name]);
            }
            if limits {
                rule = limit(when, &rule);
            }
            rule
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// But for a policy for all calls of a tool that could have been taken for another: that is its author's word.
    #[test]
    fn another_rule_never_allows_what_was_not_allowed(
        rules in prop::collection::vec(any_rule(), 0..5),
        more in any_rule(),
        at in 0..5usize,
        roles in prop::sample::subsequence(vec!["employee", "cfo", "boss"], 0..=3),
        admin: bool,
        amount in prop::option::of(0..5i64),
        full: bool,
    ) {
        let names_it = matches!(&more, Rule::Approval(policy)
            if policy.when.is_none() && policy.tools == patterns(&["send_money"]));
        prop_assume!(!names_it);
        let effective = who(&roles, admin);
        let arguments = amount
            .map_or_else(|| "{}".to_owned(), |amount| format!(r#"{{"amount":{amount}}}"#));
        let before = with(&rules);
        let mut all = rules.clone();
        all.insert(at.min(rules.len()), more);
        let after = with(&all);
        let (before, after) = (
            decide_on(&before, &effective, &arguments, full),
            decide_on(&after, &effective, &arguments, full),
        );
        prop_assert!(strictness(&after) >= strictness(&before), "{:?} then {:?}", before, after);
        if let (Decision::Approve(before), Decision::Approve(after)) = (&before, &after) {
            prop_assert!(after.min_approvals >= before.min_approvals);
        }
    }
}

#[test]
fn a_rule_about_some_calls_leaves_the_tool_listed_and_one_about_all_does_not() {
    let anybody = who(&["employee"], false);
    let some = with(&[deny("send_money", Some("args.amount > 2"))]);
    assert_eq!(offer(&some, &anybody, "send_money"), Offer::Call);
    let all = with(&[deny("send_money", None)]);
    assert_eq!(
        offer(&all, &anybody, "send_money"),
        Offer::Deny(Denial::DeniedByRule)
    );
    assert!(!is_offered(&all, &who(&[], true), "send_money"));
    let confirmed = with(&[confirm("send_money", Some("args.amount > 2"))]);
    let offered = offer(&confirmed, &who(&[], true), "send_money");
    assert!(matches!(offered, Offer::Approve { always: false, .. }));
    assert!(offered.needs_confirmation() && offered.approvers().is_none());
    let may = with(&[approval(Some("args.amount > 2"), &["cfo"], 1, false)]);
    assert!(matches!(
        offer(&may, &anybody, "send_money"),
        Offer::Approve { always: false, .. }
    ));
}

/// Only who would have the tool hears that it waits.
#[test]
fn a_held_tool_is_denied_for_the_last_reason() {
    let held = |rules: &[Rule]| ServerSpec {
        held: [("send_money".to_owned(), HeldTool::default())].into(),
        ..with(rules)
    };
    let anybody = who(&["employee"], false);
    let deny_of = |spec: &ServerSpec, who: &EffectiveAccess| match offer(spec, who, "send_money") {
        Offer::Deny(reason) => Some(reason),
        _ => None,
    };
    for rules in [vec![], vec![approval(None, &["cfo"], 1, false)]] {
        let spec = held(&rules);
        assert_eq!(deny_of(&spec, &anybody), Some(Denial::Held));
        assert_eq!(deny_of(&spec, &who(&[], true)), Some(Denial::Held));
        let decision = decide_on(&spec, &anybody, "{}", false);
        assert_eq!(decision, Decision::Deny(Denial::Held));
        assert!(find_held_back(&spec, &anybody, "send_money").is_some());
        assert_eq!(offer(&spec, &anybody, "get_rate"), Offer::Call);
    }
    let closed = ServerSpec {
        tool_access: None,
        ..held(&[])
    };
    assert_eq!(deny_of(&closed, &anybody), Some(Denial::NoToolAccess));
    assert!(find_held_back(&closed, &anybody, "send_money").is_none());
}

#[test]
fn a_tool_that_can_be_taken_for_a_denied_one_is_denied() {
    let spec = with(&[deny("sendmoney", None)]);
    assert!(!is_offered(&spec, &who(&[], true), "send_money"));
    // A rule about some of its calls does not make it another tool.
    let spec = with(&[
        deny("sendmoney", None),
        approval(Some("args.amount > 2"), &["cfo"], 1, true),
    ]);
    assert!(!is_offered(&spec, &who(&[], true), "send_money"));
}

#[test]
fn a_tool_that_can_be_taken_for_a_confirmed_one_is_confirmed() {
    let spec = with(&[confirm("sendmoney", None)]);
    let decision = decide_on(&spec, &who(&[], true), "{}", false);
    assert!(matches!(decision, Decision::Approve(policy) if policy.is_confirmation()));
}

/// What is added up, and what is too much because nobody can add it up.
#[test]
fn an_amount_is_a_decimal_that_is_not_below_zero() {
    let Rule::Limit(limit) = limit(None, &deny("send_money", None)) else {
        panic!("it is one")
    };
    let amount = |amount: &str| {
        let arguments = Json::parse(&format!(r#"{{"amount":{amount}}}"#)).unwrap();
        limit.amount(&arguments).map(|amount| amount.canonical())
    };
    for (written, read) in [
        ("12.50", "12.5"),
        ("\"12.50\"", "12.5"),
        ("1e3", "1000"),
        (
            "0.10000000000000000000000001",
            "0.10000000000000000000000001",
        ),
        ("0", "0"),
    ] {
        assert_eq!(amount(written).as_deref(), Some(read), "{written}");
    }
    for written in [
        "-1",
        "\"-0.01\"",
        "\"12,50\"",
        "\"NaN\"",
        "null",
        "[1]",
        "1e31",
        "1e-31",
        "\"1e999999999999\"",
        "true",
    ] {
        assert_eq!(amount(written), None, "{written}");
    }
    assert_eq!(limit.amount(&Json::Null), None);
}

/// A condition reaches members in more ways than `args.name`.
#[test]
fn a_spelling_of_a_member_that_a_condition_reaches_in_any_way_is_found() {
    let vars = Json::parse(r#"{"names":["amount"],"parents":["order"]}"#).unwrap();
    let vars = Vars::new(vars.as_object().unwrap().clone()).unwrap();
    let (flat, nested) = (r#"{"Amount":5000}"#, r#"{"order":{"Amount":5000}}"#);
    for (when, refused, free) in [
        (
            "['amount','total'].exists(k, k in args && double(args[k]) > 1000.0)",
            flat,
            r#"{"amount":1,"meta":{"Amount":1}}"#,
        ),
        (
            "vars.names.exists(n, n in args && double(args[n]) > 1000.0)",
            flat,
            r#"{"amount":1,"meta":{"Amount":1}}"#,
        ),
        (
            "[args].exists(a, has(a.amount) && a.amount > 1000)",
            flat,
            r#"{"amount":1,"EUR":1}"#,
        ),
        (
            "string('amount') in args && args['to'] == 'EUR'",
            flat,
            r#"{"amount":1,"meta":{"eur":1}}"#,
        ),
        (
            "has([args][0].amount) && [args][0].amount > 1000",
            flat,
            r#"{"amount":1}"#,
        ),
        (
            "has({'x': args}.x.amount) && {'x': args}.x.amount > 1000",
            flat,
            r#"{"amount":1}"#,
        ),
        (
            "[args.order].exists(o, has(o.amount) && o.amount > 1000)",
            nested,
            r#"{"Amount":5000}"#,
        ),
        (
            "vars.parents.exists(n, n in args && has(args[n].amount) && args[n].amount > 1000)",
            r#"{"Order":{"amount":5000}}"#,
            r#"{"order":{"amount":5000}}"#,
        ),
        (
            "(args.payments + args.payments).exists(p, has(p.amount) && p.amount > 1000)",
            r#"{"payments":[{"Amount":5000}]}"#,
            r#"{"payments":[{"amount":5000}],"Amount":1}"#,
        ),
        (
            "[args.payments[0]].exists(p, has(p.amount) && p.amount > 1000)",
            r#"{"payments":[{"Amount":5000}]}"#,
            r#"{"payments":[{"amount":5000}],"Amount":1}"#,
        ),
    ] {
        let spec = with(&[approval(Some(when), &["cfo"], 1, false)]);
        let find = |text: &str| {
            let arguments = Json::parse(text).unwrap();
            spec.find_ambiguity("send_money", None, &arguments, &vars)
        };
        assert!(find(refused).is_some(), "{when}: {refused}");
        assert_eq!(find(free), None, "{when}: {free}");
    }
}

/// Every set of some names, beside a rule and a schema that name some: which of them a lenient reader takes for another.
#[test]
fn of_every_set_of_members_those_that_can_be_taken_for_others_are_found() {
    const NAMES: [&str; 9] = [
        "amount", "Amount", "a_mount", "AMOUNT", "to", "TO", "note", "No-Te", "other",
    ];
    let fold = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let spec = with(&[approval(Some("args.amount > 2"), &["cfo"], 1, false)]);
    let open = with(&[]);
    let raw =
        RawValue::from_string(r#"{"type":"object","properties":{"amount":{},"to":{}}}"#.to_owned());
    let schema = ToolSchema::compile(&raw.unwrap()).unwrap();
    for bits in 0..1 << NAMES.len() {
        let given: Vec<_> = (0..NAMES.len())
            .filter(|at| bits >> at & 1 == 1)
            .map(|at| NAMES[at])
            .collect();
        let members: Vec<_> = given.iter().map(|name| format!("{name:?}:1")).collect();
        let flat = Json::parse(&format!("{{{}}}", members.join(","))).unwrap();
        let is_pair = given
            .iter()
            .enumerate()
            .any(|(at, one)| given[..at].iter().any(|other| fold(one) == fold(other)));
        let is_other = |named: &[&str]| {
            given
                .iter()
                .any(|name| named.iter().any(|it| it != name && fold(it) == fold(name)))
        };
        let find = |schema, arguments: &Json| {
            let found = spec.find_ambiguity("send_money", schema, arguments, &Vars::default());
            found.is_some()
        };
        assert_eq!(
            find(Some(&schema), &flat),
            is_pair || is_other(&["amount", "to"]),
            "{given:?}"
        );
        assert_eq!(
            find(None, &flat),
            is_pair || is_other(&["amount"]),
            "{given:?}"
        );
        // Below a member that nothing is said of, only two that are one.
        for text in [
            format!(r#"{{"free":{flat}}}"#),
            format!(r#"{{"free":[[{flat}]]}}"#),
        ] {
            let deep = Json::parse(&text).unwrap();
            assert_eq!(find(Some(&schema), &deep), is_pair, "{text}");
        }
        assert_eq!(
            open.find_ambiguity("send_money", Some(&schema), &flat, &Vars::default()),
            None
        );
    }
}
