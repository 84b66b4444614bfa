//! Commands that lack arguments: the user is asked for them, in every client, and the call is one like any other.

use serde_json::{Value, json};

use super::SkillsFixture;
use crate::support::{client::Client, has::Has, offer::answer, terminal::Terminal};
use chatelaine::app::accounts::development::DevelopmentUser;

/// The fixture, in which `/pay` knows the account and the currency that are meant.
async fn fixture() -> SkillsFixture {
    let own = "tools: [send_money] }, defaults: { currency: EUR, from_account: current }";
    SkillsFixture::with(&super::PACK.replace("tools: [send_money] }", own)).await
}

/// The texts of an answer, one a line.
fn said(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// The arguments of the own requests for consent.
async fn asked_for(client: &Client) -> Vec<Value> {
    let page = client.get("/v1/approvals?role=requester").await.expect(200);
    let mut arguments = Vec::new();
    for request in page["items"].as_array().unwrap() {
        let path = format!("/v1/approvals/{}", request["id"].as_str().unwrap());
        arguments.push(client.get(&path).await.expect(200)["arguments"].clone());
    }
    arguments
}

#[tokio::test]
async fn words_make_the_call_which_waits_as_its_policy_says() {
    let fixture = fixture().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let chat = ann.open("bank").await;
    let parts = answer(&ann, &chat, "/rate EUR usd").await;
    assert!(said(&parts).contains("1.085"), "{parts:?}");
    answer(&ann, &chat, "/pay acme 12.50").await;
    answer(&ann, &chat, "/pay acme 3 USD travel").await;
    let asked = asked_for(&ann).await;
    let expected = [("12.50", "EUR", "current"), ("3", "USD", "travel")].map(|(amount, currency, account)| {
        json!({ "to": "acme", "amount": amount, "currency": currency, "from_account": account })
    });
    assert!(
        asked.len() == 2 && expected.iter().all(|one| asked.contains(one)),
        "{asked:?}"
    );
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn what_is_missing_is_asked_for_and_then_the_call_is_made_once() {
    let fixture = fixture().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let chat = ann.open("bank").await;
    let asked = answer(&ann, &chat, "/pay").await;
    let prompt = asked.last().unwrap();
    prompt.has(json!({ "type": "prompt", "field": "to", "asking": { "command": "/pay" } }));
    assert!(
        prompt["text"]
            .as_str()
            .unwrap()
            .starts_with("/pay needs to know more.\n"),
        "{prompt}"
    );
    let next = answer(&ann, &chat, "acme").await;
    assert_eq!(next.last().unwrap()["field"], "amount");
    assert!(asked_for(&ann).await.is_empty());
    let path = format!("/v1/conversations/{chat}/messages");
    let body = json!({ "answer": { "field": "amount", "value": "12.50" } });
    let posted = ann.post(&path, body).await.expect(202);
    crate::support::wait::ended(&ann, posted["run"]["id"].as_str().unwrap()).await;
    let made =
        json!({ "to": "acme", "amount": "12.50", "currency": "EUR", "from_account": "current" });
    assert_eq!(asked_for(&ann).await, [made]);
    let left: i64 = sqlx::query_scalar("select count(*) from elicitations")
        .fetch_one(&mut fixture.world.db.as_tenant(fixture.world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(left, 0, "what was entered is kept no longer than needed");
}

#[tokio::test]
async fn each_mistake_is_told_at_its_argument_in_the_language_of_the_user() {
    let fixture = fixture().await;
    for (locale, option, unclear) in [
        (
            "en",
            "That is none of the options.",
            "Which of these words belong together? Write /rate from to",
        ),
        (
            "es",
            "No es ninguna de las opciones.",
            "¿Qué palabras van juntas? Escribe /rate from to",
        ),
        (
            "fr",
            "Ce n'est aucune des options.",
            "Quels mots vont ensemble ? Écrivez /rate from to",
        ),
    ] {
        let person = DevelopmentUser {
            user: format!("ana-{locale}"),
            roles: vec!["employee".to_owned()],
            locale: Some(locale.to_owned()),
            ..DevelopmentUser::default()
        };
        let ana = fixture.world.someone(&person).await;
        let chat = ana.open("bank").await;
        let parts = answer(&ana, &chat, "/rate EUR money").await;
        let text = said(&parts);
        assert!(text.starts_with(&format!("to – {option}\n")), "{text}");
        assert_eq!(parts.last().unwrap()["field"], "to");
        let text = said(&answer(&ana, &chat, "money").await);
        assert!(text.starts_with(option), "{text}");
        let text = said(&answer(&ana, &chat, "USD").await);
        assert!(text.contains("1.085"), "{text}");
        let parts = answer(&ana, &chat, "/rate EUR USD GBP").await;
        assert!(said(&parts).starts_with(unclear), "{parts:?}");
        assert_eq!(parts.last().unwrap()["field"], "from");
    }
}

#[tokio::test]
async fn a_form_is_left_off_and_another_command_takes_its_place() {
    let fixture = fixture().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let chat = ann.open("bank").await;
    answer(&ann, &chat, "/pay acme").await;
    answer(&ann, &chat, "/web-search rust").await;
    assert_eq!(
        fixture.searched(),
        [json!({ "input": "rust" })],
        "a skill is no answer"
    );
    let parts = answer(&ann, &chat, "/rate EUR").await;
    assert_eq!(parts.last().unwrap()["asking"]["command"], "/rate");
    let parts = answer(&ann, &chat, "/cancel").await;
    assert_eq!(
        said(&parts),
        "The command was left off. Nothing was called."
    );
    fixture
        .world
        .model
        .reply(crate::support::model::text("Hello."));
    assert_eq!(
        said(&answer(&ann, &chat, "USD").await),
        "Hello.",
        "nobody asks any more"
    );
    assert!(asked_for(&ann).await.is_empty());
    assert_eq!(fixture.world.bank.executions("get_exchange_rate"), 0);
}

#[tokio::test]
async fn a_client_of_openai_and_a_terminal_are_asked_in_words() {
    let fixture = fixture().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let mut said: Vec<String> = Vec::new();
    for line in ["/rate", "eur", "money", "usd"] {
        said.push(line.to_owned());
        let role = |at: usize| {
            if at.is_multiple_of(2) {
                "user"
            } else {
                "assistant"
            }
        };
        let messages = said.iter().enumerate();
        let messages: Vec<_> = messages
            .map(|(at, text)| json!({ "role": role(at), "content": text }))
            .collect();
        let body = json!({ "model": "bank", "messages": messages });
        let answer = ann.post("/v1/chat/completions", body).await.expect(200);
        said.push(
            answer["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    assert!(
        said[1].starts_with("/rate needs to know more.\nfrom"),
        "{said:?}"
    );
    assert!(said[3].starts_with("to"), "{said:?}");
    assert!(
        said[5].starts_with("That is none of the options."),
        "{said:?}"
    );
    assert!(said[7].contains("1.085"), "{said:?}");
    let mut script = Terminal::piped(&fixture.world.url, &ann);
    for line in ["/rate EUR", "USD"] {
        script.enters(line);
    }
    let shown = script.ends().await;
    assert!(
        shown.contains("/rate needs to know more.") && shown.contains("1.085"),
        "{shown}"
    );
    assert_eq!(fixture.world.bank.executions("get_exchange_rate"), 2);
}
