//! Users who sign in at servers by OAuth, and all that may go wrong with it.

mod challenge; // the header of a server that refuses
mod connecting; // from `/connect` to the tools, and back
mod crowd; // many users, several replicas, and all that fails
mod ending; // users who sign out, tenants that end, and what admins see
mod guarded; // a server and an authorization server of ours
mod hostile; // authorization servers that lie
mod login; // people who sign in to the service from the terminal
mod published; // the authorization servers of others
mod recovering; // what an authorization server forgot, or says in words of its own
mod refreshing; // tokens that end, and replicas that die
mod smoke; // an operator who tries a server
mod writing; // what is secret is in nothing that the program writes

use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use self::guarded::Guarded;
use crate::support::{
    client::{Answer, Client, plain_http},
    model::{calls, text},
    world::{Setup, World},
};

const PACK: &str = r#"
metadata: { id: desk, displayName: Desk, description: A desk, defaultLanguage: en }
languages: { en: { systemPrompt: "You are a desk." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: true, adminUsers: [root] } }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: "${SERVER_URL}"
      accessMode: user-controlled
      AUTH
      timeouts: { connectSeconds: 10, requestSeconds: 20 }
      toolAccess: { default: public }
"#;

/// Tests the stored credential.
const TEST: &str = "/v1/agents/desk/connections/notes/test";

/// A world whose agent `desk` has this server; `auth` is what the pack says of signing in.
async fn world(server: &Url, auth: &str, change: impl FnOnce(&mut Setup)) -> World {
    World::with(|setup| {
        setup.env = setup.env.clone().with("SERVER_URL", server.as_str());
        setup.packs = vec![("desk".to_owned(), PACK.replace("AUTH", auth))];
        change(setup);
    })
    .await
}

/// The challenge of PKCE.
fn s256(verifier: &str) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

/// The parts that came back to what a user said.
async fn say(client: &Client, chat: &str, text: &str) -> Vec<Value> {
    let run = client.say_and_wait(chat, text).await;
    let messages = client.messages(chat).await;
    let answers = messages
        .iter()
        .filter(|message| message["run_id"] == run["id"] && message["role"] != "user");
    answers
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .collect()
}

fn texts(parts: &[Value]) -> String {
    let text = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
    parts.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// The link of `/connect notes`.
async fn link(client: &Client, chat: &str) -> String {
    let asked = say(client, chat, "/connect notes").await;
    let url = asked.iter().find_map(|part| part["url"].as_str());
    url.unwrap_or_else(|| panic!("no link: {asked:?}"))
        .to_owned()
}

/// What a page or a server of a test answers.
async fn fetch(url: &str) -> reqwest::Response {
    let http = plain_http().build().unwrap();
    http.get(url).send().await.unwrap()
}

/// Goes where the link leads and agrees: the path at the service to which the browser is sent back.
async fn sign_in(service: &str, link: &str) -> String {
    let jar = reqwest::redirect::Policy::none();
    let builder = plain_http().redirect(jar);
    let browser = builder.build().unwrap();
    let (mut url, mut cookies) = (Url::parse(link).unwrap(), Vec::<(String, String)>::new());
    for _ in 0..16 {
        if let Some(path) = url.as_str().strip_prefix(service) {
            return path.to_owned();
        }
        let pairs: Vec<_> = cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let request = browser.get(url.clone()).header("cookie", pairs.join("; "));
        let answer = request.send().await.unwrap();
        for cookie in answer.headers().get_all("set-cookie") {
            let pair = cookie.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            cookies.retain(|(known, _)| known != name);
            if !value.is_empty() {
                cookies.push((name.to_owned(), value.to_owned()));
            }
        }
        let Some(location) = answer.headers().get("location") else {
            panic!("{url} leads nowhere: {}", answer.text().await.unwrap());
        };
        url = url.join(location.to_str().unwrap()).unwrap();
    }
    panic!("the sign-in has no end");
}

fn code(page: &Answer) -> String {
    let (_, rest) = page
        .text
        .split_once("<output>")
        .unwrap_or_else(|| panic!("no code in {}", page.text));
    rest.split_once('<').unwrap().0.to_owned()
}

/// Connects a user in a conversation: what the conversation says to the code.
async fn connect(world: &World, client: &Client, chat: &str) -> String {
    let link = link(client, chat).await;
    let page = world.nobody().get(&sign_in(&world.url, &link).await).await;
    assert_eq!(page.status, 200, "{}", page.text);
    texts(&say(client, chat, &code(&page)).await)
}

/// Opens a page as a browser does.
async fn open(world: &World, path: &str) -> Answer {
    let browser = world.nobody().request(http::Method::GET, path);
    world
        .nobody()
        .send(browser.header("accept", "text/html"))
        .await
}

/// The result of a call of a tool of the server.
async fn call(world: &World, client: &Client, chat: &str, tool: &str) -> Value {
    world
        .model
        .reply(calls([(&*format!("notes__{tool}"), json!({}))]))
        .reply(text("So it is."));
    client.say_and_wait(chat, "go").await;
    let messages = client.messages(chat).await;
    let mut parts = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap());
    let result = parts.rfind(|part| part["type"] == "tool_result");
    result
        .unwrap_or_else(|| panic!("no result: {messages:?}"))
        .clone()
}

impl Answer {
    /// A page with this status that says this.
    fn expect_page(&self, status: u16, said: &str) {
        assert_eq!(self.status, status, "{}", self.text);
        assert!(self.text.contains(said), "{said:?} is not in {}", self.text);
    }
}

async fn connection(client: &Client) -> Value {
    let path = "/v1/agents/desk/connections/notes";
    client.get(path).await.expect(200)
}

/// A guarded server, a world with it, and ann who is connected.
async fn connected(change: impl FnOnce(&mut Setup)) -> (Guarded, World, Client, String) {
    let guarded = Guarded::start().await;
    let world = world(&guarded.url, "auth: oauth", change).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let said = connect(&world, &ann, &chat).await;
    assert!(said.starts_with("✅"), "{said}");
    (guarded, world, ann, chat)
}
