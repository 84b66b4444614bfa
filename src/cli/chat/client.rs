//! The public API as the terminal client uses it.

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, StatusCode, header};
use serde_json::{Value, json};
use url::Url;

use super::{event::readable_text, event_stream::Stream};
use crate::{domain::secret::Secret, egress::Egress};

/// Messages or requests fetched at once.
const PAGE: usize = 100;

pub struct Client {
    http: reqwest::Client,
    url: Url,
    token: Secret,
}

/// The server `request_refused` a request.
#[derive(Debug, thiserror::Error)]
#[error("{detail} ({status})")]
pub struct RequestRefused {
    status: StatusCode,
    detail: String,
}

impl RequestRefused {
    /// Whether the same request would be `request_refused` again.
    pub fn is_final(&self) -> bool {
        self.status.is_client_error() && self.status != StatusCode::TOO_MANY_REQUESTS
    }
}

/// An answer's own sentence, when it is a problem document.
pub fn request_refused(status: StatusCode, body: &[u8]) -> RequestRefused {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = value["detail"]
        .as_str()
        .or(value["title"].as_str())
        .unwrap_or("the server gave no reason");
    RequestRefused {
        status,
        detail: detail.to_owned(),
    }
}

/// Whether the server does not take the token (any more).
pub fn is_signed_out(error: &anyhow::Error) -> bool {
    error
        .downcast_ref()
        .is_some_and(|request_refused: &RequestRefused| {
            request_refused.status == StatusCode::UNAUTHORIZED
        })
}

/// The user of this client.
pub struct Me {
    pub user: String,
    pub name: String,
}

impl Client {
    pub fn new(url: Url, token: Secret) -> anyhow::Result<Self> {
        // The address is the person's own choice, as an operator's endpoint is.
        let http = Egress::new(&[])
            .map_err(anyhow::Error::msg)?
            .operator_client();
        Ok(Self { http, url, token })
    }

    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let mut bearer = header::HeaderValue::from_str(&format!("Bearer {}", self.token.expose()))
            .context("the token has characters that no token has")?;
        bearer.set_sensitive(true);
        Ok(self
            .http
            .request(method, self.url.join(path)?)
            .header(header::AUTHORIZATION, bearer))
    }

    /// Sends a request and reads the JSON answer; a problem document becomes its own sentence.
    async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let answer = request
            .send()
            .await
            .with_context(|| format!("cannot reach {}; is the server running?", self.url))?;
        let status = answer.status();
        let body = answer.bytes().await?;
        if status.is_success() {
            return Ok(serde_json::from_slice(&body).unwrap_or_default());
        }
        Err(request_refused(status, &body).into())
    }

    pub async fn who(&self) -> anyhow::Result<Me> {
        let me = self.ask(self.request(Method::GET, "/v1/me")?).await?;
        let user = me["user"].as_str().unwrap_or("somebody").to_owned();
        Ok(Me {
            name: me["name"].as_str().unwrap_or(&user).to_owned(),
            user,
        })
    }

    pub async fn first_agent(&self) -> anyhow::Result<String> {
        let agents = self.ask(self.request(Method::GET, "/v1/agents")?).await?;
        let first = agents["items"][0]["id"].as_str();
        Ok(first
            .context("there is no agent that you may talk to")?
            .to_owned())
    }

    pub async fn open(&self, agent: &str) -> anyhow::Result<String> {
        let opened = self
            .ask(
                self.request(Method::POST, "/v1/conversations")?
                    .json(&json!({ "agent": agent })),
            )
            .await?;
        Ok(opened["id"]
            .as_str()
            .context("the server gave the conversation no id")?
            .to_owned())
    }

    /// Prints what was said in a conversation so far; the number of its last message.
    pub async fn show_history(&self, conversation: &str) -> anyhow::Result<i64> {
        let mut after = 0;
        loop {
            let path =
                format!("/v1/conversations/{conversation}/messages?after={after}&limit={PAGE}");
            let page = self.ask(self.request(Method::GET, &path)?).await?;
            let items = page["items"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            for message in items {
                let text = readable_text(message);
                let who = message["role"].as_str().unwrap_or_default();
                if who != "tool" && !text.is_empty() {
                    crate::cli::print_line(&format!(
                        "{} {text}",
                        if who == "user" { "›" } else { "‹" }
                    ));
                }
            }
            after = items
                .last()
                .and_then(|message| message["seq"].as_i64())
                .unwrap_or(after);
            if items.len() < PAGE {
                return Ok(after);
            }
        }
    }

    /// Posts a message; returns the run that answers it.
    pub async fn post(&self, conversation: &str, text: &str) -> anyhow::Result<String> {
        let path = format!("/v1/conversations/{conversation}/messages");
        let posted = self
            .ask(
                self.request(Method::POST, &path)?
                    .json(&json!({ "text": text })),
            )
            .await?;
        Ok(posted["run"]["id"]
            .as_str()
            .context("the server gave the run no id")?
            .to_owned())
    }

    /// Asks a run to stop; one that has ended meanwhile is fine, too.
    pub async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        match self
            .ask(self.request(Method::POST, &format!("/v1/runs/{run}/cancel"))?)
            .await
        {
            Err(error)
                if error
                    .downcast_ref::<RequestRefused>()
                    .is_none_or(|no| no.status != StatusCode::CONFLICT) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Listens to a conversation from now on.
    pub async fn open_conversation_events(&self, conversation: &str) -> anyhow::Result<Stream> {
        let path = format!("/v1/conversations/{conversation}");
        let now = self.ask(self.request(Method::GET, &path)?).await?;
        let last = now["last_event"].as_i64().map(|last| last.to_string());
        Stream::open(self.request(Method::GET, &format!("{path}/events"))?, last).await
    }

    /// Listens to what concerns the user outside of the conversation.
    pub async fn open_user_events(&self) -> anyhow::Result<Stream> {
        Stream::open(self.request(Method::GET, "/v1/events")?, None).await
    }

    /// The requests that wait for the user's decision, and whether there are more.
    pub async fn decidable_approvals(&self) -> anyhow::Result<(Vec<Value>, bool)> {
        let path = format!("/v1/approvals?decidable=true&limit={PAGE}");
        let mut page = self.ask(self.request(Method::GET, &path)?).await?;
        let more = page["next"].is_string();
        match page["items"].take() {
            Value::Array(items) => Ok((items, more)),
            _ => Ok((Vec::new(), false)),
        }
    }
}
