//! Streams that notify a client of changes of its tools and prompts. The lists in memory are compared once a second. A
//! stream ends with its user's session.

use std::{sync::Arc, time::Duration};

use axum::response::{Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tokio::time::Instant;

use super::{
    Client, RpcRequest,
    call::message_event,
    message::{self, Failure},
};
use crate::{
    api::{
        events::{self, LIFETIME, RETRY},
        limits,
        problem::Problem,
    },
    app::tools::client_tools::{self, ClientTools},
};
use domain::jsonrpc;

/// How often the lists are compared.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The notifications that a client asks for.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    #[serde(skip_serializing_if = "is_false")]
    tools_list_changed: bool,
    #[serde(skip_serializing_if = "is_false")]
    prompts_list_changed: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Deserialize)]
struct ListenParams {
    notifications: Filter,
}

/// A stream of notifications to one client.
struct Listening {
    client: Client,
    filter: Filter,
    known: Arc<ClientTools>,
    /// Notifications that were not sent yet.
    ready: Vec<String>,
    meta: Value,
    end: Instant,
    _open: limits::Stream,
}

impl Client {
    /// Opens the stream of revisions up to 2025-11-25.
    pub(super) fn listen_for_all(self) -> Result<Response, Problem> {
        let filter = Filter {
            tools_list_changed: true,
            prompts_list_changed: true,
        };
        let changes = self.changes(filter, Value::Null)?;
        let hello = stream::iter([Event::default().retry(RETRY).comment("listening")]);
        Ok(events::answer(hello.chain(changes)))
    }

    /// Answers `subscriptions/listen` of 2026-07-28.
    pub(super) fn subscribe(&self, request: &RpcRequest<'_>) -> Result<Response, Failure> {
        let params: ListenParams = message::params(request.params)?;
        let id: Value = serde_json::from_str(request.id.get()).unwrap_or_default();
        let meta = json!({ "io.modelcontextprotocol/subscriptionId": id });
        let accepted = json!({ "_meta": meta, "notifications": params.notifications });
        let changes = self.clone().changes(params.notifications, meta.clone())?;
        let hello =
            jsonrpc::write_notification("notifications/subscriptions/acknowledged", &accepted);
        let bye = json!({ "resultType": "complete", "_meta": meta }).to_string();
        let bye =
            jsonrpc::write_result(&RawValue::from_string(id.to_string()).expect("JSON"), &bye);
        let hello = stream::iter([message_event(&hello)]);
        let bye = stream::iter([message_event(&bye)]);
        Ok(events::answer(hello.chain(changes).chain(bye)))
    }

    fn changes(
        self,
        filter: Filter,
        meta: Value,
    ) -> Result<impl Stream<Item = Event> + use<>, Problem> {
        let open = self.state.limits.open_stream(&self.principal)?;
        self.permit.release();
        let accounts = &self.state.app.accounts;
        let over = Box::pin(accounts.wait_for_session_end(&self.principal));
        let listening = Listening {
            known: self.tools.clone(),
            client: self,
            filter,
            ready: Vec::new(),
            meta,
            end: Instant::now() + LIFETIME,
            _open: open,
        };
        let events = stream::unfold(listening, |mut listening| async move {
            let message = listening.next().await?;
            Some((message_event(&message), listening))
        });
        Ok(events.take_until(over))
    }
}

impl Listening {
    /// The next notification; `None` when the stream is over.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(message) = self.ready.pop() {
                return Some(message);
            }
            let app = self.client.state.app.clone();
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = tokio::time::sleep_until(self.end) => return None,
                () = app.shutdown.cancelled() => return None,
                () = app.draining.cancelled() => return None,
            }
            self.compare().await?;
        }
    }

    /// Compares the lists with those that the client knows. `None` when the caller may not use the agent any more.
    async fn compare(&mut self) -> Option<()> {
        let Client {
            state, principal, ..
        } = &self.client;
        let agent = self.known.toolset.agent();
        let now = client_tools::load(&state.app, principal, agent.as_str()).await;
        let now = Arc::new(now.ok()?);
        let changed = |kind: &str| {
            let params = match &self.meta {
                Value::Null => json!({}),
                meta => json!({ "_meta": meta }),
            };
            jsonrpc::write_notification(&format!("notifications/{kind}/list_changed"), &params)
        };
        if self.filter.prompts_list_changed && !now.has_same_prompts(&self.known) {
            self.ready.push(changed("prompts"));
        }
        if self.filter.tools_list_changed && !now.toolset.is_same(&self.known.toolset) {
            self.ready.push(changed("tools"));
        }
        self.known = now;
        Some(())
    }
}
