//! A client without a token is told where to get one (RFC 9728).

use serde_json::json;

use super::BANK;
use crate::support::world::World;

#[tokio::test]
async fn a_client_without_a_token_is_told_where_to_sign_in() {
    let world = World::shared().await;
    let refused = world.nobody().post(BANK, json!({})).await;
    assert_eq!(refused.status, 401, "{}", refused.text);
    let challenge = refused.header("www-authenticate").to_owned();
    let path = "/.well-known/oauth-protected-resource/mcp/bank";
    assert!(
        challenge.starts_with("Bearer resource_metadata=\"http"),
        "{challenge}"
    );
    assert!(challenge.ends_with(&format!("{path}\"")), "{challenge}");
    let wrong = world
        .nobody()
        .with_header("authorization", "Bearer nonsense");
    let refused = wrong.post(BANK, json!({})).await;
    assert_eq!(refused.status, 401);
    assert!(refused.header("www-authenticate").contains("invalid_token"));

    // Two tenants have this agent, so whose users are meant has to be said.
    let both = world.nobody().get(path).await.expect(200);
    assert_eq!(both["authorization_servers"], json!([]));
    assert!(both["resource"].as_str().unwrap().ends_with("/mcp/bank"));
    let one = world.nobody().get(&format!("{path}?tenant=acme")).await;
    assert!(
        one.expect(200)["resource"]
            .as_str()
            .unwrap()
            .ends_with("/mcp/bank?tenant=acme")
    );
    let none = world.nobody().get(&format!("{path}?tenant=nobody")).await;
    assert_eq!(none.status, 404);
    let other = "/.well-known/oauth-protected-resource/mcp/no-such-agent";
    assert_eq!(world.nobody().get(other).await.status, 404);
}
