//! What a collector of OpenTelemetry hears of a run: one trace, whichever replica works on it and whoever decides, and
//! never what somebody said.

use domain::config::{Config, Environment};
use http::StatusCode;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

use crate::support::{
    canary::spellings,
    client::Client,
    collector::{Collector, Traced},
    model::{Gate, Reply, calls, error, text},
    offer,
    program::{self, Program},
    scripted::{Scripted, Seen, reply},
    wait::{ended, eventually},
    world::{Stopped, World},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// A span of the client's.
const SPAN: &str = "00f067aa0ba902b7";
const SAID: &str = "Zobelpelz 4711";

/// Serves what a world has left, with traces to this address.
async fn serve(stopped: &Stopped, endpoint: &str, more: &[(&str, &str)]) -> Program {
    let mut command = program::serve(&stopped.config, &stopped.db, &"5e".repeat(32));
    for name in ["MODEL_URL", "BANK_URL", "DESK_URL"] {
        command.envs(stopped.env.get(name).map(|value| (name, value)));
    }
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .envs(more.iter().copied());
    Program::start(command).await
}

/// The same person as part of a trace.
fn traced(client: &Client) -> Client {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let client = client.clone().with_header("traceparent", &parent);
    client.with_header("tracestate", "shop=t61rcWkgMzE")
}

/// An agent whose only tool is that of `server`, and who uses it.
async fn desk(server: &Scripted, access: &str) -> (Stopped, Client) {
    let world = offer::world(&server.url, access).await;
    let ann = world.user("ann@example.org", &[]).await;
    (world.stop().await, ann)
}

fn echo(words: &str) -> Reply {
    calls([("desk__echo", json!({ "text": words }))])
}

/// The span that a server was told a call belongs to: in the header, and the same in `_meta`.
fn told(call: &Seen) -> (String, String) {
    let meta = &call.body["params"]["_meta"];
    assert_eq!(
        meta["traceparent"],
        call.headers["traceparent"].to_str().unwrap()
    );
    // A free text of the client.
    assert!(meta["tracestate"].is_null() && !call.headers.contains_key("tracestate"));
    let parent = meta["traceparent"].as_str().unwrap();
    let parts: Vec<_> = parent.split('-').collect();
    assert_eq!((parts[0], parts[3]), ("00", "01"));
    (parts[1].to_owned(), parts[2].to_owned())
}

/// A chat in which a tool was called, and its spans.
struct Chat {
    stopped: Stopped,
    program: Program,
    collector: Collector,
    conversation: String,
    run: String,
    of_request: Traced,
    of_run: Traced,
    of_tool: Traced,
    of_models: Vec<Traced>,
}

impl Chat {
    async fn at(server: &Scripted) -> Self {
        let collector = Collector::start().await;
        let (stopped, ann) = desk(server, "{ default: public }").await;
        let first = echo("hi").usage(7, 5);
        stopped.model.reply(first).reply(text("Done."));
        let program = serve(&stopped, &collector.url, &[]).await;
        let ann = ann.at(&program.url);
        let conversation = ann.open("desk").await;
        let run = traced(&ann).say(&conversation, "Say it.").await;
        assert_eq!(ended(&ann, &run).await["status"], "succeeded");
        Self {
            of_run: collector.one(TRACE, "invoke_agent").await,
            of_request: collector.one(TRACE, "POST").await,
            of_tool: collector.one(TRACE, "execute_tool").await,
            of_models: collector.find(TRACE, "chat"),
            stopped,
            program,
            collector,
            conversation,
            run,
        }
    }
}

async fn one_chat_is_one_trace(server: Scripted) {
    let chat = Box::pin(Chat::at(&server)).await;
    let (request, run, tool) = (&chat.of_request, &chat.of_run, &chat.of_tool);
    assert_eq!(request.parent, SPAN);
    assert_eq!(run.parent, request.id);
    assert_eq!(tool.parent, run.id);
    assert_eq!(chat.of_models.len(), 2);
    assert!(chat.of_models.iter().all(|model| model.parent == run.id));
    let call = &server.requests("tools/call")[0];
    assert_eq!(told(call), (TRACE.to_owned(), tool.id.clone()));
    let transactions = chat.collector.find(TRACE, "transaction");
    assert!(!transactions.is_empty());
    for transaction in &transactions {
        let parents = [&request.id, &run.id, &tool.id];
        assert!(parents.contains(&&transaction.parent), "{transaction:?}");
    }
}

#[tokio::test]
async fn a_chat_with_a_call_is_one_trace_from_the_client_to_the_server() {
    one_chat_is_one_trace(Scripted::modern(async |_| None).await).await;
}

#[tokio::test]
async fn a_server_of_an_older_revision_belongs_to_the_trace_too() {
    one_chat_is_one_trace(Scripted::legacy(async |_| None).await).await;
}

#[tokio::test]
async fn spans_say_what_they_are_of_by_the_conventions() {
    let chat = Box::pin(Chat::at(&Scripted::modern(async |_| None).await)).await;
    let (request, run, tool) = (&chat.of_request, &chat.of_run, &chat.of_tool);
    let is_first = |model: &&Traced| model.get("gen_ai.usage.input_tokens") == "7";
    let model = chat.of_models.iter().find(is_first).unwrap();
    let transaction = &chat.collector.find(TRACE, "transaction")[0];
    let tenant = chat.stopped.tenant.id.to_string();
    check(
        request,
        SpanKind::Server,
        "POST /v1/conversations/{id}/messages",
        &[
            ("http.request.method", "POST"),
            ("http.route", "/v1/conversations/{id}/messages"),
            ("http.response.status_code", "202"),
            ("chatelaine.tenant", &tenant),
        ],
    );
    check(
        run,
        SpanKind::Internal,
        "invoke_agent desk",
        &[
            ("gen_ai.operation.name", "invoke_agent"),
            ("gen_ai.agent.name", "desk"),
            ("gen_ai.conversation.id", &chat.conversation),
            ("chatelaine.run", &chat.run),
            ("chatelaine.run.attempt", "1"),
            ("chatelaine.run.status", "succeeded"),
            ("chatelaine.tenant", &tenant),
            ("chatelaine.request", request.get("chatelaine.request")),
        ],
    );
    check(
        model,
        SpanKind::Client,
        "chat scripted",
        &[
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "openai"),
            ("gen_ai.request.model", "scripted"),
            ("gen_ai.usage.output_tokens", "5"),
            ("server.address", "127.0.0.1"),
        ],
    );
    check(
        tool,
        SpanKind::Client,
        "execute_tool echo",
        &[
            ("gen_ai.operation.name", "execute_tool"),
            ("mcp.method.name", "tools/call"),
            ("gen_ai.tool.name", "echo"),
            ("chatelaine.mcp.server", "desk"),
        ],
    );
    let file = transaction.get("code.file.path");
    assert!(std::path::Path::new(file).exists(), "{file}");
    check(
        transaction,
        SpanKind::Client,
        &format!("transaction {file}"),
        &[("db.system.name", "postgresql"), ("error.type", "")],
    );
}

