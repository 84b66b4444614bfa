//! How the words after a command are read by the schema of its tool.

use domain::{
    elicitation::{AnswerError, Field, Request},
    json::{Json, Members},
    skill::words::{self, Reading},
};
use proptest::prelude::*;
use serde_json::{Value, json, value::to_raw_value};

fn read_with(schema: &Value, own: &Value, text: &str) -> Reading {
    let own = Json::from(own).as_object().cloned().unwrap_or_default();
    words::read(&to_raw_value(schema).unwrap(), &own, text)
}

fn read(schema: &Value, text: &str) -> Reading {
    read_with(schema, &json!({}), text)
}

fn given(reading: &Reading) -> Value {
    Json::Object(reading.given.clone()).to_value()
}

fn names(fields: &[Field]) -> Vec<&str> {
    fields.iter().map(|field| field.name.as_str()).collect()
}

/// A payment whose properties are written in another order than they are required in.
fn payment() -> Value {
    json!({ "type": "object", "required": ["account", "to", "amount", "currency"], "properties": {
        "account": { "type": "string" },
        "amount": { "type": "number", "minimum": 0 },
        "currency": { "$ref": "#/$defs/Currency", "description": "Three letters" },
        "note": { "type": ["string", "null"] },
        "to": { "type": "string" },
        "urgent": { "anyOf": [{ "type": "boolean" }, { "type": "null" }] },
    }, "$defs": { "Currency": { "enum": ["EUR", "USD"] } } })
}

#[test]
fn words_fill_what_is_required_then_what_the_skill_has_then_the_rest() {
    let own = json!({ "currency": "EUR", "account": "current" });
    let reading = read_with(&payment(), &own, "acme 12.50");
    assert!(reading.is_complete());
    assert_eq!(given(&reading), json!({ "to": "acme", "amount": 12.5 }));
    assert_eq!(
        reading.given.get("amount").unwrap().to_string(),
        "12.50",
        "as it was written"
    );
    assert_eq!(
        reading.usage,
        "to amount [currency] [account] [note] [urgent]"
    );
    let reading = read_with(&payment(), &own, r#""Acme Tools" 12,50 usd - “for May” sí"#);
    assert_eq!(
        given(&reading),
        json!({ "to": "Acme Tools", "amount": 12.5, "currency": "USD", "note": "for May", "urgent": true })
    );
}

#[test]
fn what_was_not_said_is_missing_and_what_was_said_wrongly_is_named() {
    let reading = read(&payment(), "current acme twelve EUR");
    assert_eq!(names(&reading.missing), ["amount"]);
    assert_eq!(reading.faults[0].1, AnswerError::NotANumber);
    assert_eq!(
        given(&reading),
        json!({ "account": "current", "to": "acme", "currency": "EUR" })
    );
    let reading = read(&payment(), "current acme 1,234 EUR");
    assert_eq!(names(&reading.missing), ["amount"]);
    assert_eq!(reading.faults[0].1, AnswerError::AmbiguousNumber);
    let reading = read(&payment(), "current acme -1 2");
    let faults: Vec<_> = reading
        .faults
        .iter()
        .map(|(field, fault)| (field.label(), *fault))
        .collect();
    let expected = [
        ("amount", AnswerError::OutsideLimits),
        ("currency", AnswerError::NotAnOption),
    ];
    assert_eq!(
        faults, expected,
        "a number names no choice of a list that nobody sees"
    );
    let reading = read(&payment(), "");
    assert_eq!(
        names(&reading.missing),
        ["account", "to", "amount", "currency"]
    );
    assert!(reading.faults.is_empty());
}

#[test]
fn of_more_words_than_arguments_none_is_given() {
    let schema = json!({ "required": ["a", "b"], "properties": { "a": { "type": "string" }, "b": { "type": "string" } } });
    let reading = read(&schema, "acme tools 12.50");
    assert!(reading.is_unclear && reading.given.is_empty());
    assert_eq!(names(&reading.missing), ["a", "b"]);
}

#[test]
fn one_text_takes_all_that_is_left() {
    let search = json!({ "required": ["query"], "properties": {
        "limit": { "type": "integer", "default": 10 }, "query": { "type": "string" } } });
    let text = r#"rust "async traits"  in 2026"#;
    assert_eq!(given(&read(&search, text)), json!({ "query": text }));
    let post = json!({ "required": ["channel", "text"], "properties": {
        "channel": { "enum": ["general", "random"] }, "text": { "type": "string" } } });
    let reading = read(&post, "general hello all of you");
    assert_eq!(
        given(&reading),
        json!({ "channel": "general", "text": "hello all of you" })
    );
    let only = json!({ "properties": { "city": { "type": "string" } } });
    assert_eq!(
        given(&read(&only, "New York")),
        json!({ "city": "New York" })
    );
    assert!(read(&only, "").is_complete(), "nothing of it is required");
}

#[test]
fn free_text_is_the_input_where_there_is_one_or_nothing_else() {
    let repo = json!({ "required": ["repo"], "properties": { "input": { "type": "string" }, "repo": { "type": "string" } } });
    let reading = read(&repo, "[1] \"go\"");
    assert_eq!(given(&reading), json!({ "input": "[1] \"go\"" }));
    assert_eq!(names(&reading.missing), ["repo"]);
    for schema in [json!({}), json!(true), json!({ "properties": {} })] {
        let reading = read(&schema, "{ is a brace");
        assert_eq!(given(&reading), json!({ "input": "{ is a brace" }));
        assert!(reading.is_complete() && read(&schema, " ").given.is_empty());
    }
}

#[test]
fn a_chat_asks_for_no_object_and_for_no_secret() {
    let schema = json!({ "required": ["items", "deep", "loop"], "properties": {
        "items": { "type": "array", "items": { "type": "object" } }, "loop": { "$ref": "#/properties/loop" } } });
    let reading = read(&schema, "");
    assert_eq!(reading.unaskable, ["items", "deep", "loop"]);
    assert!(!reading.is_complete());
    let schema = json!({ "required": ["password", "user"], "properties": {
        "password": { "type": "string" }, "user": { "type": "string" } } });
    let missing = read(&schema, "").missing;
    assert!(Request::of_command("/enter", Members::default(), missing).is_none());
}

fn property() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({ "type": "string" })),
        Just(json!({ "type": "string", "maxLength": 3, "default": "x" })),
        Just(json!({ "type": "integer", "minimum": 2 })),
        Just(json!({ "type": "number" })),
        Just(json!({ "type": "boolean" })),
        Just(json!({ "enum": ["EUR", "1"] })),
        Just(json!({ "type": "object" })),
        Just(json!({ "$ref": "#/properties/a" })),
    ]
}

