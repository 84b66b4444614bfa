//! A frontend in TypeScript, written from the generated document, compiled in strict mode and run.

use std::path::Path;

use chatelaine::api;

use super::*;
use crate::{api::npm, support::has::Has};

#[tokio::test]
async fn a_frontend_written_from_the_document_compiles_and_works() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("openapi.json"), api::openapi().to_string()).unwrap();
    std::fs::write(at("package.json"), r#"{ "type": "module" }"#).unwrap();
    std::fs::copy("tests/it/approvals/flow.ts", at("flow.ts")).unwrap();
    let types = ["openapi.json", "-o", "api.d.ts"];
    npm(folder.path(), "openapi-typescript", &types).await;
    let strict = "--strict --target es2022 --module esnext --moduleResolution bundler flow.ts";
    let arguments: Vec<_> = strict.split(' ').collect();
    npm(folder.path(), "tsc", &arguments).await;
    let done = run(&at("flow.js"), &world, &staff).await;
    done.has(json!({ "same": true, "text": "It waits." }));
    let code = done["code"].as_str().unwrap();
    let outcome = done["outcome"].as_str().unwrap();
    assert!(
        outcome.contains(code) && outcome.contains("approved by bob and carried out"),
        "{outcome}"
    );
    let seen: Vec<_> = done["seen"].as_array().unwrap().iter().collect();
    for event in ["message", "run", "delta"] {
        assert!(seen.contains(&&json!(event)), "{event} is not in {seen:?}");
    }
    assert_eq!(done["refused"]["field"], "limit");
    let markdown = done["markdown"].as_str().unwrap();
    assert!(
        markdown.starts_with("# Rent\n") && markdown.contains("pay 10.00"),
        "{markdown}"
    );
    assert_eq!(world.bank.executions("send_money"), 1);
}

async fn run(module: &Path, world: &World, staff: &Staff) -> Value {
    let output = tokio::process::Command::new("node")
        .arg(module)
        .env("URL", &world.url)
        .env("ANN", staff.ann.token())
        .env("BOB", staff.bob.token())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    let (out, trouble) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{trouble}");
    serde_json::from_str(&out).unwrap()
}