/// A span without an error, and some of its attributes.
#[track_caller]
fn check(span: &Traced, kind: SpanKind, name: &str, attributes: &[(&str, &str)]) {
    assert_eq!((span.kind, span.name.as_str()), (kind, name));
    assert!(!span.is_error, "{span:#?}");
    for (attribute, value) in attributes {
        assert_eq!(span.get(attribute), *value, "{attribute} of {name}");
    }
}

#[tokio::test]
async fn only_what_somebody_asked_for_begins_a_trace_and_the_log_names_it() {
    let chat = Box::pin(Chat::at(&Scripted::modern(async |_| None).await)).await;
    let log = chat.program.stop().await;
    let line = log.lines().find(|line| line.contains("run ended")).unwrap();
    let (trace, span) = (&chat.of_run.trace, &chat.of_run.id);
    for words in [format!("trace_id={trace}"), format!("span_id={span}")] {
        assert!(line.contains(&words), "{words}: {line}");
    }
    // Polls and their transactions have no span.
    let spans = chat.collector.spans().into_iter();
    let begun: Vec<_> = spans.filter(|span| span.parent.is_empty()).collect();
    assert!(!begun.is_empty());
    let is_request = |span: &Traced| span.kind == SpanKind::Server;
    assert!(begun.iter().all(is_request), "{begun:#?}");
}

