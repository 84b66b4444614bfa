//! `conformance <url>`: what the official conformance suite runs as the client under test. It goes through
//! the same connections as the service: discovers the tools, and calls each of them.
//!
//! The suite gives the arguments of calls, and who the client is, in an environment variable. Elicitations are accepted:
//! the answer is the server's default, or else the first value that fits. A server that wants a sign-in gets one, as
//! often as `SIGN_INS`.

mod sign_in;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::to_raw_value};
use tokio::sync::mpsc;
use url::Url;

use self::sign_in::SignIns;
use domain::{
    config::Environment,
    elicitation::{self, Answer, Dismissal, InputRequired, Kind, Step},
    ids::{ServerId, TenantId},
    oauth::ClientProof,
    owner::SharedKey,
    pin::Pin,
    policy::OtherPolicies,
    secret::Secret,
    server::{
        AccessMode, CatalogScope, ClientCredentials, Endpoint, Remote, ServerAuth, ServerSpec,
        Timeouts, TokenIssuer,
    },
    tool::{Tool, ToolOutcome},
};
use egress::Egress;
use mcp::{
    CallError, CallOptions, CallRequest, Discovery, Key, LiveQuestion, Mcp, McpError, McpErrorKind,
    Options, oauth::Challenge,
};

/// Times that a server may ask in the course of one call.
const ROUNDS: usize = 8;
/// Times that it signs in; a server that wants more never has enough.
const SIGN_INS: usize = 3;

#[derive(Parser)]
struct Args {
    /// The server of the scenario, on this machine.
    url: Url,
}

/// What a scenario may want besides.
#[derive(Default, Deserialize)]
struct Context {
    #[serde(default, rename = "toolCalls")]
    tool_calls: Vec<RequestedCall>,
    client_id: Option<String>,
    client_secret: Option<String>,
    private_key_pem: Option<String>,
    signing_algorithm: Option<String>,
}

#[derive(Deserialize)]
struct RequestedCall {
    name: String,
    arguments: Value,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_writer(io::stderr)
        .init();
    let env = Environment::from_process().without_keys();
    let context = env
        .get("MCP_CONFORMANCE_CONTEXT")
        .map(serde_json::from_str::<Context>);
    let context = context.transpose()?.unwrap_or_default();
    let host = args.url.host_str().unwrap_or_default().to_owned();
    let egress = Egress::new(&[host]).map_err(anyhow::Error::msg)?;
    let mut spec = spec(args.url.clone());
    // The extension of client credentials has the only scenarios of this name.
    if env
        .get("MCP_CONFORMANCE_SCENARIO")
        .is_some_and(|name| name.contains("client-credentials"))
    {
        spec.auth = own_credentials(&args.url, &context);
    }
    let mut client = SuiteClient {
        mcp: Mcp::new(egress.clone(), Options::default()),
        key: Key::Shared(SharedKey::new(TenantId::new(), &spec)),
        spec: Arc::new(spec),
        sign_ins: SignIns::new(egress, args.url.clone(), &context),
        left: SIGN_INS,
    };
    let found = client.discover().await?;
    let (tools, revision) = (found.tools.len(), found.protocol);
    writeln!(io::stdout(), "{tools} tools in revision {revision}")?;
    let good = client.call_all(&found.tools, context.tool_calls).await?;
    client.mcp.shutdown().await;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The program's own credentials for the server, as the suite gives them.
fn own_credentials(server: &Url, context: &Context) -> Option<ServerAuth> {
    let proof = match (&context.client_secret, &context.private_key_pem) {
        (Some(secret), _) => ClientProof::Secret(Secret::new(secret)),
        (None, Some(pem)) => ClientProof::Key {
            pem: Secret::new(pem),
            algorithm: context.signing_algorithm.clone()?,
        },
        (None, None) => return None,
    };
    Some(ServerAuth::Client(ClientCredentials {
        issued_by: TokenIssuer::OfServer(server.clone()),
        client_id: Secret::new(context.client_id.clone()?),
        proof,
        scope: None,
        of_tenant: false,
    }))
}

/// The client under test.
struct SuiteClient {
    mcp: Mcp,
    key: Key,
    spec: Arc<ServerSpec>,
    sign_ins: SignIns,
    /// Sign-ins that are left.
    left: usize,
}

impl SuiteClient {
    async fn discover(&mut self) -> anyhow::Result<Discovery> {
        loop {
            let error = match self.mcp.discover(&self.key, &self.spec).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            if !self.sign_in_after(&error).await? {
                return Err(error.into());
            }
        }
    }

