//! How a span of `tracing` is exported: its name and kind, and what of its fields becomes which attribute, by the
//! semantic conventions of OpenTelemetry for HTTP, generative AI, MCP and databases. What is not in the table is not
//! exported. The table in `docs/operators.md` is checked against it.

use std::time::{Duration, SystemTime};

use opentelemetry::{
    KeyValue, Value,
    trace::{SpanKind, Status},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents};

/// Routes that anybody asks for without wanting anything: probes, and paths that there are not.
pub const QUIET_ROUTES: [&str; 4] = ["/healthz", "/readyz", "/metrics", "unknown"];

/// A kind of span.
pub struct Convention {
    /// Its name in `tracing`.
    pub span: &'static str,
    /// Its exported name, with fields in braces.
    pub name: &'static str,
    kind: SpanKind,
    /// Whether a trace, or this process's part of one, may begin with it.
    may_begin: bool,
    /// Attributes that are always the same.
    pub always: &'static [(&'static str, &'static str)],
    /// Fields, and the attributes that they become.
    pub fields: &'static [(&'static str, &'static str)],
}

/// The field of a span that began before it was made: nanoseconds since 1970.
const SINCE: &str = "since";
/// The field that says what went wrong, in a word of the program. A span that has it is an error.
const CODE: &str = "code";

pub const CONVENTIONS: &[Convention] = &[
    Convention {
        span: "request",
        name: "{method} {route}",
        kind: SpanKind::Server,
        may_begin: true,
        always: &[],
        fields: &[
            ("method", "http.request.method"),
            ("route", "http.route"),
            ("status", "http.response.status_code"),
            ("id", "chatelaine.request"),
            ("tenant", "chatelaine.tenant"),
        ],
    },
    Convention {
        span: "run",
        name: "invoke_agent {agent}",
        kind: SpanKind::Internal,
        may_begin: true,
        always: &[("gen_ai.operation.name", "invoke_agent")],
        fields: &[
            ("agent", "gen_ai.agent.name"),
            ("conversation", "gen_ai.conversation.id"),
            ("run", "chatelaine.run"),
            ("attempt", "chatelaine.run.attempt"),
            ("status", "chatelaine.run.status"),
            ("request", "chatelaine.request"),
            ("tenant", "chatelaine.tenant"),
        ],
    },
    Convention {
        span: "model",
        name: "chat {model}",
        kind: SpanKind::Client,
        may_begin: false,
        always: &[("gen_ai.operation.name", "chat")],
        fields: &[
            ("provider", "gen_ai.provider.name"),
            ("model", "gen_ai.request.model"),
            ("input_tokens", "gen_ai.usage.input_tokens"),
            ("cached_tokens", "gen_ai.usage.cache_read.input_tokens"),
            ("output_tokens", "gen_ai.usage.output_tokens"),
            ("host", "server.address"),
            ("port", "server.port"),
            ("attempt", "chatelaine.model.attempt"),
            ("http_status", "http.response.status_code"),
            (CODE, "error.type"),
        ],
    },
    Convention {
        span: "tool",
        name: "execute_tool {tool}",
        kind: SpanKind::Client,
        may_begin: false,
        always: &[
            ("gen_ai.operation.name", "execute_tool"),
            ("mcp.method.name", "tools/call"),
        ],
        fields: &[
            ("tool", "gen_ai.tool.name"),
            ("server", "chatelaine.mcp.server"),
            ("host", "server.address"),
            ("http_status", "http.response.status_code"),
            (CODE, "error.type"),
        ],
    },
    Convention {
        span: "approval wait",
        name: "approval wait {tool}",
        kind: SpanKind::Internal,
        may_begin: true,
        always: &[],
        fields: &[
            ("approval", "chatelaine.approval"),
            ("state", "chatelaine.approval.state"),
            ("tool", "gen_ai.tool.name"),
            ("server", "chatelaine.mcp.server"),
            ("tenant", "chatelaine.tenant"),
        ],
    },
    Convention {
        span: "approved call",
        name: "approved call {tool}",
        kind: SpanKind::Internal,
        may_begin: true,
        always: &[],
        fields: &[
            ("approval", "chatelaine.approval"),
            ("tool", "gen_ai.tool.name"),
            ("server", "chatelaine.mcp.server"),
            ("conversation", "gen_ai.conversation.id"),
            ("run", "chatelaine.run"),
            ("tenant", "chatelaine.tenant"),
        ],
    },
    Convention {
        span: "transaction",
        name: "transaction {file}",
        kind: SpanKind::Client,
        may_begin: false,
        always: &[("db.system.name", "postgresql")],
        fields: &[
            ("file", "code.file.path"),
            ("line", "code.line.number"),
            ("statements", "chatelaine.transaction.statements"),
            ("sqlstate", "db.response.status_code"),
            (CODE, "error.type"),
        ],
    },
];