#[tokio::test]
async fn a_run_that_another_replica_takes_over_stays_in_its_trace() {
    let collector = Collector::start().await;
    let (stopped, ann) = {
        let world = World::start().await;
        let ann = world.user("ann", &["employee"]).await;
        (world.stop().await, ann)
    };
    let gate = Gate::new();
    let model = &stopped.model;
    model.reply(calls([("bank__get_balances", json!({}))]));
    model
        .reply(text("never heard").gate(0, &gate))
        .reply(text("Done."));
    let lease = [("CHATELAINE_RUN_LEASE_SECONDS", "1")];
    let doomed = serve(&stopped, &collector.url, &lease).await;
    let there = ann.at(&doomed.url);
    let conversation = there.open("bank").await;
    let run = traced(&there).say(&conversation, "What do I have?").await;
    gate.reached().await;
    let request = collector.one(TRACE, "POST").await;
    let tool = collector.one(TRACE, "execute_tool").await;
    drop(doomed);
    let program = serve(&stopped, &collector.url, &lease).await;
    assert_eq!(
        ended(&ann.at(&program.url), &run).await["status"],
        "succeeded"
    );
    let again = collector.one(TRACE, "invoke_agent").await;
    assert_eq!(again.get("chatelaine.run.attempt"), "2");
    assert_eq!(again.parent, request.id);
    assert_eq!(tool.instance, request.instance);
    assert_ne!(again.instance, request.instance);
    let models = collector.find(TRACE, "chat").into_iter();
    let here: Vec<_> = models
        .filter(|model| model.instance == again.instance)
        .collect();
    assert_eq!(here.len(), 1, "{here:#?}");
    assert_eq!(here[0].parent, again.id);
}

#[tokio::test]
async fn consent_and_what_follows_from_it_are_in_the_trace_of_the_call() {
    let collector = Collector::start().await;
    let server = Scripted::modern(async |_| None).await;
    let access = "{ default: public, approval: [{ tools: [echo], approvers: [boss] }] }";
    let world = offer::world(&server.url, access).await;
    let (ann, bob) = (
        world.user("ann", &[]).await,
        world.user("bob", &["boss"]).await,
    );
    let stopped = world.stop().await;
    for reply in [echo("one"), text("It waits."), text("It was done.")] {
        stopped.model.reply(reply);
    }
    let program = serve(&stopped, &collector.url, &[]).await;
    let (ann, bob) = (ann.at(&program.url), bob.at(&program.url));
    let conversation = ann.open("desk").await;
    let run = traced(&ann).say(&conversation, "Say it.").await;
    ended(&ann, &run).await;
    let asking = collector.one(TRACE, "invoke_agent").await;
    decide(&bob, "approve").await;
    let wait = collector.one(TRACE, "approval wait").await;
    let call = collector.one(TRACE, "approved call").await;
    let tool = collector.one(TRACE, "execute_tool").await;
    eventually(async || collector.find(TRACE, "invoke_agent").len() == 2).await;
    assert_eq!((&wait.parent, &call.parent), (&asking.id, &asking.id));
    assert_eq!(tool.parent, call.id);
    assert_eq!(wait.get("chatelaine.approval.state"), "approved");
    assert_eq!(
        wait.get("chatelaine.approval"),
        call.get("chatelaine.approval")
    );
    assert_eq!(told(&server.requests("tools/call")[0]).1, tool.id);
    let follow_up = collector.find(TRACE, "invoke_agent").into_iter();
    assert!(
        follow_up
            .clone()
            .any(|run| run.id != asking.id && run.parent == asking.id)
    );
    // The decision is a request of its own, and each leads to the other.
    let decision = collector
        .spans()
        .into_iter()
        .find(|span| span.name.ends_with("/decision"));
    let decision = decision.unwrap();
    assert_ne!(decision.trace, TRACE);
    assert_eq!(wait.links, [(decision.trace, decision.id)]);
    assert_eq!(decision.links, [(TRACE.to_owned(), wait.id)]);

    // A wait that ends with a refusal.
    stopped
        .model
        .reply(echo("two"))
        .reply(text("It waits."))
        .reply(text("No."));
    let run = traced(&ann).say(&conversation, "Say it again.").await;
    ended(&ann, &run).await;
    decide(&bob, "reject").await;
    let states = || {
        let waits = collector.find(TRACE, "approval wait").into_iter();
        waits
            .map(|wait| wait.get("chatelaine.approval.state").to_owned())
            .collect::<Vec<_>>()
    };
    eventually(async || states().len() == 2).await;
    assert_eq!(states(), ["approved", "rejected"]);
}

