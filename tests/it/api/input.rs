//! Everything malformed is refused with a problem that names the field and the reason, and loses nothing.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{has::Has, world::World};

/// method, path, body, then status, code, field and a piece of the detail.
type Case = (
    Method,
    &'static str,
    Value,
    u16,
    &'static str,
    &'static str,
    &'static str,
);

const NEW: &str = "/v1/conversations";
const SAY: &str = "/v1/conversations/{id}/messages";

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let (get, post) = (|| Method::GET, || Method::POST);
    vec![
        (
            post(),
            NEW,
            json!({}),
            400,
            "missing_field",
            "agent",
            "agent is missing",
        ),
        (
            post(),
            NEW,
            json!([]),
            400,
            "wrong_type",
            "body",
            "must be an object",
        ),
        (
            post(),
            NEW,
            json!("bank"),
            400,
            "wrong_type",
            "body",
            "must be an object",
        ),
        (
            post(),
            NEW,
            json!({ "agent": 7 }),
            400,
            "wrong_type",
            "agent",
            "must be a string",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "bank", "titel": "x" }),
            400,
            "unknown_field",
            "titel",
            "is not known here",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "bank", "title": "" }),
            400,
            "invalid",
            "title",
            "blank",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "bank", "title": "x".repeat(201) }),
            400,
            "too_long",
            "title",
            "at most 200",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "bank", "title": "a\0b" }),
            400,
            "invalid",
            "title",
            "U+0000",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "nobody" }),
            404,
            "not_found",
            "",
            "agent",
        ),
        (
            post(),
            NEW,
            json!({ "agent": "../etc" }),
            404,
            "not_found",
            "",
            "agent",
        ),
        (
            post(),
            SAY,
            json!({ "text": "" }),
            400,
            "invalid",
            "text",
            "blank",
        ),
        (
            post(),
            SAY,
            json!({ "text": " \n\t " }),
            400,
            "invalid",
            "text",
            "blank",
        ),
        (
            post(),
            SAY,
            json!({ "text": null }),
            400,
            "invalid",
            "body",
            "exactly one of",
        ),
        (
            post(),
            SAY,
            json!({ "text": 7 }),
            400,
            "wrong_type",
            "text",
            "must be a string",
        ),
        (
            post(),
            SAY,
            json!({ "text": "a\0b" }),
            400,
            "invalid",
            "text",
            "U+0000",
        ),
        (
            post(),
            SAY,
            json!({ "text": "ä".repeat(32_769) }),
            400,
            "too_long",
            "text",
            "at most 32768",
        ),
        (
            post(),
            "/v1/guests",
            json!({ "tenant": "" }),
            400,
            "invalid",
            "tenant",
            "blank",
        ),
        (
            get(),
            "/v1/conversations?limit=0",
            Value::Null,
            400,
            "invalid",
            "limit",
            "from 1 to 100",
        ),
        (
            get(),
            "/v1/conversations?limit=101",
            Value::Null,
            400,
            "invalid",
            "limit",
            "from 1 to 100",
        ),
        (
            get(),
            "/v1/conversations?limit=ten",
            Value::Null,
            400,
            "wrong_type",
            "limit",
            "must be a whole number",
        ),
        (
            get(),
            "/v1/conversations?limti=10",
            Value::Null,
            400,
            "unknown_field",
            "limti",
            "is not known here",
        ),
        (
            get(),
            "/v1/conversations?cursor=yesterday",
            Value::Null,
            400,
            "wrong_type",
            "cursor",
            "must be a UUID",
        ),
        (
            get(),
            "/v1/conversations?agent=..",
            Value::Null,
            400,
            "invalid",
            "agent",
            "not a valid agent id",
        ),
        (
            get(),
            "/v1/agents/bank/tools?explain=perhaps",
            Value::Null,
            400,
            "wrong_type",
            "explain",
            "must be `true` or `false`",
        ),
        (
            get(),
            "/v1/conversations/{id}/messages?after=x",
            Value::Null,
            400,
            "wrong_type",
            "after",
            "must be a whole number",
        ),
        (
            get(),
            "/v1/conversations/{id}/events?after=x",
            Value::Null,
            400,
            "wrong_type",
            "after",
            "must be a whole number",
        ),
        (
            get(),
            "/v1/conversations/42",
            Value::Null,
            404,
            "not_found",
            "",
            "was not found",
        ),
        (
            get(),
            "/v1/runs/00000000-0000-0000-0000-000000000000",
            Value::Null,
            404,
            "not_found",
            "",
            "was not found",
        ),
        (
            get(),
            "/v1/agents/%FF",
            Value::Null,
            404,
            "not_found",
            "",
            "was not found",
        ),
    ]
}

