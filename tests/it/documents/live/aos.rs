//! An AOS project.

use serde_json::{Value, json};

use super::{header, probe, said, server, variables};
use crate::{
    mcp_product::write_agent,
    support::{many::connections_of, world::World},
};

#[tokio::test]
async fn a_skill_is_one_call_with_a_bearer_token_and_no_model_whoever_asks_for_it() {
    let search = server(&["web_search", "web_fetch"]).await;
    let registry = format!(
        "schema: aos/mcp/v1\nid: web\nservers:\n  - {{ id: search, transport: http, url: \"{}\", auth_ref: SEARCH_TOKEN, tool_allowlist: [web_search] }}\n",
        search.url
    );
    let skill =
        "id: web-search\nname: web-search\nmcp_binding: { server: search, tools: [web_search] }\n";
    let world = World::with(|setup| {
        let files = [
            ("core/mcp/team/web.yaml", registry.as_str()),
            ("core/skills/web-search/skill.yaml", skill),
        ];
        write_agent(setup, "aos", &files);
        setup.env = setup.env.clone().with("SEARCH_TOKEN", "s3arch-0123456789");
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("search", "ready")]).await;

    let wanted = r#"{"input":"rust"}"#;
    assert_eq!(said(&ann, "aos", "/web-search rust").await, wanted);
    let body = json!({ "arguments": { "input": "rust" } });
    let ran = ann.post("/v1/agents/aos/skills/web-search", body).await;
    assert_eq!(ran.expect(200)["text"], wanted);
    for (method, kind, state) in [
        (
            "SendMessage",
            json!({ "role": "ROLE_USER", "parts": [{ "text": "rust" }] }),
            "TASK_STATE_COMPLETED",
        ),
        (
            "message/send",
            json!({ "kind": "message", "role": "user", "parts": [{ "kind": "text", "text": "rust" }] }),
            "completed",
        ),
    ] {
        let mut message = kind;
        message["messageId"] = method.into();
        let params = json!({
            "message": message, "metadata": { "skillId": "web-search" }, "configuration": { "blocking": true },
        });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = ann.post("/a2a/aos", request).await.expect(200);
        // The newer version wraps the task.
        let task = [&answer["result"]["task"], &answer["result"]];
        let task = task.into_iter().find(|task| task["status"].is_object());
        let task = task.unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(task["status"]["state"], state);
        assert_eq!(task["artifacts"][0]["parts"][0]["text"], wanted, "{task}");
    }

    assert!(world.model.requests().is_empty());
    let called = search.requests("tools/call");
    assert_eq!(called.len(), 4);
    for call in &called {
        assert_eq!(call.body["params"]["name"], "web_search");
        assert_eq!(call.body["params"]["arguments"], json!({ "input": "rust" }));
        assert_eq!(
            header(call, "authorization"),
            Some("Bearer s3arch-0123456789")
        );
    }
}

#[tokio::test]
async fn a_child_gets_its_arguments_without_a_shell_and_its_own_variables_alone() {
    let (python, script) = probe();
    let args: Value = json!([script, "; exit 1", "$(exit 1)"]);
    let files = format!(
        "id: files\ntransport: stdio\ncommand: {python}\nargs: {args}\nenv: {{ API_TOKEN: \"${{MY_TOKEN}}\", PLAIN: as-it-stands }}\n"
    );
    let world = World::with(|setup| {
        write_agent(setup, "aos", &[("core/mcp/files.yaml", &files)]);
        setup.env = setup.env.clone().with("MY_TOKEN", "my-token-0123456789");
    })
    .await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "aos", &[("files", "ready")]).await;
    let environment = said(&ann, "aos", "/call files environment").await;
    assert_eq!(
        variables(&environment),
        ["API_TOKEN", "HOME", "PATH", "PLAIN"]
    );
    assert!(environment.contains("as-it-stands"), "{environment}");
    assert!(
        !environment.contains("my-token-0123456789"),
        "{environment}"
    );
}
