//! Clients in Python, the official one and libraries, unchanged: only the address and the key are ours.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{
    client::Client,
    model::{calls, error, results, text},
    world::World,
};

/// What `tests/servers/install.sh` installs, as `make test` does.
const PYTHON: &str = "tests/servers/.venv/bin/python";
/// The same for `LlamaIndex`, which wants an older `openai`.
pub(super) const LLAMA_INDEX: &str = "tests/servers/.venv-llama-index/bin/python";

/// Runs a program as somebody; what it prints, as JSON.
pub(super) async fn run(python: &str, program: &str, world: &World, client: &Client) -> Value {
    assert!(
        Path::new(python).exists(),
        "the clients in Python are not installed; run tests/servers/install.sh"
    );
    let program = Command::new(python)
        .args([program, &format!("{}/v1", world.url)])
        .env("OPENAI_API_KEY", client.token())
        .kill_on_drop(true)
        .output();
    let output = program.await.unwrap();
    let (out, trouble) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{trouble}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[tokio::test]
async fn the_official_python_client_works_unchanged() {
    let world = World::shared().await;
    world.tools_ready().await;
    let rate = calls([(
        "bank__get_exchange_rate",
        json!({ "from": "EUR", "to": "USD" }),
    )]);
    world.model.reply(text("You have 5 euros.").usage(11, 7));
    world
        .model
        .reply(rate)
        .reply(text("A euro is 1.08 dollars.").usage(5, 3));
    world.model.reply(text("Asynchronously."));
    world
        .model
        .reply(text("Again 5 euros.").usage(11, 7))
        .reply(text("No more."))
        .reply(text("Still 5 euros."));
    world
        .model
        .reply(error(400, "on holiday"))
        .reply(error(400, "on holiday"))
        .reply(error(400, "on holiday"));
    let ann = world.user("ann", &["employee"]).await;
    let mut seen = run(PYTHON, "tests/it/openai/client.py", &world, &ann).await;
    let expected = json!({
        "models": ["bank", "office"],
        "model": "bank",
        "whole": { "content": "You have 5 euros.", "finish": "stop", "tokens": 18 },
        "streamed": { "content": "A euro is 1.08 dollars.", "finish": "stop", "tokens": [8], "pieces": true },
        "async": "Asynchronously.",
        "responses": ["Again 5 euros.", 18, "No more.", "No more.", "completed"],
        "conversations": {
            "shape": ["conversation", "int", {}],
            "items": [["user", "input_text", "How much?"], ["assistant", "output_text", "Still 5 euros."]],
            "one": "Still 5 euros.",
            "new": ["APIStatusError", 405, "method_not_allowed", null],
            "deleted": ["APIStatusError", 405, "method_not_allowed", null],
            "gone": ["NotFoundError", 404, "not_found", null],
            "removed": true,
        },
        "no such model": ["NotFoundError", 404, "model_not_found", "model"],
        "wrong key": ["AuthenticationError", 401, "invalid_api_key", null],
        "forced tools": ["BadRequestError", 400, "unsupported", "tool_choice"],
        "failed run": ["InternalServerError", 502, "run_failed", null],
        "failed response": ["InternalServerError", 502, "run_failed", null],
        "failed stream": ["APIError", null, "run_failed", null],
    });
    // Usage of a turn is that of all its steps; of the first only the model knows.
    let tokens = seen["streamed"]["tokens"][0].as_i64().unwrap();
    assert!(tokens >= 8, "{tokens}");
    seen["streamed"]["tokens"] = json!([8]);
    assert_eq!(seen, expected);
    assert_eq!(
        world.model.requests().len(),
        10,
        "the client did not try a failed run again"
    );
}

#[tokio::test]
async fn langchain_and_llm_work_unchanged() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.").usage(11, 7)));
    let ann = world.user("ann", &[]).await;
    let seen = run(PYTHON, "tests/it/openai/libraries.py", &world, &ann).await;
    let expected = json!({
        "invoke": ["Fine.", 18],
        "continued": "Fine.",
        "stream": "Fine.",
        "batch": ["Fine.", "Fine."],
        "responses": "Fine.",
        "responses streamed": "Fine.",
        "no such model": ["NotFoundError", "model_not_found"],
        "llm": ["Fine.", "Fine."],
    });
    assert_eq!(seen, expected);
    // What was continued is one conversation.
    let conversations = ann.get("/v1/conversations").await.expect(200);
    assert_eq!(conversations["items"].as_array().unwrap().len(), 7);
}

#[tokio::test]
async fn llama_index_works_unchanged() {
    let world = World::shared().await;
    world.tools_ready().await;
    let rate = || {
        let arguments = json!({ "from": "EUR", "to": "USD" });
        calls([("bank__get_exchange_rate", arguments)])
    };
    world
        .model
        .reply(text("You have 5 euros.").usage(11, 7))
        .reply(text("Still 5 euros."))
        .reply(rate())
        .reply(text("A euro is 1.08 dollars."))
        .reply(rate())
        .reply(text("It still is 1.08 dollars."))
        .reply(text("I cannot see the weather."))
        .reply(text("Again."));
    let ann = world.user("ann", &["employee"]).await;
    let seen = run(LLAMA_INDEX, "tests/it/openai/llama.py", &world, &ann).await;
    let expected = json!({
        "chat": ["You have 5 euros.", 18],
        "streamed": ["Still 5 euros.", true],
        "tool": "A euro is 1.08 dollars.",
        "tool streamed": ["It still is 1.08 dollars.", true],
        "own tools": ["I cannot see the weather.", []],
        "async": "Again.",
        "no such model": ["NotFoundError", "model_not_found"],
    });
    assert_eq!(seen, expected);
    let requests = world.model.requests();
    assert_eq!(requests.len(), 8, "each turn with a tool has two steps");
    for after_a_call in [&requests[3], &requests[5]] {
        assert_eq!(results(&after_a_call.body).len(), 1, "the tool was called");
    }
}
