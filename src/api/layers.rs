//! The layers around every request: request id, span, security headers, CORS, the check of the host, the handling of
//! panics, and the single place that logs a [`Problem`] and writes its response.
//!
//! The span has the method, the route, the status, the tenant and a hash of the user. It never has headers, paths with
//! ids, queries or bodies.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    Router,
    body::HttpBody,
    extract::{MatchedPath, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header, uri::Authority,
};
use tower_http::{
    compression::{CompressionLayer, predicate::Predicate},
    cors::{AllowHeaders, AllowOrigin, CorsLayer},
};
use tracing::{Instrument, Span, field::Empty};
use uuid::Uuid;

use super::{
    ApiState,
    once::REPLAYED,
    page,
    problem::{ErrorFormat, Problem},
    web,
};
use crate::app::platform::request_id;
use domain::{
    clock,
    config::Config,
    error::{Error, ErrorCode},
    principal::Principal,
    trace_context::TraceContext,
};
use telemetry::QUIET_ROUTES;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Operations of OpenAI that do not exist here, with a name where a response has its id.
const OF_OPENAI_ALONE: [&str; 2] = ["/v1/responses/compact", "/v1/responses/input_tokens"];

/// JSON of more bytes is compressed for clients that take it.
const COMPRESSED_ABOVE: u64 = 8192;

/// The headers of every response.
const SECURITY: [(HeaderName, &str); 2] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];
/// The headers of every response that does not set its own: pages of this service have their own policy, and say which
/// files may be cached and, in the demo, framed.
const DEFAULT_SECURITY: [(HeaderName, &str); 3] = [
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// The answers that are compressed. A stream, whose size nobody knows, never is: each piece is sent at once.
#[derive(Clone, Copy)]
struct LargeJson;

impl Predicate for LargeJson {
    fn should_compress<B: HttpBody>(&self, response: &http::Response<B>) -> bool {
        let media = response.headers().get(header::CONTENT_TYPE);
        let size = response.body().size_hint().exact();
        media.is_some_and(|media| media == "application/json")
            && size.is_some_and(|size| size > COMPRESSED_ABOVE)
    }
}

/// Wraps the routes, and answers for the paths and methods that are none.
pub(super) fn wrap_routes(routes: Router<ApiState>, config: &Config) -> Router<ApiState> {
    let complete = routes
        .fallback(async || unknown_path())
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            if method == Method::POST && OF_OPENAI_ALONE.contains(&uri.path()) {
                return unknown_path();
            }
            let detail = "this path does not answer to that method; see the Allow header";
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                ErrorCode::MethodNotAllowed,
                detail,
            )
        });
    wrap(complete, config)
}

/// Wraps a router. A layer costs a boxed service for each request, so there is one for all that every request needs.
pub(super) fn wrap<S>(router: Router<S>, config: &Config) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    // A browser that used https once must not come back without it.
    let uses_https = config.public_url.starts_with("https://");
    let wrapped = router.layer(middleware::from_fn(move |request, next| async move {
        let mut response = observe(request, next).await;
        set_security_headers(response.headers_mut(), uses_https);
        response
    }));
    let wrapped = wrapped.layer(CompressionLayer::new().compress_when(LargeJson));
    match cors(config) {
        Some(cors) => wrapped.layer(cors),
        None => wrapped,
    }
}

fn set_security_headers(headers: &mut HeaderMap, uses_https: bool) {
    for (name, value) in SECURITY {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in DEFAULT_SECURITY {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    if uses_https {
        let value = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
}

/// The problem of a path that is no route, or none with these settings.
pub(super) fn unknown_path() -> Problem {
    let detail = "there is nothing at this path; /openapi.json lists the paths that there are";
    Problem::new(StatusCode::NOT_FOUND, ErrorCode::UnknownPath, detail)
}

/// CORS for the origins of the settings. Without a list, no browser of another origin may call.
fn cors(config: &Config) -> Option<CorsLayer> {
    if config.cors_origins.is_empty() {
        return None;
    }
    let origins = if config.cors_origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(config.cors_origins.iter().filter_map(|origin| {
            let parsed = origin.parse().ok();
            if parsed.is_none() {
                tracing::warn!(
                    origin,
                    "CHATELAINE_CORS_ORIGINS: this is no origin and is left out"
                );
            }
            parsed
        }))
    };
    let cors = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        // SDKs send headers of their own. Allowing a header gives no access: the credential is not a cookie.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            REQUEST_ID,
            header::RETRY_AFTER,
            header::ETAG,
            header::ALLOW,
            header::LOCATION,
            HeaderName::from_static("x-conversation-id"),
            HeaderName::from_static("x-run-id"),
            HeaderName::from_static("x-should-retry"),
            REPLAYED,
            HeaderName::from_static("x-ignored-parameters"),
            HeaderName::from_static("ratelimit"),
            HeaderName::from_static("ratelimit-policy"),
            header::CONTENT_DISPOSITION,
            header::WWW_AUTHENTICATE,
        ])
        .max_age(std::time::Duration::from_secs(3600));
    Some(cors)
}

