//! A client of the public API, for the terminal chat.

use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, StatusCode, header};
use serde_json::{Value, json};
use url::Url;

use super::{
    answer::{answer_text, clean},
    event::{call_details, readable_text},
    event_stream::Stream,
    local_time, print_line,
    style::{BOLD, DIM, Style},
};
use domain::{config::Environment, json, secret::Secret};
use egress::operator_client;

/// The number of items on a page.
const PAGE: usize = 100;
/// The number of conversations in a list.
const LISTED: usize = 20;

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: Url,
    token: Arc<RwLock<Secret>>,
    /// The language of a person whose account names none.
    language: Option<String>,
}

/// The server refused a request.
#[derive(Debug, thiserror::Error)]
#[error("{detail} ({status})")]
pub struct RequestRefused {
    status: StatusCode,
    detail: String,
}

impl RequestRefused {
    /// Whether the server would refuse the same request again.
    pub fn is_final(&self) -> bool {
        self.status.is_client_error() && self.status != StatusCode::TOO_MANY_REQUESTS
    }
}

/// Makes the error of a refused request, with the detail of its problem document.
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

/// Whether an error means that the server does not accept the token (any more).
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

/// A conversation in a list.
pub struct ConversationLine {
    pub id: String,
    pub title: String,
    /// In the time zone of this machine.
    pub updated_at: String,
}

/// A message of the history as text. At a terminal, the messages of the user have their time.
fn history_text(message: &Value, style: &Style) -> Option<String> {
    let text = readable_text(message);
    if text.is_empty() {
        return None;
    }
    Some(match message["role"].as_str().unwrap_or_default() {
        "tool" => return None,
        "user" if style.is_terminal() => {
            let time = local_time::format_local(message["created_at"].as_str().unwrap_or_default());
            let time = style.paint(DIM, &format!("({time})"));
            format!("{time} {}", style.paint(BOLD, &clean(&format!("› {text}"))))
        }
        "user" => format!("› {}", clean(&text)),
        "assistant" => answer_text(&text, style),
        _ => style.wrap(&format!("‹ {}", local_time::in_text(&clean(&text)))),
    })
}

/// The language of the terminal as a tag: `es-ES` of `es_ES.UTF-8`. The variables are those of POSIX, where `C` names no
/// language.
fn terminal_language(env: &Environment) -> Option<String> {
    let variables = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter();
    let locale = variables
        .filter_map(|name| env.get(name))
        .find(|locale| !locale.is_empty())?;
    let name = locale.split(['.', '@']).next()?;
    let is_tag = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_tag && !matches!(name, "C" | "POSIX")).then(|| name.replace('_', "-"))
}

impl Client {
    pub fn new(url: Url, token: Secret) -> anyhow::Result<Self> {
        // The person chooses the address, as an operator chooses an endpoint, so private addresses are allowed.
        let http = operator_client().map_err(anyhow::Error::msg)?;
        let token = Arc::new(RwLock::new(token));
        Ok(Self {
            http,
            url,
            token,
            language: None,
        })
    }

    /// Asks for answers in the language of the terminal.
    #[must_use]
    pub fn in_language_of(mut self, env: &Environment) -> Self {
        self.language = terminal_language(env);
        self
    }

