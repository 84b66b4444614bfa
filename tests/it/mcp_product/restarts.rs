//! Published servers that are killed while a chat calls their tool. What they executed is in a file of lines, and says
//! whether something ran twice, or ran although the chat was told that nothing was sent.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::Path,
    time::Duration,
};

use axum::{Json, Router, extract::Request, http::Method};
use serde_json::{Value, json};

use crate::support::{
    client::{Client, tool_results},
    model::{call, last_user, text, text_of},
    servers::{Server, fastmcp, fastmcp_2, free_port, gateway_of, n8n, probe_command, proxy_of},
    world::World,
};

const KINDS: [&str; 6] = [
    "proxy",
    "gateway",
    "fastmcp",
    "fastmcp-sse",
    "fastmcp-2",
    "n8n",
];
const RESTARTS: usize = 3;
/// n8n-mcp wants 32 characters.
const KEY: &str = "key-0123456789-0123456789-0123456789";

/// What stands in for n8n itself, behind n8n-mcp: deleting a workflow is what its ledger counts.
async fn serve_n8n(ledger: &Path) -> String {
    let ledger = ledger.to_owned();
    let router = Router::new().fallback(move |request: Request| {
        let path = request.uri().path();
        let number = path.strip_prefix("/api/v1/workflows/").map(str::to_owned);
        let deleted = number.filter(|_| request.method() == Method::DELETE);
        if let Some(number) = &deleted {
            let file = File::options().create(true).append(true).open(&ledger);
            writeln!(file.unwrap(), "note {number}").unwrap();
        }
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Json(json!({ "id": deleted, "name": "noted", "nodes": [], "connections": {}, "status": "ok" }))
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// One of the servers on a port, with its ledger; `n8n_at` is where n8n itself is.
async fn start(kind: &str, port: u16, ledger: &Path, n8n_at: &str) -> Server {
    let probe = probe_command(ledger);
    let arguments = |transport| {
        [
            ledger.to_str().unwrap().to_owned(),
            transport,
            port.to_string(),
        ]
    };
    match kind {
        "proxy" => proxy_of(Some(port), KEY, &probe).await,
        "gateway" => gateway_of(port, &probe).await,
        "fastmcp" => {
            let arguments = arguments("http".to_owned());
            fastmcp("ledger.py", &arguments.each_ref().map(String::as_str)).await
        }
        "fastmcp-2" => {
            let arguments = arguments("http".to_owned());
            fastmcp_2("ledger.py", &arguments.each_ref().map(String::as_str)).await
        }
        "n8n" => n8n(port, KEY, n8n_at).await,
        _ => {
            let arguments = arguments("sse".to_owned());
            fastmcp("ledger.py", &arguments.each_ref().map(String::as_str)).await
        }
    }
}

/// Calls the tool in a turn of the chat; how the call ended.
async fn note(user: &Client, chat: &str, kind: &str, number: usize) -> Value {
    user.say_and_wait(chat, &format!("note {kind} {number}"))
        .await;
    let mut results = tool_results(user, chat).await;
    results
        .pop()
        .unwrap_or_else(|| panic!("{kind} {number}: no call"))
}

/// Lets a chat use a server that is killed in the middle of calls, and finds it again each time.
async fn outlive_restarts(
    user: &Client,
    kind: &str,
    port: u16,
    ledger: &Path,
    n8n_at: &str,
    first: Server,
) -> HashMap<usize, String> {
    let (mut server, mut told, mut number) = (Some(first), HashMap::new(), 0);
    let mut remember = |number, result: &Value| {
        let status = result["status"].as_str().unwrap().to_owned();
        let is_unsent = result.to_string().contains("nothing was sent");
        let told_of = if is_unsent {
            "not sent".to_owned()
        } else {
            status
        };
        told.insert(number, told_of.clone());
        told_of == "succeeded"
    };
    for _ in 0..=RESTARTS {
        // A conversation of its own for each, since one page of messages is read.
        let chat = user.open("restarts").await;
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            number += 1;
            if remember(number, &note(user, &chat, kind, number).await) {
                break;
            }
            assert!(
                tokio::time::Instant::now() < until,
                "{kind} is not found again"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        number += 1;
        let killed = async {
            tokio::time::sleep(Duration::from_millis(
                20 + 20 * u64::try_from(number % 5).unwrap(),
            ))
            .await;
            drop(server.take());
            start(kind, port, ledger, n8n_at).await
        };
        let (result, again) = tokio::join!(note(user, &chat, kind, number), killed);
        remember(number, &result);
        server = Some(again);
    }
    told
}

#[tokio::test]
async fn servers_that_are_killed_in_the_middle_of_chats_are_found_again_and_execute_nothing_twice()
{
    let folder = tempfile::tempdir().unwrap();
    let (mut lanes, mut entries) = (Vec::new(), String::new());
    let n8n_at = serve_n8n(&folder.path().join("n8n")).await;
    for kind in KINDS {
        let (port, ledger) = (free_port(), folder.path().join(kind));
        let server = start(kind, port, &ledger, &n8n_at).await;
        let transport = if kind == "fastmcp-sse" {
            "sse"
        } else {
            "streamable-http"
        };
        let path = if kind == "fastmcp-sse" { "sse" } else { "mcp" };
        entries += &format!(
            "    - {{ name: {kind}, transport: {transport}, url: \"http://127.0.0.1:{port}/{path}\", \
             headers: {{ X-API-Key: {KEY}, Authorization: Bearer {KEY} }}, toolAccess: {{ default: public }} }}\n"
        );
        lanes.push((kind, port, ledger, server));
    }
    let pack = format!(
        "metadata: {{ id: restarts, displayName: R, description: R, defaultLanguage: en }}\n\
         languages: {{ en: {{ systemPrompt: Hi }} }}\n\
         llm: {{ provider: openai, model: scripted, baseUrl: \"${{MODEL_URL}}\", apiKey: model-key-0123456789 }}\n\
         flows: {{ authentication: {{ required: true }} }}\nmcp:\n  servers:\n{entries}"
    );
    let world = World::with(|setup| setup.packs = vec![("restarts".to_owned(), pack)]).await;
    world.model.on(|request| {
        let last = request["messages"].as_array()?.last()?.clone();
        if last["role"] == "tool" {
            return Some(text(format!("It came to: {}", text_of(&last))));
        }
        let asked = last_user(request);
        let (kind, number) = asked.strip_prefix("note ")?.split_once(' ')?;
        let (tool, arguments) = match kind {
            "n8n" => ("n8n_delete_workflow", json!({ "id": number })),
            _ => ("note", json!({ "n": number.parse::<usize>().ok()? })),
        };
        Some(text("").and_call(call(&format!("{kind}__{tool}"), arguments.to_string())))
    });
    let servers: Vec<_> = KINDS.iter().map(|kind| (*kind, "ready")).collect();
    let all = lanes.into_iter().map(async |(kind, port, ledger, server)| {
        let user = world.user(kind, &[]).await;
        crate::support::many::connections_of(&user, "restarts", &servers).await;
        let told = outlive_restarts(&user, kind, port, &ledger, &n8n_at, server).await;
        let executed = fs::read_to_string(&ledger).unwrap();
        for (number, status) in &told {
            let line = format!("note {number}");
            let times = executed
                .lines()
                .filter(|executed| *executed == line)
                .count();
            let fits = match status.as_str() {
                "succeeded" => times == 1,
                "not sent" => times == 0,
                _ => times <= 1,
            };
            assert!(
                fits,
                "{kind}: call {number} {status}, executed {times} times\n{told:?}\n{executed}"
            );
        }
        let succeeded = told
            .values()
            .filter(|status| *status == "succeeded")
            .count();
        assert!(succeeded > RESTARTS, "{kind}: {told:?}");
    });
    futures_util::future::join_all(all).await;
}
