//! Sends spans to the collector by OTLP over HTTP.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{self, SpanData},
};
use tokio::runtime::Handle;
use url::Url;

use super::conventions;
use domain::config::Traces;

/// The most bytes of an answer that are read. Nothing in it is of use; what is read whole leaves a connection to use
/// again.
const MAX_ANSWER: usize = 64 << 10;

/// Exports spans as the conventions say.
#[derive(Debug)]
pub(super) struct SpanExporter(opentelemetry_otlp::SpanExporter);

impl SpanExporter {
    pub(super) fn new(settings: &Traces, client: reqwest::Client) -> anyhow::Result<Self> {
        let endpoint = settings.endpoint.expose();
        let host = Url::parse(endpoint)?.host_str().map(str::to_owned);
        let headers = settings.headers.iter();
        let headers: HashMap<_, _> = headers
            .map(|(name, value)| (name.clone(), value.expose().to_owned()))
            .collect();
        let client = Client {
            http: client,
            runtime: Handle::current(),
            timeout: settings.timeout,
            host: host.unwrap_or_default(),
            is_away: AtomicBool::new(false),
        };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(endpoint)
            .with_headers(headers)
            .with_timeout(settings.timeout)
            .build()?;
        Ok(Self(exporter))
    }
}

impl trace::SpanExporter for SpanExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let batch = batch.into_iter().filter_map(conventions::convert);
        self.0.export(batch.collect()).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Our HTTP client, for an exporter that works in a thread without a runtime. Says in the log once that the collector
/// is away, and once that it is back.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
    timeout: Duration,
    host: String,
    is_away: AtomicBool,
}

/// What the exporter needs to know of an answer.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = Some(self.timeout);
        let answer = self.runtime.spawn(send(self.http.clone(), request)).await?;
        match &answer {
            Ok(answer) if answer.status.is_success() => self.note_success(),
            Ok(answer) => self.note_failure(answer.status.as_str()),
            Err(error) if error.is_timeout() => self.note_failure("timed_out"),
            Err(_) => self.note_failure("unreachable"),
        }
        // The address may have a key in its query.
        let answer = answer.map_err(reqwest::Error::without_url)?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}

async fn send(client: reqwest::Client, request: reqwest::Request) -> reqwest::Result<Answer> {
    let mut response = client.execute(request).await?;
    let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await
        && read < MAX_ANSWER
    {
        read += chunk.len();
    }
    Ok(Answer { status, headers })
}

impl Client {
    fn note_failure(&self, code: &str) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = self.host,
                code,
                "the collector takes no traces; they are lost until it does, and nothing else is"
            );
        }
    }

    fn note_success(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(host = self.host, "the collector takes traces again");
        }
    }
}
