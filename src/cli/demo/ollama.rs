//! Ollama at its usual address, for a demo that is told of no model.

use std::time::Duration;

use serde_json::{Value, json};

/// The usual address of Ollama.
pub const ADDRESS: &str = "http://127.0.0.1:11434";
/// How long the search may take. Ollama is on this machine, so it answers at once or not at all.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(800);
/// The number of models that are asked what they can do.
const MOST_ASKED: usize = 16;

/// Finds the first model that says it has tools; if a name is given, the model of that name.
pub async fn find_model(address: &str, named: Option<&str>) -> Option<String> {
    let search = search(address, named);
    tokio::time::timeout(SEARCH_TIMEOUT, search)
        .await
        .ok()
        .flatten()
}

async fn search(address: &str, named: Option<&str>) -> Option<String> {
    // The first client of the program: nothing has chosen the cryptography yet.
    egress::install_crypto();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .ok()?;
    let tags = client
        .get(format!("{address}/api/tags"))
        .send()
        .await
        .ok()?;
    let tags: Value = tags.json().await.ok()?;
    let models = tags["models"]
        .as_array()?
        .iter()
        .filter_map(|model| model["name"].as_str());
    let is_named = |model: &&str| {
        named.is_none_or(|named| *model == named || model.split(':').next() == Some(named))
    };
    for model in models.filter(is_named).take(MOST_ASKED) {
        let request = client.post(format!("{address}/api/show"));
        let about = request.json(&json!({ "model": model })).send().await.ok()?;
        let about: Value = about.json().await.ok()?;
        let mut can = about["capabilities"].as_array().into_iter().flatten();
        if can.any(|capability| capability == "tools") {
            return Some(model.to_owned());
        }
    }
    None
}
