//! Traces by OpenTelemetry. Spans are those of `tracing`, which are made where the work is done; [`start`] exports those
//! that [`CONVENTIONS`] names. No other crate knows OpenTelemetry: the place of work in a trace travels as a
//! [`TraceContext`].
//!
//! Invariants: only attributes of the table are exported, and no events, so that no text of a message, an argument, a
//! result or an error can get out. A collector that is away or slow costs spans and never a request. Without [`start`]
//! the functions here do nothing.

mod conventions;
mod exporter;
mod sampler;

use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::{
    Context, KeyValue,
    trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
        TracerProvider as _,
    },
};
use opentelemetry_sdk::{Resource, resource::TelemetryResourceDetector, trace::SdkTracerProvider};
use tracing::{Level, Span, field::display};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, filter_fn},
};
use uuid::Uuid;

pub use self::conventions::{CONVENTIONS, Convention, QUIET_ROUTES};
use domain::{config::Traces, trace_context::TraceContext};

/// How long the end of the process waits for the last spans to be exported.
const FLUSH: Duration = Duration::from_secs(3);

/// Exports spans in the background until it is stopped.
pub struct Exporter(SdkTracerProvider);

/// Exports spans as the settings say, with `client`, which is one for addresses of the operator. Must be called in the
/// runtime that is to send them. The layer goes directly onto the registry.
pub fn start(
    settings: &Traces,
    client: reqwest::Client,
) -> anyhow::Result<(Exporter, Box<dyn Layer<Registry> + Send + Sync>)> {
    let exporter = exporter::SpanExporter::new(settings, client)
        .context("traces cannot be exported with these settings")?;
    let resource = settings.resource.iter().cloned();
    let resource = Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new(
            "service.instance.id",
            Uuid::now_v7().to_string(),
        ))
        .with_attributes(resource.map(|(name, value)| KeyValue::new(name, value)))
        .build();
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler::WorkSampler::new(settings))
        .with_resource(resource)
        .build();
    let is_ours = filter_fn(|span| {
        span.is_span()
            && span.target().starts_with("chatelaine")
            && conventions::is_known(span.name())
    });
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("chatelaine"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(is_ours.with_max_level_hint(LevelFilter::from_level(Level::INFO)));
    Ok((Exporter(provider), Box::new(layer)))
}

impl Exporter {
    /// Exports the last spans, for three seconds at most.
    pub async fn stop(self) {
        // It waits for a thread of its own. What could not be exported in time is lost.
        let stopping = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH));
        let _ = stopping.await;
    }
}

/// Makes a new span the child of `parent`, and writes the ids of its trace into its fields `trace_id` and `span_id`,
/// where it has them. Without traces the log has at least the trace of the client.
pub fn join(span: &Span, parent: Option<&TraceContext>) {
    if let Some(remote) = parent.and_then(remote) {
        // There is no layer without traces.
        let _ = span.set_parent(remote);
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    if own.is_valid() {
        span.record("trace_id", display(own.trace_id()));
        span.record("span_id", display(own.span_id()));
    } else if let Some(parent) = parent {
        span.record("trace_id", parent.trace_id());
    }
}

/// The place of the present work in its trace; `None` without traces.
pub fn current() -> Option<TraceContext> {
    trace_context(&Context::current())
}

/// The place of a span in its trace; `None` without traces.
pub fn context_of(span: &Span) -> Option<TraceContext> {
    trace_context(&span.context())
}

fn trace_context(context: &Context) -> Option<TraceContext> {
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| TraceContext {
        traceparent: format!(
            "00-{}-{}-{:02x}",
            span.trace_id(),
            span.span_id(),
            span.trace_flags() & TraceFlags::SAMPLED
        ),
    })
}

/// The span that was made in another process or task.
fn remote(context: &TraceContext) -> Option<Context> {
    let mut parts = context.traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    let remote = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    Some(Context::new().with_remote_span_context(remote))
}
