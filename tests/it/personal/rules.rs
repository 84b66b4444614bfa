//! The pure part: what is entered, where it goes, and how it is found again in what a server says.

use std::collections::BTreeMap;

use domain::{
    personal::{FieldError, Values, effective},
    scrub::{MASK, Scrubber},
    secret::Secret,
    server::{Endpoint, Remote, ServerSpec},
};
use proptest::prelude::*;

use crate::support::packs::{env, server_with};

fn spec(fields: &str) -> ServerSpec {
    let lines = format!(
        "transport: streamable-http\nurl: https://mcp.example.org/mcp?fixed=1&key=old\nheaders: {{ Authorization: operator, X-Other: kept }}\naccessMode: user-controlled\nuserConfig:\n  fields:\n{fields}"
    );
    server_with(&lines, &env(&[]))
}

fn values(spec: &ServerSpec, entered: &[(&str, &str)]) -> Result<Values, FieldError> {
    let entered: BTreeMap<_, _> = entered
        .iter()
        .map(|(k, v)| ((*k).to_owned(), Secret::new(*v)))
        .collect();
    Values::check(&spec.user_config, &entered).map_err(|unfit| unfit.fault)
}

fn endpoint(spec: &ServerSpec, entered: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
    let made = effective(spec, &values(spec, entered).unwrap()).unwrap();
    let Endpoint::Remote { url, headers, .. } = made.endpoint else {
        panic!("it was http")
    };
    (
        url.to_string(),
        headers
            .into_iter()
            .map(|(name, value)| (name, value.expose().to_owned()))
            .collect(),
    )
}

fn header(spec: &ServerSpec, entered: &[(&str, &str)], name: &str) -> Option<String> {
    endpoint(spec, entered)
        .1
        .into_iter()
        .find(|(other, _)| other == name)
        .map(|(_, value)| value)
}

const TOKEN: &str = "    - { name: token, type: secret, headerTemplate: 'Bearer {value}' }\n";
const BASIC: &str = "    - { name: user }\n    - { name: token, type: secret, headerTemplate: 'Basic {base64(user:token)}' }\n";

#[test]
fn a_value_goes_into_its_header_in_place_of_the_packs() {
    let (_, headers) = endpoint(&spec(TOKEN), &[("token", "t0p")]);
    assert_eq!(
        headers,
        [
            ("X-Other".into(), "kept".into()),
            ("Authorization".into(), "Bearer t0p".into())
        ]
    );
}

#[test]
fn several_fields_feed_one_header() {
    let value = header(
        &spec(BASIC),
        &[("user", "ann"), ("token", "t0p")],
        "Authorization",
    );
    assert_eq!(value.unwrap(), "Basic YW5uOnQwcA==");
    let named = "    - { name: a }\n    - { name: b, headerName: X-Both, headerTemplate: '{a}-{value}-{b}' }\n";
    assert_eq!(
        header(&spec(named), &[("a", "1"), ("b", "2")], "X-Both").unwrap(),
        "1-2-2"
    );
}

#[test]
fn a_query_parameter_replaces_the_packs_and_is_encoded() {
    let spec = spec("    - { name: key, type: secret, queryName: key }\n");
    let (url, _) = endpoint(&spec, &[("key", "a&b=c#d")]);
    assert_eq!(url, "https://mcp.example.org/mcp?fixed=1&key=a%26b%3Dc%23d");
}

#[test]
fn a_variable_of_a_child_gets_the_value() {
    let lines = "transport: stdio\ncommand: /bin/true\nenv: { TOKEN: old, KEPT: yes }\naccessMode: user-controlled\nuserConfig: { fields: [{ name: token, type: secret, envName: TOKEN }] }";
    let spec = server_with(lines, &env(&[]));
    let made = effective(&spec, &values(&spec, &[("token", "new")]).unwrap()).unwrap();
    let Endpoint::Stdio { env, .. } = made.endpoint else {
        panic!("it was a child")
    };
    assert_eq!(env["TOKEN"].expose(), "new");
    assert_eq!(env.len(), 2);
}

#[test]
fn a_header_of_an_absent_optional_value_is_left_out() {
    let spec = spec("    - { name: org, required: false, headerName: X-Org }\n");
    assert_eq!(header(&spec, &[], "X-Org"), None);
    assert_eq!(
        header(&spec, &[("org", " acme ")], "X-Org").unwrap(),
        "acme"
    );
}

