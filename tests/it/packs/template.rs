//! `${NAME}`: parsed once, resolved once.

use domain::template::{Template, TemplateError};
use proptest::prelude::*;

fn resolve(text: &str, values: &[(&str, &str)]) -> String {
    let value = |name: &str| {
        values
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    };
    Template::parse(text)
        .unwrap()
        .resolve(|reference| value(&reference.key))
        .unwrap()
}

#[test]
fn references_are_replaced_wherever_they_stand() {
    let values = [("A", "1"), ("B_2", "two")];
    assert_eq!(resolve("${A}", &values), "1");
    assert_eq!(resolve("x${A}${B_2}y${A}", &values), "x1two\u{79}1");
    assert_eq!(resolve("", &values), "");
}

#[test]
fn two_dollars_write_a_literal_brace_and_other_dollars_are_themselves() {
    assert_eq!(
        resolve("$${A} costs 5$ or $5 or $$", &[]),
        "${A} costs 5$ or $5 or $$"
    );
    assert_eq!(resolve("$$${A}", &[]), "$${A}");
}

#[test]
fn what_is_not_a_reference_is_an_error() {
    assert_eq!(Template::parse("a ${B"), Err(TemplateError::Unclosed));
    assert_eq!(
        Template::parse("${}"),
        Err(TemplateError::BadName(String::new()))
    );
    assert_eq!(
        Template::parse("${A:-b}"),
        Err(TemplateError::BadName("A…".to_owned()))
    );
    assert_eq!(
        Template::parse("${1A}"),
        Err(TemplateError::BadName("1A".to_owned()))
    );
    assert_eq!(
        Template::parse("${scope.a}"),
        Err(TemplateError::UnknownSource("scope.a".to_owned()))
    );
}

#[test]
fn every_missing_variable_is_named_once() {
    let missing = Template::parse("${B} ${A} ${C} ${B}")
        .unwrap()
        .resolve(|r| (r.key == "C").then_some("c"));
    assert_eq!(
        missing.unwrap_err().to_string(),
        "no value for `${A}`, `${B}`"
    );
}

/// Text rich in what matters to a template.
fn tricky() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("$".to_owned()),
        Just("${".to_owned()),
        Just("}".to_owned()),
        Just("${A}".to_owned()),
        Just("$${".to_owned()),
        Just("${SECRET}".to_owned()),
        "\\PC{0,4}",
    ];
    prop::collection::vec(pieces, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_literal_can_be_written(text in tricky()) {
        let written = text.replace("${", "$${");
        let template = Template::parse(&written).unwrap();
        prop_assert_eq!(template.references().count(), 0);
        prop_assert_eq!(template.resolve(|_| None).unwrap(), text);
    }

    #[test]
    fn resolved_text_is_never_scanned_again(
        parts in prop::collection::vec((tricky(), 0..3usize), 1..5),
        values in prop::collection::vec(tricky(), 3),
    ) {
        let (mut written, mut expected) = (String::new(), String::new());
        for (literal, name) in &parts {
            // A literal `$` right before a reference would make it `$${`.
            let literal = literal.trim_end_matches('$');
            written.push_str(&literal.replace("${", "$${"));
            written.extend(["${V", &name.to_string(), "}"]);
            expected.push_str(literal);
            expected.push_str(&values[*name]);
        }
        let template = Template::parse(&written).unwrap();
        let resolved = template.resolve(|reference| {
            let index: usize = reference.key.strip_prefix('V').expect("only our own names are asked for").parse().unwrap();
            Some(values[index].as_str())
        });
        prop_assert_eq!(resolved.unwrap(), expected);
    }

    /// A text without values for its references is never resolved in part, and with values never refused.
    #[test]
    fn what_parses_resolves_exactly_when_each_reference_has_a_value(text in tricky()) {
        if let Ok(template) = Template::parse(&text) {
            let has_references = template.references().count() > 0;
            prop_assert_eq!(template.resolve(|_| None).is_err(), has_references);
            prop_assert!(template.resolve(|_| Some("value")).is_ok());
        }
    }
}
