//! Plain pages besides the web client: HTML without scripts, images or other hosts.

use std::sync::LazyLock;

use axum::{body::Body, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::{extract::first_language, problem::Problem};
use domain::texts;

/// A policy that allows the page's own style and its own form, and nothing else.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    );
    HeaderValue::from_str(&policy).expect("base64 and words are a header value")
});
/// A style that looks like the web client.
const STYLE: &str = include_str!("connect.css");

/// Replaces the body of a problem by a page, for a person who opened an address of the API in a browser. The headers
/// stay.
pub(super) fn show_problem(problem: &Problem, mut answered: Response) -> Response {
    let title = problem.status.canonical_reason().unwrap_or("Error");
    let body = html! {
        p { (problem.sentence()) }
        p { a href="/" { "Chatelaine" } " · " a href="/openapi.json" { "API" } }
    };
    let page = answer(problem.status, document("en", title, &body));
    let (parts, body) = page.into_parts();
    answered.headers_mut().extend(parts.headers);
    *answered.body_mut() = body;
    answered
}

/// Answers with a page.
pub(super) fn answer(status: StatusCode, page: Markup) -> Response {
    let mut response = Response::new(Body::from(page.into_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    response
}

/// The HTML document of a page.
pub(super) fn document(language: &str, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(language) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { p.brand { "Chatelaine" } h1 { (title) } (body) } }
        }
    }
}

/// The language of pages for a browser: the one that it asks for first, if there is a translation, else English.
pub(super) fn language_of(headers: &HeaderMap) -> &'static str {
    let wanted = first_language(headers).unwrap_or_default();
    let language = texts::LANGUAGES.iter().find(|tag| wanted.starts_with(*tag));
    language.copied().unwrap_or("en")
}
