//! Somebody who uses the API over HTTP.

use std::pin::Pin;

use domain::secret::Secret;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};

use super::world::TIME_LIMIT;

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    headers: HeaderMap,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// The body as JSON, when the status is the expected one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        if self.text.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// A header as text, empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

/// What the HTTP clients of tests are built from. All servers are on this machine and without TLS, so that the
/// certificates of the system need not be read.
pub fn plain_http() -> reqwest::ClientBuilder {
    // Fails when another test was first, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([])
}

impl Client {
    pub fn new(url: &str, token: Option<&Secret>) -> Self {
        let http = plain_http().timeout(TIME_LIMIT).build().unwrap();
        let mut client = Self {
            http,
            url: url.to_owned(),
            headers: HeaderMap::new(),
        };
        if let Some(token) = token {
            client = client.with_header("authorization", &format!("Bearer {}", token.expose()));
        }
        client
    }

    /// The same person, sending one more header each time.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(
            name.parse::<HeaderName>().unwrap(),
            HeaderValue::from_str(value).unwrap(),
        );
        self
    }

    /// The same person at another replica.
    pub fn at(&self, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..self.clone()
        }
    }

    /// The bearer token, for programs that a test starts.
    pub fn token(&self) -> &str {
        self.headers[header::AUTHORIZATION]
            .to_str()
            .unwrap()
            .strip_prefix("Bearer ")
            .unwrap()
    }

    /// For what the other methods do not send.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.url))
            .headers(self.headers.clone())
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Answer {
            status,
            headers,
            text: answer.text().await.unwrap(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body))
            .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Opens a conversation; answers its id.
    pub async fn open(&self, agent: &str) -> String {
        let conversation = self
            .post("/v1/conversations", json!({ "agent": agent }))
            .await
            .expect(201);
        conversation["id"].as_str().unwrap().to_owned()
    }

    /// Says something; answers the id of the run.
    pub async fn say(&self, conversation: &str, text: &str) -> String {
        let posted = self
            .post(
                &format!("/v1/conversations/{conversation}/messages"),
                json!({ "text": text }),
            )
            .await;
        posted.expect(202)["run"]["id"].as_str().unwrap().to_owned()
    }

    /// Says something and waits until it was answered; the run as it ended.
    pub async fn say_and_wait(&self, conversation: &str, text: &str) -> Value {
        let mut events = self.listen(conversation, None).await;
        let run = self.say(conversation, text).await;
        events.until_run_ends(&run).await;
        self.get(&format!("/v1/runs/{run}")).await.expect(200)
    }

    /// Says something in a new conversation; the text of the last message.
    pub async fn ask(&self, agent: &str, text: &str) -> String {
        let conversation = self.open(agent).await;
        self.say_and_wait(&conversation, text).await;
        plain(self.messages(&conversation).await.last().unwrap())
    }

    /// The first hundred messages.
    pub async fn messages(&self, conversation: &str) -> Vec<Value> {
        let page = self
            .get(&format!(
                "/v1/conversations/{conversation}/messages?after=0&limit=100"
            ))
            .await
            .expect(200);
        page["items"].as_array().unwrap().clone()
    }

    /// Listens to a conversation, after a durable event or from now on.
    pub async fn listen(&self, conversation: &str, last: Option<i64>) -> Events {
        let mut request = self.request(
            Method::GET,
            &format!("/v1/conversations/{conversation}/events"),
        );
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Events::of(request.send().await.unwrap())
    }
}

/// An event as a client sees it.
#[derive(Clone, Debug)]
pub struct Event {
    /// Of a conversation's event: its number.
    pub id: Option<i64>,
    /// The id as it came.
    pub tag: Option<String>,
    pub name: String,
    /// The payload, `null` when it is not JSON.
    pub data: Value,
    pub text: String,
}

/// A stream of events.
pub struct Events {
    stream: Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>,
}

impl Events {
    #[track_caller]
    pub fn of(answer: reqwest::Response) -> Self {
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self {
            stream: Box::pin(SseStream::from_bytes_stream(answer.bytes_stream())),
        }
    }

    /// The next event that carries something; `None` at the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let next = tokio::time::timeout(TIME_LIMIT, self.stream.next())
                .await
                .expect("no event came");
            let sse = next?.expect("the stream broke");
            if let Some(text) = sse.data {
                let data = serde_json::from_str(&text).unwrap_or_default();
                let tag = sse.id.filter(|id| !id.is_empty());
                let id = tag.as_ref().and_then(|tag| tag.parse().ok());
                return Some(Event {
                    id,
                    tag,
                    name: sse.event.unwrap_or_default(),
                    data,
                    text,
                });
            }
        }
    }

    /// Everything until the run has ended, the end included.
    pub async fn until_run_ends(&mut self, run: &str) -> Vec<Event> {
        let mut heard = Vec::new();
        loop {
            let event = self.next().await.expect("the stream ended before the run");
            let of_run = event.name == "run" && event.data["run_id"] == run;
            let ended = of_run
                && matches!(
                    event.data["status"].as_str(),
                    Some("succeeded" | "failed" | "cancelled")
                );
            heard.push(event);
            if ended {
                return heard;
            }
        }
    }

    /// Everything until the stream ends.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut heard = Vec::new();
        while let Some(event) = self.next().await {
            heard.push(event);
        }
        heard
    }
}

/// What a message says, without what a model calls. The result of a call that a person typed is the program's answer.
pub fn plain(message: &Value) -> String {
    let is_answer = message["role"] == "system";
    let said = message["parts"].as_array().unwrap().iter();
    let said = said.filter(|part| match part["type"].as_str() {
        Some("text" | "notice") => true,
        Some("tool_result") => is_answer,
        _ => false,
    });
    said.map(|part| part["text"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The results of tools in a conversation, in the order in which they came.
pub async fn tool_results(client: &Client, conversation: &str) -> Vec<Value> {
    let messages = client.messages(conversation).await;
    let parts = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap());
    parts
        .filter(|part| part["type"] == "tool_result")
        .cloned()
        .collect()
}

/// The roles of its messages.
pub async fn roles(client: &Client, conversation: &str) -> Vec<String> {
    let messages = client.messages(conversation).await;
    messages
        .iter()
        .map(|message| message["role"].as_str().unwrap().to_owned())
        .collect()
}
