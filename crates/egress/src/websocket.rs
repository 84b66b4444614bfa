//! Opens a WebSocket (RFC 6455). Its handshake is sent like any other request, so the same checks, resolver, redirects
//! and time limits hold. The caller must limit the messages that come over the socket.

use http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use url::Url;

use super::{
    Egress, Request, Response,
    body::ResponseTimeouts,
    error::{ErrorKind, innermost_cause},
    host_of, limit_response, prepare_headers,
};
use crate::EgressError;

/// The raw byte stream of an open WebSocket. Its user frames the messages, and masks what it writes.
pub type Socket = TokioIo<Upgraded>;

/// The outcome of a WebSocket handshake.
pub enum Handshake {
    Open(Socket),
    /// The server opened no WebSocket and sent this response.
    Answer(Box<Response>),
}

impl Egress {
    /// Checks the text of a WebSocket URL (`ws` or `wss`), without resolving its name. The error is the refusal.
    pub fn check_socket_url(&self, url: &Url) -> Result<(), EgressError> {
        let mut url = url.clone();
        use_http_scheme(&mut url);
        self.check_url(&url)
    }

    /// Opens a WebSocket with this subprotocol. `ws` and `wss` in the URL are checked as `http` and `https`. Redirects are
    /// followed within the origin only.
    pub async fn open_web_socket(
        &self,
        mut request: Request,
        protocol: &'static str,
    ) -> Result<Handshake, EgressError> {
        let mut timeouts = ResponseTimeouts::new(&request.limits);
        let max = request.limits.max_body;
        let key = generate_key();
        use_http_scheme(&mut request.url);
        prepare_headers(&mut request.headers);
        request.headers.extend(handshake_headers(&key, protocol));
        let (url, response) = self.send_in_time(&mut timeouts, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return limit_response(url, response, timeouts, max)
                .map(|response| Handshake::Answer(Box::new(response)));
        }
        let broken = |cause: &str| {
            ErrorKind::Broken {
                host: host_of(&url),
                cause: cause.to_owned(),
            }
            .sent()
        };
        let header_text = |name| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if header_text(header::SEC_WEBSOCKET_ACCEPT) != Some(&derive_accept_key(key.as_bytes())) {
            return Err(broken(
                "the server did not understand the WebSocket handshake",
            ));
        }
        // Gateways often name no subprotocol. One that we did not offer is an error.
        if header_text(header::SEC_WEBSOCKET_PROTOCOL).is_some_and(|chosen| chosen != protocol) {
            return Err(broken(
                "the server chose a WebSocket subprotocol that was not offered",
            ));
        }
        let socket = hyper::upgrade::on(response)
            .await
            .map_err(|error| broken(&innermost_cause(&error)))?;
        Ok(Handshake::Open(TokioIo::new(socket)))
    }
}

fn handshake_headers(key: &str, protocol: &'static str) -> [(HeaderName, HeaderValue); 5] {
    [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (
            header::SEC_WEBSOCKET_VERSION,
            HeaderValue::from_static("13"),
        ),
        (
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static(protocol),
        ),
        (
            header::SEC_WEBSOCKET_KEY,
            HeaderValue::from_str(key).expect("Base64 is ASCII"),
        ),
    ]
}

/// Replaces `ws` by `http` and `wss` by `https`.
fn use_http_scheme(url: &mut Url) {
    let scheme = match url.scheme() {
        "ws" => "http",
        "wss" => "https",
        _ => return,
    };
    url.set_scheme(scheme)
        .expect("all four are special schemes with a host");
}
