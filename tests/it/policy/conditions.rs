//! `when` of a rule: CEL about one call. What holds, what cannot be evaluated, what is refused when a pack is read, and
//! that no condition and no argument makes a decision long.

use domain::{
    json::{Json, Members},
    policy::{
        ApprovalPolicy, CallFacts, Condition, Decision, Origin, SampleCall, ToolAccess, Vars,
        decide,
    },
    server::ServerSpec,
    tool::Tool,
};
use serde_json::{Value, json, value::to_raw_value};
use time::macros::datetime;

use super::{DefaultAccess, EffectiveAccess, policy, server, who};

/// A server whose calls need consent when this holds.
fn guarded(when: &str) -> ServerSpec {
    let policy = ApprovalPolicy {
        when: Some(Condition::parse(when).unwrap()),
        ..policy(&["send_money"], false)
    };
    let access = ToolAccess {
        default: DefaultAccess::Public,
        approval: vec![policy],
        ..ToolAccess::default()
    };
    server(None, Some(access))
}

/// Whether a call needs consent.
fn asks_of(server: &ServerSpec, who: &EffectiveAccess, arguments: &str) -> bool {
    let claims = json!({ "department": "sales", "level": 3 });
    let vars = json!({ "known": ["acme", "globex"], "most": 1000, "exact": 0.1 });
    let vars = Vars::new(Members::from(vars.as_object().unwrap())).unwrap();
    let arguments = Json::parse(arguments).unwrap();
    let facts = CallFacts {
        arguments: &arguments,
        claims: claims.as_object().unwrap(),
        origin: Origin::Skill,
        // A Thursday.
        now: datetime!(2026-11-26 21:30 UTC),
        vars: &vars,
        exceeded: &[],
        only_reads: false,
    };
    match decide(server, who, "send_money", &facts) {
        Decision::Approve(_) => true,
        Decision::Allow(_) => false,
        other => panic!("{other:?}"),
    }
}

pub(super) fn asks(when: &str, arguments: &str) -> bool {
    asks_of(&guarded(when), &who(&["employee"], false), arguments)
}

#[test]
fn a_condition_reads_arguments_roles_claims_origin_time_and_variables() {
    let arguments =
        r#"{"amount":1000.5,"to":"acme","items":[{"price":3},{"price":40}],"note":"Größe"}"#;
    for (when, expected) in [
        ("args.amount > 1000", true),
        ("args.amount > 1000.5", false),
        ("!(args.to in vars.known)", false),
        ("args.amount > vars.most && args.to in vars.known", true),
        ("'employee' in roles", true),
        ("'cfo' in roles", false),
        ("claims.department == 'sales'", true),
        ("claims['level'] < 3", false),
        ("origin == 'skill'", true),
        ("now.getHours() >= 20", true),
        ("now.getHours('Asia/Tokyo') >= 20", false),
        ("now.getDayOfWeek() in [0, 6]", false),
        ("now > timestamp('2026-11-26T21:00:00Z')", true),
        ("args.items.exists(item, item.price > 39)", true),
        ("args.items.all(item, item.price > 39)", false),
        (
            "args.items.filter(item, item.price > 39).size() == 2",
            false,
        ),
        ("size(args.note) == 5", true),
        (
            "args.note.startsWith('Gr') && args.note.endsWith('e')",
            true,
        ),
        ("has(args.other) && args.other > 1", false),
        (
            "args.amount * 2.0 > 2000.0 ? args.to == 'acme' : false",
            true,
        ),
    ] {
        assert_eq!(asks(when, arguments), expected, "{when}");
    }
}

