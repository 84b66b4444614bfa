//! Templates of the registry: text from a value is never read again, and a value of a run stays in its place of
//! an address.

use std::collections::BTreeMap;

use domain::{
    config::Environment,
    ids::ServerId,
    pin::Pin,
    policy::OtherPolicies,
    registry::{
        AGENTS, ConfigValue, Definition, Entry, EntryId, Level, Origin, Rules, ServerRef,
        resolve::{ReferenceValues, ResolvedServer, Sources, resolve},
    },
    server::Timeouts,
    template::{OnMissing, Source, Template, TemplateError, address::AddressError},
};
use proptest::prelude::*;
use serde_json::json;
use url::Url;

const ALL: &[Source] = &[
    Source::Env,
    Source::Params,
    Source::Scope,
    Source::Runtime,
    Source::Runner,
];

fn address(template: &str, value: &str) -> Result<Url, AddressError> {
    let template = Template::parse_sourced(template, ALL).unwrap();
    template.address(|reference| {
        Some(if reference.source == Source::Env {
            "https://h.example/base"
        } else {
            value
        })
    })
}

#[test]
fn a_value_in_a_path_is_encoded() {
    let url = address(
        "https://h.example/t/${params.id}/mcp?q=${scope.q}",
        "a/b?c#d&e=f g%2f@",
    )
    .unwrap();
    assert_eq!(
        url.as_str(),
        "https://h.example/t/a%2Fb%3Fc%23d%26e%3Df%20g%252f%40/mcp?q=a%2Fb%3Fc%23d%26e%3Df%20g%252f%40"
    );
}

#[test]
fn the_operators_values_may_be_the_address() {
    assert_eq!(
        address("${env.BASE}/mcp/${scope.x}", "1").unwrap().as_str(),
        "https://h.example/base/mcp/1"
    );
}

#[test]
fn a_value_of_a_run_is_no_part_of_the_host() {
    for template in [
        "https://${scope.host}/mcp",
        "https://${params.host}.example.org/mcp",
        "https://example.org${params.x}/mcp",
        "https://example.org:${params.port}/mcp",
        "${scope.url}",
        "${scope.scheme}://example.org/",
        "https://${params.user}@example.org/",
    ] {
        let template = Template::parse_sourced(template, ALL).unwrap();
        let refused = template.address(|_| Some("443")).unwrap_err();
        assert!(!matches!(refused, AddressError::Missing(_)), "{refused}");
    }
}

#[test]
fn a_value_that_would_leave_its_segment_is_refused() {
    for value in ["", ".", ".."] {
        for template in [
            "https://h.example/a/${params.x}/mcp",
            "https://h.example/a/${params.x}",
        ] {
            let refused = address(template, value).unwrap_err();
            assert_eq!(
                refused,
                AddressError::LeavesItsPlace("params.x".to_owned()),
                "{template} {value:?}"
            );
        }
    }
    assert!(address("https://h.example/a/.${params.x}/mcp", ".").is_err());
}

#[test]
fn a_value_does_not_climb_where_a_server_decodes_the_path_first() {
    for value in [
        "../x",
        "a/../b",
        "..\\x",
        "x/..",
        "%2e%2e",
        "..%2fx",
        "%252e%252e%252fx",
        "a/./b",
        "%2E/x",
    ] {
        let refused = address("https://h.example/a/${params.x}/mcp", value).unwrap_err();
        assert_eq!(
            refused,
            AddressError::LeavesItsPlace("params.x".to_owned()),
            "{value:?}"
        );
        let asked = address("https://h.example/mcp?q=${params.x}", value).unwrap();
        assert_eq!(
            asked.query_pairs().next().unwrap().1,
            value,
            "a query climbs nowhere"
        );
    }
    for value in [
        "...",
        "a..b",
        "v1.2",
        "a/b",
        ".hidden",
        "100%",
        "%2e%2e.txt",
    ] {
        address("https://h.example/a/${params.x}/mcp", value).unwrap();
    }
}

#[test]
fn an_address_is_no_longer_than_servers_read() {
    let refused = address("https://h.example/${params.x}", &"x".repeat(8192)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "is longer than 8192 bytes with the values of the run"
    );
}

#[test]
fn a_reference_says_where_its_value_is_from() {
    let parse = |text| Template::parse_sourced(text, &[Source::Env, Source::Scope]).unwrap_err();
    assert_eq!(parse("${NAME}"), TemplateError::NoSource("NAME".to_owned()));
    assert!(matches!(
        parse("${vault.x}"),
        TemplateError::StrangeSource(..)
    ));
    assert!(matches!(parse("${params.x}"), TemplateError::Elsewhere(..)));
    assert!(matches!(parse("${user.x}"), TemplateError::Elsewhere(..)));
    assert!(matches!(parse("${scope.a b}"), TemplateError::BadName(_)));
    let runtime = Template::parse_sourced("${runtime.tenant}", ALL).unwrap_err();
    assert_eq!(
        runtime.to_string(),
        "`runtime` has no key \"tenant\"; it has session_id, run_id"
    );
}

