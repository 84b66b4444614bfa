//! The operator's routes: for whom they are there, and what they do to tenants.

use domain::config::{Config, Environment};
use serde_json::{Value, json};

use super::{TOKEN, field, line, operator, patch, trail, world};
use crate::support::{has::Has, world::World};

const TENANTS: &str = "/v1/admin/tenants";

#[tokio::test]
async fn without_the_setting_the_routes_are_not_there() {
    let world = World::start().await;
    let nothing = world.nobody().get("/v1/admin/nothing").await.expect(404)["detail"].clone();
    assert_ne!(nothing, Value::Null);
    for caller in [world.nobody(), operator(&world), world.admin().await] {
        for path in [
            TENANTS.to_owned(),
            format!("{TENANTS}/acme"),
            format!("{TENANTS}/acme/keys"),
        ] {
            assert_eq!(
                caller.get(&path).await.expect(404)["detail"],
                nothing,
                "{path}"
            );
        }
        caller
            .post(TENANTS, json!({ "name": "umbrella" }))
            .await
            .expect(404);
    }
}

#[tokio::test]
async fn nobody_but_the_operator_gets_in_and_the_operator_nowhere_else() {
    let world = world().await;
    let longer = world.client(&format!("{TOKEN}0").into());
    let shorter = world.client(&TOKEN[1..].to_owned().into());
    for caller in [
        world.nobody(),
        world.admin().await,
        world.frontend("ann").await,
        longer,
        shorter,
    ] {
        let refused = caller.get(TENANTS).await;
        assert_eq!(refused.expect(401)["code"], "unauthenticated");
        assert!(refused.header("www-authenticate").starts_with("Bearer"));
        caller
            .get(&format!("{TENANTS}/acme/issuers"))
            .await
            .expect(401);
    }
    let operator = operator(&world);
    operator.get(TENANTS).await.expect(200);
    for path in ["/v1/me", "/v1/agents", "/v1/admin/keys", "/v1/admin/audit"] {
        operator.get(path).await.expect(401);
    }
}

#[tokio::test]
async fn who_guesses_is_slowed_down() {
    let world = super::world_with(|setup| setup.config.requests_per_minute = 3).await;
    let guesser = world.client(&"0".repeat(40).into());
    for _ in 0..3 {
        guesser.get(TENANTS).await.expect(401);
    }
    let refused = guesser.get(TENANTS).await;
    assert_eq!(refused.expect(429)["code"], "rate_limited");
    assert!(!refused.header("retry-after").is_empty());
}

#[test]
fn a_short_token_refuses_the_start_and_is_not_repeated() {
    for token in [
        "only-31-characters-are-too-few.",
        "twenty-blanks-are-no-token and-so-on-and-on",
    ] {
        let env = Environment::default().with("CHATELAINE_OPERATOR_TOKEN", token);
        let refused = Config::from_environment(&env).err().unwrap();
        assert!(
            refused.starts_with("CHATELAINE_OPERATOR_TOKEN: must be at least 32"),
            "{refused}"
        );
        assert!(!refused.contains(token));
    }
    let env = Environment::default().with("CHATELAINE_OPERATOR_TOKEN", TOKEN);
    assert!(Config::from_environment(&env).is_ok_and(|config| config.operator_token.is_some()));
    assert!(
        env.without_keys()
            .get("CHATELAINE_OPERATOR_TOKEN")
            .is_none(),
        "no pack may name it"
    );
}

#[tokio::test]
async fn a_tenant_is_made_read_changed_and_its_first_admin_gets_in() {
    let world = world().await;
    let operator = operator(&world);
    let new = json!({ "name": "umbrella", "display_name": "Umbrella", "agents": ["bank"], "limits": { "runs_per_user": 5 } });
    let made = operator.post(TENANTS, new).await.expect(201);
    made.has(json!({ "name": "umbrella", "suspended": false }));
    assert_eq!(made["in_force"], json!({ "runs_per_user": 5 }));
    let key = json!({ "name": "root", "scopes": ["chat", "admin"] });
    let key = operator
        .post(&format!("{TENANTS}/umbrella/keys"), key)
        .await
        .expect(201);
    let admin = world.client(&key["key"].as_str().unwrap().to_owned().into());
    let me = admin.get("/v1/me").await.expect(200);
    me.has(json!({ "tenant": made["id"], "user": "key:root" }));
    assert_eq!(
        field(&admin.get("/v1/agents").await.expect(200), "id"),
        ["bank"]
    );
    assert_eq!(
        field(&admin.get("/v1/admin/keys").await.expect(200), "name"),
        ["root"]
    );
    let path = format!("{TENANTS}/umbrella");
    let change = json!({ "display_name": null, "agents": null, "guests": true });
    let changed = patch(&operator, &path, change).await.expect(200);
    changed.has(json!({ "display_name": "umbrella", "guests": true }));
    assert_eq!(changed.get("agents"), None);
    let read = operator.get(&path).await.expect(200);
    assert_eq!(read["used_today"], json!({ "runs": 0, "tokens": 0 }));
    assert_eq!(
        read["limits"],
        json!({ "runs_per_user": 5 }),
        "what is not named stays"
    );
    let tenant = made["id"].as_str().unwrap().parse().unwrap();
    let changed = "umbrella: no display name, agents every one, takes guests";
    let expected = [
        line("operator", "tenant.created", "umbrella"),
        line("operator", "tenant.changed", changed),
    ];
    assert_eq!(trail(&world, tenant, "tenant.%").await, expected);
}

