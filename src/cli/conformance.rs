//! `chatelaine conformance <url>`: what the official conformance suite runs as the client under test. It goes through
//! the same connections as everything else: discovers the tools, and calls each of them.
//!
//! The suite gives the arguments of calls in an environment variable. Elicitations are accepted: the answer
//! is the server's default, or else the first value that fits.

use std::{process::ExitCode, sync::Arc};

use serde::Deserialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use tokio::sync::mpsc;
use url::Url;

use crate::{
    domain::{
        config::Environment,
        elicitation::{self, Answer, Dismissal, InputRequired, Kind, Step},
        ids::{AgentId, ServerId, TenantId},
        owner::ConnectionOwner,
        server::{AccessMode, CatalogScope, Endpoint, Remote, ServerSpec, Timeouts},
        tool::{Tool, ToolOutcome},
    },
    egress::Egress,
    mcp::{CallError, CallOptions, Key, LiveQuestion, Mcp, Options},
};

/// Times that a server may ask in the course of one call.
const ROUNDS: usize = 8;

#[derive(clap::Args)]
pub struct Args {
    /// The server of the scenario, on this machine.
    url: Url,
}

/// What a scenario may want besides.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Context {
    #[serde(default)]
    tool_calls: Vec<RequestedCall>,
}

#[derive(Deserialize)]
struct RequestedCall {
    name: String,
    arguments: Value,
}

pub async fn run(args: &Args, env: &Environment) -> anyhow::Result<ExitCode> {
    let context = env
        .get("MCP_CONFORMANCE_CONTEXT")
        .map(serde_json::from_str::<Context>);
    let context = context.transpose()?.unwrap_or_default();
    let host = args.url.host_str().unwrap_or_default().to_owned();
    let mcp = Mcp::new(
        Egress::new(&[host]).map_err(anyhow::Error::msg)?,
        Options::default(),
    );
    let spec = Arc::new(spec(args.url.clone()));
    let key = Key {
        tenant: TenantId::new(),
        agent: AgentId::parse("conformance").map_err(anyhow::Error::msg)?,
        server: spec.id.clone(),
        owner: ConnectionOwner::Shared,
    };
    let found = mcp.discover(&key, &spec).await?;
    super::print_line(&format!(
        "{} tools in revision {}",
        found.tools.len(),
        found.protocol
    ));
    let wanted = match context.tool_calls {
        calls if calls.is_empty() => found
            .tools
            .iter()
            .map(|tool| (tool.name.clone(), sample_value(tool, &found.tools)))
            .collect(),
        calls => calls
            .into_iter()
            .map(|call| (call.name, call.arguments))
            .collect::<Vec<_>>(),
    };
    let mut good = true;
    for (tool, arguments) in wanted
        .into_iter()
        .filter(|(tool, _)| found.tools.iter().any(|known| known.name == *tool))
    {
        let called = call(&mcp, &key, &spec, &tool, &to_raw_value(&arguments)?).await;
        // A server may refuse what was made up.
        good &= matches!(called, Ok(_) | Err(CallError::Refused { .. }));
        super::print_line(&match called {
            Ok(outcome) => format!("{tool}: {}", outcome.text),
            Err(error) => format!("{tool}: failed: {error}"),
        });
    }
    mcp.shutdown().await;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A call, made again with an answer as often as the server asks something first.
async fn call(
    mcp: &Mcp,
    key: &Key,
    spec: &Arc<ServerSpec>,
    tool: &str,
    arguments: &RawValue,
) -> Result<ToolOutcome, CallError> {
    let mut answer = None;
    for _ in 0..ROUNDS {
        let (questions, mut put) = mpsc::unbounded_channel::<LiveQuestion>();
        let options = CallOptions {
            asks: true,
            live: Some(questions),
            answer: answer.take(),
            ..CallOptions::default()
        };
        let agreeing = async {
            while let Some(question) = put.recv().await {
                // The server may not want it any more.
                let _ = question.answer.send(accept(&question.input));
            }
            std::future::pending::<()>().await;
        };
        let outcome = tokio::select! {
            outcome = mcp.call(key, spec, tool, arguments, options) => outcome?,
            () = agreeing => unreachable!("it waits for ever"),
        };
        let Some(input) = &outcome.input else {
            return Ok(outcome);
        };
        answer = Some(accept(input));
    }
    mcp.call(key, spec, tool, arguments, CallOptions::default())
        .await
}

fn accept(input: &InputRequired) -> Answer {
    let Ok(questions) = &input.questions else {
        return Answer::dismissed(&input.keys, Dismissal::Decline, input.state.clone());
    };
    let values: Vec<_> = elicitation::steps(questions)
        .iter()
        .map(suggest_value)
        .collect();
    Answer::from_values(questions, &values, input.state.clone())
}

fn suggest_value(step: &Step<'_>) -> Value {
    let Step::Field(_, field) = step else {
        return Value::Bool(true);
    };
    let sample_value = || match &field.kind {
        Kind::Text { .. } => json!("text"),
        Kind::Number { least, .. } => least.map_or(json!(1), |least| json!(least)),
        Kind::Boolean => json!(true),
        Kind::One(choices) => choices
            .first()
            .map(|choice| json!(choice.value))
            .unwrap_or_default(),
        Kind::Many { choices, .. } => choices
            .iter()
            .take(1)
            .map(|choice| json!(choice.value))
            .collect(),
    };
    field.default.clone().unwrap_or_else(sample_value)
}

fn spec(url: Url) -> ServerSpec {
    ServerSpec {
        id: ServerId::parse("suite").expect("a fine id"),
        endpoint: Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url,
            headers: Vec::new(),
        },
        access_mode: AccessMode::AdminControlled,
        tool_access: None,
        tools: None,
        required: false,
        timeouts: Timeouts::default(),
        user_config: Vec::new(),
        catalog: CatalogScope::Shared,
        entered: Vec::new(),
        auth: None,
        run_config: None,
        of_tenant: false,
        load_tools: true,
        load_prompts: true,
        terminate_on_close: true,
    }
}

/// Arguments that a tool's schema asks for. Where it asks for a `schema`, that of another tool is sent back as it
/// came.
fn sample_value(tool: &Tool, all: &[Arc<Tool>]) -> Value {
    let schema: Value = serde_json::from_str(tool.input_schema.get()).unwrap_or_default();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let argument = |name: &str| match (name, schema["properties"][name]["type"].as_str()) {
        ("schema", _) => {
            let other = all.iter().find(|other| other.name != tool.name);
            other
                .and_then(|other| serde_json::from_str(other.input_schema.get()).ok())
                .unwrap_or_else(|| json!({}))
        }
        (_, Some("number" | "integer")) => json!(2),
        (_, Some("boolean")) => json!(true),
        (_, Some("array")) => json!([]),
        (_, Some("object")) => json!({}),
        _ => json!("text"),
    };
    let names = required.iter().filter_map(Value::as_str);
    Value::Object(
        names
            .map(|name| (name.to_owned(), argument(name)))
            .collect::<Map<_, _>>(),
    )
}
