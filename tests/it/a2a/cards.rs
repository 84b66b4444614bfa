use a2a::{AgentCard, SecurityScheme};
use serde_json::{Value, json};

use super::rpc;
use crate::{
    skills::SkillsFixture,
    support::{client::Client, has::Has},
};

const CARD: &str = "/a2a/bank/.well-known/agent-card.json";

fn skills(card: &Value) -> Vec<&str> {
    card["skills"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skill| skill["id"].as_str().unwrap())
        .collect()
}

async fn card(client: &Client) -> Value {
    client.get(CARD).await.expect(200)
}

#[tokio::test]
async fn everybody_reads_what_a_guest_may_and_who_is_known_what_they_may() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let (public, own) = (card(&fixture.world.nobody()).await, card(&ann).await);
    let mut all = vec![
        "web-search",
        "structured",
        "broken",
        "slow",
        "lost",
        "nowhere",
        "rate",
    ];
    assert_eq!(skills(&public), all);
    all.push("pay");
    assert_eq!(skills(&own), all);
    assert_eq!(card(&fixture.world.guest().await).await, public);
    assert_eq!(
        rpc(&ann, "/bank", "GetExtendedAgentCard", json!({})).await["result"],
        own
    );
    let search = &own["skills"][0];
    search.has(json!({ "name": "Web search", "description": "Searches the web" }));
}

#[tokio::test]
async fn clients_of_both_versions_find_where_and_how_to_call() {
    let fixture = SkillsFixture::new().await;
    let card = card(&fixture.world.nobody()).await;
    let read: AgentCard = serde_json::from_value(card.clone()).unwrap();
    let url = format!("{}/a2a/bank", fixture.world.url);
    let found: Vec<_> = read
        .supported_interfaces
        .iter()
        .map(|at| (&*at.url, &*at.protocol_version))
        .collect();
    assert_eq!(found, [(&*url, "1.0"), (&*url, "0.3")]);
    assert!(
        matches!(&read.security_schemes.unwrap()["bearer"], SecurityScheme::HttpAuth(http) if http.scheme == "bearer")
    );
    assert_eq!(read.capabilities.streaming, Some(false));
    card.has(json!({
        "url": url,
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "securitySchemes": { "bearer": { "type": "http" } },
    }));
    assert_eq!(card["security"], json!([{ "bearer": [] }]));
}

/// A client whose address has no slash at its end looks for the card beside it.
#[tokio::test]
async fn beside_the_agents_is_the_card_of_all() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &[]).await;
    let all = ann.get("/.well-known/agent-card.json").await.expect(200);
    let beside = ann
        .get("/a2a/.well-known/agent-card.json")
        .await
        .expect(200);
    assert_eq!(beside, all);
}

#[tokio::test]
async fn an_agent_for_signed_in_users_is_no_more_there_than_one_that_is_not() {
    let fixture = SkillsFixture::new().await;
    let nobody = fixture.world.nobody();
    let answers = [
        nobody.get("/a2a/office/.well-known/agent-card.json").await,
        nobody
            .get("/a2a/nonsense/.well-known/agent-card.json")
            .await,
    ];
    let details = answers.map(|answer| answer.expect(401)["detail"].clone());
    assert_eq!(details[0], details[1]);
    let ann = fixture.world.user("ann", &[]).await;
    assert_eq!(
        ann.get("/a2a/office/.well-known/agent-card.json")
            .await
            .expect(200)["skills"],
        json!([])
    );
    let stranger = fixture.world.stranger("ann").await;
    stranger
        .get("/a2a/office/.well-known/agent-card.json")
        .await
        .expect(404);
}

#[tokio::test]
async fn the_card_of_all_agents_names_their_skills() {
    let fixture = SkillsFixture::new().await;
    let public = fixture
        .world
        .nobody()
        .get("/.well-known/agent-card.json")
        .await
        .expect(200);
    assert!(skills(&public).contains(&"bank/web-search") && !skills(&public).contains(&"bank/pay"));
    assert!(!public.to_string().contains("office"), "{public}");
    let ann = fixture.world.user("ann", &["employee"]).await;
    let own = ann.get("/.well-known/agent-card.json").await.expect(200);
    assert!(skills(&own).contains(&"bank/pay") && own.to_string().contains("office"));
}

#[tokio::test]
async fn of_an_agent_that_takes_no_guests_anywhere_nobody_else_is_told() {
    let fixture = SkillsFixture::new().await;
    let nobody = fixture.world.nobody();
    for change in [
        "update tenants set guests = false",
        "update tenants set guests = true, agents = '{office}'",
    ] {
        let mut db = fixture.world.db.as_system().await;
        sqlx::query(change).execute(&mut db).await.unwrap();
        nobody.get(CARD).await.expect(401);
        let all = nobody.get("/.well-known/agent-card.json").await.expect(200);
        assert_eq!(all["skills"], json!([]));
        assert!(!all.to_string().contains("bank"), "{all}");
    }
}
