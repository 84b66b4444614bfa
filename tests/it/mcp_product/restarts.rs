//! Published servers that are killed while a chat calls their tool. What they executed is in a file of lines, and says
//! whether something ran twice, or ran although the chat was told that nothing was sent.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::Request,
    http::{Method, StatusCode},
};
use chatelaine::app::accounts::development::DevelopmentUser;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, tool_results},
    has::Has,
    model::{call, last_user, text, text_of},
    scripted::{Scripted, Seen, json_reply, reply, text as said},
    servers::{Server, fastmcp, fastmcp_2, free_port, gateway_of, n8n, probe_command, proxy_of},
    wait::eventually,
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

/// Two instances of a server behind a proxy that sends a request again to the other one when the first dies over it. Each
/// knows its own sessions only.
#[derive(Default)]
struct Instances {
    sessions: [HashSet<String>; 2],
    opened: usize,
    /// How often each call was executed, by its argument `n`.
    ledger: HashMap<String, usize>,
}

/// What becomes of an instance that has executed a call for the first time, as the argument `then` of the call says.
const DIES: &str = "dies";
const FORGETS: &str = "forgets";
/// The connection breaks, and the instance goes on.
const BREAKS: &str = "breaks";

impl Instances {
    fn answer(&mut self, at: usize, seen: &Seen) -> Option<crate::support::scripted::Reply> {
        let lost = || {
            let error = json!({ "code": -32600, "message": "session not found" });
            let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
            Some(json_reply(StatusCode::NOT_FOUND, &body))
        };
        let session = seen.headers.get("mcp-session-id");
        match seen.method() {
            "initialize" => {
                self.opened += 1;
                let session = format!("s{}", self.opened);
                let result = json!({
                    "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                    "serverInfo": { "name": "instance", "version": "1" },
                });
                let body = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result });
                let headers = [
                    ("content-type", "application/json"),
                    ("mcp-session-id", session.as_str()),
                ];
                let answer = reply(StatusCode::OK, &headers, body.to_string());
                self.sessions[at].insert(session);
                Some(answer)
            }
            "server/discover" => Some(seen.error(StatusCode::BAD_REQUEST, -32000, "no session")),
            "GET" => Some(reply(StatusCode::METHOD_NOT_ALLOWED, &[], "")),
            "DELETE" => Some(reply(StatusCode::OK, &[], "")),
            _ if session.is_none_or(|id| !self.sessions[at].contains(id.to_str().unwrap())) => {
                lost()
            }
            "ping" => Some(seen.result(json!({}))),
            "tools/list" => {
                let tools = ["pay", "pay_much", "pay_surely"]
                    .map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }));
                let look = ["look", "look_much"].map(|name| {
                    let hints = json!({ "readOnlyHint": true });
                    json!({ "name": name, "inputSchema": { "type": "object" }, "annotations": hints })
                });
                let tools: Vec<_> = tools.into_iter().chain(look).collect();
                Some(seen.result(json!({ "tools": tools })))
            }
            "tools/call" => {
                let given = &seen.body["params"]["arguments"];
                let times = self
                    .ledger
                    .entry(given["n"].as_str().unwrap().to_owned())
                    .or_default();
                *times += 1;
                match given["then"].as_str().filter(|_| *times == 1) {
                    None => Some(seen.result(said("paid"))),
                    Some(BREAKS) => None,
                    Some(then) => {
                        self.sessions[at].clear();
                        (then == FORGETS).then(lost)?
                    }
                }
            }
            _ => Some(reply(StatusCode::ACCEPTED, &[], "")),
        }
    }

    fn proxy(&mut self, seen: &Seen) -> crate::support::scripted::Reply {
        let session = seen.headers.get("mcp-session-id");
        let is_of_second =
            session.is_some_and(|id| self.sessions[1].contains(id.to_str().unwrap()));
        let at = usize::from(is_of_second);
        let answer = self.answer(at, seen);
        answer.unwrap_or_else(|| {
            self.answer(1 - at, seen)
                .expect("it dies the first time only")
        })
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "every door in turn")]
async fn what_may_have_been_read_before_the_session_was_lost_is_executed_once_at_every_door() {
    let instances = Arc::new(Mutex::new(Instances::default()));
    let behind = instances.clone();
    let server = Scripted::start(move |seen: Seen| {
        let behind = behind.clone();
        async move { behind.lock().unwrap().proxy(&seen) }
    })
    .await;
    let pack = format!(
        "metadata: {{ id: mesh, displayName: M, description: M, defaultLanguage: en }}\n\
         languages: {{ en: {{ systemPrompt: Hi }} }}\n\
         llm: {{ provider: none }}\n\
         flows: {{ authentication: {{ required: true, rolesAttribute: roles }} }}\n\
         mcp:\n  servers:\n    - {{ name: mesh, transport: streamable-http, url: \"{}\", toolAccess: {{ default: public, \
         approval: [{{ tools: [pay_much, look_much], approvers: [boss] }}], confirm: [{{ tools: [pay_surely] }}] }} }}\n",
        server.url
    );
    let world = World::with(|setup| setup.packs = vec![("mesh".to_owned(), pack)]).await;
    let mut person = DevelopmentUser::default();
    (person.user, person.locale) = ("ana".to_owned(), Some("es".to_owned()));
    let (ana, boss) = (
        world.someone(&person).await,
        world.user("bob", &["boss"]).await,
    );
    crate::support::many::connections_of(&ana, "mesh", &[("mesh", "ready")]).await;
    let executed = |n: &str| {
        instances
            .lock()
            .unwrap()
            .ledger
            .get(n)
            .copied()
            .unwrap_or_default()
    };
    let is_told = |said: &str| {
        assert!(
            said.contains(
                "resultado desconocido: el servidor no conocía la sesión; vuelve a pedirlo si"
            ),
            "{said}"
        );
    };
    let typed = async |tool: &str, n: &str, then: Option<&str>| {
        // A conversation of its own for each, since one page of messages is read.
        let chat = ana.open("mesh").await;
        let arguments = json!({ "n": n, "then": then });
        ana.say_and_wait(&chat, &format!("/call mesh {tool} {arguments}"))
            .await;
        tool_results(&ana, &chat).await.pop().unwrap_or_default()
    };
    let over_mcp = async |n: &str, then: Option<&str>| {
        let params = json!({ "name": "mesh__pay", "arguments": { "n": n, "then": then } });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = ana
            .request(Method::POST, "/mcp/mesh")
            .header("mcp-protocol-version", "2025-11-25")
            .json(&body);
        ana.send(request).await.expect(200)["result"].clone()
    };
    let consented = async |tool: &str, n: &str, then: Option<&str>, wanted: &str| {
        typed(tool, n, then).await;
        let mine = ana
            .get("/v1/approvals?role=requester&limit=1")
            .await
            .expect(200);
        let request = &mine["items"][0];
        let path = format!("/v1/approvals/{}", request["id"].as_str().unwrap());
        let decision = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
        let decider = if tool == "pay_surely" { &ana } else { &boss };
        decider
            .post(&format!("{path}/decision"), decision)
            .await
            .expect(200);
        let mut view = Value::Null;
        eventually(async || {
            view = ana.get(&path).await.expect(200);
            view["state"] != "approved" && view["state"] != "executing"
        })
        .await;
        view.has(json!({ "state": wanted }));
        view
    };
    // The next call is made in a new session at once.
    let goes_on = async |n: String| {
        let n = format!("{n} next");
        typed("pay", &n, None)
            .await
            .has(json!({ "status": "succeeded" }));
        assert_eq!(executed(&n), 1, "{n}");
    };
    for then in [DIES, FORGETS, BREAKS] {
        let n = |door: &str| format!("{door} {then}");
        let result = typed("pay", &n("typed"), Some(then)).await;
        result.has(json!({ "status": "outcome_unknown" }));
        is_told(result["text"].as_str().unwrap());
        goes_on(n("typed")).await;
        let result = over_mcp(&n("mcp"), Some(then)).await;
        assert_eq!(result["isError"], true, "{result}");
        is_told(result["content"][0]["text"].as_str().unwrap());
        goes_on(n("mcp")).await;
        for tool in ["pay_much", "pay_surely", "look_much"] {
            let view = consented(tool, &n(tool), Some(then), "outcome_unknown").await;
            is_told(view["reason"].as_str().unwrap());
            assert_eq!(executed(&n(tool)), 1, "{tool}, {then}");
            goes_on(n(tool)).await;
        }
        assert_eq!(
            ["typed", "mcp"].map(|door| executed(&n(door))),
            [1, 1],
            "{then}"
        );
        // What its server calls harmless is made once more in a new session.
        typed("look", &n("look"), Some(then))
            .await
            .has(json!({ "status": "succeeded" }));
        assert_eq!(executed(&n("look")), 2, "{then}");
    }
    // A restart between calls costs nothing, since an idle session is asked first.
    let forget = || {
        for sessions in &mut instances.lock().unwrap().sessions {
            sessions.clear();
        }
    };
    for door in ["typed", "mcp", "consented"] {
        forget();
        tokio::time::sleep(Duration::from_millis(2100)).await;
        match door {
            "typed" => {
                typed("pay", door, None)
                    .await
                    .has(json!({ "status": "succeeded" }));
            }
            "mcp" => assert_ne!(over_mcp(door, None).await["isError"], true),
            _ => {
                consented("pay_much", door, None, "succeeded").await;
            }
        }
        assert_eq!(executed(door), 1, "{door}");
    }
}
