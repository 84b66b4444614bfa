//! The web client as the program serves it. What a person does with it is tried in a browser: `make test-web`.

use std::{collections::BTreeMap, sync::Arc};

use chatelaine::{
    api::{Demo, DemoPeople},
    cli::serve::Service,
};
use domain::sign_in::SignInProvider;
use http::Method;
use serde_json::json;
use store::Db;

use super::support::{
    client::{Answer, Client},
    world::World,
};

async fn page(client: &Client, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = client.request(Method::GET, path);
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    client.send(request).await
}

const BROWSER: (&str, &str) = (
    "accept",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
);

#[tokio::test]
async fn a_browser_gets_a_page_that_may_load_its_own_files_only() {
    let world = World::shared().await;
    let answer = page(&world.nobody(), "/", &[BROWSER]).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(!policy.contains("unsafe") && !policy.contains("http"));
    assert!(policy.contains("frame-ancestors 'none'"));
}

#[tokio::test]
async fn a_program_gets_json_where_a_browser_gets_the_page() {
    let world = World::shared().await;
    let nobody = world.nobody();
    for accept in ["*/*", "application/json", "text/html;q=0, application/json"] {
        let answer = page(&nobody, "/", &[("accept", accept)]).await;
        assert_eq!(answer.json()["openapi"], "/openapi.json", "{accept}");
        assert_eq!(answer.header("vary"), "accept");
    }
    assert_eq!(nobody.get("/").await.json()["name"], "chatelaine");
}

/// `make test` builds the page before; `cargo test` alone may find a program without it.
#[tokio::test]
async fn the_files_of_the_page_are_kept_for_ever_and_compressed() {
    let world = World::shared().await;
    let nobody = world.nobody();
    let html = page(&nobody, "/", &[BROWSER]).await.text;
    let names: Vec<&str> = html
        .split('"')
        .filter(|word| word.starts_with("/web/"))
        .collect();
    if names.is_empty() {
        assert!(html.contains("make web"), "{html}");
        return;
    }
    for name in names {
        let plain = page(&nobody, name, &[]).await;
        assert_eq!(plain.status, 200, "{name}");
        let kind = match name.rsplit_once('.').unwrap().1 {
            "js" => "text/javascript",
            "css" => "text/css",
            "svg" => "image/svg+xml",
            "webmanifest" => "application/manifest+json",
            other => panic!("{name}: {other}"),
        };
        assert!(plain.header("content-type").starts_with(kind), "{name}");
        assert_eq!(plain.header("content-encoding"), "");
        assert_eq!(
            plain.header("cache-control"),
            "public, max-age=31536000, immutable"
        );
        let mut size = plain.text.len();
        for (accepted, encoding) in [("gzip", "gzip"), ("gzip, deflate, br", "br")] {
            let compressed = nobody
                .request(Method::GET, name)
                .header("accept-encoding", accepted);
            let compressed = compressed.send().await.unwrap();
            assert_eq!(compressed.headers()["content-encoding"], encoding);
            let bytes = compressed.bytes().await.unwrap();
            assert_eq!(bytes.starts_with(&[0x1f, 0x8b]), encoding == "gzip");
            assert!(bytes.len() < size, "{name}: {encoding}");
            size = bytes.len();
        }
    }
    assert_eq!(nobody.get("/web/nothing.js").await.status, 404);
    assert_eq!(nobody.get("/web/index.html").await.status, 404);
}