/// Calls the handler of a request. A panic becomes a problem.
async fn handle(request: Request, next: Next) -> Response {
    if let Err(problem) = check_host(request.version(), request.headers()) {
        return problem.into_response();
    }
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    handled.unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let cause = anyhow::anyhow!("a handler panicked: {}", message.unwrap_or("no message"));
        Problem::from(Error::internal(cause)).into_response()
    })
}

/// Refuses a request that does not name its host exactly once (RFC 9112, section 3.2): a proxy and this program could
/// take it for different hosts.
fn check_host(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if version == Version::HTTP_11 => {
            let reason = "is missing; every request of HTTP/1.1 names its host";
            Err(Problem::unfit(ErrorCode::MissingField, "Host", reason))
        }
        (Some(_), Some(_)) => Err(Problem::invalid("Host", "must be sent once")),
        (Some(host), None) if !is_host(host.as_bytes()) => {
            let reason = "must be a name or an address, with a port if need be";
            Err(Problem::invalid("Host", reason))
        }
        _ => Ok(()),
    }
}

/// Whether a value names a host, without a user before it. It may be empty, if the address of the client has no host.
fn is_host(host: &[u8]) -> bool {
    host.is_empty() || Authority::try_from(host).is_ok() && !host.contains(&b'@')
}

/// Gives the request its id and span, measures it, and writes the response of a problem.
async fn observe(request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unknown", MatchedPath::as_str)
        .to_owned();
    let method = method_label(request.method());
    let format = if request.extensions().get::<MatchedPath>().is_none() {
        ErrorFormat::of_unknown(request.uri().path())
    } else {
        ErrorFormat::of_request(request.uri().path(), request.headers())
    };
    let span = tracing::info_span!(
        "request",
        %id,
        method,
        route,
        tenant = Empty,
        user = Empty,
        status = Empty,
        trace_id = Empty,
        span_id = Empty
    );
    telemetry::join(&span, trace_context(request.headers()).as_ref());
    // A person opened an address of the API in a browser.
    let wants_page = request.method() == Method::GET
        && web::accepts(request.headers(), header::ACCEPT, "text/html");
    let has_credential = request.headers().contains_key(header::AUTHORIZATION);
    let started = clock::instant();
    let answer = async {
        let mut response = handle(request, next).await;
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            if let Some(cause) = &problem.cause {
                tracing::error!(error = format!("{cause:#}"), "request failed");
            }
            let headers = std::mem::take(response.headers_mut());
            response = problem.render(headers, &id, format, has_credential);
            if wants_page {
                response = page::show_problem(&problem, response);
            }
        }
        let status = response.status().as_u16();
        let took = started.elapsed();
        let labels = [
            ("method", method.to_owned()),
            ("route", route.clone()),
            ("status", status.to_string()),
        ];
        metrics::histogram!("chatelaine_request_seconds", &labels).record(took.as_secs_f64());
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        // Probes and scrapers come every few seconds, and anyone can ask for unknown paths. Neither is worth a line.
        if QUIET_ROUTES.contains(&route.as_str()) {
            tracing::debug!(status, ms, "answered");
        } else {
            tracing::info!(status, ms, "answered");
        }
        Span::current().record("status", i64::from(status));
        response
    };
    let answer = request_id::scope(Arc::from(id.as_str()), answer.instrument(span));
    let mut response = answer.await;
    let id = HeaderValue::from_str(&id)
        .expect("an id of letters, digits, `.`, `_` and `-` is a header value");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The metric label of a method: one of the standard, or `other`. A client can invent names, and each would be a label
/// for ever.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "CONNECT" => "CONNECT",
        "TRACE" => "TRACE",
        _ => "other",
    }
}

/// The id of a request: the one that a proxy gave it, if it has harmless characters, else a new one.
fn request_id(request: &Request) -> String {
    let harmless = |id: &&str| {
        (1..=64).contains(&id.len())
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    let given = request
        .headers()
        .get(REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(harmless);
    given.map_or_else(|| Uuid::now_v7().simple().to_string(), str::to_owned)
}

/// The trace that the client's request belongs to, by W3C Trace Context. A header that is sent twice, or that is not
/// written by the rules, is as good as none.
fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?;
    TraceContext::parse(parent.to_str().ok()?)
}

/// Adds the caller to the span of the request.
pub(super) fn name_caller(principal: &Principal) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("tenant", tracing::field::display(principal.tenant));
    span.record("user", principal.pseudonym());
}
