use std::{collections::HashSet, fmt::Write as _};

use serde_json::{Value, json};

use crate::support::{
    model::{calls, text, tool_names},
    scripted::{Scripted, Seen},
    servers::soon,
    world::World,
};

/// A server with tools of these names, each of which says its name.
async fn server(tools: &'static [&'static str]) -> Scripted {
    Scripted::modern(move |seen: Seen| async move {
        let listed = |name: &&str| json!({"name": name, "inputSchema": {"type": "object"}});
        (seen.method() == "tools/list").then(|| {
            seen.result(
                json!({"tools": tools.iter().map(listed).collect::<Vec<_>>(), "ttlMs": 0, "cacheScope": "private"}),
            )
        })
    })
    .await
}

fn pack(servers: &[(&str, &Scripted)]) -> (String, String) {
    let mut entries = String::new();
    for (name, server) in servers {
        let url = &server.url;
        let known = format!(
            "transport: streamable-http, url: \"{url}\", toolAccess: {{ default: public }}"
        );
        writeln!(entries, "    - {{ name: {name}, {known} }}").unwrap();
    }
    let yaml = format!(
        "metadata: {{ id: odd, displayName: Odd, description: Names, defaultLanguage: en }}\n\
         languages: {{ en: {{ systemPrompt: Odd }} }}\n\
         llm: {{ provider: openai, model: scripted, baseUrl: \"${{MODEL_URL}}\", apiKey: model-key-0123456789 }}\n\
         flows: {{ authentication: {{ required: false }} }}\n\
         mcp:\n  servers:\n{entries}"
    );
    ("odd".to_owned(), yaml)
}

const LONG: &str = concat!(
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
);
const LONGER: &str = concat!(
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"
);
const FILES: &[&str] = &[
    "read.file",
    "read/file",
    "read:file",
    "read_file",
    "Read.File",
    "a__b",
    "x.",
    LONG,
    LONGER,
];
const SECOND: &[&str] = &["read.file", "read_file"];

/// `(server, tool, name)` of everything that a user may call, once all of it is known.
async fn listed(world: &World, count: usize) -> Vec<(String, String, String)> {
    let ann = world.user("ann", &[]).await;
    soon(async {
        loop {
            let answer = ann.get("/v1/agents/odd/tools").await.expect(200);
            let servers = answer["items"].as_array().unwrap().clone();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let tools: Vec<_> = servers
                .iter()
                .flat_map(|server| {
                    let tools = server["tools"].as_array().unwrap().iter();
                    tools.map(|tool| {
                        (
                            text(&server["server"]),
                            text(&tool["tool"]),
                            text(&tool["name"]),
                        )
                    })
                })
                .collect();
            if tools.len() == count {
                return tools;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test]
async fn whatever_a_server_calls_its_tools_the_model_can_call_each_of_them() {
    assert_eq!((LONG.len(), LONGER.len()), (128, 128));
    let (files, second) = (server(FILES).await, server(SECOND).await);
    let world = World::with(|setup| {
        setup
            .packs
            .push(pack(&[("files", &files), ("2nd", &second)]));
    })
    .await;
    let tools = listed(&world, FILES.len() + SECOND.len()).await;
    let names: HashSet<&str> = tools.iter().map(|(_, _, name)| name.as_str()).collect();
    assert_eq!(names.len(), tools.len(), "{tools:?}");
    let ann = world.user("ann", &[]).await;
    for (of, tool, name) in &tools {
        let speakable = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        assert!(
            name.len() <= 64 && name.bytes().all(speakable) && !name.as_bytes()[0].is_ascii_digit(),
            "{name}"
        );
        world
            .model
            .reply(calls([(name, json!({"n": 1}))]))
            .reply(text("Done."));
        assert_eq!(ann.ask("odd", "go").await, "Done.");
        let asked = if of == "files" { &files } else { &second };
        let last = asked.requests("tools/call").pop().unwrap();
        assert_eq!(last.body["params"]["name"], tool.as_str(), "{name}");
        assert_eq!(last.body["params"]["arguments"], json!({"n": 1}));
    }
    let total = files.requests("tools/call").len() + second.requests("tools/call").len();
    assert_eq!(total, tools.len(), "each was called once");
    let offered: HashSet<String> = tool_names(&world.model.requests()[0].body)
        .into_iter()
        .collect();
    assert_eq!(offered, names.into_iter().map(str::to_owned).collect());
}
