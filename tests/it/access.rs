//! Every route and who may. The table is walked with every kind of caller; a route of the program that is not
//! in it fails the first test. What somebody may not see is not there: 404.

use std::collections::BTreeSet;

use chatelaine::api;
use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
};
use http::Method;
use serde_json::{Value, json};

use super::support::{
    client::{Answer, Client},
    has::Has,
    model::text,
    world::World,
};

/// What each caller is answered, in the order of [`callers`]. In paths `{id}` is the owner's conversation
/// (or run), `{agent}` and `{model}` an agent for signed-in users that the other tenant does not have. One more caller,
/// with a token of an MCP endpoint, needs no column ([`of_endpoint`]).
type Row = (Method, &'static str, fn() -> Value, [u16; 7]);

const CALLERS: [&str; 7] = [
    "nobody",
    "a guest",
    "another user",
    "another tenant's user",
    "a frontend's user",
    "a key without `chat`",
    "the owner",
];

fn none() -> Value {
    Value::Null
}

/// It names no entry of the registry.
fn setting() -> Value {
    json!({ "ref": "nothing", "toolAccess": { "default": "users" } })
}

#[expect(clippy::too_many_lines, reason = "a line for each route")]
fn table() -> Vec<Row> {
    let (get, post, delete) = (|| Method::GET, || Method::POST, || Method::DELETE);
    let (put, patch) = (|| Method::PUT, || Method::PATCH);
    vec![
        //                                                       nobody guest user other front  key owner
        (get(), "/", none, [200; 7]),
        (get(), "/web/{file}", none, [404; 7]),
        (get(), "/healthz", none, [200; 7]),
        (get(), "/readyz", none, [200; 7]),
        (get(), "/metrics", none, [200; 7]),
        (get(), "/openapi.json", none, [200; 7]),
        (
            post(),
            "/v1/guests",
            || json!({ "tenant": "acme" }),
            [201; 7],
        ),
        (get(), "/v1/sign-in", none, [200; 7]),
        (get(), "/v1/me", none, [401, 200, 200, 200, 200, 200, 200]),
        (
            get(),
            "/v1/me/export",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}/tools",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}/prompts",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}/connections",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}/menu",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/agents/{agent}/skills",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            post(),
            "/v1/agents/{agent}/skills/{skill}",
            || json!({}),
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (
            get(),
            "/v1/agents/{agent}/skills/{skill}/runs/{id}",
            none,
            [401, 403, 404, 404, 404, 403, 404],
        ), // it is none
        (
            get(),
            "/.well-known/agent-card.json",
            none,
            [200, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/a2a/.well-known/agent-card.json",
            none,
            [200, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/a2a/{agent}/.well-known/agent-card.json",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            post(),
            "/a2a/{agent}",
            task,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (post(), "/a2a", task, [401, 200, 200, 200, 200, 403, 200]),
        (
            post(),
            "/mcp/{agent}",
            ping,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/mcp/{agent}",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/.well-known/oauth-protected-resource/mcp/{agent}",
            none,
            [200; 7],
        ),
        (
            get(),
            "/v1/agents/{agent}/servers",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/mcp-servers",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/v1/mcp-servers",
            || entry("one"),
            [401, 403, 403, 403, 403, 201, 403],
        ),
        (
            get(),
            "/v1/mcp-servers/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            put(),
            "/v1/mcp-servers/{id}",
            || entry(""),
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/v1/mcp-servers/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/mcp-servers",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/mcp-servers",
            || entry("two"),
            [401, 403, 403, 403, 403, 201, 403],
        ),
        (
            get(),
            "/mcp-servers/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            put(),
            "/mcp-servers/{id}",
            || entry(""),
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/mcp-servers/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/oauth-clients",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            delete(),
            "/v1/oauth-clients/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/secrets",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            put(),
            "/v1/secrets/{name}",
            || json!({ "value": "v" }),
            [401, 403, 403, 403, 403, 204, 403],
        ),
        (
            delete(),
            "/v1/secrets/{name}",
            none,
            [401, 403, 403, 403, 403, 204, 403],
        ),
        (
            get(),
            "/v1/agents/{agent}/connections/{server}",
            none,
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (
            put(),
            "/v1/agents/{agent}/connections/{server}",
            fields,
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (
            delete(),
            "/v1/agents/{agent}/connections/{server}",
            none,
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/agents/{agent}/connections/{server}/test",
            || json!({}),
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/agents/{agent}/connections/{server}/sign-in",
            || json!({}),
            [401, 403, 404, 404, 404, 403, 404],
        ),
        (get(), "/oauth/callback", none, [404; 7]),
        (
            get(),
            "/.well-known/oauth-client/chatelaine.json",
            none,
            [200; 7],
        ),
        (get(), "/connect/{token}", none, [404; 7]),
        (post(), "/connect/{token}", none, [404; 7]),
        (
            post(),
            "/v1/conversations",
            || json!({ "agent": "office" }),
            [401, 403, 201, 404, 201, 403, 201],
        ),
        (
            get(),
            "/v1/conversations",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/messages",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            post(),
            "/v1/conversations/{id}/messages",
            || json!({ "text": "/help" }),
            [401, 404, 404, 404, 404, 403, 202],
        ),
        (
            post(),
            "/v1/conversations/{id}/attachments",
            || json!("a text"),
            [401, 404, 404, 404, 404, 403, 201],
        ),
        (
            get(),
            "/v1/conversations/{id}/attachments/{attachment}",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ), // it is none
        (
            get(),
            "/v1/conversations/{id}/export",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/messages/{message}/feedback",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ), // it is none
        (
            put(),
            "/v1/conversations/{id}/messages/{message}/feedback",
            || json!({ "rating": "up" }),
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            delete(),
            "/v1/conversations/{id}/messages/{message}/feedback",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/events/ticket",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/branches",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/resources",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/events",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            patch(),
            "/v1/conversations/{id}",
            || json!({ "title": "Mine" }),
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            delete(),
            "/v1/conversations/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 204],
        ),
        (
            get(),
            "/v1/runs/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            post(),
            "/v1/runs/{id}/cancel",
            none,
            [401, 404, 404, 404, 404, 403, 409],
        ), // it is over already
        (get(), "/v1/runs", none, [401, 200, 200, 200, 200, 403, 200]),
        (
            post(),
            "/v1/runs/check",
            start,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            post(),
            "/v1/runs",
            start,
            [401, 403, 202, 404, 202, 403, 202],
        ),
        (post(), "/runs", start, [401, 403, 202, 404, 202, 403, 202]),
        (
            get(),
            "/runs/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            post(),
            "/runs/{id}/cancel",
            none,
            [401, 404, 404, 404, 404, 403, 409],
        ), // it is over already
        (
            get(),
            "/v1/admin/usage",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/usage/days",
            none,
            [401, 403, 403, 403, 403, 400, 403],
        ), // it needs two days
        (
            get(),
            "/v1/admin/replicas",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/tenant",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/audit",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/changed-tools",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/changed-tools/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            post(),
            "/v1/admin/changed-tools/accept",
            || json!({ "tools": [{ "id": uuid::Uuid::nil(), "hash": "0".repeat(64) }] }),
            [401, 403, 403, 403, 403, 409, 403],
        ),
        (
            get(),
            "/v1/admin/webhooks",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/v1/admin/webhooks",
            webhook,
            [401, 403, 403, 403, 403, 201, 403],
        ),
        (
            delete(),
            "/v1/admin/webhooks/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            post(),
            "/v1/admin/webhooks/{id}/test",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/webhooks/{id}/deliveries",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/keys",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/v1/admin/keys",
            || json!({ "name": "one" }),
            [401, 403, 403, 403, 403, 201, 403],
        ),
        (
            delete(),
            "/v1/admin/keys/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/issuers",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/v1/admin/issuers",
            issuer,
            // One that is new to the installation is the operator's to add.
            [401, 403, 403, 403, 403, 409, 403],
        ),
        (
            delete(),
            "/v1/admin/issuers/{id}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/agents/{agent}/access",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            post(),
            "/v1/admin/agents/{agent}/policy-trials",
            || json!({}),
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            put(),
            "/v1/admin/agents/{agent}/policy",
            policy,
            [401, 403, 403, 403, 403, 404, 403],
        ), // no replica has it
        (
            get(),
            "/v1/admin/agents/{agent}/servers",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/agents/{agent}/servers/{server}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            put(),
            "/v1/admin/agents/{agent}/servers/{server}",
            setting,
            [401, 403, 403, 403, 403, 400, 403],
        ),
        (
            delete(),
            "/v1/admin/agents/{agent}/servers/{server}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/capabilities",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/capabilities/{capability}/servers",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/capabilities/{capability}/servers/{server}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            put(),
            "/v1/admin/capabilities/{capability}/servers/{server}",
            setting,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/v1/admin/capabilities/{capability}/servers/{server}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/users",
            none,
            [401, 403, 403, 403, 403, 200, 403],
        ),
        (
            get(),
            "/v1/admin/users/{user}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/v1/admin/users/{user}",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            get(),
            "/v1/admin/users/{user}/export",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            post(),
            "/v1/admin/users/{user}/sign-out",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            post(),
            "/v1/admin/users/{user}/block",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/v1/admin/users/{user}/block",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        (
            delete(),
            "/v1/admin/users/{user}/credentials",
            none,
            [401, 403, 403, 403, 403, 404, 403],
        ),
        // The operator's: here the settings name no token, so they are not there (admin/tenants.rs).
        (get(), "/v1/admin/tenants", none, [404; 7]),
        (
            post(),
            "/v1/admin/tenants",
            || json!({ "name": "one" }),
            [404; 7],
        ),
        (get(), "/v1/admin/tenants/{tenant}", none, [404; 7]),
        (
            patch(),
            "/v1/admin/tenants/{tenant}",
            || json!({ "guests": true }),
            [404; 7],
        ),
        (delete(), "/v1/admin/tenants/{tenant}", none, [404; 7]),
        (get(), "/v1/admin/tenants/{tenant}/keys", none, [404; 7]),
        (
            post(),
            "/v1/admin/tenants/{tenant}/keys",
            || json!({ "name": "one" }),
            [404; 7],
        ),
        (
            delete(),
            "/v1/admin/tenants/{tenant}/keys/{id}",
            none,
            [404; 7],
        ),
        (get(), "/v1/admin/tenants/{tenant}/replicas", none, [404; 7]),
        (
            put(),
            "/v1/admin/tenants/{tenant}/agents/{agent}/policy",
            policy,
            [404; 7],
        ),
        (get(), "/v1/admin/tenants/{tenant}/issuers", none, [404; 7]),
        (
            post(),
            "/v1/admin/tenants/{tenant}/issuers",
            issuer,
            [404; 7],
        ),
        (
            delete(),
            "/v1/admin/tenants/{tenant}/issuers/{id}",
            none,
            [404; 7],
        ),
        (
            get(),
            "/v1/approvals",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/approvals/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ), // it is no request's
        (
            post(),
            "/v1/approvals/{id}/decision",
            decision,
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/approvals/{id}/cancel",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/approvals/{id}/outcome",
            || json!({ "happened": true }),
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            get(),
            "/v1/events",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/models",
            none,
            [401, 200, 200, 200, 200, 403, 200],
        ),
        (
            get(),
            "/v1/models/{model}",
            none,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            post(),
            "/v1/chat/completions",
            chat,
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            post(),
            "/v1/responses",
            || json!({ "model": "office", "input": "hi" }),
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/responses/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ), // it is none
        (
            delete(),
            "/v1/responses/{id}",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            get(),
            "/v1/responses/{id}/input_items",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            get(),
            "/v1/conversations/{id}/items",
            none,
            [401, 404, 404, 404, 404, 403, 200],
        ),
        (
            get(),
            "/v1/conversations/{id}/items/{item}",
            none,
            [401, 404, 404, 404, 404, 403, 404],
        ), // it is none
        (
            post(),
            "/v1/responses/{id}/cancel",
            || json!({}),
            [401, 404, 404, 404, 404, 403, 404],
        ),
        (
            post(),
            "/v1/ui/chat",
            || json!({ "id": "one", "agent": "office", "message": { "role": "user", "parts": [{ "type": "text", "text": "hi" }] } }),
            [401, 403, 200, 404, 200, 403, 200],
        ),
        (
            get(),
            "/v1/ui/chat/{id}/stream",
            none,
            [401, 204, 204, 204, 204, 403, 204],
        ), // nothing is under way
        (
            post(),
            "/v1/agui/{agent}",
            || {
                let message = json!({ "id": "m", "role": "user", "content": "hi" });
                json!({ "threadId": "one", "runId": "one", "messages": [message] })
            },
            [401, 403, 200, 404, 200, 403, 200],
        ),
        // The last one: whoever is answered is signed out.
        (
            delete(),
            "/v1/me/data",
            none,
            [401, 204, 204, 204, 204, 403, 204],
        ),
    ]
}

fn policy() -> Value {
    json!({ "digest": "0".repeat(64) })
}

fn issuer() -> Value {
    json!({ "issuer": "https://idp.example.org", "audience": "a", "jwks_url": "https://idp.example.org/keys" })
}

fn task() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": "none" } })
}

fn ping() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })
}

fn start() -> Value {
    json!({ "agent_name": "office", "prompt": "hi" })
}

fn decision() -> Value {
    json!({ "decision": "approve", "args_sha256": "00".repeat(32) })
}

fn entry(id: &str) -> Value {
    json!({ "id": id, "url": "https://mcp.example.org/mcp" })
}

fn fields() -> Value {
    json!({ "fields": {} })
}

fn webhook() -> Value {
    json!({ "url": "https://hooks.example.org/chatelaine", "events": ["approval.*"] })
}

fn chat() -> Value {
    json!({ "model": "office", "messages": [{ "role": "user", "content": "hi" }] })
}

/// In the order of [`CALLERS`]; the owner is last, because they may delete.
async fn callers(world: &World, owner: &Client) -> [Client; 7] {
    let scopes = Scopes::new([Scope::Admin]);
    let key = world
        .key("operator", scopes, KeyKind::Service(serde_json::Map::new()))
        .await;
    [
        world.nobody(),
        world.guest().await,
        world.user("mallory", &[]).await,
        world.stranger("owner").await,
        world.frontend("owner-of-nothing").await,
        world.client(&key),
        owner.clone(),
    ]
}

#[test]
fn every_route_of_the_program_is_in_the_table() {
    let document: Value = api::openapi();
    let paths = document["paths"].as_object().unwrap();
    let routes: BTreeSet<_> = paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .keys()
                .map(move |method| format!("{method} {path}"))
        })
        .collect();
    let listed: BTreeSet<_> = table()
        .iter()
        .map(|(method, path, ..)| format!("{} {path}", method.as_str().to_lowercase()))
        .collect();
    assert_eq!(routes, listed);
}

