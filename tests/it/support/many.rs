//! An agent `many` with the servers that a test names.

use std::time::Duration;

use serde_json::Value;

use super::client::Client;

/// The agent with these entries.
pub fn pack(servers: &str) -> (String, String) {
    let yaml = format!(
        "metadata: {{ id: many, displayName: Many, description: Servers, defaultLanguage: en }}\n\
         languages: {{ en: {{ systemPrompt: Many }} }}\n\
         llm: {{ provider: openai, model: scripted, baseUrl: \"${{MODEL_URL}}\", apiKey: model-key-0123456789 }}\n\
         flows: {{ authentication: {{ required: false, adminUsers: [alice] }} }}\n\
         mcp:\n  servers:\n{servers}"
    );
    ("many".to_owned(), yaml)
}

/// An entry whose tools everybody may call, with `more` in it.
pub fn entry(name: &str, url: &url::Url, more: &str) -> String {
    format!(
        "    - {{ name: {name}, transport: streamable-http, url: \"{url}\", toolAccess: {{ default: public }}{more} }}\n"
    )
}

/// The connections of an agent, once every server is in this state.
pub async fn connections_of(client: &Client, agent: &str, states: &[(&str, &str)]) -> Vec<Value> {
    let known = async {
        loop {
            let servers = client
                .get(&format!("/v1/agents/{agent}/connections"))
                .await
                .expect(200)["items"]
                .as_array()
                .unwrap()
                .clone();
            let is = |(name, state): &(&str, &str)| {
                servers
                    .iter()
                    .any(|server| server["server"] == *name && server["state"] == *state)
            };
            if states.iter().all(is) {
                return servers;
            }
            // A package may take long to start, and requests are counted.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), known)
        .await
        .expect("the servers are not as they should be in time")
}
