//! Who may use which tool and why, as the tenant's admins see it.

use serde_json::{Value, json};

use crate::support::world::World;

const MATRIX: &str = "/v1/admin/agents/bank/access";

/// The cells of a tool by who holds what.
fn cell<'m>(matrix: &'m Value, tool: &str, holder: &Value) -> &'m Value {
    let holders = matrix["holders"].as_array().unwrap();
    let at = holders.iter().position(|one| one == holder).unwrap();
    let rows = matrix["servers"][0]["tools"].as_array().unwrap();
    let row = rows.iter().find(|row| row["tool"] == tool).unwrap();
    &row["cells"][at]
}

#[tokio::test]
async fn the_matrix_says_of_each_role_and_tool_what_is_decided_and_why() {
    let world = World::start().await;
    world.tools_ready().await;
    let matrix = world.admin().await.get(MATRIX).await.expect(200);
    assert_eq!(
        matrix["holders"],
        json!([
            { "kind": "no_role" },
            { "kind": "role", "role": "employee" },
            { "kind": "role", "role": "finance" },
            { "kind": "role", "role": "guest" },
            { "kind": "admin" },
        ])
    );
    let (finance, employee) = (&matrix["holders"][2], &matrix["holders"][1]);
    assert_eq!(
        cell(&matrix, "send_money", finance),
        &json!({ "decision": "allow" })
    );
    let denied = cell(&matrix, "send_money", employee);
    assert_eq!(denied["decision"], "deny");
    assert_eq!(denied["reason"], "role_lacks_tool");
    assert!(denied["remedy"].as_str().unwrap().contains("other roles"));
    let nobody = cell(&matrix, "get_exchange_rate", &json!({ "kind": "no_role" }));
    assert_eq!(nobody["reason"], "role_lacks_tool");
    let admin = cell(&matrix, "send_money", &json!({ "kind": "admin" }));
    assert_eq!(admin["decision"], "allow");
}

#[tokio::test]
async fn the_matrix_names_who_approves() {
    let world = World::with(|setup| {
        let (_, bank) = &mut setup.packs[0];
        bank.push_str("        approval: [{ tools: [send_money], approvers: [cfo] }]\n");
    })
    .await;
    world.tools_ready().await;
    let matrix = world.admin().await.get(MATRIX).await.expect(200);
    let finance = json!({ "kind": "role", "role": "finance" });
    assert_eq!(
        cell(&matrix, "send_money", &finance),
        &json!({ "decision": "approve", "approvers": ["cfo"] })
    );
}

#[tokio::test]
async fn an_admin_sees_why_a_user_cannot_use_a_tool() {
    let world = World::start().await;
    world.tools_ready().await;
    let (admin, erin) = (world.admin().await, world.user("erin", &["employee"]).await);
    let path = "/v1/admin/users/erin/agents/bank/tools";
    admin.get(path).await.expect(404);
    erin.get("/v1/me").await.expect(200);
    let seen = admin.get(path).await.expect(200);
    let bank = &seen["items"][0];
    let tools: Vec<&str> = bank["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["tool"].as_str().unwrap())
        .collect();
    assert!(tools.contains(&"get_balances") && !tools.contains(&"send_money"));
    let denied = bank["denied"].as_array().unwrap();
    let sending = denied.iter().find(|one| one["tool"] == "send_money");
    assert_eq!(sending.unwrap()["reason"], "role_lacks_tool");
    erin.get(path).await.expect(403);
    let unknown = "/v1/admin/users/erin/agents/nothing/tools";
    admin.get(unknown).await.expect(404);
}
