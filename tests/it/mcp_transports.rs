//! Servers over HTTP with SSE as in revision 2024-11-05, and over a WebSocket: published ones, and ones that do
//! exactly what a test says.

mod floods; // servers that send without end
mod pair; // a stream of events and an address
pub mod sockets; // a server at a WebSocket, for the others
mod websocket; // messages both ways

use domain::server::{Endpoint, Remote};
use egress::Egress;
use mcp::{Mcp, McpErrorKind, Options};

use crate::support::{
    origin::{Origin, ok},
    servers::{key, spec},
};

#[tokio::test]
async fn no_transport_dials_what_the_guard_refuses() {
    let spy = Origin::start(|_| ok("reached")).await;
    let port = spy.address.port();
    let mcp = Mcp::new(Egress::new(&[]).unwrap(), Options::default());
    for (transport, scheme) in [
        (Remote::StreamableHttp, "http"),
        (Remote::StreamableHttp, "https"),
        (Remote::Sse, "http"),
        (Remote::Sse, "https"),
        (Remote::WebSocket, "ws"),
        (Remote::WebSocket, "wss"),
    ] {
        for host in [
            "127.0.0.1",
            "localhost",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "127.1",
        ] {
            let url = format!("{scheme}://{host}:{port}/sse").parse().unwrap();
            let endpoint = Endpoint::Remote {
                transport,
                url,
                headers: vec![],
            };
            let error = mcp.discover(&key(), &spec(endpoint)).await.unwrap_err();
            assert_eq!(
                error.kind,
                McpErrorKind::Misconfigured,
                "{transport:?} {host}: {error}"
            );
            assert!(
                error
                    .message
                    .starts_with("egress rejected: private/loopback/internal host"),
                "{error}"
            );
        }
    }
    assert_eq!(spy.accepted(), 0);
}

#[tokio::test]
async fn a_public_socket_needs_tls() {
    let mcp = Mcp::new(Egress::new(&[]).unwrap(), Options::default());
    let url = "ws://tools.example.com/mcp".parse().unwrap();
    let endpoint = Endpoint::Remote {
        transport: Remote::WebSocket,
        url,
        headers: vec![],
    };
    let error = mcp.discover(&key(), &spec(endpoint)).await.unwrap_err();
    let sentence =
        "plain http to non-loopback host \"tools.example.com\" (use https or allowlist it)";
    assert!(error.message.contains(sentence), "{error}");
}