/// Decides about what waits.
async fn decide(approver: &Client, decision: &str) {
    let waiting = approver
        .get("/v1/approvals?state=pending")
        .await
        .expect(200);
    let (id, hash) = (
        &waiting["items"][0]["id"],
        &waiting["items"][0]["args_sha256"],
    );
    let path = format!("/v1/approvals/{}/decision", id.as_str().unwrap());
    let decision = json!({ "decision": decision, "args_sha256": hash });
    approver.post(&path, decision).await.expect(200);
}

#[tokio::test]
async fn nothing_that_anybody_said_or_keeps_secret_is_exported() {
    let collector = Collector::start().await;
    let server = Scripted::modern(async |seen| {
        let is_call = seen.method() == "tools/call";
        let fails = seen.raw.contains("please fail");
        (is_call && fails).then(|| reply(StatusCode::BAD_GATEWAY, &[], SAID))
    })
    .await;
    let (stopped, ann) = desk(&server, "{ default: public }").await;
    let model = &stopped.model;
    model
        .reply(echo(SAID))
        .reply(echo(&format!("please fail {SAID}")));
    model.reply(text(SAID)).reply(error(400, SAID));
    let program = serve(&stopped, &collector.url, &[("CHATELAINE_LOG", "trace")]).await;
    let ann = traced(&ann.at(&program.url));
    let conversation = ann.open("desk").await;
    for status in ["succeeded", "failed"] {
        let run = ann.say(&conversation, &format!("What of {SAID}?")).await;
        assert_eq!(ended(&ann, &run).await["status"], status);
    }
    ann.get(&format!(
        "/v1/conversations?search={}",
        SAID.replace(' ', "%20")
    ))
    .await
    .expect(200);
    eventually(async || collector.find(TRACE, "invoke_agent").len() == 2).await;
    eventually(async || collector.find(TRACE, "GET /v1/conversations").len() == 1).await;
    // Errors are known by a word of the program.
    let failed: Vec<_> = collector
        .spans()
        .into_iter()
        .filter(|span| span.is_error)
        .collect();
    let codes = |name: &str| -> Vec<(String, String)> {
        let found = failed.iter().filter(|span| span.name.starts_with(name));
        let code = |span: &Traced| {
            (
                span.get("error.type").to_owned(),
                span.get("http.response.status_code").to_owned(),
            )
        };
        found.map(code).collect()
    };
    assert_eq!(
        codes("execute_tool"),
        [("outcome_unknown".to_owned(), "502".to_owned())]
    );
    assert_eq!(
        codes("chat"),
        [("bad_request".to_owned(), "400".to_owned())]
    );
    assert_eq!(codes("invoke_agent").len(), 1);
    let bytes = collector.bytes();
    let secrets = [SAID, "model-key-0123456789", "ann@example.org", ann.token()];
    for spelling in secrets.iter().flat_map(|secret| spellings(secret)) {
        let found = bytes
            .windows(spelling.len())
            .any(|part| part == spelling.as_bytes());
        assert!(!found, "{spelling} was exported");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nothing_but_its_spans() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (away, silent) = (
        "http://127.0.0.1:1".to_owned(),
        format!("http://{}", taken.local_addr().unwrap()),
    );
    for (endpoint, code) in [(away, "unreachable"), (silent, "timed_out")] {
        let world = World::start().await;
        let ann = world.user("ann", &[]).await;
        let stopped = world.stop().await;
        let timeout = [("OTEL_EXPORTER_OTLP_TIMEOUT", "300")];
        let program = serve(&stopped, &endpoint, &timeout).await;
        let ann = ann.at(&program.url);
        eventually(async || {
            stopped.model.reply(text("Hello."));
            assert_eq!(ann.ask("bank", "hi").await, "Hello.");
            program.said().contains("takes no traces")
        })
        .await;
        let log = program.stop().await;
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("takes no traces"))
            .collect();
        assert_eq!(lines.len(), 1, "it is said once: {log}");
        let code = format!("code=\"{code}\"");
        assert!(
            lines[0].contains(&code) && lines[0].contains("127.0.0.1"),
            "{}",
            lines[0]
        );
    }
}

