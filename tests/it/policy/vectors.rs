//! The conformance vectors of CEL for what conditions may use, by the decision alone: a condition that holds makes a
//! call wait, one that does not lets it pass, and one that cannot be evaluated makes it wait whichever way it is asked.

use std::collections::BTreeMap;

use domain::policy::Condition;
use serde_json::Value;

use super::conditions::asks;

/// What differs from the specification, each with the reason. Nothing of it lets a call pass that a rule is about, unless
/// the page of approvals says so.
const DIFFERENT: &[(&str, &str)] = &[];

#[derive(Debug, PartialEq)]
enum Found {
    Refused(String),
    Holds(bool),
    CannotBeEvaluated,
}

fn find(when: &str) -> Found {
    let negated = format!("!({when})");
    for part in [when, &negated] {
        if let Err(problem) = Condition::parse(part) {
            return Found::Refused(problem);
        }
    }
    match (asks(when, "{}"), asks(&negated, "{}")) {
        (true, false) => Found::Holds(true),
        (false, true) => Found::Holds(false),
        (true, true) => Found::CannotBeEvaluated,
        (false, false) => panic!("neither {when} nor its opposite is asked for"),
    }
}

#[test]
fn conditions_are_what_the_specification_of_cel_says() {
    let file: Value = serde_json::from_str(include_str!("cel.json")).unwrap();
    let vectors = file["tests"].as_array().unwrap();
    let mut different = BTreeMap::new();
    for vector in vectors {
        let [name, expr, value] =
            ["name", "expr", "value"].map(|member| vector[member].as_str().unwrap());
        let (when, expected) = match value {
            "true" => (expr.to_owned(), Found::Holds(true)),
            "false" => (expr.to_owned(), Found::Holds(false)),
            "error" => (format!("({expr}) == ({expr})"), Found::CannotBeEvaluated),
            "nan" => (format!("({expr}) != ({expr})"), Found::Holds(true)),
            value => (format!("({expr}) == ({value})"), Found::Holds(true)),
        };
        let found = find(&when);
        if found != expected {
            different.insert(name, format!("{when}: {found:?}"));
        }
    }
    let known: BTreeMap<_, _> = DIFFERENT.iter().copied().collect();
    let report = |names: Vec<&str>| {
        let lines = names
            .into_iter()
            .map(|name| format!("{name}  {}", different[name]));
        lines.collect::<Vec<_>>().join("\n")
    };
    let surprises: Vec<_> = different
        .keys()
        .filter(|name| !known.contains_key(*name))
        .copied()
        .collect();
    assert!(surprises.is_empty(), "{}", report(surprises));
    let mended: Vec<_> = known
        .keys()
        .filter(|name| !different.contains_key(*name))
        .collect();
    assert!(mended.is_empty(), "they are as they should be: {mended:?}");
    assert!(vectors.len() > 500);
}