#[tokio::test]
async fn tenants_are_listed_in_pages_by_name() {
    let world = world().await;
    let operator = operator(&world);
    for name in ["umbrella", "initech", "hooli"] {
        operator
            .post(TENANTS, json!({ "name": name }))
            .await
            .expect(201);
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = operator
            .get(&format!("{TENANTS}?limit=2{after}"))
            .await
            .expect(200);
        let names = field(&page, "name");
        assert!(!names.is_empty() && names.len() <= 2);
        seen.extend(names);
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    assert_eq!(seen, ["acme", "globex", "hooli", "initech", "umbrella"]);
    operator
        .get(&format!("{TENANTS}?limit=0"))
        .await
        .expect(400);
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_field() {
    let world = world().await;
    let operator = operator(&world);
    let cases: Vec<(Value, u16, &str)> = vec![
        (json!({}), 400, "name"),
        (json!({ "name": "" }), 400, "name"),
        (json!({ "name": "Acme" }), 400, "name"),
        (json!({ "name": "-acme" }), 400, "name"),
        (json!({ "name": "../acme" }), 400, "name"),
        (json!({ "name": "a\0b" }), 400, "name"),
        (json!({ "name": "x".repeat(64) }), 400, "name"),
        (json!({ "name": "one", "agents": [".."] }), 400, "agents"),
        (
            json!({ "name": "one", "display_name": " " }),
            400,
            "display_name",
        ),
        (
            json!({ "name": "one", "display_name": "a\0b" }),
            400,
            "display_name",
        ),
        (
            json!({ "name": "one", "limits": { "runs_per_user": -1 } }),
            400,
            "limits.runs_per_user",
        ),
        (
            json!({ "name": "one", "limits": { "runs_per_user": "many" } }),
            400,
            "limits.runs_per_user",
        ),
        (
            json!({ "name": "one", "limits": { "runs_per_week": 1 } }),
            400,
            "limits.runs_per_week",
        ),
        (json!({ "name": "acme" }), 409, ""),
    ];
    for (body, status, field) in cases {
        let problem = operator.post(TENANTS, body.clone()).await.expect(status);
        assert_eq!(
            problem["field"].as_str().unwrap_or_default(),
            field,
            "{body}: {problem}"
        );
    }
    for name in ["nobody", "a%00b", "%FF", "ACME"] {
        operator.get(&format!("{TENANTS}/{name}")).await.expect(404);
        patch(&operator, &format!("{TENANTS}/{name}"), json!({}))
            .await
            .expect(404);
        operator
            .get(&format!("{TENANTS}/{name}/keys"))
            .await
            .expect(404);
        operator
            .delete(&format!("{TENANTS}/{name}?confirm={name}"))
            .await
            .expect(404);
    }
    assert_eq!(
        field(&operator.get(TENANTS).await.expect(200), "name"),
        ["acme", "globex"],
        "nothing was made"
    );
}

#[tokio::test]
async fn changes_of_different_things_at_once_both_count() {
    let world = world().await;
    let operator = operator(&world);
    let path = format!("{TENANTS}/acme");
    let changes = (0..10).map(|at| {
        let one = json!({ "limits": { "runs_per_user": at + 1 } });
        let other =
            json!({ "limits": { "tokens_per_tenant": "unlimited" }, "display_name": "Acme" });
        patch(&operator, &path, if at % 2 == 0 { one } else { other })
    });
    for answer in futures_util::future::join_all(changes).await {
        answer.expect(200);
    }
    let read = operator.get(&path).await.expect(200);
    read.has(json!({ "display_name": "Acme", "limits": { "tokens_per_tenant": "unlimited" } }));
    assert!(read["limits"]["runs_per_user"].is_u64(), "{read}");
    let lines = trail(&world, world.tenant.id, "tenant.changed").await;
    let named = lines
        .iter()
        .filter(|line| line.2.contains("display name"))
        .count();
    assert_eq!(
        named, 1,
        "only what made a difference is written down: {lines:?}"
    );
}