#[tokio::test]
async fn the_demos_people_are_there_in_the_demo_alone_and_for_its_link() {
    let world = World::start().await;
    let asked = page(&world.nobody(), "/v1/demo/people", &[]).await;
    assert_eq!(asked.status, 404);

    let demo = Arc::new(Demo::new());
    let db = Db::connect(&world.db.url, 8).await.unwrap();
    let service = Service::start_for(world.config.clone(), &world.env, db, Some(demo.clone()))
        .await
        .unwrap();
    let there = world.nobody().at(&format!("http://{}", service.address));
    let link = demo.link("http://127.0.0.1/");
    let key = link.strip_prefix("http://127.0.0.1/#demo=").unwrap();
    let with = format!("Bearer {key}");
    let early = page(&there, "/v1/demo/people", &[("authorization", &with)]).await;
    assert_eq!(early.status, 401);
    let tokens = BTreeMap::from([("finance".to_owned(), "a-token".to_owned())]);
    demo.set_people(DemoPeople {
        people: tokens.clone(),
        notes: tokens,
    });
    let people = page(&there, "/v1/demo/people", &[("authorization", &with)]).await;
    assert_eq!(
        people.expect(200),
        json!({ "people": { "finance": "a-token" }, "notes": { "finance": "a-token" } })
    );
    for wrong in ["", "Bearer ", "Bearer 00"] {
        let refused = page(&there, "/v1/demo/people", &[("authorization", wrong)]).await;
        assert_eq!(refused.status, 401, "{wrong}");
        assert!(!refused.text.contains("a-token"));
    }

    // In the demo alone, the page shows a second person in a pane, which is the same page.
    let framing = async |client: &Client, path: &str| {
        let answer = page(client, path, &[BROWSER]).await;
        let policy = answer.header("content-security-policy").to_owned();
        (policy, answer.header("x-frame-options").to_owned())
    };
    let (policy, options) = framing(&there, "/").await;
    assert!(policy.contains("frame-src 'self'; ") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(options, "DENY");
    let (policy, options) = framing(&there, "/?as=manager").await;
    assert!(!policy.contains("frame-src") && policy.contains("frame-ancestors 'self'"));
    assert_eq!(options, "SAMEORIGIN");
    let (policy, options) = framing(&world.nobody(), "/?as=manager").await;
    assert!(!policy.contains("frame-src") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(options, "DENY");
    service.stop().await.unwrap();
}

#[tokio::test]
async fn the_page_may_ask_the_providers_where_people_sign_in() {
    let provider = json!([{ "name": "Acme", "issuer": "https://login.acme.example/realm", "client_id": "page",
        "parameters": { "resource": "https://chat.acme.example" }, "origins": ["https://tokens.acme.example"] }]);
    let world = World::with(|setup| {
        setup.config.sign_in = SignInProvider::parse_all(&provider.to_string()).unwrap();
    })
    .await;
    let answer = page(&world.nobody(), "/", &[BROWSER]).await;
    let policy = answer.header("content-security-policy");
    let wanted =
        "connect-src 'self' https://login.acme.example https://tokens.acme.example; img-src";
    assert!(policy.contains(wanted), "{policy}");
    let listed = world.nobody().get("/v1/sign-in").await.expect(200);
    assert_eq!(
        listed,
        json!({ "items": [{ "name": "Acme", "issuer": "https://login.acme.example/realm", "client_id": "page",
            "scope": "openid profile email offline_access", "token": "access_token",
            "parameters": { "resource": "https://chat.acme.example" } }] })
    );
}

#[tokio::test]
async fn the_page_of_a_tenant_offers_that_tenants_providers_and_no_others() {
    let provider = |tenant: &str| json!({ "tenant": tenant, "name": tenant, "client_id": "page", "issuer": format!("https://{tenant}.example") });
    let shared = json!({ "name": "All", "issuer": "https://all.example", "client_id": "page" });
    let providers = json!([provider("acme"), provider("globex"), shared]);
    let world = World::with(|setup| {
        setup.config.sign_in = SignInProvider::parse_all(&providers.to_string()).unwrap();
    })
    .await;
    let nobody = world.nobody();
    for (query, names) in [
        ("", vec!["All"]),
        ("?tenant=acme", vec!["acme", "All"]),
        ("?tenant=nobody", vec!["All"]),
    ] {
        let listed = nobody.get(&format!("/v1/sign-in{query}")).await.expect(200);
        let items = listed["items"].as_array().unwrap().iter();
        assert_eq!(
            items.map(|item| &item["name"]).collect::<Vec<_>>(),
            names,
            "{query}"
        );
        let answer = page(&nobody, &format!("/{query}"), &[BROWSER]).await;
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("https://all.example"), "{policy}");
        assert_eq!(
            policy.contains("https://acme.example"),
            names.contains(&"acme")
        );
        assert!(!policy.contains("globex"), "{policy}");
    }
    nobody.get("/v1/sign-in?tenant=%20").await.expect(400);
}

#[test]
fn a_provider_that_is_not_reached_over_tls_is_refused() {
    let refused = |issuer: &str| {
        let text = json!([{ "name": "A", "issuer": issuer, "client_id": "c" }]).to_string();
        SignInProvider::parse_all(&text).err()
    };
    let why = refused("http://login.acme.example").expect("it is refused");
    assert!(why.contains("must begin with https://"), "{why}");
    assert_eq!(refused("http://127.0.0.1:9000"), None);
    assert_eq!(refused("http://localhost:9000/realm"), None);
    assert!(SignInProvider::parse_all("{}").is_err());
    let unknown = r#"[{"name":"A","issuer":"https://a.example","client_id":"c","secret":"s"}]"#;
    let why = SignInProvider::parse_all(unknown).expect_err("a page keeps no secret");
    assert!(why.contains("unknown field `secret`"), "{why}");
}
