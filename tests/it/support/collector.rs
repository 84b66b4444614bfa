//! A collector of OpenTelemetry: takes traces by OTLP over HTTP, and remembers every byte.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
};
use futures_util::FutureExt as _;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use prost::Message as _;
use tokio::net::TcpListener;

use super::wait::eventually;

/// Listens for as long as the test runs.
pub struct Collector {
    /// `http://127.0.0.1:…`
    pub url: String,
    seen: Seen,
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Export>>>);

/// A request as it came.
struct Export {
    path: String,
    key: String,
    body: Vec<u8>,
}

/// An exported span.
#[derive(Clone, Debug)]
pub struct Traced {
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty where a trace begins.
    pub parent: String,
    pub kind: SpanKind,
    pub is_error: bool,
    /// The traces and spans that it is linked with.
    pub links: Vec<(String, String)>,
    pub nanoseconds: u64,
    pub attributes: Vec<(String, String)>,
    /// The process that it is from.
    pub instance: String,
}

impl Traced {
    /// An attribute as text; empty where there is none.
    pub fn get(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Seen::default();
        let app = Router::new().fallback(take).with_state(seen.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, seen }
    }

    /// The paths that were asked for, with what the header `x-key` said.
    pub fn requests(&self) -> HashSet<(String, String)> {
        let seen = self.seen.0.lock().unwrap();
        seen.iter()
            .map(|export| (export.path.clone(), export.key.clone()))
            .collect()
    }

    /// All bytes that came.
    pub fn bytes(&self) -> Vec<u8> {
        let seen = self.seen.0.lock().unwrap();
        seen.iter().flat_map(|export| export.body.clone()).collect()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Traced> {
        let seen = self.seen.0.lock().unwrap();
        seen.iter().flat_map(|export| read(&export.body)).collect()
    }

    /// Those of a trace whose names begin so.
    pub fn find(&self, trace: &str, name: &str) -> Vec<Traced> {
        let spans = self.spans().into_iter();
        let is_it = |span: &Traced| span.trace == trace && span.name.starts_with(name);
        spans.filter(is_it).collect()
    }

    /// The one span of a trace whose name begins so, once it has come.
    pub async fn one(&self, trace: &str, name: &str) -> Traced {
        let until = eventually(async || !self.find(trace, name).is_empty());
        let came = AssertUnwindSafe(until).catch_unwind().await;
        let names = || {
            self.spans()
                .into_iter()
                .map(|span| span.name)
                .collect::<Vec<_>>()
        };
        assert!(came.is_ok(), "no {name} among {:#?}", names());
        let found = self.find(trace, name);
        assert_eq!(found.len(), 1, "{name}: {found:#?}");
        found.into_iter().next().unwrap()
    }
}

async fn take(State(seen): State<Seen>, request: Request) -> StatusCode {
    let (head, body) = request.into_parts();
    let key = head.headers.get("x-key");
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    seen.0.lock().unwrap().push(Export {
        path: head.uri.path().to_owned(),
        key: key.map_or_else(String::new, |key| key.to_str().unwrap().to_owned()),
        body: body.to_vec(),
    });
    StatusCode::OK
}

fn read(body: &[u8]) -> Vec<Traced> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let resources = request.resource_spans.into_iter();
    resources
        .flat_map(|of| {
            let resource = texts(&of.resource.unwrap().attributes);
            let instance = resource
                .iter()
                .find(|(key, _)| key == "service.instance.id");
            let instance = instance.unwrap().1.clone();
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| traced(span, &instance))
        })
        .collect()
}

fn traced(span: Span, instance: &str) -> Traced {
    assert!(span.events.is_empty(), "events may say anything: {span:?}");
    let links = span.links.iter();
    let status = span.status.clone().unwrap_or_default();
    assert_eq!(status.message, "", "a message may say anything");
    Traced {
        trace: hex::encode(&span.trace_id),
        id: hex::encode(&span.span_id),
        parent: hex::encode(&span.parent_span_id),
        kind: span.kind(),
        is_error: status.code() == SpanStatus::Error,
        links: links
            .map(|link| (hex::encode(&link.trace_id), hex::encode(&link.span_id)))
            .collect(),
        nanoseconds: span.end_time_unix_nano - span.start_time_unix_nano,
        attributes: texts(&span.attributes),
        instance: instance.to_owned(),
        name: span.name,
    }
}

fn texts(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().unwrap().value.as_ref() {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{}: {other:?}", attribute.key),
    };
    attributes
        .iter()
        .map(|attribute| (attribute.key.clone(), text(attribute)))
        .collect()
}