#[tokio::test]
async fn every_malformed_request_gets_a_problem_that_names_what_is_wrong() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut wrong = Vec::new();
    for (method, path, body, status, code, field, detail) in cases() {
        let mut request = ann.request(method.clone(), &path.replace("{id}", &id));
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = ann.send(request).await;
        let problem = answer.json();
        let fits = answer.status == status
            && answer.header("content-type") == "application/problem+json"
            && problem["status"] == status
            && problem["title"]
                == StatusCode::from_u16(status)
                    .unwrap()
                    .canonical_reason()
                    .unwrap()
            && problem["code"] == code
            && problem["field"].as_str().unwrap_or_default() == field
            && problem["detail"]
                .as_str()
                .is_some_and(|text| text.contains(detail));
        if !fits {
            let shown: String = body.to_string().chars().take(60).collect();
            wrong.push(format!(
                "{method} {path} {shown}\n    {} {problem}",
                answer.status
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    assert_eq!(
        ann.messages(&id).await.len(),
        1,
        "nothing was kept but the greeting"
    );
}

#[tokio::test]
async fn bodies_that_are_not_json_are_told_apart() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let send = async |media: Option<&str>, body: &'static [u8]| {
        let mut request = ann.request(Method::POST, NEW).body(body);
        if let Some(media) = media {
            request = request.header("content-type", media);
        }
        let answer = ann.send(request).await;
        let problem = answer.json();
        (answer.status, problem["code"].as_str().unwrap().to_owned())
    };
    let json = Some("application/json");
    assert_eq!(
        send(json, b"{\"agent\": ").await,
        (400, "malformed_json".to_owned())
    );
    assert_eq!(send(json, b"").await, (400, "malformed_json".to_owned()));
    assert_eq!(
        send(json, b"{\"agent\": \"bank\"} {}").await,
        (400, "malformed_json".to_owned())
    );
    assert_eq!(
        send(json, b"{\"agent\": \"\xff\"}").await,
        (400, "malformed_json".to_owned())
    );
    assert_eq!(
        send(None, b"{\"agent\": \"bank\"}").await,
        (415, "unsupported_media_type".to_owned())
    );
    assert_eq!(
        send(Some("text/plain"), b"{}").await,
        (415, "unsupported_media_type".to_owned())
    );
    assert_eq!(
        send(Some("application/json; charset=utf-16"), b"{}").await,
        (415, "unsupported_media_type".to_owned())
    );
    assert_eq!(
        send(Some("application/jsonish"), b"{}").await,
        (415, "unsupported_media_type".to_owned())
    );
    let answer = ann
        .request(Method::POST, NEW)
        .header("content-type", "application/JSON; charset=utf-8");
    assert_eq!(
        ann.send(answer.body("{\"agent\": \"bank\"}")).await.status,
        201
    );
}

#[tokio::test]
async fn what_a_run_is_given_has_each_name_once() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for field in ["params", "scope"] {
        for (given, status) in [
            (r#""a":1,"a":2"#, 400),
            (r#""a":1e400,"b":12345678901234567890123"#, 200),
        ] {
            let body = format!(r#"{{"agent_name":"bank","prompt":"hi","{field}":{{{given}}}}}"#);
            let request = ann
                .request(Method::POST, "/v1/runs/check")
                .header("content-type", "application/json");
            let answer = ann.send(request.body(body)).await.expect(status);
            if status == 400 {
                let detail = format!("{field} holds a name twice");
                answer.has(json!({ "field": field, "detail": detail }));
            }
        }
    }
}

#[tokio::test]
async fn json_as_deep_as_a_well_is_refused() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let request = ann
        .request(Method::POST, NEW)
        .header("content-type", "application/json");
    let answer = ann.send(request.body("[".repeat(100_000))).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
}

#[tokio::test]
async fn a_text_may_have_as_many_characters_as_is_said() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let text = format!("/{}", "ä".repeat(32_767));
    ann.post(&SAY.replace("{id}", &id), json!({ "text": text }))
        .await
        .expect(202);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_the_client_reads_why() {
    let world = World::with(|setup| setup.config.max_body_bytes = 100_000).await;
    let ann = world.user("ann", &[]).await;
    let body = format!("{{\"agent\": \"{}\"}}", "x".repeat(400_000));
    let request = || {
        ann.request(Method::POST, NEW)
            .header("content-type", "application/json")
    };
    let known = ann.send(request().body(body.clone())).await;
    assert_eq!(known.expect(413)["code"], "body_too_large");
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = body
        .into_bytes()
        .chunks(10_000)
        .map(|piece| Ok(piece.to_vec()))
        .collect();
    let chunked = request().body(reqwest::Body::wrap_stream(futures_util::stream::iter(
        pieces,
    )));
    assert_eq!(ann.send(chunked).await.status, 413);
}

#[tokio::test]
async fn a_wrong_method_names_the_right_ones() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let answer = ann
        .send(ann.request(Method::PATCH, "/v1/conversations"))
        .await;
    assert_eq!(answer.expect(405)["code"], "method_not_allowed");
    assert_eq!(answer.header("allow"), "GET,HEAD,POST");
}

#[tokio::test]
async fn a_credential_that_is_none_is_told_apart_from_a_missing_one() {
    let world = World::shared().await;
    let nobody = world.nobody();
    for (header, detail) in [
        (None, "no credential"),
        (Some("Basic YTpi"), "form `Bearer"),
        (Some("Bearer"), "form `Bearer"),
        (Some("Bearer nonsense"), ""),
        (Some("Bearer chk_000000000000_00"), "unknown"),
    ] {
        let mut request = nobody.request(Method::GET, "/v1/me");
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let answer = nobody.send(request).await;
        let problem = answer.expect(401);
        assert_eq!(problem["code"], "unauthenticated", "{header:?}");
        let error = header.map_or("", |_| r#" error="invalid_token""#);
        assert_eq!(answer.header("www-authenticate"), format!("Bearer{error}"));
        assert!(
            problem["detail"].as_str().unwrap().contains(detail),
            "{header:?}: {problem}"
        );
    }
}

#[tokio::test]
async fn our_own_faults_are_not_shown() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    ann.get("/v1/conversations").await.expect(200);
    let mut owner = world.db.as_owner().await;
    sqlx::query("alter table conversations rename to elsewhere")
        .execute(&mut owner)
        .await
        .unwrap();
    let problem = ann.get("/v1/conversations").await.expect(500);
    problem.has(json!({ "code": "internal", "detail": "internal error" }));
    assert!(!problem.to_string().contains("relation"));
}
