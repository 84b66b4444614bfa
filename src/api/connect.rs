//! The page behind a one-time link, on which a user enters values for a personal server: plain HTML without scripts,
//! images or other hosts. It shows nothing that the user's own conversation does not show.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, header};
use maud::{Markup, html};

use super::{
    body::read_body,
    extract::{Anonymous, Path},
    page::{answer, document, language_of},
    problem::Problem,
    web,
};
use crate::app::{
    App,
    chat::flows::page::{self as one_time, Form, FormField, SubmitOutcome},
};
use domain::{error::Error, secret::Secret, server::FieldKind};

/// The most bytes of a form.
const MAX_FORM: usize = 256 * 1024;

/// A one-time page on which a user enters what a personal server needs.
///
/// The address is the permission. It works once, and not for long.
#[utoipa::path(get, path = "/connect/{token}", operation_id = "getConnectPage", tag = "connections", security(()),
    params(("token" = String, Path)), responses((status = 200, content_type = "text/html", body = String)))]
pub(super) async fn form(
    State(app): State<Arc<App>>,
    _: Anonymous,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    match one_time::open(&app, &token).await {
        Ok(form) => Ok(answer(StatusCode::OK, form_page(&form))),
        Err(error) => refuse(&headers, error),
    }
}

/// Send the page.
///
/// The answer shows a code to name in the conversation; before that, nothing is in force.
#[utoipa::path(post, path = "/connect/{token}", operation_id = "submitConnectPage", tag = "connections",
    security(()), params(("token" = String, Path)),
    request_body(content_type = "application/x-www-form-urlencoded", content = String),
    responses((status = 200, content_type = "text/html", body = String)))]
pub(super) async fn send(
    State(app): State<Arc<App>>,
    _: Anonymous,
    Path(token): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let body = read_body(request, MAX_FORM, MAX_FORM).await?;
    let entered: BTreeMap<String, Secret> = url::form_urlencoded::parse(&body)
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.into_owned(), Secret::new(value)))
        .collect();
    let sent = match one_time::send(&app, &token, &entered).await {
        Ok(sent) => sent,
        Err(error) => return refuse(&headers, error),
    };
    Ok(match sent {
        SubmitOutcome::Again(form) => answer(StatusCode::UNPROCESSABLE_ENTITY, form_page(&form)),
        SubmitOutcome::Code {
            language,
            title,
            text,
            code,
        } => {
            let body = html! { p { (text) } output { (code) } };
            answer(StatusCode::OK, document(&language, &title, &body))
        }
    })
}

/// Answers a link that was used or is too old: a person gets a page that says what to do, a program gets a problem.
fn refuse(headers: &HeaderMap, error: Error) -> Result<Response, Problem> {
    if !matches!(error, Error::NotFound(_)) || !web::accepts(headers, header::ACCEPT, "text/html") {
        return Err(error.into());
    }
    let language = language_of(headers);
    let (title, text) = one_time::gone_texts(language);
    let page = document(language, &title, &html! { p { (text) } });
    Ok(answer(StatusCode::NOT_FOUND, page))
}

fn form_page(form: &Form) -> Markup {
    let body = html! {
        @for paragraph in &form.about { p { (paragraph) } }
        form method="post" autocomplete="off" {
            @for (at, entry) in form.fields.iter().enumerate() { (labelled_input(at, entry)) }
            button type="submit" { (form.send) }
        }
    };
    document(&form.language, &form.title, &body)
}

/// One labelled input. It never holds the value that was entered before.
fn labelled_input(at: usize, entry: &FormField) -> Markup {
    let (id, fault_id) = (format!("f{at}"), format!("e{at}"));
    let invalid = entry.fault.is_some().then_some("true");
    let described_by = entry.fault.is_some().then_some(&fault_id);
    let (kind, autocomplete, spellcheck, options) = match entry.kind {
        FieldKind::Select | FieldKind::Boolean => ("", None, None, Some(&entry.options[..])),
        FieldKind::Secret => ("password", Some("off"), Some("false"), None),
        FieldKind::Url => ("url", None, None, None),
        FieldKind::Text => ("text", None, Some("false"), None),
    };
    html! {
        label for=(id) { (entry.label) }
        @if let Some(options) = options {
            select id=(id) name=(entry.name) required[entry.required] aria-invalid=[invalid]
                aria-describedby=[described_by] {
                option value="" {}
                @for (value, label) in options { option value=(value) { (label) } }
            }
        } @else {
            input type=(kind) autocomplete=[autocomplete] spellcheck=[spellcheck] id=(id) name=(entry.name)
                required[entry.required] aria-invalid=[invalid] aria-describedby=[described_by];
        }
        @if let Some(fault) = &entry.fault {
            p.fault role="alert" id=(fault_id) { (fault) }
        }
    }
}