#[test]
fn a_missing_value_is_an_error_or_leaves_the_text_out() {
    let template = Template::parse_sourced("Bearer ${scope.t}", ALL).unwrap();
    assert_eq!(
        template.resolve_or(OnMissing::Omit, |_| None).unwrap(),
        None
    );
    assert!(template.resolve_or(OnMissing::Error, |_| None).is_err());
    let resolved = template
        .resolve_or(OnMissing::Error, |_| Some("T"))
        .unwrap()
        .unwrap();
    assert_eq!(
        (resolved.text.expose(), resolved.sensitive),
        ("Bearer T", true)
    );
    let visible = Template::parse_sourced("${params.t}", ALL).unwrap();
    assert!(
        !visible
            .resolve_or(OnMissing::Error, |_| Some("T"))
            .unwrap()
            .unwrap()
            .sensitive
    );
}

/// A server whose one key is given a value of the scope, between two literals.
fn with_header(value: &str) -> Result<ResolvedServer, String> {
    let definition = json!({ "id": "heads", "url": "https://h.example/mcp", "config_schema": { "k": { "type": "string" } } });
    let definition: Definition = serde_json::from_value(definition).unwrap();
    let entry = Entry::parse(definition, Rules::Operator).unwrap();
    let written = ConfigValue::parse(&json!("<${scope.x}>"), AGENTS).unwrap();
    let config = BTreeMap::from([("k".to_owned(), Some(written))]);
    let reference = ServerRef {
        alias: ServerId::parse("h").unwrap(),
        entry: EntryId::parse("heads").unwrap(),
        levels: vec![Level {
            origin: Origin::Agent,
            config,
        }],
        tool_access: None,
        tools: None,
        pin: Pin::default(),
        elsewhere: OtherPolicies::default(),
        required: false,
        timeouts: Timeouts::default(),
    };
    let scope = json!({ "x": value });
    let (env, secrets) = (
        Environment::default().with("SECRET", "s3cret"),
        BTreeMap::new(),
    );
    let run = ReferenceValues::default().scope(&scope.as_object().unwrap().into());
    let sources = Sources {
        env: &env,
        rules: Rules::Operator,
        of_admins: Rules::Operator,
        secrets: &secrets,
        run: &run,
    };
    resolve(&entry, &reference, sources).map_err(|error| error.to_string())
}

#[test]
fn what_would_end_a_header_is_refused_and_not_quoted() {
    for value in ["a\rb", "a\nb", "a\r\nX-Admin: 1", "a\0b", "é", "\u{7f}"] {
        let refused = with_header(value)
            .err()
            .unwrap_or_else(|| panic!("{value:?} is taken"));
        assert!(
            refused.contains("a header cannot carry") && !refused.contains(value),
            "{refused}"
        );
    }
}

fn tricky() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("/".to_owned()),
        Just("..".to_owned()),
        Just("\\".to_owned()),
        Just("%2e%2e%2f".to_owned()),
        Just("@evil.example".to_owned()),
        Just("${env.SECRET}".to_owned()),
        Just("#".to_owned()),
        Just("?".to_owned()),
        Just("\r\n".to_owned()),
        Just("%2e".to_owned()),
        Just(".".to_owned()),
        Just("//evil.example".to_owned()),
        Just("\u{2025}\u{ff0e}\u{ff0f}".to_owned()),
        "\\PC{0,4}",
    ];
    prop::collection::vec(pieces, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_value_leaves_its_segment_or_changes_the_host(value in tricky()) {
        if let Ok(url) = address("https://h.example:8443/a/${params.x}/mcp?q=${scope.x}", &value) {
            prop_assert_eq!(url.origin().ascii_serialization(), "https://h.example:8443");
            let segments: Vec<_> = url.path().split('/').collect();
            prop_assert_eq!(segments.len(), 4);
            prop_assert_eq!((segments[1], segments[3]), ("a", "mcp"));
            let pairs: Vec<_> = url.query_pairs().collect();
            prop_assert_eq!(pairs.len(), 1);
            prop_assert_eq!(pairs[0].1.as_ref(), value.as_str());
            prop_assert!(url.fragment().is_none());
        } else {
            let decoded = (0..4).fold(value.to_lowercase(), |text, _| {
                text.replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\").replace("%25", "%")
            });
            let climbs = decoded.split(['/', '\\']).any(|part| matches!(part, "." | ".."));
            prop_assert!(value.is_empty() || climbs, "{:?} was refused", value);
        }
    }

    #[test]
    fn text_from_a_value_is_never_read_again(value in tricky(), literal in "[a-z ]{0,8}") {
        let template = Template::parse_sourced(&format!("{literal}${{scope.x}}{literal}"), ALL).unwrap();
        let resolved = template.resolve(|reference| (reference.key == "x").then_some(value.as_str())).unwrap();
        prop_assert_eq!(resolved, format!("{literal}{value}{literal}"));
    }

    #[test]
    fn a_header_holds_what_was_given_or_there_is_none(value in tricky(), odd in "[\\x00-\\x1f\\x7f]?") {
        let value = value + &odd;
        match with_header(&value) {
            Ok(resolved) => {
                prop_assert!(!value.contains(|c: char| c.is_control() && c != '\t'));
                prop_assert_eq!(crate::support::packs::headers(&resolved.spec), [("X-K", &*format!("<{value}>"))]);
            }
            Err(_) => prop_assert!(!value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))),
        }
    }
}