#[tokio::test]
async fn the_process_ends_although_its_collector_never_answers() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let timeout = [("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")];
    let endpoint = format!("http://{}", taken.local_addr().unwrap());
    let program = serve(&stopped, &endpoint, &timeout).await;
    stopped.model.reply(text("Hello."));
    assert_eq!(ann.at(&program.url).ask("bank", "hi").await, "Hello.");
    taken.accept().await.unwrap();
    // It waits an hour for the collector, and `stop` does not.
    program.stop().await;
}

#[tokio::test]
async fn the_standard_variables_say_where_traces_go_and_which_are_kept() {
    let collector = Collector::start().await;
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let whole = format!("{}/otlp/spans", collector.url);
    let settings = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", whole.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b,other=1"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let program = serve(&stopped, "http://127.0.0.1:1", &settings).await;
    let ann = ann.at(&program.url);
    let me = async |client: &Client| client.get("/v1/me").await.expect(200);
    me(&ann).await;
    let bad = format!("00-0AF7651916CD43DD8448EB211C80319C-{SPAN}-01");
    me(&ann.clone().with_header("traceparent", &bad)).await;
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    me(&ann.clone().with_header("traceparent", &unsampled)).await;
    me(&traced(&ann)).await;
    collector.one(TRACE, "GET /v1/me").await;
    program.stop().await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let requests = collector.requests().into_iter().collect::<Vec<_>>();
    assert_eq!(requests, [("/otlp/spans".to_owned(), "a b".to_owned())]);
}

#[tokio::test]
async fn without_traces_the_log_names_that_of_the_client() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let disabled = [("OTEL_SDK_DISABLED", "true")];
    let program = serve(&stopped, "http://127.0.0.1:1", &disabled).await;
    traced(&ann.at(&program.url))
        .get("/v1/me")
        .await
        .expect(200);
    let log = program.stop().await;
    let line = log.lines().find(|line| line.contains("/v1/me")).unwrap();
    assert!(line.contains(&format!("trace_id=\"{TRACE}\"")), "{line}");
    assert!(!log.contains("takes no traces"), "{log}");
}

#[test]
fn the_page_for_operators_has_every_span_and_attribute() {
    let page = std::fs::read_to_string("docs/operators.md").unwrap();
    for convention in telemetry::CONVENTIONS {
        let begin = format!("| `{}` |", convention.name);
        let row = page.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("{begin} is not on the page"));
        let attributes = row.rsplit(" | ").next().unwrap().trim_end_matches(" |");
        let all = convention.always.iter().map(|(name, _)| name);
        let all = all.chain(convention.fields.iter().map(|(_, name)| name));
        let quoted: Vec<_> = all.map(|name| format!("`{name}`")).collect();
        let mut wanted: Vec<_> = quoted.iter().map(String::as_str).collect();
        let mut listed: Vec<_> = attributes.split(", ").collect();
        wanted.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, wanted, "{begin}");
    }
}

#[test]
fn settings_that_nobody_would_get_traces_with_are_refused() {
    let refusals = [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "write `http/protobuf`",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "write `http/protobuf`",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "collector:4318",
            "http://collector:4318",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://me:pass@collector",
            "OTEL_EXPORTER_OTLP_HEADERS",
        ),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer pass", "NAME=VALUE"),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a=pass%0a",
            "a header may have",
        ),
        ("OTEL_RESOURCE_ATTRIBUTES", "production", "NAME=VALUE"),
        ("OTEL_TRACES_SAMPLER", "xray", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "from 0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp"),
    ];
    for (name, value, remedy) in refusals {
        let env = Environment::default().with(name, value);
        let reason = Config::from_environment(&env).err().expect(name);
        assert!(
            reason.starts_with(name) && reason.contains(remedy),
            "{reason}"
        );
        assert!(!reason.contains("pass"), "it is a secret: {reason}");
    }
}