    /// Calls what the suite names, or each tool once. Whether all went well.
    async fn call_all(
        &mut self,
        tools: &[Arc<Tool>],
        requested: Vec<RequestedCall>,
    ) -> anyhow::Result<bool> {
        let wanted = match requested {
            calls if calls.is_empty() => tools
                .iter()
                .map(|tool| (tool.name.clone(), sample_value(tool, tools)))
                .collect(),
            calls => calls
                .into_iter()
                .map(|call| (call.name, call.arguments))
                .collect::<Vec<_>>(),
        };
        let mut good = true;
        for (tool, arguments) in wanted
            .into_iter()
            .filter(|(tool, _)| tools.iter().any(|known| known.name == *tool))
        {
            let arguments = to_raw_value(&arguments)?;
            let request = CallRequest {
                tool: &tool,
                arguments: &arguments,
            };
            let called = self.call(request).await?;
            // A server may refuse what was made up.
            good &= matches!(called, Ok(_) | Err(CallError::Refused { .. }));
            match called {
                Ok(outcome) => writeln!(io::stdout(), "{tool}: {}", outcome.text)?,
                Err(error) => writeln!(io::stdout(), "{tool}: failed: {error}")?,
            }
        }
        Ok(good)
    }

    /// A call, made again after a sign-in as often as the server wants one.
    async fn call(
        &mut self,
        request: CallRequest<'_>,
    ) -> anyhow::Result<Result<ToolOutcome, CallError>> {
        loop {
            let called = call(&self.mcp, &self.key, &self.spec, request).await;
            let wanted = match &called {
                Err(CallError::Unauthorized) => None,
                Err(CallError::ScopeRequired(scope)) => Some(scope.clone()),
                _ => return Ok(called),
            };
            let challenge = Challenge {
                scope: wanted,
                ..Challenge::default()
            };
            if !self.sign_in(&challenge).await? {
                return Ok(called);
            }
        }
    }

    /// Signs in if that is what the error is about; whether it did.
    async fn sign_in_after(&mut self, error: &McpError) -> anyhow::Result<bool> {
        let wants = matches!(
            error.kind,
            McpErrorKind::SignInRequired | McpErrorKind::Unauthorized | McpErrorKind::ScopeRequired
        );
        if !wants || matches!(self.spec.auth, Some(ServerAuth::Client(_))) {
            return Ok(false);
        }
        let challenge = error.challenge.as_deref().cloned().unwrap_or_default();
        self.sign_in(&challenge).await
    }

    async fn sign_in(&mut self, challenge: &Challenge) -> anyhow::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let authorization = self.sign_ins.sign_in(challenge).await?;
        let mut spec = ServerSpec::clone(&self.spec);
        if let Endpoint::Remote { headers, .. } = &mut spec.endpoint {
            let bearer = format!("Bearer {}", authorization.access_token.expose());
            *headers = vec![("Authorization".to_owned(), Secret::new(bearer))];
        }
        self.mcp.close(&self.key).await;
        self.spec = Arc::new(spec);
        Ok(true)
    }
}

/// A call, made again with an answer as often as the server asks something first.
async fn call(
    mcp: &Mcp,
    key: &Key,
    spec: &Arc<ServerSpec>,
    request: CallRequest<'_>,
) -> Result<ToolOutcome, CallError> {
    let mut answer = None;
    for _ in 0..ROUNDS {
        let (questions, mut put) = mpsc::unbounded_channel::<LiveQuestion>();
        let options = CallOptions {
            can_ask_user: true,
            live_questions: Some(questions),
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
            outcome = mcp.call(key, spec, request, options) => outcome?,
            () = agreeing => unreachable!("it waits for ever"),
        };
        let Some(input) = &outcome.input else {
            return Ok(outcome);
        };
        answer = Some(accept(input));
    }
    mcp.call(key, spec, request, CallOptions::default()).await
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
        pin: Pin::default(),
        held: BTreeMap::new(),
        elsewhere: OtherPolicies::default(),
        summaries: BTreeMap::new(),
        required: false,
        per_tenant: false,
        at_start: false,
        timeouts: Timeouts::default(),
        user_config: Vec::new(),
        catalog: CatalogScope::Shared,
        entered: Vec::new(),
        auth: None,
        oauth: None,
        credential_test: None,
        operator_headers: Vec::new(),
        from_variables: Vec::new(),
        has_user_values: false,
        asks_for_sign_in: false,
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