fn of(span: &str) -> Option<&'static Convention> {
    CONVENTIONS
        .iter()
        .find(|convention| convention.span == span)
}

pub(super) fn is_known(span: &str) -> bool {
    of(span).is_some()
}

/// Whether a trace, or this process's part of one, may begin with this span.
pub(super) fn may_begin(span: &str, fields: &[KeyValue]) -> bool {
    let route = find(fields, "route");
    let is_quiet = route.is_some_and(|route| QUIET_ROUTES.contains(&&*route.as_str()));
    !is_quiet && of(span).is_some_and(|convention| convention.may_begin)
}

/// The span as it is exported.
pub(super) fn convert(mut span: SpanData) -> Option<SpanData> {
    let convention = of(&span.name)?;
    let fields = std::mem::take(&mut span.attributes);
    let always = convention.always.iter();
    let always = always.map(|(name, value)| KeyValue::new(*name, *value));
    let renamed = convention.fields.iter().filter_map(|(field, attribute)| {
        let value = match (*attribute, find(&fields, field)?) {
            ("gen_ai.provider.name", Value::String(name)) if name.as_str() == "gemini" => {
                "gcp.gemini".into()
            }
            (_, value) => value.clone(),
        };
        Some(KeyValue::new(*attribute, value))
    });
    span.attributes = always.chain(renamed).collect();
    span.name = name_of(convention, &fields).into();
    span.span_kind = convention.kind.clone();
    if let Some(began) = find(&fields, SINCE).and_then(time_of) {
        span.start_time = began;
    }
    span.status = if has_failed(convention, &fields) {
        Status::error("")
    } else {
        Status::Unset
    };
    // What lines of the log say is not for everybody who reads traces.
    span.events = SpanEvents::default();
    Some(span)
}

/// The newest value of a field.
fn find<'a>(fields: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let field = fields
        .iter()
        .rev()
        .find(|field| field.key.as_str() == name)?;
    Some(&field.value)
}

/// The exported name: that of the convention, with the values of the fields that it names.
fn name_of(convention: &Convention, fields: &[KeyValue]) -> String {
    let mut name = String::new();
    for (at, part) in convention.name.split(['{', '}']).enumerate() {
        // Every other part is in braces.
        if at % 2 == 0 {
            name.push_str(part);
        } else if let Some(value) = find(fields, part) {
            name.push_str(&value.as_str());
        }
    }
    name
}

fn has_failed(convention: &Convention, fields: &[KeyValue]) -> bool {
    match (convention.span, find(fields, "status")) {
        ("request", Some(Value::I64(status))) => *status >= 500,
        ("run", Some(Value::String(status))) => status.as_str() == "failed",
        _ => find(fields, CODE).is_some(),
    }
}

fn time_of(nanoseconds: &Value) -> Option<SystemTime> {
    let Value::I64(nanoseconds) = nanoseconds else {
        return None;
    };
    let since = Duration::from_nanos(u64::try_from(*nanoseconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}
