//! Numbers that no double holds arrive as they were written, whoever makes the call, and come back so.

use http::Method;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use sha2::{Digest, Sha256};

use super::connections;
use crate::support::{
    client::{Answer, Client},
    many::pack,
    model::{call, results, text},
    scripted::{Scripted, Seen},
    world::World,
};

const GIVEN: &str = r#"{"id":12345678901234567890123,"amount":1234567890.123456789}"#;
/// The same in its one spelling, which is approved.
const CANONICAL: &str = r#"{"amount":1234567890.123456789,"id":12345678901234567890123}"#;
const SCHEMA: &str = r#"{"type":"object","properties":{
    "id":{"type":"integer","minimum":12345678901234567890123},
    "amount":{"type":"number","maximum":1234567890.123456789,"multipleOf":0.000000001},
    "account":{"enum":["none",12345678901234567890123,{"id":[98765432109876543210]}]},
    "const":{"const":0.12345678901234567891}}}"#;
const RESULT: &str = r#"{"content":[{"type":"text","text":"done"}],
    "structuredContent":{"paid":98765432109876543210987,"rate":0.12345678901234567890}}"#;
const SAID: &str = r#"{"paid":98765432109876543210987,"rate":0.12345678901234567890}"#;

/// What the calls of a server were given, as it was written.
fn given(server: &Scripted) -> Vec<String> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        arguments: &'a RawValue,
    }
    let arguments = |seen: Seen| {
        let body: Body = serde_json::from_str(&seen.raw).unwrap();
        body.params.arguments.get().to_owned()
    };
    server
        .requests("tools/call")
        .into_iter()
        .map(arguments)
        .collect()
}

struct Numbers {
    server: Scripted,
    world: World,
    ann: Client,
}

impl Numbers {
    async fn new() -> Self {
        let server = Scripted::modern(|seen: Seen| async move {
            let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{SCHEMA}}}"#);
            match seen.method() {
                "tools/list" => {
                    let (free, guarded) = (tool("note"), tool("pay"));
                    let list = format!(
                        r#"{{"tools":[{free},{guarded}],"ttlMs":0,"cacheScope":"private"}}"#
                    );
                    Some(seen.raw_result(&list))
                }
                "tools/call" => Some(seen.raw_result(RESULT)),
                _ => None,
            }
        })
        .await;
        let entry = format!(
            "    - name: desk\n      transport: streamable-http\n      url: \"{}\"\n      toolAccess:\n        \
             default: public\n        approval: [{{ tools: [pay], approvers: [cfo] }}]\n",
            server.url
        );
        let (id, yaml) = pack(&entry);
        let yaml = yaml.replace("required: false", "required: false, rolesAttribute: roles")
            + "skills:\n  - { id: note, name: Note, description: Notes, mcpBinding: { server: desk, tools: [note] } }\n";
        let world = World::with(|setup| setup.packs.push((id, yaml))).await;
        let ann = world.user("ann", &[]).await;
        connections(&ann, &[("desk", "ready")]).await;
        Self { server, world, ann }
    }

    fn last(&self) -> String {
        given(&self.server).pop().unwrap_or_default()
    }

    /// A request with this text as its JSON.
    async fn post(&self, path: &str, body: String) -> Answer {
        let request = self.ann.request(Method::POST, path);
        let request = request.header("content-type", "application/json");
        self.ann
            .send(
                request
                    .header("mcp-protocol-version", "2025-11-25")
                    .body(body),
            )
            .await
    }

    async fn history(&self, conversation: &str) -> String {
        self.ann
            .get(&format!("/v1/conversations/{conversation}/messages"))
            .await
            .text
    }
}

#[tokio::test]
async fn a_command_and_a_model_call_with_every_digit_and_read_every_digit() {
    let it = Numbers::new().await;
    let conversation = it.ann.open("many").await;
    it.ann
        .say_and_wait(&conversation, &format!("/call desk note {GIVEN}"))
        .await;
    assert_eq!(it.last(), GIVEN);
    let history = it.history(&conversation).await;
    assert!(
        history.contains(&format!("\"arguments\":{GIVEN}")),
        "{history}"
    );
    assert!(
        history.contains(&format!("done\\n{}", SAID.replace('"', "\\\""))),
        "{history}"
    );
    let asked = text("").and_call(call("desk__note", GIVEN));
    it.world.model.reply(asked).reply(text("Noted."));
    it.ann.say_and_wait(&conversation, "note it").await;
    assert_eq!(given(&it.server), [GIVEN, GIVEN]);
    let request = it.world.model.last_request();
    assert!(
        request.to_string().contains("12345678901234567890123"),
        "{request}"
    );
    let heard = results(&request);
    assert!(
        heard.iter().any(|result| result.ends_with(SAID)),
        "{heard:?}"
    );
}

