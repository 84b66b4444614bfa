//! The web client: one page and its files, built from `web/` and embedded by `build.rs`. The page uses the same routes
//! as every other frontend. A program that was built without it shows how to build it.

use std::collections::BTreeSet;

use axum::{
    body::Body,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use maud::{DOCTYPE, html};

use super::{ApiState, extract::Path, operations, problem::Problem};
use domain::{config::Config, error::ErrorCode};

/// A file of the page. `gzip` and `brotli` hold the compressed `body`.
struct File {
    name: &'static str,
    body: &'static [u8],
    gzip: &'static [u8],
    brotli: &'static [u8],
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/web.rs"));

/// For files whose name changes with their content.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// How a page may stand in another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Never,
    /// In the demo, the page shows a second person in a pane: the same page, framed.
    ShowsPane,
    /// In the demo, the page in that pane.
    IsPane,
}

/// The content security policy of the page: it loads its own files, and calls its own origin and the providers where people
/// of its tenant sign in.
fn policy(config: &Config, tenant: Option<&str>, framing: Framing) -> HeaderValue {
    let providers = config.sign_in.iter();
    let origins = providers
        .filter(|provider| provider.is_for(tenant))
        .filter_map(|provider| provider.connect_origins().ok());
    let origins: BTreeSet<String> = origins.flatten().collect();
    let mut sources = "'self'".to_owned();
    for origin in &origins {
        sources.push(' ');
        sources.push_str(origin);
    }
    let (frames, ancestors) = match framing {
        Framing::Never => ("", "'none'"),
        Framing::ShowsPane => (" frame-src 'self';", "'none'"),
        Framing::IsPane => ("", "'self'"),
    };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src {sources}; \
         img-src 'self' data: blob:; manifest-src 'self';{frames} form-action 'none'; \
         frame-ancestors {ancestors}; base-uri 'none'"
    );
    HeaderValue::try_from(policy).expect("an origin is visible ASCII")
}

/// What this is and where its description is.
///
/// A browser (`Accept: text/html`) gets the web client instead; with `?tenant=…` the one of a tenant, whose users
/// sign in at its own providers.
#[utoipa::path(get, path = "/", operation_id = "getRoot", tag = "operations", security(()),
    params(("tenant" = Option<String>, Query)),
    responses((status = 200, content((operations::Root = "application/json"), (String = "text/html")))))]
pub(super) async fn root(
    State(state): State<ApiState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let mut response = if accepts(&headers, header::ACCEPT, "text/html") {
        // Read from the raw query, because a provider that sends a browser back adds parameters of its own.
        let query = query.unwrap_or_default();
        let value = |wanted: &str| {
            let mut pairs = url::form_urlencoded::parse(query.as_bytes());
            pairs
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value)
        };
        let framing = match (&state.demo, value("as")) {
            (None, _) => Framing::Never,
            (Some(_), None) => Framing::ShowsPane,
            (Some(_), Some(_)) => Framing::IsPane,
        };
        let policy = policy(&state.app.config, value("tenant").as_deref(), framing);
        let mut page = page(&headers, policy);
        if framing == Framing::IsPane {
            page.headers_mut().insert(
                header::X_FRAME_OPTIONS,
                HeaderValue::from_static("SAMEORIGIN"),
            );
        }
        page
    } else {
        axum::Json(operations::Root::HERE).into_response()
    };
    response
        .headers_mut()
        .append(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// A file of the web client.
///
/// Its name changes with its content, so it may be kept for ever.
#[utoipa::path(get, path = "/web/{file}", operation_id = "getWebFile", tag = "operations", security(()),
    params(("file" = String, Path)),
    responses((status = 200, body = String, content_type = "application/octet-stream")))]
pub(super) async fn file(
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let found = FILES.iter().find(|file| file.name == name);
    let Some(file) = found.filter(|file| file.name != "index.html") else {
        let detail = "the web client has no such file; load the page again";
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            ErrorCode::NotFound,
            detail,
        ));
    };
    let mut response = answer(file, &headers);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, FOR_EVER);
    Ok(response)
}

fn page(headers: &HeaderMap, policy: HeaderValue) -> Response {
    let mut response = match FILES.iter().find(|file| file.name == "index.html") {
        Some(file) => answer(file, headers),
        None => missing_page(),
    };
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

fn answer(file: &'static File, headers: &HeaderMap) -> Response {
    let accepts_encoding = |name| accepts(headers, header::ACCEPT_ENCODING, name);
    let (encoding, body) = if accepts_encoding("br") {
        (Some("br"), file.brotli)
    } else if accepts_encoding("gzip") {
        (Some("gzip"), file.gzip)
    } else {
        (None, file.body)
    };
    let mut response = Response::new(Body::from(Bytes::from_static(body)));
    let headers = response.headers_mut();
    let kind = match file.name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("webmanifest") => "application/manifest+json",
        _ => "application/octet-stream",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

/// Whether a header lists this value with a weight above zero.
pub(super) fn accepts(headers: &HeaderMap, name: header::HeaderName, value: &str) -> bool {
    accepts_any(headers, name, |listed| listed.eq_ignore_ascii_case(value))
}

/// Whether a header lists a value that `is_it`, with a weight above zero.
pub(super) fn accepts_any(
    headers: &HeaderMap,
    name: header::HeaderName,
    is_it: impl Fn(&str) -> bool,
) -> bool {
    let lists = headers.get_all(name).iter();
    lists
        .filter_map(|list| list.to_str().ok())
        .flat_map(|list| list.split(','))
        .any(|item| {
            let mut parts = item.split(';').map(str::trim);
            parts.next().is_some_and(&is_it)
                && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
        })
}

/// The page of a program that was built without the web client.
fn missing_page() -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head { meta charset="utf-8"; title { "Chatelaine" } }
            body {
                h1 { "Chatelaine is running" }
                p { "This program was built without its web client. Run " code { "make web" }
                    " in the folder of the sources (it needs Node 20 or newer), then " code { "cargo build" }
                    ", and start the program again. " code { "make demo" } " does all of it." }
                p { "The API is here: " a href="/openapi.json" { "/openapi.json" } "." }
            }
        }
    };
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], page.into_string()).into_response()
}