proptest! {
    /// Each required argument is given, asked for, or named as one that cannot be asked for; and never two of these.
    #[test]
    fn each_required_argument_has_one_fate(
        properties in prop::collection::btree_map("[a-e]", property(), 0..5),
        required in prop::collection::btree_set("[a-f]", 0..4),
        text in r#"([a-z“”«»"\-0-9.,]{0,6} {0,2}){0,6}"#,
    ) {
        let schema = json!({ "properties": properties, "required": required });
        let reading = read(&schema, &text);
        let missing = names(&reading.missing);
        for name in &required {
            let fates = [
                reading.given.get(name).is_some(),
                missing.contains(&name.as_str()),
                reading.unaskable.contains(name),
            ];
            prop_assert_eq!(fates.iter().filter(|fate| **fate).count(), 1, "{}: {:?}", name, reading);
        }
        for (field, fault) in &reading.faults {
            prop_assert!(missing.contains(&field.name.as_str()) && *fault != AnswerError::Missing);
        }
        for (name, _) in reading.given.iter() {
            prop_assert!(properties.contains_key(name) || properties.is_empty() && name == "input");
        }
    }

    /// Texts come back as they were written, in the order of the schema.
    #[test]
    fn texts_in_quotation_marks_come_back_in_order(texts in prop::collection::vec("[a-zé'.]+( [a-z0-9]+)*", 2..5)) {
        let name = |at: usize| format!("p{}", 9 - at);
        let required: Vec<String> = (0..texts.len()).map(name).collect();
        let properties: serde_json::Map<_, _> =
            required.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
        let line: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
        let reading = read(&json!({ "properties": properties, "required": required }), &line.join("  "));
        let expected: serde_json::Map<_, _> =
            required.into_iter().zip(texts.into_iter().map(Value::from)).collect();
        prop_assert!(reading.is_complete());
        prop_assert_eq!(given(&reading), Value::Object(expected));
    }
}