#[test]
fn what_cannot_be_evaluated_needs_approval() {
    for (when, arguments) in [
        ("args.amount > 1000", "{}"),
        ("args.amount > 1000", r#"{"amount":"5000"}"#),
        ("args.amount > 1000", r#"{"amount":null}"#),
        ("args.amount + 1.5 > 1000.0", r#"{"amount":1}"#),
        ("args.amount / 0 > 1", r#"{"amount":1}"#),
        ("args.amount", r#"{"amount":1}"#),
        ("double(args.amount) < 5.0", r#"{"amount":"nan"}"#),
        ("double(args.amount) < 5.0", r#"{"amount":"5,00"}"#),
        ("claims.missing == 'x'", "{}"),
        ("args.amount > 1000 || args.to == 'x'", r#"{"to":"y"}"#),
        // No double and no integer holds it, and a comparison could be wrong.
        (
            "args.amount > 1000",
            r#"{"amount":1000.00000000000000000001}"#,
        ),
        ("args.list[3] == 1", r#"{"list":[1]}"#),
    ] {
        assert!(asks(when, arguments), "{when} of {arguments}");
    }
    // What decides without it is not asked.
    assert!(!asks("args.to == 'x' && args.amount > 1", r#"{"to":"y"}"#));
}

#[test]
fn numbers_are_compared_by_their_values_however_they_are_written() {
    for (when, amount, expected) in [
        ("args.amount > 1000", "1000", false),
        ("args.amount > 1000", "1000.0", false),
        ("args.amount > 1000", "1e3", false),
        ("args.amount > 1000", "1000.01", true),
        ("args.amount > 1000.0", "1001", true),
        ("args.amount > 1000", "1e30", true),
        ("args.amount == 1000", "1000.0", true),
        ("args.amount == 1000.0", "1000", true),
        ("1000 < args.amount", "1000.5", true),
        ("args.amount <= 0.3", "0.3", true),
        ("args.amount == vars.exact", "0.1", true),
        ("args.amount > 9007199254740992", "9007199254740993", true),
        (
            "args.amount == 12345678901234567890123",
            "12345678901234567890124",
            false,
        ),
        ("args.amount in [1, 2.5]", "2.50", true),
        ("args.amount < 0", "-0", false),
    ] {
        if let Ok(condition) = Condition::parse(when) {
            drop(condition);
            let arguments = format!(r#"{{"amount":{amount}}}"#);
            assert_eq!(asks(when, &arguments), expected, "{when} of {amount}");
        } else {
            assert!(when.contains("12345678901234567890123"), "{when}");
        }
    }
}

#[test]
fn a_condition_that_is_not_understood_is_refused_with_what_to_write() {
    for (when, problem) in [
        ("args.amount >", "at 1:"),
        (
            "amount > 1000",
            "there is no variable `amount`; there are args, roles",
        ),
        (
            "args.to.matches('a+')",
            "there is no function `matches`; there are size",
        ),
        (
            "args.list.map(x, x + 1) == []",
            "there is no function `map`",
        ),
        ("claims == {}", "name the claim"),
        ("claims[args.name] == 1", "name the claim"),
        (
            "args.a.exists(x, args.b.exists(y, x == y))",
            "a loop within a loop",
        ),
        ("args.a.exists(args, args == 1)", "`args` is taken"),
        ("args.?a.orValue(1) == 1", "at 1:"),
        ("x{a: 1} == 1", "only values"),
    ] {
        let error = Condition::parse(when).unwrap_err();
        assert!(error.contains(problem), "{when}: {error}");
    }
    assert!(Condition::parse(&format!("args.a == '{}'", "x".repeat(1000))).is_err());
    let sums = "args.a + ".repeat(9) + "args.a == ''";
    assert!(Condition::parse(&sums).unwrap_err().contains("`+`"));
}

#[test]
fn a_deep_condition_is_refused_and_no_stack_is_too_small_for_one() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{1: ", "}"),
        ("size(", ")"),
        ("args.a ? 1 : ", ""),
        ("!", ""),
        ("-", ""),
    ] {
        let longest = 900 / (open.len() + close.len());
        for depth in [12, 13, longest] {
            let when = open.repeat(depth) + "1" + &close.repeat(depth);
            let is_taken = Condition::parse(&when).is_ok();
            assert!(!is_taken || close.is_empty() || depth == 12, "{when}");
            if is_taken {
                asks(&when, r#"{"a":true}"#);
            }
        }
    }
    let members = format!("args{}", ".a".repeat(400));
    assert!(Condition::parse(&members).is_err());
    // Many side by side are not deep.
    assert!(!asks(
        &("args.a || ".repeat(90) + "false"),
        r#"{"a":false}"#
    ));
}

/// The most that a condition may cost is what it costs to look at 100 items and texts of 4 KiB a hundred times.
#[test]
fn long_lists_and_texts_and_deep_values_need_approval_and_are_not_looked_into() {
    let list = |len: usize| json!({ "list": vec![1; len] }).to_string();
    assert!(!asks("args.list.exists(x, x > 1)", &list(100)));
    assert!(asks("args.list.exists(x, x > 1)", &list(101)));
    assert!(asks("2 in args.list", &list(100_000)));
    let text = |len: usize| json!({ "text": "x".repeat(len) }).to_string();
    assert!(!asks("args.text.contains('y')", &text(4096)));
    assert!(asks("args.text.contains('y')", &text(4097)));
    assert!(asks("size(args.text) < 3", &text(1 << 20)));
    // Equality can still be told.
    assert!(!asks("args.text == 'y'", &text(1 << 20)));
    let deep = |depth: usize| {
        let nested = (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }));
        nested.to_string()
    };
    assert!(!asks("args.a.a == 1", &deep(100)));
    assert!(!asks("args.a.a.a.a.a.a.a.a.a == 2", &deep(8)) || asks("true", "{}"));
    assert!(asks("args.a.a.a.a.a.a.a.a.a.a.a > 0", &deep(20)));
}

/// Steps are counted, not milliseconds: the costliest condition that is taken, on the costliest arguments.
#[test]
fn the_costliest_condition_ends() {
    let calls = "args.t.contains(x + 'z') || ".repeat(8);
    let when = format!("args.l.exists(x, {calls} false)");
    let texts: Vec<String> = (0..100).map(|_| "y".repeat(4096)).collect();
    let arguments = json!({ "t": "y".repeat(4096), "l": texts }).to_string();
    let filters = ".filter(x, x.contains('y'))".repeat(18);
    for when in [
        when,
        format!("args.l{filters}.size() == 0"),
        "args.l.exists(x, x + 'z' in args.l)".to_owned(),
        "args.l.exists(x, args == args && args.l != args.l)".to_owned(),
        "args.l.exists(x, [args.l, args.l, args.l, args.l] == [[x], args.l])".to_owned(),
        "args.l.exists(x, {x: args.l}[x].size() == 3)".to_owned(),
        "args.l.exists(x, size(x + x + x + x + x + x + x + x) == 3)".to_owned(),
    ] {
        assert!(!asks(&when, &arguments), "{when}");
    }
}

/// What the types of a tool's arguments make impossible, in whichever part of a condition, and nothing that they leave
/// open.
#[test]
fn a_condition_is_compared_with_the_types_of_arguments() {
    let schema = json!({ "type": "object", "properties": {
        "amount": { "type": "string" },
        "count": { "type": ["integer", "null"] },
        "either": { "type": ["integer", "string"] },
        "any": {},
        "flag": { "type": "boolean" },
        "to": { "enum": ["acme"] },
        "lines": { "type": "array", "items": { "type": "object", "properties": { "price": { "type": "number" } } } },
    } });
    let tool = Tool {
        name: "send_money".to_owned(),
        title: None,
        description: String::new(),
        input_schema: to_raw_value(&schema).unwrap(),
        output_schema: None,
        annotations: None,
        icons: None,
        meta: None,
        hash: None,
    };
    let sample = SampleCall::new(&tool).unwrap();
    let unfit = |when: &str| sample.find_unfit(&Condition::parse(when).unwrap(), &Vars::default());
    for when in [
        "args.amount > 100",
        "args.to == 'globex' && args.amount > 100",
        "args.flag || !(args.to == 'acme' && args.amount > 100)",
        "args.flag ? args.amount == 'x' : args.amount > 1",
        "args.count == 1 && args.to",
        "args.count.startsWith('1')",
        "args.lines.exists(line, line.price == 'x' || line.price > 'x')",
        "args.amont == '1'",
        "has(args.amont)",
    ] {
        assert!(unfit(when).is_some(), "{when}");
    }
    for when in [
        "double(args.amount) > 100.0",
        "args.count > 100",
        "args.either > 100",
        "args.any > 100 || args.any.startsWith('x')",
        "args.flag && args.to == 'acme'",
        "args.lines.exists(line, line.price > 3)",
        "timestamp(args.amount) > now",
        "has(args.any)",
        "claims.department == 'sales' && roles == ['x']",
    ] {
        assert_eq!(unfit(when), None, "{when}");
    }
    let why = unfit("args.amont > 1").unwrap();
    assert!(why.contains("the tool has no argument `amont`"), "{why}");
}

#[test]
fn a_pack_has_few_variables_that_conditions_can_look_into() {
    let vars = |value: Value| {
        Vars::new(Members::from(
            json!({ "known": value }).as_object().unwrap(),
        ))
    };
    assert!(vars(json!(vec!["a"; 998])).is_ok());
    for bad in [
        json!(vec!["a"; 1000]),
        json!("x".repeat(4097)),
        json!([[[[[[[[[1]]]]]]]]]),
    ] {
        assert!(vars(bad).is_err());
    }
}

/// A loop is about the items of a list: of an object it would see the names alone, and the server may read the values.
#[test]
fn a_loop_over_an_object_of_the_arguments_cannot_be_evaluated() {
    let outside = "args.to.exists(to, !to.endsWith('@example.org'))";
    assert!(!asks(outside, r#"{"to":["a@example.org"]}"#));
    assert!(asks(outside, r#"{"to":["a@example.org","b@x.com"]}"#));
    assert!(asks(outside, r#"{"to":{"a@example.org":"b@x.com"}}"#));
    assert!(asks(
        "args.mail.to.exists(to, to == 'x')",
        r#"{"mail":{"to":{"a":1}}}"#
    ));
    // Names can still be asked for, and objects compared.
    assert!(!asks("'cc' in args.mail", r#"{"mail":{"to":1}}"#));
    assert!(asks("args.mail == {'to': 1}", r#"{"mail":{"to":1}}"#));
    assert!(!asks(
        "vars.known.exists(known, known == args.to)",
        r#"{"to":"x"}"#
    ));
}

#[test]
fn a_text_that_is_no_number_is_no_amount() {
    for amount in ["-inf", "NaN", "inf", "-1e999"] {
        let arguments = json!({ "amount": amount }).to_string();
        assert!(asks("double(args.amount) > 1000.0", &arguments), "{amount}");
    }
    assert!(!asks(
        "double(args.amount) > 1000.0",
        r#"{"amount":"999.5"}"#
    ));
    // Below zero is a number; a rule that means it says so.
    assert!(!asks("args.amount > 1000", r#"{"amount":-5}"#));
    assert!(asks(
        "!(args.amount >= 0 && args.amount <= 1000)",
        r#"{"amount":-5}"#
    ));
}
