//! npm `mcp-proxy --apiKey` in front of a published server: a personal server whose key goes into `X-API-Key`.

use serde_json::json;

use super::{connection, enter, tools};
use crate::support::{
    has::Has,
    notes::ring,
    servers::{Server, proxy},
    world::World,
};

const PACK: &str = r#"
metadata: { id: proxy, displayName: Proxy, description: Everything, defaultLanguage: en }
languages: { en: { systemPrompt: "You have everything." } }
llm: { provider: none }
flows: { authentication: { required: true } }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: "${PROXY_URL}"
      accessMode: user-controlled
      userConfig: { fields: [{ name: token, type: secret, headerName: X-API-Key }] }
      toolAccess: { default: public }
"#;

async fn world(server: &Server) -> World {
    World::with(|setup| {
        setup.env = setup.env.clone().with("PROXY_URL", server.url.as_str());
        setup.config.ring = ring();
        setup.packs = vec![("proxy".to_owned(), PACK.to_owned())];
    })
    .await
}

#[tokio::test]
async fn a_good_api_key_brings_the_tools_and_a_wrong_one_is_unauthorized() {
    let server = proxy(None, "key-of-the-proxy").await;
    let world = world(&server).await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        enter(&ann, "proxy", "some-other-key").await.expect(422)["code"],
        "unauthorized"
    );
    assert_eq!(tools(&ann, "proxy").await, [""; 0]);
    enter(&ann, "proxy", "key-of-the-proxy").await.expect(200);
    assert!(tools(&ann, "proxy").await.contains(&"echo".to_owned()));
    assert_eq!(
        ann.ask("proxy", "/call notes echo {\"message\":\"hi\"}")
            .await,
        "Echo: hi"
    );
}

#[tokio::test]
async fn an_api_key_that_is_no_longer_good_is_marked_at_its_next_use() {
    let server = proxy(None, "key-of-the-proxy").await;
    let world = world(&server).await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "proxy", "key-of-the-proxy").await.expect(200);
    let port = server.port;
    drop(server);
    let _server = proxy(Some(port), "its-next-key").await;
    // The first may find the old connection gone, which says nothing of the key.
    for _ in 0..2 {
        ann.ask("proxy", "/call notes echo {\"message\":\"hi\"}")
            .await;
    }
    let seen = connection(&ann, "proxy").await;
    seen.has(json!({ "state": "needs_attention", "reason": "rejected" }));
    assert_eq!(tools(&ann, "proxy").await, [""; 0]);
    enter(&ann, "proxy", "its-next-key").await.expect(200);
    assert_eq!(
        ann.ask("proxy", "/call notes echo {\"message\":\"hi\"}")
            .await,
        "Echo: hi"
    );
}
