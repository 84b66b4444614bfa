//! The conformance vectors of CEL for what conditions may use, by the decision alone: a condition that holds makes a
//! call wait, one that does not lets it pass, and one that cannot be evaluated makes it wait whichever way it is asked.

use std::collections::{BTreeMap, BTreeSet};

use domain::policy::Condition;
use serde_json::Value;

use super::conditions::asks;

/// What differs from the specification: all of it is refused when a pack is read, for the reason that begins with these
/// words. Nothing that is taken is true or false where the specification says something else.
const DIFFERENT: [(&str, &[&str]); 4] = [
    // A name with a dot or a slash is written in brackets and quotes.
    (
        "unsupported syntax: '`'",
        &[
            "fields/quoted_map_fields/field_access_dot",
            "fields/quoted_map_fields/field_access_slash",
            "fields/quoted_map_fields/has_field_dot",
            "fields/quoted_map_fields/has_field_slash",
        ],
    ),
    // What bounds the time that a condition takes.
    (
        "a loop within a loop",
        &["macros/nested/all_all", "macros/nested/filter_all"],
    ),
    (
        "its brackets are nested more than 12 deep",
        &[
            "parse/nest/funcall",
            "parse/nest/list_literal",
            "parse/nest/map_literal",
            "parse/nest/parens",
            "parse/repeat/index",
        ],
    ),
    ("it has more than 8 `+`", &["parse/repeat/add_sub"]),
];

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
    assert!(vectors.len() > 800);
    let mut reasons = BTreeMap::new();
    for (reason, names) in DIFFERENT {
        reasons.extend(names.iter().map(|name| (*name, reason)));
    }
    let (mut seen, mut surprises) = (BTreeSet::new(), Vec::new());
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
        match (&found, reasons.get(name)) {
            (Found::Refused(problem), Some(reason)) if problem.contains(reason) => {
                seen.insert(name);
            }
            _ if found == expected => {}
            _ => surprises.push(format!("{name}  {when}: {found:?}")),
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    let mended: Vec<_> = reasons
        .keys()
        .filter(|name| !seen.contains(*name))
        .collect();
    assert!(mended.is_empty(), "they do not differ: {mended:?}");
}
