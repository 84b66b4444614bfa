//! The codes of errors: one list, in the OpenAPI document and on the page for frontends.

use std::collections::BTreeSet;

use chatelaine::api;
use domain::error::ErrorCode;

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_code_is_documented_and_no_other_is() {
    let known: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let page = include_str!("../../../docs/frontends.md");
    let (_, errors) = page.split_once("| Status | `code` | Meaning |").unwrap();
    let rows = errors
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<_> = rows
        .flat_map(|row| quoted(row.split('|').nth(2).unwrap()))
        .collect();
    let none: BTreeSet<&str> = BTreeSet::new();
    let missing: BTreeSet<_> = known.difference(&documented).copied().collect();
    assert_eq!(missing, none, "are not in docs/frontends.md");
    let stray: BTreeSet<_> = documented.difference(&known).copied().collect();
    assert_eq!(stray, none, "are no codes");
}

#[test]
fn the_openapi_document_lists_every_code() {
    let document = api::openapi();
    let schemas = &document["components"]["schemas"];
    let code = &schemas["ProblemDocument"]["properties"]["code"];
    let listed = code["enum"].as_array().unwrap();
    let listed: Vec<_> = listed.iter().map(|code| code.as_str().unwrap()).collect();
    let known: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(listed, known);
}
