//! A request of HTTP/1.1 names its host exactly once (RFC 9112, section 3.2).

use chatelaine::api;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::world::{TIME_LIMIT, World};

/// The whole answer to a request with these lines, each with its end of line.
async fn answer_to(world: &World, lines: &str) -> String {
    let address = world.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{lines}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(TIME_LIMIT, stream.read_to_string(&mut answer))
        .await
        .expect("the connection stays open")
        .unwrap();
    answer
}

#[tokio::test]
async fn no_route_takes_a_request_without_a_host_or_with_two() {
    let world = World::shared().await;
    let document = api::openapi();
    let known = document["paths"].as_object().unwrap();
    let known = known.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        methods.map(|method| (method.to_uppercase(), path.replace(['{', '}'], "")))
    });
    let unknown = [("GET", "/nothing"), ("PUT", "/v1/me")];
    let unknown = unknown.map(|(method, path)| (method.to_owned(), path.to_owned()));
    let mut wrong = Vec::new();
    for (method, path) in known.chain(unknown) {
        for hosts in ["", "host: x\r\nhost: x\r\n"] {
            let answer = answer_to(&world, &format!("{method} {path} HTTP/1.1\r\n{hosts}")).await;
            if !answer.starts_with("HTTP/1.1 400") || !answer.contains("Host") {
                wrong.push(format!("{method} {path} with {hosts:?}: {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[tokio::test]
async fn the_refusal_of_a_host_is_a_problem_like_any_other() {
    let world = World::shared().await;
    let problems = [
        ("", "missing_field"),
        ("host: x\r\nhost: y\r\n", "invalid"),
        ("host: ann@x\r\n", "invalid"),
        ("host: x y\r\n", "invalid"),
    ];
    for (hosts, code) in problems {
        let answer = answer_to(&world, &format!("GET /v1/me HTTP/1.1\r\n{hosts}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{hosts:?}: {answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{answer}");
        assert!(answer.contains("\"field\":\"Host\""), "{answer}");
    }
}

#[tokio::test]
async fn a_host_may_be_any_name_or_address_and_an_older_client_sends_none() {
    let world = World::shared().await;
    for host in ["x", "chat_backend:8080", "[::1]:80", "127.0.0.1", ""] {
        let lines = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n");
        let answer = answer_to(&world, &lines).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{host:?}: {answer}");
    }
    let older = answer_to(&world, "GET /healthz HTTP/1.0\r\n").await;
    assert!(older.starts_with("HTTP/1.0 200"), "{older}");
}
