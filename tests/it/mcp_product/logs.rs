//! What a server makes the program write into its log: little, cut, and under the server's name.

use serde_json::json;

use crate::{
    mcp_transports::sockets::{Say, Sockets},
    support::{
        program::Program,
        scripted::{Scripted, Seen, event, events},
        servers::{folder, until, venv},
        world::World,
    },
};

const NOISE: &str = "not a message \u{1b}[31m";

#[tokio::test]
async fn log_lines_about_servers_are_few_and_name_them() {
    let talker = Scripted::legacy(|seen: Seen| async move {
        (seen.method() == "GET").then(|| {
            let lines = (0..5000).map(|number| {
                let params =
                    json!({"level": "emergency", "data": format!("TALK {number} {NOISE}")});
                Ok(event(
                    &json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}),
                ))
            });
            let broken = Err(std::io::Error::other("cut"));
            events(futures_util::stream::iter(lines.chain([broken])))
        })
    })
    .await;
    let socket = Sockets::start(|message, _| {
        (message["method"] == "notifications/initialized").then(|| Say::Raw(NOISE.into()))
    })
    .await;
    let pack = format!(
        "metadata: {{ id: loud, displayName: L, description: L, defaultLanguage: en }}\n\
         languages: {{ en: {{ systemPrompt: Hi }} }}\nllm: {{ provider: none }}\n\
         flows: {{ authentication: {{ required: false }} }}\nmcp:\n  servers:\n    \
         - {{ name: talker, transport: streamable-http, url: \"{}\", toolAccess: {{ default: public }} }}\n    \
         - {{ name: socket, transport: websocket, url: \"{}\", toolAccess: {{ default: public }} }}\n    \
         - {{ name: noisy, transport: stdio, instances: shared, connect: start, command: {}, args: [{}, noisy], toolAccess: {{ default: public }} }}\n",
        talker.url,
        socket.url,
        venv("python").display(),
        folder().join("probe.py").display(),
    );
    let world = World::with(|setup| setup.packs = vec![("loud".to_owned(), pack)]).await;
    let world = world.stop().await;
    let program = Program::serve(&world, &"5e".repeat(32), &[]).await;
    let about = |program: &Program, words: &str| -> Vec<String> {
        let said = program.said();
        let lines = said.lines().filter(|line| line.contains(words));
        lines.map(str::to_owned).collect()
    };
    for (server, words) in [
        ("noisy", "lines left out"),
        ("noisy", "no message of the protocol"),
        ("socket", "no message of the protocol"),
        ("talker", "a stream of events broke"),
    ] {
        until(|| {
            about(&program, words)
                .iter()
                .any(|line| line.contains(&format!("server={server}")))
        })
        .await;
    }
    let stderr = about(&program, "mcp::stderr");
    // Two windows of ten seconds with 8 KiB each, at most three if the machine is slow; and the lines that count the others.
    assert!((8..=30).contains(&stderr.len()), "{}", stderr.len());
    assert!(
        stderr.iter().all(|line| line.len() < 1300),
        "{stderr:.300?}"
    );
    let said = program.stop().await;
    for line in said.lines().filter(|line| line.contains("chatelaine_mcp")) {
        assert!(!line.contains("TALK"), "{line}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
        let is_about_a_server = [
            "stderr",
            "no message of the protocol",
            "a stream of events broke",
            "WebSocket",
        ];
        if is_about_a_server.iter().any(|words| line.contains(words)) {
            assert!(line.contains("server="), "{line}");
        }
    }
    assert!(
        !said.contains("rmcp::"),
        "lines of a library have no name of a server"
    );
    assert!(!said.contains("TALK"));
}
