//! The public API as the terminal client uses it.

use std::pin::Pin;

use anyhow::{Context as _, bail};
use futures_util::{Stream, StreamExt as _};
use reqwest::{Method, RequestBuilder, header};
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};
use url::Url;

use crate::{domain::secret::Secret, egress::Egress};

/// Messages fetched at once.
const PAGE: usize = 100;

pub struct Client {
    http: reqwest::Client,
    url: Url,
    token: Secret,
}

/// What the server tells about a conversation.
pub enum News {
    Delta {
        run: String,
        text: String,
    },
    Reset {
        run: String,
    },
    ToolStarted {
        run: String,
        server: String,
        tool: String,
    },
    ToolProgress {
        run: String,
        text: String,
    },
    ToolFinished {
        run: String,
        status: String,
    },
    /// The assistant's or the program's message, whole: `(role, run, text)`.
    Message {
        role: String,
        run: String,
        text: String,
        /// It asks for something that must not be shown while it is typed.
        secret: bool,
    },
    Ended {
        run: String,
    },
    Other,
}

pub struct Events {
    stream: Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>,
}

impl Client {
    pub fn new(url: Url, token: Secret) -> anyhow::Result<Self> {
        // The address is the person's own choice, as an operator's endpoint is.
        let http = Egress::new(&[]).map_err(anyhow::Error::msg)?.operator_client();
        Ok(Self { http, url, token })
    }

    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let mut bearer = header::HeaderValue::from_str(&format!("Bearer {}", self.token.expose()))
            .context("the token has characters that no token has")?;
        bearer.set_sensitive(true);
        Ok(self.http.request(method, self.url.join(path)?).header(header::AUTHORIZATION, bearer))
    }

    /// Sends a request and reads the JSON answer; a problem document becomes its own sentence.
    async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let answer =
            request.send().await.with_context(|| format!("cannot reach {}; is the server running?", self.url))?;
        let status = answer.status();
        let body = answer.bytes().await?;
        let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(value);
        }
        let detail = value["detail"].as_str().or(value["title"].as_str()).unwrap_or("the server gave no reason");
        bail!("{detail} ({status})")
    }

    pub async fn who(&self) -> anyhow::Result<String> {
        let me = self.ask(self.request(Method::GET, "/v1/me")?).await?;
        Ok(me["name"].as_str().or(me["user"].as_str()).unwrap_or("somebody").to_owned())
    }

    pub async fn first_agent(&self) -> anyhow::Result<String> {
        let agents = self.ask(self.request(Method::GET, "/v1/agents")?).await?;
        let first = agents["items"][0]["id"].as_str();
        Ok(first.context("there is no agent that you may talk to")?.to_owned())
    }

    pub async fn open(&self, agent: &str) -> anyhow::Result<String> {
        let opened =
            self.ask(self.request(Method::POST, "/v1/conversations")?.json(&json!({ "agent": agent }))).await?;
        Ok(opened["id"].as_str().context("the server gave the conversation no id")?.to_owned())
    }

    /// Prints what was said in a conversation so far.
    pub async fn show_history(&self, conversation: &str) -> anyhow::Result<()> {
        let mut after = 0;
        loop {
            let path = format!("/v1/conversations/{conversation}/messages?after={after}&limit={PAGE}");
            let page = self.ask(self.request(Method::GET, &path)?).await?;
            let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            for message in items {
                let text = plain(message);
                let who = message["role"].as_str().unwrap_or_default();
                if who != "tool" && !text.is_empty() {
                    crate::cli::say(&format!("{} {text}", if who == "user" { "›" } else { "‹" }));
                }
            }
            match items.last().and_then(|message| message["seq"].as_i64()) {
                Some(last) if items.len() == PAGE => after = last,
                _ => return Ok(()),
            }
        }
    }

    /// Says something; returns the run that answers it.
    pub async fn post(&self, conversation: &str, text: &str) -> anyhow::Result<String> {
        let path = format!("/v1/conversations/{conversation}/messages");
        let posted = self.ask(self.request(Method::POST, &path)?.json(&json!({ "text": text }))).await?;
        Ok(posted["run"]["id"].as_str().context("the server gave the run no id")?.to_owned())
    }

    pub async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        self.ask(self.request(Method::POST, &format!("/v1/runs/{run}/cancel"))?).await?;
        Ok(())
    }

    /// Listens from now on.
    pub async fn listen(&self, conversation: &str) -> anyhow::Result<Events> {
        let request = self.request(Method::GET, &format!("/v1/conversations/{conversation}/events"))?;
        let answer = request.send().await.with_context(|| format!("cannot reach {}", self.url))?.error_for_status()?;
        Ok(Events { stream: Box::pin(SseStream::from_bytes_stream(answer.bytes_stream())) })
    }
}

impl Events {
    pub async fn next(&mut self) -> anyhow::Result<News> {
        let Some(event) = self.stream.next().await else {
            bail!("the server ended the stream; your conversation is kept, start the client again")
        };
        let event = event?;
        let data: Value = event.data.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let field = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        let run = field("run_id");
        Ok(match event.event.as_deref().unwrap_or_default() {
            "delta" => News::Delta { run, text: field("text") },
            "reset" => News::Reset { run },
            "tool_started" => News::ToolStarted { run, server: field("server"), tool: field("tool") },
            "tool_progress" => News::ToolProgress { run, text: field("message") },
            "tool_finished" => News::ToolFinished { run, status: field("status") },
            "message" => News::Message { role: field("role"), run, text: plain(&data), secret: asks_for_secret(&data) },
            "run" if matches!(data["status"].as_str(), Some("succeeded" | "failed" | "cancelled")) => {
                News::Ended { run }
            }
            _ => News::Other,
        })
    }
}

/// The readable parts of a message.
fn plain(message: &Value) -> String {
    let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines = Vec::new();
    for part in parts.iter().filter(|part| part["type"] != "tool_call") {
        lines.extend(part["text"].as_str().map(str::to_owned));
        let choices = part["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let labels = choices.iter().filter_map(|choice| choice["label"].as_str());
        lines.extend(labels.enumerate().map(|(at, label)| format!("  {}. {label}", at + 1)));
        lines.extend(part["url"].as_str().map(str::to_owned));
    }
    lines.join("\n")
}

fn asks_for_secret(message: &Value) -> bool {
    let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
    parts.iter().any(|part| part["type"] == "prompt" && part["secret"] == true)
}