    /// Replaces the token, also for streams that are opened again.
    pub fn set_token(&self, token: Secret) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner);
        let mut bearer = header::HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .context("the token has characters that no token has")?;
        bearer.set_sensitive(true);
        let request = self
            .http
            .request(method, self.url.join(path)?)
            .header(header::AUTHORIZATION, bearer);
        Ok(match &self.language {
            Some(language) => request.header(header::ACCEPT_LANGUAGE, language),
            None => request,
        })
    }

    /// Sends a request and reads the JSON answer. A problem document becomes an error with its detail.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let answer = request
            .send()
            .await
            .with_context(|| format!("cannot reach {}; is the server running?", self.url))?;
        let status = answer.status();
        let body = answer.bytes().await?;
        if status.is_success() {
            let body = String::from_utf8_lossy(&body);
            return Ok(json::read_value(&body).unwrap_or_default());
        }
        Err(request_refused(status, &body).into())
    }

    /// Gets a resource.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut url = self.url.join(path)?;
        url.query_pairs_mut().extend_pairs(query);
        self.send(self.request(Method::GET, url.as_str())?).await
    }

    pub async fn get_me(&self) -> anyhow::Result<Me> {
        let me = self.send(self.request(Method::GET, "/v1/me")?).await?;
        let user = me["user"].as_str().unwrap_or("somebody").to_owned();
        Ok(Me {
            name: me["name"].as_str().unwrap_or(&user).to_owned(),
            user,
        })
    }

    pub async fn find_first_agent(&self) -> anyhow::Result<String> {
        let agents = self.send(self.request(Method::GET, "/v1/agents")?).await?;
        let first = agents["items"][0]["id"].as_str();
        Ok(first
            .context("there is no agent that you may talk to")?
            .to_owned())
    }

    pub async fn create_conversation(&self, agent: &str) -> anyhow::Result<String> {
        let opened = self
            .send(
                self.request(Method::POST, "/v1/conversations")?
                    .json(&json!({ "agent": agent })),
            )
            .await?;
        Ok(opened["id"]
            .as_str()
            .context("the server gave the conversation no id")?
            .to_owned())
    }

    /// Lists the conversations with an agent, the newest first.
    pub async fn list_conversations(&self, agent: &str) -> anyhow::Result<Vec<ConversationLine>> {
        let path = format!("/v1/conversations?agent={agent}&limit={LISTED}");
        let page = self.send(self.request(Method::GET, &path)?).await?;
        let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let items = page["items"].as_array().into_iter().flatten();
        let lines = items.map(|item| ConversationLine {
            id: text(item, "id"),
            title: text(item, "title"),
            updated_at: local_time::format_local(&text(item, "updated_at")),
        });
        Ok(lines.collect())
    }

    /// Lists one field of every item in a list of an agent. The list is `skills` or `connections`.
    pub async fn list_names(
        &self,
        agent: &str,
        list: &str,
        field: &str,
    ) -> anyhow::Result<Vec<String>> {
        let path = format!("/v1/agents/{agent}/{list}");
        let page = self.send(self.request(Method::GET, &path)?).await?;
        let items = page["items"].as_array().into_iter().flatten();
        let names = items.filter_map(|item| item[field].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// The calls of the newest answer that has calls, with arguments and results.
    pub async fn newest_calls(&self, conversation: &str) -> anyhow::Result<String> {
        let path = format!("/v1/conversations/{conversation}/messages?limit={PAGE}");
        let page = self.send(self.request(Method::GET, &path)?).await?;
        let messages = page["items"].as_array().map(Vec::as_slice);
        let messages = messages.unwrap_or_default();
        let has_calls = |message: &&Value| !call_details(message).is_empty();
        let Some(newest) = messages.iter().find(has_calls) else {
            return Ok(String::new());
        };
        let of_run = messages.iter().rev();
        let of_run = of_run.filter(|message| message["run_id"] == newest["run_id"]);
        let texts = of_run.map(call_details).filter(|text| !text.is_empty());
        Ok(texts.collect::<Vec<_>>().join("\n"))
    }

    /// Prints the messages of a conversation so far. Returns the number of the last one.
    pub async fn show_history(&self, conversation: &str, style: &Style) -> anyhow::Result<i64> {
        let mut after = 0;
        loop {
            let path =
                format!("/v1/conversations/{conversation}/messages?after={after}&limit={PAGE}");
            let page = self.send(self.request(Method::GET, &path)?).await?;
            let items = page["items"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            for message in items {
                if let Some(text) = history_text(message, style) {
                    print_line(&text);
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

    /// Posts a message. Returns the run that answers it.
    pub async fn post(&self, conversation: &str, text: &str) -> anyhow::Result<String> {
        let path = format!("/v1/conversations/{conversation}/messages");
        let posted = self
            .send(
                self.request(Method::POST, &path)?
                    .json(&json!({ "text": text })),
            )
            .await?;
        Ok(posted["run"]["id"]
            .as_str()
            .context("the server gave the run no id")?
            .to_owned())
    }

    /// Asks a run to stop. It is no error if the run has ended meanwhile.
    pub async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        match self
            .send(self.request(Method::POST, &format!("/v1/runs/{run}/cancel"))?)
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

    /// Opens the event stream of a conversation, from now on.
    pub async fn open_conversation_events(&self, conversation: &str) -> anyhow::Result<Stream> {
        let path = format!("/v1/conversations/{conversation}");
        let now = self.send(self.request(Method::GET, &path)?).await?;
        let last = now["last_event"].as_i64().map(|last| last.to_string());
        self.stream(format!("{path}/events"), last).await
    }

    /// Opens the event stream of the user: approval requests and their number.
    pub async fn open_user_events(&self) -> anyhow::Result<Stream> {
        self.stream("/v1/events".to_owned(), None).await
    }

    async fn stream(&self, path: String, last: Option<String>) -> anyhow::Result<Stream> {
        let client = self.clone();
        let request = move || client.request(Method::GET, &path);
        Stream::open(Box::new(request), last).await
    }

    /// Lists the first requests that wait for the user's decision: of others, and calls of their own to confirm.
    pub async fn list_decidable_approvals(&self) -> anyhow::Result<Vec<Value>> {
        let mut waiting = Vec::new();
        for whose in ["approver&decidable=true", "requester&state=pending"] {
            let path = format!("/v1/approvals?role={whose}&limit={PAGE}");
            let mut page = self.send(self.request(Method::GET, &path)?).await?;
            if let Value::Array(items) = page["items"].take() {
                waiting.extend(items.into_iter().filter(|item| item["decidable"] == true));
            }
        }
        Ok(waiting)
    }
}
