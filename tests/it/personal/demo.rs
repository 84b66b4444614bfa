//! The demo's pack with the demo's notes.

use serde_json::{Value, json};

use super::connection;
use crate::support::{
    client::{Client, plain},
    notebook::Notebook,
    servers::venv,
    world::{Setup, World},
};

async fn world(notebook: &Notebook) -> World {
    let demo = |setup: &mut Setup| {
        let bank = setup.env.get("BANK_URL").unwrap().to_owned();
        let variables = [
            ("BANK_MCP_URL", bank.as_str()),
            ("BANK_TOKEN", "any"),
            ("NOTES_MCP_URL", &notebook.url),
            ("MCP_TIME_COMMAND", venv("python").to_str().unwrap()),
            ("LLM_PROVIDER", "none"),
            ("LLM_MODEL", ""),
            ("OPENAI_BASE_URL", ""),
            ("OPENAI_API_KEY", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        setup.env = variables
            .into_iter()
            .fold(setup.env.clone(), |env, (name, value)| {
                env.with(name, value)
            });
        setup.packs = vec![(
            "bank".to_owned(),
            std::fs::read_to_string("packs/bank/agent-pack.yaml").unwrap(),
        )];
    };
    World::with(demo).await
}

async fn notes_tools(client: &Client) -> Vec<String> {
    let listed = client.get("/v1/agents/bank/tools").await.expect(200);
    let notes = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|server| server["server"] == "notes");
    let tools = notes.flat_map(|server| server["tools"].as_array().unwrap());
    tools
        .map(|tool| tool["tool"].as_str().unwrap().to_owned())
        .collect()
}

async fn enter(client: &Client, token: &str) {
    super::enter(client, "bank", token).await.expect(200);
}

fn texts(found: &str) -> Vec<String> {
    let found: Value = serde_json::from_str(found).unwrap_or_else(|_| panic!("{found}"));
    found["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note["text"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn each_token_has_its_own_notes_and_its_own_tools() {
    let notebook = Notebook::start().await;
    let world = world(&notebook).await;
    let (erin, fred) = (
        world.user("erin", &["employee"]).await,
        world.user("fred", &["finance"]).await,
    );
    enter(&erin, "erin-token").await;
    assert_eq!(
        notes_tools(&erin).await,
        ["delete_note", "list_notes", "write_note"]
    );
    assert_eq!(
        notes_tools(&fred).await,
        [""; 0],
        "nothing until he connects"
    );
    for text in ["Ask Acme", "Call Sato"] {
        erin.ask(
            "bank",
            &format!("/call notes write_note {}", json!({ "text": text })),
        )
        .await;
    }
    assert_eq!(
        texts(
            &erin
                .ask("bank", "/call notes list_notes {\"containing\":\"acme\"}")
                .await
        ),
        ["Ask Acme"]
    );
    enter(&fred, "fred-token").await;
    assert_eq!(notes_tools(&fred).await, ["list_notes"]);
    assert_eq!(
        texts(&fred.ask("bank", "/call notes list_notes").await),
        [""; 0]
    );
    let refused = fred
        .ask("bank", "/call notes write_note {\"text\":\"x\"}")
        .await;
    assert!(refused.contains("there is no tool"), "{refused}");
}

#[tokio::test]
async fn notes_are_numbered_once_and_outlive_a_restart() {
    let notebook = Notebook::start().await;
    let world = world(&notebook).await;
    let erin = world.user("erin", &[]).await;
    enter(&erin, "erin-token").await;
    for text in ["one", "two"] {
        erin.ask(
            "bank",
            &format!("/call notes write_note {}", json!({ "text": text })),
        )
        .await;
    }
    erin.ask("bank", "/call notes delete_note {\"number\":2}")
        .await;
    let gone = erin
        .ask("bank", "/call notes delete_note {\"number\":2}")
        .await;
    assert!(gone.contains("there is no note 2"), "{gone}");
    erin.ask("bank", "/call notes write_note {\"text\":\"three\"}")
        .await;
    let kept: Vec<_> = notebook
        .reopened()
        .of("erin")
        .into_iter()
        .map(|note| (note.number, note.text))
        .collect();
    assert_eq!(kept, [(1, "one".to_owned()), (3, "three".to_owned())]);
}

#[tokio::test]
async fn a_token_taken_out_of_the_file_is_refused() {
    let notebook = Notebook::start().await;
    let world = world(&notebook).await;
    let erin = world.user("erin", &[]).await;
    enter(&erin, "erin-token").await;
    notebook.know("{}");
    let chat = erin.open("bank").await;
    erin.say_and_wait(&chat, "/call notes list_notes").await;
    let said: Vec<_> = erin.messages(&chat).await.iter().map(plain).collect();
    let refused = said
        .iter()
        .any(|text| text.contains("does not accept the credential"));
    assert!(refused, "{said:#?}");
    let seen = erin
        .get("/v1/agents/bank/connections/notes")
        .await
        .expect(200);
    assert_eq!(seen["reason"], "rejected", "{seen}");
    assert_eq!(connection(&erin, "bank").await["tools"], 0);
}
