//! Tools that can be taken for a guarded one wait for the same people, whichever way they are called.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::Client,
    model::{calls, text},
    packs::write_pack,
    program::chatelaine,
    scripted::{Scripted, Seen, text as words},
    servers::soon,
    world::World,
};

const TAKEN_FOR_IT: [&str; 7] = [
    "Send_Money",
    "sendmoney",
    "send.money",
    "send/money",
    "sendMoney",
    "send_money_v2",
    "send_m0ney",
];
const OTHERS: [&str; 3] = ["send_money_status", "get_balance", "SendMoney2"];

async fn server() -> Scripted {
    Scripted::modern(|seen: Seen| async move {
        let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let tools: Vec<_> = ["send_money"]
            .iter()
            .chain(&TAKEN_FOR_IT)
            .chain(&OTHERS)
            .map(tool)
            .collect();
        match seen.method() {
            "tools/list" => {
                Some(seen.result(json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" })))
            }
            "tools/call" => Some(seen.result(words("done"))),
            _ => None,
        }
    })
    .await
}

/// It names `SendMoney2` itself, so that its author has said what it is.
fn pack(server: &Scripted, guard: &str) -> (String, String) {
    let url = &server.url;
    let yaml = format!(
        r#"
metadata: {{ id: shadow, displayName: Shadow, description: Names, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: Shadow }} }}
llm: {{ provider: openai, model: scripted, baseUrl: "${{MODEL_URL}}", apiKey: model-key-0123456789 }}
flows: {{ authentication: {{ required: false, rolesAttribute: roles, adminUsers: [alice] }} }}
mcp:
  servers:
    - name: shadow
      transport: streamable-http
      url: "{url}"
      tools: ["*", SendMoney2]
      toolAccess:
        default: public
        approval:
          - {{ tools: [{guard}], approvers: [cfo] }}
"#
    );
    ("shadow".to_owned(), yaml)
}

async fn tools(client: &Client) -> Vec<Value> {
    soon(async {
        loop {
            let answer = client.get("/v1/agents/shadow/tools").await.expect(200);
            let tools = answer["items"][0]["tools"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            if tools.len() == 1 + TAKEN_FOR_IT.len() + OTHERS.len() {
                return tools;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
}

fn called(server: &Scripted) -> BTreeSet<String> {
    let name = |seen: Seen| seen.body["params"]["name"].as_str().unwrap().to_owned();
    server
        .requests("tools/call")
        .into_iter()
        .map(name)
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn whatever_can_be_taken_for_a_guarded_tool_waits_for_the_same_approvers() {
    for guard in ["send_money", "send_*", "\"*_money\""] {
        let server = server().await;
        let world = World::with(|setup| setup.packs.push(pack(&server, guard))).await;
        let ann = world.user("ann", &[]).await;
        let listed = tools(&ann).await;
        let free: Vec<_> = listed
            .iter()
            .filter(|tool| tool["needs_approval_by"].is_null())
            .collect();
        let free: BTreeSet<_> = free
            .iter()
            .map(|tool| tool["tool"].as_str().unwrap().to_owned())
            .collect();
        let mut others = set(&OTHERS);
        if guard == "send_*" {
            others.remove("send_money_status");
        }
        assert_eq!(free, others, "{guard}");
        let conversation = ann.open("shadow").await;
        for tool in &listed {
            let line = format!("/call shadow {} {{}}", tool["tool"].as_str().unwrap());
            ann.say_and_wait(&conversation, &line).await;
        }
        assert_eq!(called(&server), others, "{guard}");
        let carl = world.user("carl", &["cfo"]).await;
        let waiting = carl.get("/v1/approvals?limit=100").await.expect(200);
        let waiting = waiting["items"].as_array().unwrap().clone();
        let names: BTreeSet<_> = waiting
            .iter()
            .map(|one| one["tool"].as_str().unwrap().to_owned())
            .collect();
        let guarded: BTreeSet<_> = listed
            .iter()
            .map(|tool| tool["tool"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            &guarded - &others,
            "{guard}: they are shown by their own names"
        );
        assert!(
            waiting
                .iter()
                .all(|one| one["decidable"] == true && one["approvers"] == json!(["cfo"])),
            "{waiting:?}"
        );
    }
}

#[tokio::test]
async fn a_model_and_a_client_of_the_endpoint_are_asked_too_and_the_guarded_tool_keeps_its_name() {
    let server = server().await;
    let world = World::with(|setup| setup.packs.push(pack(&server, "send_money"))).await;
    let ann = world.user("ann", &[]).await;
    let listed = tools(&ann).await;
    let name = |of: &str| {
        let tool = listed.iter().find(|tool| tool["tool"] == of);
        tool.unwrap()["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(name("send_money"), "shadow__send_money");
    assert!(name("send.money").starts_with("shadow__send_money_"));
    for tool in TAKEN_FOR_IT {
        let arguments = json!({ "for": tool });
        world
            .model
            .reply(calls([(&name(tool), arguments.clone())]))
            .reply(text("It waits."));
        ann.ask("shadow", "pay").await;
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": name(tool), "arguments": arguments },
        });
        let request = ann
            .request(Method::POST, "/mcp/shadow")
            .header("mcp-protocol-version", "2025-11-25");
        let answer = ann.send(request.json(&body)).await.expect(200);
        assert!(
            answer.to_string().contains("waits for approval"),
            "{tool}: {answer}"
        );
    }
    assert_eq!(called(&server), set(&[]));
}

#[tokio::test]
async fn the_author_is_told_which_tools_are_guarded_for_what_they_look_like() {
    let server = server().await;
    let (id, yaml) = pack(&server, "send_money");
    let packs = tempfile::tempdir().unwrap();
    write_pack(packs.path(), &id, &yaml);
    let run = async |command: &[&str]| {
        let mut command = chatelaine(command);
        command
            .env("CHATELAINE_PACKS", packs.path())
            .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
            .env("MODEL_URL", "http://127.0.0.1:1/v1");
        let output = command.output().await.unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let told = run(&["smoke", "shadow"]).await;
    for tool in TAKEN_FOR_IT {
        let sentence =
            format!("warning: {tool:?} can be taken for \"send_money\" of `toolAccess.approval`");
        assert!(told.contains(&sentence), "{tool}: {told}");
    }
    assert!(!told.contains("warning: \"SendMoney2\""), "{told}");
    let open = "warning: the guarded tool \"send_money\" takes unknown members";
    assert!(told.contains(open), "{told}");
    let told = run(&["check", packs.path().to_str().unwrap()]).await;
    assert!(
        told.contains("\"SendMoney2\" can be taken for \"send_money\" in `approval`, and its calls need no approval"),
        "{told}"
    );
}
