//! Challenges of servers: the header `WWW-Authenticate`.

use mcp::oauth::challenge::Challenge;

#[test]
fn a_bearer_challenge_is_found_among_others() {
    let challenge = Challenge::parse(
        r#"Basic realm="a, b", Bearer realm="x\"y", error="insufficient_scope" , scope="a b",resource_metadata=https://mcp.example/m"#,
    );
    let challenge = challenge.expect("there is one");
    assert_eq!(challenge.missing_scope(), Some("a b"));
    let metadata = challenge.resource_metadata.expect("it is named");
    assert_eq!(metadata.as_str(), "https://mcp.example/m");
}

#[test]
fn what_belongs_to_another_scheme_is_not_the_bearers() {
    let challenge = Challenge::parse(r#"Bearer, DPoP scope="a", error="insufficient_scope""#);
    assert_eq!(challenge, Some(Challenge::default()));
    assert_eq!(Challenge::parse(r#"Basic scope="a""#), None);
}
