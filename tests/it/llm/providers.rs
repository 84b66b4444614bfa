//! Each provider as a stub with the provider's own rules (`support/model/rules.rs`): it refuses a request that breaks one.

use domain::pack::Provider;
use proptest::{
    prelude::{Just, Strategy, any},
    prop_oneof,
    strategy::ValueTree,
    test_runner::TestRunner,
};

use super::*;
use crate::support::model::{
    StrictProvider,
    rules::{Kind, tools},
};

/// Asks the same twice; how many requests the provider has got after each answer.
async fn ask_twice(stub: &StrictProvider, asked: StepRequest) -> [usize; 2] {
    let models = models();
    let mut requests = [0; 2];
    for requests in &mut requests {
        collect(models.step(&stub.llm(), asked.clone()))
            .await
            .1
            .unwrap();
        *requests = stub.requests().len();
    }
    requests
}

/// The names of the tools in a request.
fn names(body: &Value) -> Vec<String> {
    tools(body).into_iter().map(|tool| tool.name).collect()
}

/// Every kind of schema that some provider refuses, with a name for the tool.
#[expect(clippy::too_many_lines, reason = "a list")]
fn odd_schemas() -> Vec<(&'static str, Value)> {
    let property = |schema: Value| json!({ "type": "object", "properties": { "x": schema }, "required": ["x"] });
    let mut deep = json!({ "type": "string" });
    for level in 0..40 {
        deep = if level % 2 == 0 {
            json!({ "type": "array", "items": deep })
        } else {
            property(deep)
        };
    }
    let node = json!({ "type": "object", "properties": { "name": { "type": "string" }, "children": { "type": "array", "items": { "$ref": "#/$defs/node" } } }, "required": ["name"] });
    let union = json!([
        { "type": "object", "properties": { "kind": { "const": "a" }, "n": { "type": "number" } }, "required": ["kind", "n"] },
        { "type": "object", "properties": { "kind": { "const": "b" }, "s": { "type": "string" } }, "required": ["kind", "s"] },
    ]);
    vec![
        (
            "bare_array",
            property(json!({ "type": "array", "description": "ids" })),
        ),
        (
            "array_in_array",
            property(json!({ "type": "array", "items": { "type": "array" } })),
        ),
        (
            "array_or_null",
            property(json!({ "type": ["array", "null"] })),
        ),
        (
            "tuple",
            property(
                json!({ "type": "array", "items": [{ "type": "string" }, { "type": "array" }], "additionalItems": { "type": "integer" } }),
            ),
        ),
        (
            "prefix_items",
            property(
                json!({ "type": "array", "prefixItems": [{ "type": "string" }], "items": false }),
            ),
        ),
        (
            "names",
            json!({ "type": "object", "properties": { "$.xgafv": { "type": "string" }, "a b": {}, "a[]": { "type": "array" }, "a/b": { "type": "object", "properties": { "@id": { "type": "string" } } }, "名前": { "type": "string" }, "": {}, "1st": { "type": "integer" }, "user-id": {}, "a.b": {} }, "required": ["$.xgafv", "名前"] }),
        ),
        (
            "long_name",
            json!({ "type": "object", "properties": { "n".repeat(100): { "type": "string" } } }),
        ),
        (
            "reference_with_siblings",
            json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/color", "description": "a color" } }, "$defs": { "color": { "enum": ["red", "blue"] } } }),
        ),
        (
            "reference",
            json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/color" } }, "$defs": { "color": { "type": "string", "enum": ["red"] } } }),
        ),
        (
            "old_definitions",
            json!({ "type": "object", "properties": { "x": { "$ref": "#/definitions/color" } }, "definitions": { "color": { "type": "string" } } }),
        ),
        (
            "reference_elsewhere",
            json!({ "type": "object", "properties": { "x": { "type": "array" }, "y": { "$ref": "#/properties/x" }, "z": { "$ref": "#/properties/y" } } }),
        ),
        (
            "anchor",
            json!({ "type": "object", "properties": { "x": { "$ref": "#here" } }, "$defs": { "a": { "$anchor": "here", "type": "integer" } } }),
        ),
        (
            "recursive",
            json!({ "type": "object", "properties": { "root": { "$ref": "#/$defs/node" } }, "required": ["root"], "$defs": { "node": node } }),
        ),
        (
            "recursive_top",
            json!({ "type": "object", "properties": { "name": { "type": "string" }, "children": { "type": "array", "items": { "$ref": "#" } } } }),
        ),
        (
            "top_reference",
            json!({ "$ref": "#/$defs/args", "$defs": { "args": { "type": "object", "properties": { "x": { "type": "string" } }, "required": ["x"] } } }),
        ),
        (
            "top_any_of",
            json!({ "type": "object", "anyOf": [{ "properties": { "a": { "type": "string" } }, "required": ["a"] }, { "properties": { "b": { "type": "integer" } }, "required": ["b"] }] }),
        ),
        (
            "top_all_of",
            json!({ "allOf": [{ "$ref": "#/$defs/base" }, { "properties": { "more": { "type": "array" } }, "required": ["more"] }], "$defs": { "base": { "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] } } }),
        ),
        ("top_one_of", json!({ "type": "object", "oneOf": union })),
        (
            "top_nested",
            json!({ "allOf": [{ "anyOf": [{ "properties": { "a": {} } }, { "$ref": "#/$defs/b" }] }], "$defs": { "b": { "properties": { "b": { "type": "string" } } } } }),
        ),
        (
            "top_if",
            json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "if": { "properties": { "a": { "const": true } } }, "then": { "properties": { "b": { "type": "string" } } }, "else": { "required": ["a"] } }),
        ),
        (
            "top_dependent",
            json!({ "type": "object", "properties": { "a": { "type": "string" } }, "dependentSchemas": { "a": { "properties": { "b": { "type": "string" } } } } }),
        ),
        (
            "top_not",
            json!({ "type": "object", "not": { "required": ["a"] }, "enum": [{}], "properties": { "a": {} } }),
        ),
        (
            "nested_all_of",
            property(
                json!({ "allOf": [{ "type": "object", "properties": { "a": { "type": "string" } } }, { "properties": { "b": { "not": {} } } }] }),
            ),
        ),
        (
            "nested_one_of",
            property(
                json!({ "oneOf": [{ "type": "string" }, { "type": "array" }, { "const": null }] }),
            ),
        ),
        ("deep", deep),
        (
            "formats",
            json!({ "type": "object", "properties": { "u": { "type": "string", "format": "uri" }, "d": { "type": "string", "format": "date-time" }, "e": { "type": "string", "format": "email" }, "i": { "type": "integer", "format": "int64" }, "w": { "format": "whatever" } } }),
        ),
        (
            "draft_4",
            property(
                json!({ "type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false }),
            ),
        ),
        (
            "draft_4_alone",
            property(json!({ "type": "number", "exclusiveMinimum": true })),
        ),
        (
            "draft_2020",
            property(json!({ "type": "number", "exclusiveMinimum": 0 })),
        ),
        (
            "types",
            property(json!({ "type": ["string", "number", "null"] })),
        ),
        ("no_type", property(json!({ "description": "any JSON" }))),
        ("empty", json!({})),
        ("no_properties", json!({ "type": "object" })),
        ("empty_property", property(json!({}))),
        (
            "booleans",
            json!({ "type": "object", "properties": { "a": true, "b": false, "c": { "type": "array", "items": true } } }),
        ),
        ("constant", property(json!({ "const": "a" }))),
        ("constant_object", property(json!({ "const": { "a": 1 } }))),
        (
            "enum_mixed",
            property(json!({ "enum": ["a", 1, null, true, { "b": [] }] })),
        ),
        (
            "enum_of_numbers",
            property(json!({ "type": "integer", "enum": [0, 1, 2] })),
        ),
        (
            "enum_unlike_type",
            property(json!({ "type": "string", "enum": ["a", null, 1] })),
        ),
        (
            "enum_of_nothing",
            property(json!({ "type": "string", "enum": [1] })),
        ),
        (
            "patterns",
            json!({ "type": "object", "properties": { "m": { "type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([a-z]+)@[a-z]+$" }, "b": { "type": "string", "pattern": "(?<=a)b" }, "r": { "type": "string", "pattern": "^(a)\\1$" }, "u": { "type": "string", "pattern": "\\S" }, "p": { "pattern": "^a$" } } }),
        ),
        (
            "pattern_properties",
            json!({ "type": "object", "patternProperties": { "^x-": { "type": "array" } }, "propertyNames": { "pattern": "^x" } }),
        ),
        (
            "sizes",
            json!({ "type": "object", "properties": { "s": { "type": "string", "maxLength": 100_000 }, "l": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 1_000_000 } } }),
        ),
        (
            "additional",
            json!({ "type": "object", "properties": {}, "additionalProperties": { "type": "array" } }),
        ),
        (
            "closed",
            json!({ "type": "object", "properties": { "a": { "type": "string" } }, "additionalProperties": false, "required": ["a"] }),
        ),
        (
            "required_only",
            json!({ "type": "object", "required": ["ref", "text"], "properties": { "text": { "type": "string" } } }),
        ),
        (
            "nulls",
            json!({ "type": "object", "properties": { "x": { "type": "string", "description": null, "enum": null } }, "required": null }),
        ),
        (
            "draft_3",
            property(json!({ "type": "string", "required": true })),
        ),
        (
            "draft_7",
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.org/x", "title": "X", "type": "object", "properties": { "x": { "type": "string", "default": 7, "examples": ["a"], "deprecated": true } } }),
        ),
        (
            "contains",
            property(
                json!({ "type": "array", "contains": { "type": "integer" }, "uniqueItems": true }),
            ),
        ),
        ("no_object", json!(true)),
    ]
}

fn odd_tools() -> Vec<ToolDef> {
    let mut tools: Vec<ToolDef> = odd_schemas()
        .into_iter()
        .map(|(name, schema)| tool(&format!("odd__{name}"), schema))
        .collect();
    // The name of a server may begin with a digit, and a description may be empty.
    tools.push(ToolDef {
        description: String::new(),
        ..tool("9gag__post", json!({ "type": "object" }))
    });
    tools
}

fn with_tools(tools: Vec<ToolDef>) -> StepRequest {
    StepRequest { tools, ..request() }
}

#[tokio::test]
async fn no_provider_refuses_a_tool_for_its_schema() {
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        let wanted = odd_tools();
        let count = wanted.len();
        ask(&stub.llm(), with_tools(wanted)).await.unwrap();
        let sent = stub.requests();
        assert_eq!(sent.len(), 1, "{kind:?}: {:#?}", stub.take_refusals());
        assert_eq!(tools(&sent[0]).len(), count, "{kind:?}");
    }
}

#[tokio::test]
async fn arguments_in_branches_and_behind_references_are_shown_to_every_model() {
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        ask(&stub.llm(), with_tools(odd_tools())).await.unwrap();
        let sent = tools(&stub.last_request());
        let names = |tool: &str| -> Vec<String> {
            let tool = sent
                .iter()
                .find(|sent| sent.name == format!("odd__{tool}"))
                .unwrap();
            let mut names: Vec<String> = tool.schema["properties"]
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect();
            names.sort();
            names
        };
        for (tool, expected) in [
            ("top_any_of", vec!["a", "b"]),
            ("top_all_of", vec!["more", "name"]),
            ("top_one_of", vec!["kind", "n", "s"]),
            ("top_nested", vec!["a", "b"]),
            ("top_if", vec!["a", "b"]),
            ("top_dependent", vec!["a", "b"]),
            ("top_reference", vec!["x"]),
        ] {
            assert_eq!(names(tool), expected, "{kind:?} {tool}");
        }
        let schema = |tool: &str| {
            sent.iter()
                .find(|sent| sent.name == format!("odd__{tool}"))
                .unwrap()
                .schema
                .clone()
        };
        assert_eq!(
            schema("top_any_of")["required"],
            Value::Null,
            "{kind:?}: nothing that only one branch requires"
        );
        assert_eq!(
            schema("top_one_of")["required"],
            json!(["kind"]),
            "{kind:?}: what all branches require"
        );
        // A model that follows no references reads what they lead to.
        let shown = schema("reference_with_siblings").to_string();
        assert!(
            shown.contains("red") && shown.contains("a color"),
            "{kind:?}: {shown}"
        );
    }
}

/// Schemas with any of the keywords in any place.
fn any_schema() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        Just("a"),
        Just("b c"),
        Just("$d"),
        Just("é"),
        Just("x-1"),
        Just("1")
    ];
    let kind = prop_oneof![
        Just(json!("string")),
        Just(json!("integer")),
        Just(json!("array")),
        Just(json!("object")),
        Just(json!(["array", "null"])),
        Just(Value::Null),
    ];
    let leaf = (kind, any::<bool>(), 0..12_u8).prop_map(|(kind, flag, what)| {
        let mut schema = serde_json::Map::new();
        if !kind.is_null() {
            schema.insert("type".to_owned(), kind);
        }
        let more = match what {
            0 => Some(("enum", json!(["a", 1, null, [flag]]))),
            1 => Some(("const", json!(flag))),
            2 => Some(("pattern", json!("(?=a)\\d+"))),
            3 => Some(("format", json!("uri"))),
            4 => Some(("exclusiveMinimum", json!(flag))),
            5 => Some(("$ref", json!("#"))),
            6 => Some(("required", json!(["a", "gone"]))),
            7 => Some(("maxLength", json!(100_000))),
            8 => Some(("additionalProperties", json!(flag))),
            9 => Some(("default", json!({ "type": 7 }))),
            _ => None,
        };
        if let Some((keyword, value)) = more {
            schema.insert(keyword.to_owned(), value);
        }
        Value::Object(schema)
    });
    leaf.prop_recursive(6, 40, 4, move |inner| {
        (inner.clone(), inner, name.clone(), 0..9_u8).prop_map(|(one, other, name, what)| {
            let mut schema = one.as_object().cloned().unwrap_or_default();
            let (keyword, value) = match what {
                0 => ("anyOf", json!([one, other])),
                1 => ("allOf", json!([one, other])),
                2 => ("oneOf", json!([one, other])),
                3 => ("items", other),
                4 => ("items", json!([one, other])),
                5 => ("not", other),
                6 => ("additionalProperties", other),
                _ => ("properties", json!({ name: one, "a": other })),
            };
            schema.insert(keyword.to_owned(), value);
            Value::Object(schema)
        })
    })
}

