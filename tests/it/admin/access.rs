//! Who may use which tool and why, as the tenant's admins see it.

use serde_json::{Value, json};

use crate::support::{bank::approval_by, has::Has, program::chatelaine, world::World};

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
    let world = World::shared().await;
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
    denied.has(json!({ "decision": "deny", "reason": "role_lacks_tool" }));
    denied["remedy"].says("other roles");
    let nobody = cell(&matrix, "get_exchange_rate", &json!({ "kind": "no_role" }));
    assert_eq!(nobody["reason"], "role_lacks_tool");
    let admin = cell(&matrix, "send_money", &json!({ "kind": "admin" }));
    assert_eq!(admin["decision"], "allow");
}

#[tokio::test]
async fn the_matrix_names_who_approves() {
    let world = World::with(|setup| setup.change_server(approval_by("cfo"))).await;
    world.tools_ready().await;
    let matrix = world.admin().await.get(MATRIX).await.expect(200);
    let finance = json!({ "kind": "role", "role": "finance" });
    assert_eq!(
        cell(&matrix, "send_money", &finance),
        &json!({ "decision": "approve", "approvers": ["cfo"] })
    );
}

#[tokio::test]
async fn a_roles_attribute_that_no_token_ever_had_is_named() {
    let world = World::shared().await;
    let admin = world.admin().await;
    let matrix = admin.get(MATRIX).await.expect(200);
    assert_eq!(matrix["unseen_claim"], "roles");
    let ann = world.user("ann", &["employee"]).await;
    ann.get("/v1/me").await.expect(200);
    let matrix = admin.get(MATRIX).await.expect(200);
    assert!(matrix["unseen_claim"].is_null(), "{matrix}");
}

#[tokio::test]
async fn the_check_of_packs_names_a_roles_attribute_that_no_token_ever_had() {
    let world = World::start().await;
    let check = async |database: &str| {
        let mut command = chatelaine(&["check", world.config.packs.to_str().unwrap()]);
        command
            .env("DATABASE_URL", database)
            .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
            .envs(["MODEL_URL", "BANK_URL"].map(|name| (name, world.env.get(name).unwrap())));
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let database = world.db.url.expose();
    let unseen = "no token of the last people had the claim `roles`";
    assert!(!check(database).await.contains(unseen), "nobody came");
    world.admin().await.get("/v1/me").await.expect(200);
    let told = check(database).await;
    assert!(told.contains(unseen), "{told}");
    let ann = world.user("ann", &["employee"]).await;
    ann.get("/v1/me").await.expect(200);
    let told = check(database).await;
    assert!(!told.contains(unseen), "{told}");
    let told = check("postgres://nobody@127.0.0.1:1/none").await;
    assert!(
        told.contains("cannot ask which claims people came with"),
        "{told}"
    );
}