#[test]
fn what_is_entered_is_checked_by_its_kind() {
    let fields = "    - { name: u, type: url, headerName: X-U, required: false }\n    - { name: b, type: boolean, headerName: X-B, required: false }\n    - { name: s, type: select, options: [eu, us], headerName: X-S, required: false }\n    - { name: r, headerName: X-R }\n";
    let spec = spec(fields);
    let fault = |entered: &[(&str, &str)]| values(&spec, &[&[("r", "x")], entered].concat()).err();
    assert_eq!(values(&spec, &[]).unwrap_err(), FieldError::Missing);
    assert_eq!(
        fault(&[("u", "ftp://x.org")]),
        Some(FieldError::NotAnAddress)
    );
    assert_eq!(fault(&[("u", "https://x.org/a")]), None);
    assert_eq!(fault(&[("b", "maybe")]), Some(FieldError::NotABoolean));
    assert_eq!(fault(&[("s", "asia")]), Some(FieldError::NotAnOption));
    assert_eq!(fault(&[("s", "eu"), ("b", "true")]), None);
    assert_eq!(fault(&[("other", "1")]), Some(FieldError::Unknown));
}

#[test]
fn a_value_that_no_header_can_carry_is_refused() {
    let spec = spec(TOKEN);
    let refused = effective(&spec, &values(&spec, &[("token", "tokén")]).unwrap()).unwrap_err();
    assert_eq!(refused.fault, FieldError::NotForHeaders);
}

#[test]
fn sealing_and_back_is_the_same() {
    let spec = spec(BASIC);
    let entered = values(&spec, &[("user", "{\"a\"}"), ("token", "\\u0041\"")]).unwrap();
    assert_eq!(
        Values::from_sealable(&entered.to_sealable()).unwrap(),
        entered
    );
    assert!(!format!("{entered:?}").contains("u0041"));
}

/// Text that templates, JSON and regular expressions might trip over.
fn tricky() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{value}".to_owned()),
        Just("{token}".to_owned()),
        Just("${HOME}".to_owned()),
        Just("$&".to_owned()),
        Just("\\1".to_owned()),
        Just("\"".to_owned()),
        "[ -~]{1,6}",
    ];
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_value_arrives_as_it_was_entered(text in tricky().prop_filter("not blank", |text| !text.trim().is_empty())) {
        let value = header(&spec(TOKEN), &[("token", &text)], "Authorization").unwrap();
        prop_assert_eq!(value, format!("Bearer {}", text.trim_matches(' ')));
    }

    #[test]
    fn no_value_ends_a_line(before in "[ -~]{0,5}", breaker in "[\r\n\0]", after in "[ -~]{1,5}") {
        let text = format!("x{before}{breaker}{after}x");
        prop_assert_eq!(values(&spec(TOKEN), &[("token", &text)]).unwrap_err(), FieldError::LineBreak);
    }

    #[test]
    fn no_spelling_of_a_secret_gets_through(secret in "[ -~]{8,40}", around in "[a-z ]{0,7}") {
        use base64::Engine;
        let scrubber = Scrubber::new(&[Secret::new(secret.as_str())]);
        let engine = base64::engine::general_purpose::STANDARD;
        let json = serde_json::to_string(&format!("{around}{secret}{around}")).unwrap();
        prop_assert!(!scrubber.text(&json).unwrap().contains(serde_json::to_string(&secret).unwrap().trim_matches('"')));
        let hex = hex::encode_upper(&secret);
        let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
        let encoded = engine.encode(format!("{around}{secret}{around}"));
        for (text, core) in [(secret.clone(), secret.clone()), (hex.clone(), hex), (form.clone(), form)] {
            let clean = scrubber.text(&format!("<{around}{text}{around}>")).unwrap();
            prop_assert!(clean.contains(MASK) && !clean.contains(&core), "{} in {}", core, clean);
        }
        let clean = scrubber.text(&encoded);
        prop_assert!(clean.is_some_and(|clean| clean.contains(MASK)), "{} of {:?}", encoded, secret);
    }

    #[test]
    fn other_text_is_left_alone(text in "\\PC{0,60}") {
        let scrubber = Scrubber::new(&[Secret::new("a-secret-that-is-not-there"), Secret::new("abc")]);
        prop_assert_eq!(scrubber.text(&text), None);
    }
}