#[test]
fn no_route_is_added_past_the_document() {
    let sources = std::fs::read_dir("src/api")
        .unwrap()
        .map(|file| file.unwrap().path());
    let files = sources
        .chain(["src/api.rs".into()])
        .filter(|path| path.is_file());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in [
            ".route(",
            ".route_service(",
            ".nest_service(",
            ".fallback_service(",
        ] {
            assert!(
                !text.contains(word),
                "{}: declare routes with `routes!`, not `{word}…)`",
                file.display()
            );
        }
    }
}

#[tokio::test]
async fn every_route_answers_every_caller_as_the_table_says() {
    // More routes than one user may ask for in a minute.
    let world = World::with(|setup| setup.config.requests_per_minute = 100_000).await;
    world.model.on(|_| Some(text("Fine.")));
    let owner = world.user("owner", &[]).await;
    let callers = callers(&world, &owner).await;
    let at_agent = world.user_for("owner", &[], &["{}/mcp/office"]).await;
    let elsewhere = world.user_for("owner", &[], &["chatelaine", "{}/mcp/bank"]);
    let elsewhere = elsewhere.await;
    let mut wrong = Vec::new();
    for (method, path, body, expected) in table() {
        let conversation = owner.open("office").await;
        let run = owner.say_and_wait(&conversation, "/help").await;
        let id = if path.contains("/runs/") {
            run["id"].as_str().unwrap()
        } else {
            &conversation
        };
        let filled = path
            .replace("{id}", id)
            .replace("{agent}", "office")
            .replace("{model}", "office")
            .replace("{name}", "token")
            .replace("{tenant}", "acme")
            .replace("{user}", "nobody")
            .replace("{server}", "none")
            .replace("{capability}", "none")
            .replace("{skill}", "none");
        for ((who, caller), expected) in CALLERS.iter().zip(&callers).zip(expected) {
            let answer = ask(caller, &method, &filled, body()).await;
            if answer.status != expected {
                wrong.push(format!(
                    "{method} {path} by {who}: {} for {expected}\n    {}",
                    answer.status, answer.text
                ));
            } else if expected >= 400 {
                says_why(path, &answer);
            }
        }
        for (caller, agent) in [(&at_agent, "office"), (&elsewhere, "bank")] {
            let expected = of_endpoint(path, agent == "office", expected);
            let answer = ask(caller, &method, &filled, body()).await;
            if answer.status != expected {
                wrong.push(format!(
                    "{method} {path} by a token of /mcp/{agent}: {} for {expected}\n    {}",
                    answer.status, answer.text
                ));
            } else if expected == 401 {
                says_why(path, &answer);
                let challenge = answer.header("www-authenticate");
                assert!(
                    challenge.contains(r#"error="invalid_token""#),
                    "{path}: {challenge}"
                );
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// What the owner is answered with a token that was made for an MCP endpoint: at that endpoint what they always are, and
/// where a credential is asked for at all 401. The agent's card needs none, but looks at one that is sent.
fn of_endpoint(path: &str, is_of_agent: bool, [nobody, .., owner]: [u16; 7]) -> u16 {
    match path {
        "/mcp/{agent}" if is_of_agent => owner,
        "/.well-known/agent-card.json" | "/a2a/.well-known/agent-card.json" => 401,
        _ => nobody,
    }
}

/// Of a stream only the beginning is read.
async fn ask(caller: &Client, method: &Method, path: &str, body: Value) -> Answer {
    let mut request = caller.request(method.clone(), path);
    if !body.is_null() {
        request = request.json(&body);
    }
    let is_stream =
        path.ends_with("/events") || (*method == Method::GET && path.starts_with("/mcp/"));
    if !is_stream {
        return caller.send(request).await;
    }
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let text = if answer.status().is_success() {
        String::new()
    } else {
        answer.text().await.unwrap()
    };
    Answer {
        status,
        headers,
        text,
    }
}

fn says_why(path: &str, answer: &Answer) {
    if path.starts_with("/v1/ui/") || path.starts_with("/v1/agui/") {
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
        assert!(answer.text.contains(' '), "{path}: {}", answer.text);
        return;
    }
    let body = answer.json();
    let openai = ["/v1/models", "/v1/chat", "/v1/responses"];
    if openai.iter().any(|route| path.starts_with(route)) || path.contains("/items") {
        assert_eq!(answer.header("content-type"), "application/json");
        assert!(
            body["error"]["message"].is_string() && body["error"]["code"].is_string(),
            "{path}: {body}"
        );
    } else {
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{path}"
        );
        assert_eq!(body["status"], answer.status, "{path}");
        assert_eq!(body["request_id"], answer.header("x-request-id"), "{path}");
    }
    let challenge = answer.header("www-authenticate");
    assert_eq!(
        challenge.split(' ').next().unwrap(),
        if answer.status == 401 { "Bearer" } else { "" },
        "{path}"
    );
}

#[tokio::test]
async fn another_users_conversation_is_not_in_ones_list() {
    let world = World::shared().await;
    let (alice, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let (stranger, id) = (world.stranger("ann").await, alice.open("bank").await);
    let ids = async |client: &Client| {
        let page = client.get("/v1/conversations").await.expect(200);
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&alice).await, [id]);
    assert_eq!(ids(&bob).await, [""; 0]);
    assert_eq!(
        ids(&stranger).await,
        [""; 0],
        "the same user id in another tenant is another person"
    );
}

#[tokio::test]
async fn a_wrong_caller_changes_nothing() {
    let world = World::shared().await;
    let (owner, mallory) = (
        world.user("owner", &[]).await,
        world.user("mallory", &[]).await,
    );
    let id = owner.open("bank").await;
    let path = format!("/v1/conversations/{id}");
    mallory.delete(&path).await.expect(404);
    mallory
        .post(&format!("{path}/messages"), json!({ "text": "/help" }))
        .await
        .expect(404);
    let before = owner.messages(&id).await;
    assert_eq!(before.len(), 1, "only the greeting: {before:?}");
}

#[tokio::test]
async fn a_guest_is_not_offered_agents_that_require_authentication() {
    let world = World::shared().await;
    let guest = world.guest().await;
    let agents = guest.get("/v1/agents").await.expect(200);
    let ids: Vec<_> = agents["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|agent| agent["id"].clone())
        .collect();
    assert_eq!(ids, ["bank"]);
    let models = guest.get("/v1/models").await.expect(200);
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_tenant_that_takes_no_guests_looks_like_one_that_is_not_there() {
    let world = World::start().await;
    let closed = world
        .nobody()
        .post("/v1/guests", json!({ "tenant": "globex" }))
        .await;
    let absent = world
        .nobody()
        .post("/v1/guests", json!({ "tenant": "nowhere" }))
        .await;
    let (closed, absent) = (closed.expect(404), absent.expect(404));
    assert_eq!(
        closed["detail"]
            .as_str()
            .unwrap()
            .replace("globex", "nowhere"),
        absent["detail"].as_str().unwrap()
    );
}

#[tokio::test]
async fn nothing_tells_a_guest_of_a_tool_that_is_not_theirs() {
    let world = World::shared().await;
    world.tools_ready().await;
    let (guest, finance) = (world.guest().await, world.user("fin", &["finance"]).await);
    let everything = async |client: &Client| {
        let mut seen = String::new();
        for path in [
            "/v1/me",
            "/v1/agents",
            "/v1/agents/bank",
            "/v1/agents/bank/tools",
            "/v1/agents/bank/connections",
        ] {
            seen += &client.get(path).await.text;
        }
        seen + &client.ask("bank", "/tools").await + &client.ask("bank", "/connections").await
    };
    assert!(
        everything(&finance).await.contains("send_money"),
        "the test looks where tools are named"
    );
    let seen = everything(&guest).await;
    assert!(seen.contains("get_exchange_rate"));
    assert!(
        !seen.contains("send_money") && !seen.contains("get_balances"),
        "{seen}"
    );
}

#[tokio::test]
async fn explain_is_for_those_who_run_the_agent() {
    let world = World::shared().await;
    world.tools_ready().await;
    let path = "/v1/agents/bank/tools?explain=true";
    world.guest().await.get(path).await.expect(403);
    world
        .user("bob", &["finance"])
        .await
        .get(path)
        .await
        .expect(403);
    let by_scope = world.admin().await.get(path).await.expect(200);
    let denied = by_scope["items"][0]["denied"].as_array().unwrap();
    let money = denied
        .iter()
        .find(|tool| tool["tool"] == "send_money")
        .unwrap();
    assert_eq!(money["reason"], "role_lacks_tool");
    money["remedy"].says("toolAccess.roles");
    let by_pack = world.user("alice", &[]).await.get(path).await.expect(200);
    assert_eq!(
        by_pack["items"][0]["denied"],
        json!([]),
        "an adminUsers member has every tool"
    );
}