#[tokio::test]
async fn no_provider_refuses_any_schema() {
    let mut runner = TestRunner::deterministic();
    let schemas: Vec<Value> = (0..600)
        .map(|_| any_schema().new_tree(&mut runner).unwrap().current())
        .collect();
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        for some in schemas.chunks(100) {
            let wanted = some
                .iter()
                .enumerate()
                .map(|(at, schema)| tool(&format!("any__{at}"), schema.clone()));
            ask(&stub.llm(), with_tools(wanted.collect()))
                .await
                .unwrap();
        }
        assert_eq!(
            stub.requests().len(),
            6,
            "{kind:?}: {:#?}",
            stub.take_refusals()
        );
    }
}

#[tokio::test]
async fn a_renamed_argument_is_renamed_back_in_the_call_and_forth_in_the_history() {
    let schema = json!({ "type": "object", "properties": {
        "$.xgafv": { "type": "string" }, "body": { "type": "object", "properties": { "@id": { "type": "integer" } } } } });
    for kind in [Kind::Anthropic, Kind::Gemini] {
        let stub = StrictProvider::start(kind).await;
        let google = || tool("9gag__list", schema.clone());
        ask(&stub.llm(), with_tools(vec![google()])).await.unwrap();
        let sent = tools(&stub.last_request()).remove(0);
        let renamed: Vec<&String> = sent.schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| *name != "body")
            .collect();
        let inner = sent.schema["properties"]["body"]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .next()
            .unwrap();
        assert!(
            !renamed[0].contains('$') && !inner.contains('@'),
            "{kind:?} {renamed:?}"
        );
        stub.call([(&sent.name, json!({ renamed[0]: "1", "body": { inner: 2 } }))]);
        let reply = ask(&stub.llm(), with_tools(vec![google()])).await.unwrap();
        assert_eq!(reply.calls[0].name, "9gag__list");
        let arguments: Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
        assert_eq!(
            arguments,
            json!({ "$.xgafv": "1", "body": { "@id": 2 } }),
            "{kind:?}"
        );
        let history = vec![
            user("go"),
            assistant("", reply.calls.clone()),
            result(&reply.calls[0].call_id, "done"),
        ];
        ask(
            &stub.llm(),
            StepRequest {
                history,
                ..with_tools(vec![google()])
            },
        )
        .await
        .unwrap();
        let shown = stub.last_request().to_string();
        assert!(
            shown.contains(&format!("{:?}:\"1\"", renamed[0])),
            "{kind:?} {shown}"
        );
    }
}