#[test]
fn a_secret_is_found_in_json_that_is_text_in_json() {
    let spec = spec(TOKEN);
    let made = effective(
        &spec,
        &values(&spec, &[("token", "t0p\"s\\cret/e")]).unwrap(),
    )
    .unwrap();
    let scrubber = Scrubber::of(&made);
    let mut text = "t0p\"s\\cret/e".to_owned();
    for depth in 0..=3 {
        assert_eq!(
            scrubber.text(&format!("<{text}>")).unwrap(),
            format!("<{MASK}>"),
            "wrapped {depth} times"
        );
        let quoted = serde_json::to_string(&text).unwrap();
        text = quoted[1..quoted.len() - 1].to_owned();
    }
}

#[test]
fn what_the_operator_sends_is_found_wherever_it_stands() {
    let secret = |text: &str| Secret::new(text);
    let remote = Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url: "https://x.example.org/mcp?api_key=in-the-address&page=first"
            .parse()
            .unwrap(),
        // annabel:behind-basic
        headers: vec![(
            "Authorization".to_owned(),
            secret("Basic YW5uYWJlbDpiZWhpbmQtYmFzaWM="),
        )],
    };
    let env = [
        (
            "MCP_CONFIG",
            r#"{"db":[{"password":"in-the-json","name":"harmless"}]}"#,
        ),
        ("API_TOKEN", "in-a-variable"),
        ("LANG", "C.UTF-8"),
    ];
    let args = [
        "--token",
        "after-an-option",
        "--api-key=in-an-option",
        "--",
        "harmless",
    ];
    let child = Endpoint::Stdio {
        command: "/bin/server".to_owned(),
        args: args.map(secret).to_vec(),
        env: env
            .map(|(name, value)| (name.to_owned(), secret(value)))
            .into(),
        cwd: None,
        encoding: None,
    };
    let cases = [
        (remote, &["in-the-address", "behind-basic"][..]),
        (
            child,
            &[
                "in-the-json",
                "in-a-variable",
                "after-an-option",
                "in-an-option",
            ],
        ),
    ];
    for (endpoint, secrets) in cases {
        let made = ServerSpec {
            endpoint,
            ..spec(TOKEN)
        };
        let scrubber = Scrubber::of(&made);
        for secret in secrets {
            assert_eq!(scrubber.text(secret).as_deref(), Some(MASK), "{secret}");
        }
        for word in ["harmless", "annabel", "first", "C.UTF-8"] {
            assert_eq!(scrubber.text(word), None, "{word}");
        }
    }
}

#[test]
fn json_stays_json_when_it_is_scrubbed() {
    let scrubber = Scrubber::new(&[Secret::new("say \"hi\"/there")]);
    let raw =
        serde_json::value::to_raw_value(&serde_json::json!({ "a": "say \"hi\"/there", "b": 1 }))
            .unwrap();
    assert_eq!(
        scrubber.json(raw).get(),
        format!(r#"{{"a":"{MASK}","b":1}}"#)
    );
}

#[test]
fn what_is_no_secret_is_not_looked_for() {
    let spec = spec(
        "    - { name: beta, type: boolean, headerName: X-Beta }\n    - { name: token, type: secret, headerTemplate: 'Bearer {value}' }\n",
    );
    let made = effective(
        &spec,
        &values(&spec, &[("beta", "true"), ("token", "t0p-s3cret")]).unwrap(),
    )
    .unwrap();
    assert_eq!(Scrubber::of(&made).text(r#"{"listChanged":true}"#), None);
}

#[test]
fn what_was_entered_as_text_is_not_blanked() {
    let spec = spec(BASIC);
    let made = effective(
        &spec,
        &values(&spec, &[("user", "annabel"), ("token", "t0p-s3cret")]).unwrap(),
    )
    .unwrap();
    let scrubber = Scrubber::of(&made);
    assert_eq!(scrubber.text("hello annabel"), None);
    assert_eq!(
        scrubber.text("Basic YW5uYWJlbDp0MHAtczNjcmV0").unwrap(),
        format!("Basic {MASK}")
    );
}

#[test]
fn the_token_of_somebody_in_many_groups_can_be_entered() {
    let spec = spec(TOKEN);
    let entered = |bytes: usize| values(&spec, &[("token", &"x".repeat(bytes))]);
    assert!(entered(32 * 1024).is_ok());
    assert_eq!(entered(32 * 1024 + 1), Err(FieldError::TooLong));
}