#[tokio::test]
async fn a_skill_an_mcp_client_and_another_agent_call_with_every_digit() {
    let it = Numbers::new().await;
    let body = format!(r#"{{"arguments":{GIVEN}}}"#);
    let answer = it.post("/v1/agents/many/skills/note", body).await;
    assert_eq!(
        (answer.status, it.last().as_str()),
        (200, GIVEN),
        "{}",
        answer.text
    );
    assert!(answer.text.contains(SAID), "{}", answer.text);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"desk__note","arguments":{GIVEN}}}}}"#
    );
    let answer = it.post("/mcp/many", body).await;
    assert_eq!(
        (answer.status, it.last().as_str()),
        (200, GIVEN),
        "{}",
        answer.text
    );
    assert!(answer.text.contains(SAID), "{}", answer.text);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{{"metadata":{{"skillId":"note"}},
        "message":{{"messageId":"m1","role":"ROLE_USER","parts":[{{"data":{GIVEN}}}]}}}}}}"#
    );
    let answer = it.post("/a2a/many", body).await;
    assert_eq!(
        (answer.status, it.last().as_str()),
        (200, GIVEN),
        "{}",
        answer.text
    );
    assert!(
        answer.text.contains(&format!("\"data\":{SAID}")),
        "{}",
        answer.text
    );
    assert_eq!(given(&it.server).len(), 3);
}

#[tokio::test]
async fn what_is_approved_is_what_runs_with_every_digit() {
    let it = Numbers::new().await;
    let conversation = it.ann.open("many").await;
    it.ann
        .say_and_wait(&conversation, &format!("/call desk pay {GIVEN}"))
        .await;
    // The same call, written in another way.
    let again = r#"{"id":1234567890123456789012.3e1,"amount":1234567890.12345678900}"#;
    it.ann
        .say_and_wait(&conversation, &format!("/call desk pay {again}"))
        .await;
    let carl = it.world.user("carl", &["cfo"]).await;
    let waiting = carl.get("/v1/approvals").await.expect(200);
    assert_eq!(waiting["items"].as_array().unwrap().len(), 1, "{waiting}");
    let path = format!(
        "/v1/approvals/{}",
        waiting["items"][0]["id"].as_str().unwrap()
    );
    let shown = carl.get(&path).await;
    assert!(
        shown.text.contains(&format!("\"arguments\":{CANONICAL}")),
        "{}",
        shown.text
    );
    let hash = hex::encode(Sha256::digest(CANONICAL));
    assert_eq!(shown.json()["args_sha256"], json!(hash));
    let decision = json!({ "decision": "approve", "args_sha256": hash });
    carl.post(&format!("{path}/decision"), decision)
        .await
        .expect(200);
    let is_done = async || carl.get(&path).await.expect(200)["state"] == "succeeded";
    crate::support::wait::eventually(is_done).await;
    assert_eq!(given(&it.server), [CANONICAL]);
}

#[tokio::test]
async fn limits_of_a_schema_are_compared_by_every_digit() {
    let it = Numbers::new().await;
    let conversation = it.ann.open("many").await;
    for (arguments, problem) in [
        (
            r#"{"id":12345678901234567890122}"#,
            "12345678901234567890122 is less than the minimum of 12345678901234567890123",
        ),
        (r#"{"id":12345678901234567890123.5}"#, "integer"),
        (
            r#"{"amount":1234567890.1234567891}"#,
            "is greater than the maximum of 1234567890.123456789",
        ),
        (
            r#"{"amount":0.0000000001}"#,
            "0.0000000001 is not a multiple of 1e-9",
        ),
        (r#"{"amount":1e400}"#, "1e400 is greater than the maximum"),
        (
            r#"{"account":12345678901234567890124}"#,
            "12345678901234567890124 is not one of",
        ),
        (
            r#"{"account":{"id":[98765432109876543211]}}"#,
            "98765432109876543211",
        ),
        (
            r#"{"const":0.123456789012345678911}"#,
            "0.123456789012345678911 is not 0.12345678901234567891",
        ),
    ] {
        it.ann
            .say_and_wait(&conversation, &format!("/call desk note {arguments}"))
            .await;
        let history = it.history(&conversation).await;
        assert!(history.contains(problem), "{arguments}: {history}");
    }
    assert!(given(&it.server).is_empty());
    let fits = r#"{"id":1.2345678901234567890124e22,"amount":-1234567890.123456789,"account":{"id":[9876543210987654321e1]},"const":12345678901234567891e-20}"#;
    it.ann
        .say_and_wait(&conversation, &format!("/call desk note {fits}"))
        .await;
    assert_eq!(given(&it.server), [fits]);
}
