//! Opens a WebSocket (RFC 6455). Its handshake is a request of the guarded client, so the same checks,
//! resolver, redirects and time limits hold. The caller must limit the messages that come over the socket.

use http::{HeaderName, HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use url::Url;

use super::{
    Egress, Request, Response, body::ResponseTimeouts, clean, error::ErrorKind, host_of, read,
};
use crate::EgressError;

/// The bytes of an open WebSocket: frames, which the writer has to mask.
pub type Socket = reqwest::Upgraded;

/// The outcome of a handshake.
pub enum Handshake {
    Open(Socket),
    /// The server answered as to any other request.
    Answer(Box<Response>),
}

impl Egress {
    /// Whether the address of a WebSocket may be called, without a look-up.
    pub fn check_socket_url(&self, url: &Url) -> Result<(), EgressError> {
        let mut url = url.clone();
        as_http(&mut url);
        self.check_url(&url)
    }

    /// Asks for a WebSocket with this subprotocol. `ws` and `wss` in the URL are judged as `http` and `https`; a
    /// redirect is followed within the origin only.
    pub async fn web_socket(
        &self,
        mut request: Request,
        protocol: &'static str,
    ) -> Result<Handshake, EgressError> {
        let mut timeouts = ResponseTimeouts::new(&request.limits);
        let max = request.limits.max_body;
        let key = generate_key();
        as_http(&mut request.url);
        clean(&mut request.headers);
        request.headers.extend(handshake_headers(&key, protocol));
        let (url, answer) = self.wait(&mut timeouts, request).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return read(url, answer, timeouts, max)
                .map(|answer| Handshake::Answer(Box::new(answer)));
        }
        let broken = |cause: &str| {
            ErrorKind::Broken {
                host: host_of(&url),
                cause: cause.to_owned(),
            }
            .sent()
        };
        let says = |name| {
            answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if says(header::SEC_WEBSOCKET_ACCEPT) != Some(&derive_accept_key(key.as_bytes())) {
            return Err(broken(
                "the server did not understand the WebSocket handshake",
            ));
        }
        // Gateways often name no subprotocol. One that we did not offer is an error.
        if says(header::SEC_WEBSOCKET_PROTOCOL).is_some_and(|chosen| chosen != protocol) {
            return Err(broken(
                "the server chose a WebSocket subprotocol that was not offered",
            ));
        }
        let socket = answer
            .upgrade()
            .await
            .map_err(|error| broken(&super::explanation::cause_of(&error.without_url())))?;
        Ok(Handshake::Open(socket))
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

fn as_http(url: &mut Url) {
    let scheme = match url.scheme() {
        "ws" => "http",
        "wss" => "https",
        _ => return,
    };
    url.set_scheme(scheme)
        .expect("all four are special schemes with a host");
}
