//! The list of replicas: who is at work, who has ended, who was killed.

use serde_json::Value;

use super::world;
use crate::support::wait::eventually;

const REPLICAS: &str = "/v1/admin/replicas";

#[tokio::test]
async fn admins_see_the_replicas_and_which_of_them_are_silent() {
    let world = world().await;
    let admin = world.admin().await;
    let list = async || {
        let list = admin.get(REPLICAS).await.expect(200);
        list["items"].as_array().unwrap().clone()
    };
    eventually(async || list().await.len() == 1).await;
    let replica = world.replica().await;
    eventually(async || list().await.len() == 2).await;
    let id = |of: &Value| of["id"].as_str().unwrap().to_owned();
    let own = world.app().replica.to_string();
    let [first, second] = &list().await[..] else {
        panic!("two replicas")
    };
    assert_eq!(id(first), own, "the one that started first comes first");
    assert_eq!(second["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(second["readiness"]["database"], true);
    let digest = second["policies"]["bank"].as_str().unwrap();
    let metrics = world.nobody().get("/metrics").await.text;
    let shown = format!("chatelaine_packs_info{{agent=\"bank\",digest=\"{digest}\"}} 1");
    assert!(metrics.contains(&shown), "{shown}");
    // Killed, it says nothing more, which is noticed after a minute.
    let killed = id(second);
    replica.kill();
    sqlx::query(
        "update replicas set seen_at = seen_at - interval '61 seconds' where id = $1::uuid",
    )
    .bind(&killed)
    .execute(&mut world.db.as_system().await)
    .await
    .unwrap();
    let [first, second] = &list().await[..] else {
        panic!("two replicas")
    };
    assert_eq!(first["silent"], false);
    assert_eq!(second["silent"], true);
    // Stopped, it takes itself off the list.
    let third = world.replica().await;
    eventually(async || list().await.len() == 3).await;
    third.app.stop().await;
    eventually(async || list().await.len() == 2).await;
    world
        .user("alice", &[])
        .await
        .get(REPLICAS)
        .await
        .expect(403);
}
