//! The callback of a sign-in from the terminal: an address of this machine, open for one sign-in, to which the provider
//! sends the browser back (RFC 8252, section 7.3).

use std::{future::IntoFuture as _, process::Stdio, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Query, State},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use url::Url;

use domain::{config::Environment, secret::Secret};
use mcp::oauth::CallbackParams;

/// How long a person may take to sign in.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the browser may take to read its last page.
const LAST_PAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listener on this machine, and its address.
pub struct Loopback {
    listener: TcpListener,
    redirect_uri: String,
}

impl Loopback {
    pub async fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let redirect_uri = format!("http://{}/callback", listener.local_addr()?);
        Ok(Self {
            listener,
            redirect_uri,
        })
    }

    pub fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Waits until a browser comes back with this `state`.
    pub async fn wait(self, state: &Secret) -> anyhow::Result<CallbackParams> {
        let (sender, mut receiver) = mpsc::channel(1);
        let expected = Expected {
            state: state.clone(),
            callback: sender,
        };
        let router = Router::new().route("/callback", get(take_callback));
        let server = axum::serve(self.listener, router.with_state(expected));
        let (stop, stopped) = oneshot::channel::<()>();
        let until = async move { drop(stopped.await) };
        let serving = tokio::spawn(server.with_graceful_shutdown(until).into_future());
        let params = tokio::time::timeout(SIGN_IN_TIMEOUT, receiver.recv()).await;
        let params = params.ok().flatten();
        // The page is sent before this returns. A browser that keeps its connection open does not hold it up.
        drop(stop);
        let _ = tokio::time::timeout(LAST_PAGE_TIMEOUT, serving).await;
        params.context("nobody came back from the sign-in within ten minutes; begin again")
    }
}

#[derive(Clone)]
struct Expected {
    state: Secret,
    callback: mpsc::Sender<CallbackParams>,
}

async fn take_callback(
    State(expected): State<Expected>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let (mut params, mut is_expected) = (CallbackParams::default(), false);
    for (name, value) in pairs {
        match &*name {
            "state" => is_expected = value == expected.state.expose(),
            "code" => params.code = Some(Secret::new(value)),
            "iss" => params.issuer = Some(value),
            "error" => params.error = Some(value),
            "error_description" => params.error_description = Some(value),
            _ => {}
        }
    }
    let is_declined = params.error.is_some();
    if !is_expected || expected.callback.try_send(params).is_err() {
        return page(
            StatusCode::NOT_FOUND,
            "This link leads nowhere. Begin the sign-in again.",
        );
    }
    let text = if is_declined {
        "The sign-in was declined. Go back to the terminal."
    } else {
        "Go back to the terminal. You may close this window."
    };
    page(StatusCode::OK, text)
}

fn page(status: StatusCode, text: &str) -> Response {
    let html = Html(format!(
        "<!doctype html><meta charset=utf-8><title>Chatelaine</title><p>{text}</p>"
    ));
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (header::CONNECTION, "close"),
    ];
    (status, headers, html).into_response()
}

/// The program that opens links on this machine, if there is one.
pub fn browser(env: &Environment) -> Option<String> {
    let named = env.get("BROWSER").and_then(|list| list.split(':').next());
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return Some(named.to_owned());
    }
    if cfg!(target_os = "macos") {
        return Some("open".to_owned());
    }
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| env.get(name).is_some_and(|value| !value.is_empty()));
    has_screen.then(|| "xdg-open".to_owned())
}

/// Opens a link in the browser. A failure is only logged, because the link was printed too.
pub fn open_link(browser: &str, url: &Url) {
    let mut command = tokio::process::Command::new(browser);
    command
        .arg(url.as_str())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        tracing::debug!(%error, browser, "no browser opens the link");
    }
}