/// A model of Anthropic behind a gateway has Anthropic's rules.
#[tokio::test]
async fn the_model_decides_about_the_rules_and_not_who_passes_it_on() {
    let stub = StrictProvider::start(Kind::Openai).await;
    let schema = json!({ "type": "object", "properties": { "$x": { "type": "string" } } });
    for (model, name) in [
        ("anthropic/claude-sonnet-5", "_x"),
        ("google/gemini-3-pro", "_x"),
        ("gpt-5-mini", "$x"),
    ] {
        let llm = Llm {
            model: model.to_owned(),
            ..stub.llm()
        };
        ask(&llm, with_tools(vec![tool("a__b", schema.clone())]))
            .await
            .unwrap();
        let sent = tools(&stub.last_request()).remove(0);
        assert_eq!(
            sent.schema["properties"]
                .as_object()
                .unwrap()
                .keys()
                .collect::<Vec<_>>(),
            [name],
            "{model}"
        );
    }
}

/// Histories in which a turn ended after a result, was cut anywhere, or has ids of other providers.
#[tokio::test]
async fn every_provider_takes_every_history() {
    let odd_id = "x".repeat(40);
    let turns = [
        user("one"),
        assistant(
            "",
            [
                made("call_0123456789abcdef", "bank__get_balances", "{}"),
                made(&odd_id, "bank.get balances!", "{\"a\": "),
            ],
        ),
        result("call_0123456789abcdef", "1"),
        Turn::ToolImage {
            media_type: "image/png".to_owned(),
            data: Arc::from(*b"png"),
        },
        result(&odd_id, " "),
        user("stopped; what now?"),
        Turn::Image {
            media_type: "image/png".to_owned(),
            data: Arc::from(*b"png"),
        },
        user("hello?"),
        assistant("", []),
        assistant("so", []),
        assistant(
            "",
            [made(
                "toolu_01A09q90qw90lq917835lq9",
                "bank__get_balances",
                "{}",
            )],
        ),
        result("toolu_01A09q90qw90lq917835lq9", "3"),
        assistant("done", []),
        user("two"),
        assistant("", [made("call_not_answered", "bank__get_balances", "[1]")]),
        user("three"),
    ];
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        for from in 0..turns.len() {
            let ends =
                (from..turns.len()).filter(|to| matches!(turns[*to], Turn::User(_)) || *to == 4);
            for to in ends {
                let history = turns[from..=to].to_vec();
                let is_said = history
                    .iter()
                    .any(|turn| matches!(turn, Turn::User(_) | Turn::Assistant { .. }));
                if is_said {
                    ask(
                        &stub.llm(),
                        StepRequest {
                            history,
                            ..request()
                        },
                    )
                    .await
                    .unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn ids_of_calls_fit_mistral_whatever_made_them() {
    let stub = StrictProvider::start(Kind::Mistral).await;
    stub.call([("bank__get_balances", json!({}))]);
    let reply = ask(&stub.llm(), request()).await.unwrap();
    let id = &reply.calls[0].call_id;
    let history = vec![
        user("go"),
        assistant("", reply.calls.clone()),
        result(id, "1"),
    ];
    ask(
        &stub.llm(),
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    let sent = stub.last_request();
    assert_eq!(
        sent["messages"][2]["tool_calls"][0]["id"],
        sent["messages"][3]["tool_call_id"]
    );
}

/// What a tool returned beside its text goes to the model: in the result where the provider takes it there.
#[tokio::test]
async fn images_of_tools_reach_every_provider() {
    let image = || Turn::ToolImage {
        media_type: "image/png".to_owned(),
        data: Arc::from(*b"\x89PNG"),
    };
    let data = "iVBORw=="; // b"\x89PNG"
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        let history = vec![
            user("draw"),
            assistant(
                "",
                [
                    made("call_image_01", "bank__get_balances", "{}"),
                    made("call_image_02", "bank__get_balances", "{}"),
                ],
            ),
            result("call_image_01", "[image image/png]"),
            image(),
            result("call_image_02", "none"),
            assistant("here", []),
            user("and?"),
        ];
        ask(
            &stub.llm(),
            StepRequest {
                history: history[..5].to_vec(),
                ..request()
            },
        )
        .await
        .unwrap();
        let sent = stub.last_request();
        assert!(sent.to_string().contains(data), "{kind:?}: {sent}");
        if kind == Kind::Anthropic {
            assert_eq!(
                sent["messages"][2]["content"][0]["content"][1]["type"],
                "image"
            );
        }
        ask(
            &stub.llm(),
            StepRequest {
                history,
                ..request()
            },
        )
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn images_of_tools_are_left_out_for_a_model_that_takes_none() {
    for (message, requests) in [
        // The model takes none: it is shown none from then on.
        ("unknown variant `image_url`, expected `text`", [2, 3]),
        ("this model does not support image input", [2, 3]),
        // One image is bad: another may be fine.
        ("Could not process image", [2, 4]),
    ] {
        let stub = StrictProvider::start(Kind::Openai).await;
        stub.refuse(move |body| {
            body.to_string()
                .contains("image_url")
                .then(|| message.to_owned())
        });
        let history = vec![
            user("draw"),
            assistant("", [made("call_image_01", "bank__get_balances", "{}")]),
            result("call_image_01", "[image image/png]"),
            Turn::ToolImage {
                media_type: "image/png".to_owned(),
                data: Arc::from(*b"png"),
            },
        ];
        let asked = StepRequest {
            history,
            ..request()
        };
        assert_eq!(ask_twice(&stub, asked).await, requests, "{message}");
    }
}

/// A rule that nobody here knows: the schema is written with every rule there is, then the tool is left out; the others
/// work on, and neither is tried again.
#[tokio::test]
async fn a_tool_that_is_refused_all_the_same_is_left_out_alone_and_remembered() {
    let stub = StrictProvider::start(Kind::Anthropic).await;
    stub.refuse(|body| {
        let at = tools(body)
            .iter()
            .position(|tool| tool.name == "odd__bad")?;
        Some(format!("tools.{at}.custom.input_schema: it is bad"))
    });
    let asked = with_tools(vec![
        balances(),
        tool("odd__bad", json!({ "type": "object" })),
        tool("odd__good", json!({})),
    ]);
    assert_eq!(ask_twice(&stub, asked).await, [3, 4]);
    for sent in &stub.requests()[2..] {
        assert_eq!(names(sent), ["bank__get_balances", "odd__good"]);
    }
}

/// Its provider says that something is wrong with the tools, and not which: the others work on, and nothing is looked for
/// again.
#[tokio::test]
async fn a_tool_that_is_refused_without_its_name_is_found_and_left_out_alone() {
    for (kind, message) in [
        (Kind::Openai, "Invalid JSON schema: it is bad."),
        // A tool that the request does not have.
        (Kind::Anthropic, "tools.999.custom.input_schema: it is bad"),
    ] {
        let stub = StrictProvider::start(kind).await;
        stub.refuse(move |body| {
            let is_bad = |name: &String| name.ends_with("_3") || name.ends_with("_17");
            names(body).iter().any(is_bad).then(|| message.to_owned())
        });
        let odd = |at: usize| tool(&format!("odd__{at}"), json!({}));
        let asked = with_tools((0..20).map(odd).collect());
        let [first, second] = ask_twice(&stub, asked).await;
        assert_eq!(second, first + 1, "{kind:?}");
        // Two refusals, and for each of the two tools its search.
        assert!(first <= 2 + 2 * (2 + 5) + 2, "{kind:?}: {first} requests");
        let sent = names(&stub.last_request());
        assert_eq!(sent.len(), 18, "{kind:?}: {sent:?}");
    }
}

/// Nothing is left out then: the operator learns what to do.
#[tokio::test]
async fn tools_of_which_too_many_are_refused_without_a_name_are_told_to_the_operator() {
    let stub = StrictProvider::start(Kind::Openai).await;
    stub.refuse(|body| {
        let message = "Invalid JSON schema: it is bad.";
        (!names(body).is_empty()).then(|| message.to_owned())
    });
    let odd = |at: usize| tool(&format!("odd__{at}"), json!({}));
    let error = ask(&stub.llm(), with_tools((0..20).map(odd).collect())).await;
    let told = error.unwrap_err().to_string();
    assert!(
        told.starts_with("the model's provider refused the agent's tools: Invalid JSON schema: it is bad; ask the operator"),
        "{told}"
    );
}

/// Whatever it is, it is not a tool: none is left out, and none is looked for long.
#[tokio::test]
async fn a_conversation_that_is_refused_in_the_words_of_a_tool_loses_no_tool() {
    let stub = StrictProvider::start(Kind::Openai).await;
    stub.refuse(|body| {
        let is_it = body.to_string().contains("the odd question");
        is_it.then(|| "Invalid JSON schema: it is bad.".to_owned())
    });
    let asked = StepRequest {
        history: vec![user("the odd question")],
        ..with_tools(vec![balances()])
    };
    ask(&stub.llm(), asked).await.unwrap_err();
    assert_eq!(stub.requests().len(), 4);
    assert_eq!(names(&stub.last_request()), ["bank__get_balances"]);
}

#[tokio::test]
async fn a_schema_that_is_refused_is_tried_with_every_rule_before_its_tool_is_left_out() {
    let stub = StrictProvider::start(Kind::Openai).await;
    stub.refuse(|body| {
        let sent = tools(body);
        let bad = sent.iter().find(|tool| tool.schema.to_string().contains("oneOf"))?;
        Some(format!("Invalid schema for function '{}': In context=('properties', 'x'), 'oneOf' is not permitted.", bad.name))
    });
    let schema = json!({ "type": "object", "properties": { "x": { "oneOf": [{ "type": "string" }, { "type": "null" }] } } });
    let asked = with_tools(vec![balances(), tool("odd__one_of", schema)]);
    assert_eq!(ask_twice(&stub, asked).await, [2, 3]);
    for sent in &stub.requests()[1..] {
        assert_eq!(tools(sent).len(), 2);
    }
}

/// An endpoint that knows no lists of types.
#[tokio::test]
async fn a_list_of_types_is_written_otherwise_where_it_is_refused() {
    let stub = StrictProvider::start(Kind::Gemini).await;
    stub.refuse(|body| {
        let sent = tools(body);
        let is_list = |tool: &&crate::support::model::rules::SentTool| {
            tool.schema.to_string().contains("\"type\":[")
        };
        let bad = sent.iter().find(is_list)?;
        Some(format!(
            "Invalid schema for function '{}': Proto field is not repeating, cannot start list.",
            bad.name
        ))
    });
    let schema = json!({ "type": "object", "properties": {
        "a": { "type": ["string", "null"] }, "b": { "type": ["string", "number", "array"] }, "c": {} } });
    ask(&stub.llm(), with_tools(vec![tool("odd__types", schema)]))
        .await
        .unwrap();
    let sent = tools(&stub.last_request()).remove(0).schema;
    assert_eq!(
        sent["properties"]["a"],
        json!({ "type": "string", "description": "or null" })
    );
    assert_eq!(
        sent["properties"]["b"]["anyOf"].as_array().unwrap().len(),
        3
    );
}

/// Gemini and llama.cpp do not say which tool it is.
#[tokio::test]
async fn a_refusal_that_names_no_tool_makes_all_schemas_simpler() {
    for (kind, message) in [
        (
            Kind::Gemini,
            "A FunctionDeclaration in the request exceeds the maximum allowed nesting depth.",
        ),
        (
            Kind::LlamaCpp,
            "JSON schema conversion failed:\nUnrecognized schema: {}",
        ),
        (
            Kind::Openai,
            "Invalid JSON schema: regex lookaround is not supported. Found at $.properties.email.pattern.",
        ),
    ] {
        let stub = StrictProvider::start(kind).await;
        stub.refuse(move |body| {
            let deep = tools(body)
                .iter()
                .any(|tool| tool.schema.to_string().matches("\"properties\"").count() > 5);
            deep.then(|| message.to_owned())
        });
        let mut deep = json!({ "type": "string" });
        for _ in 0..8 {
            deep = json!({ "type": "object", "properties": { "x": deep } });
        }
        ask(
            &stub.llm(),
            with_tools(vec![balances(), tool("odd__deep", deep)]),
        )
        .await
        .unwrap();
        assert_eq!(
            (stub.requests().len(), tools(&stub.last_request()).len()),
            (2, 2),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn a_description_that_is_too_long_is_cut_where_it_is_refused() {
    let stub = StrictProvider::start(Kind::Openai).await;
    stub.refuse(|body| {
        let sent = tools(body);
        let at = sent.iter().position(|tool| tool.description.chars().count() > 1024)?;
        Some(format!("Invalid 'tools[{at}].function.description': string too long. Expected a string with maximum length 1024, but got a string with length 2000 instead."))
    });
    let long = ToolDef {
        description: "é".repeat(2000),
        ..balances()
    };
    assert_eq!(ask_twice(&stub, with_tools(vec![long])).await, [2, 3]);
    assert_eq!(
        tools(&stub.last_request())[0].description.chars().count(),
        1024
    );
}

#[tokio::test]
async fn cached_tokens_are_counted_apart() {
    for kind in Kind::ALL {
        let stub = StrictProvider::start(kind).await;
        let usage = ask(&stub.llm(), request()).await.unwrap().usage;
        let cached = if stub.provider() == Provider::Ollama {
            0
        } else {
            60
        };
        let expected = Usage {
            input_tokens: 100,
            cached_input_tokens: cached,
            output_tokens: 7,
            estimated: false,
        };
        assert_eq!(usage, expected, "{kind:?}");
    }
}

/// Three results of tools are more than the model's context: the question is asked once more with less, and from then on
/// no request is that long.
#[tokio::test]
async fn a_request_that_is_too_long_is_asked_once_more_with_less() {
    for (kind, message) in [
        (
            Kind::LlamaCpp,
            "This model's maximum context length is 32768 tokens. However, your messages resulted in 60000 tokens. Please reduce the length of the messages.",
        ),
        (
            Kind::Anthropic,
            "prompt is too long: 205000 tokens > 200000 maximum",
        ),
        (
            Kind::Gemini,
            "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
        ),
        (Kind::Ollama, "the input length exceeds the context length"),
    ] {
        let stub = StrictProvider::start(kind).await;
        stub.refuse(move |body| (body.to_string().len() > 131_072).then(|| message.to_owned()));
        let mut history = vec![user("three")];
        for at in 0..3 {
            let id = format!("call_large_{at:02}");
            history.push(assistant("", [made(&id, "bank__get_balances", "{}")]));
            history.push(result(&id, &"row ".repeat(16_000)));
        }
        history.push(assistant("There they are.", []));
        history.push(user("hi"));
        let asked = StepRequest {
            history,
            ..request()
        };
        assert_eq!(ask_twice(&stub, asked).await, [2, 3], "{kind:?}");
        for sent in &stub.requests()[1..] {
            let sent = sent.to_string();
            assert!(
                sent.contains("hi") && sent.contains("are left out]"),
                "{kind:?}"
            );
        }
    }
}
