//! What the OpenAPI document promises, tried by `schemathesis` with what the document itself describes.
//! `make fuzz-api` is the same with more requests.

use tokio::process::Command;

use crate::support::{model::text, servers::venv, world::World};

/// Always the same, since nobody could find again what another seed found. `CHATELAINE_SEED` is another one.
const SEED: u64 = 4;

#[tokio::test]
async fn the_api_answers_as_its_document_says() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Yes.")));
    world.tools_ready().await;
    let (user, admin) = (world.user("ann", &["finance"]).await, world.admin().await);
    // The script says what to do when the program is missing; this says it in the words of the other tests.
    venv("st");
    let tried = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/fuzz-api"))
        .args([&world.url, user.token(), admin.token()])
        .env("EXAMPLES", "2")
        .env("PHASES", "fuzzing")
        .env("SEED", crate::support::seed::of_run(SEED).to_string())
        .kill_on_drop(true)
        .output();
    let tried = tried.await.unwrap();
    let said = String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.success(), "{said}");
}
