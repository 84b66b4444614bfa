//! Numbers as people write them: one reader for words, forms and sentences, whether the argument is a number or a text.

use chatelaine::app::accounts::development::DevelopmentUser;
use domain::{
    elicitation::AnswerError,
    json::{Json, Members},
    skill::words,
};
use serde_json::{Value, json, value::to_raw_value};

use super::SkillsFixture;
use crate::support::{
    client::Client,
    has::Has,
    offer::{answer, texts},
    terminal::Terminal,
};

/// What is said, and what it means in every language; `ask`: two people read two numbers; `no`: it is no amount.
pub const AMOUNTS: &[(&str, &str)] = &[
    ("12", "12"),
    ("12.50", "12.50"),
    ("12,50", "12.50"),
    ("12,5", "12.5"),
    ("0,99", "0.99"),
    ("1.234", "ask"),
    ("1,234", "ask"),
    ("999.999", "ask"),
    ("0.123", "0.123"),
    ("0,123", "0.123"),
    ("1234", "1234"),
    ("1,234.50", "1234.50"),
    ("1.234,50", "1234.50"),
    ("1'234.50", "1234.50"),
    ("1.234.567", "1234567"),
    ("1,234,567", "1234567"),
    ("1\u{202f}234,50", "1234.50"),
    ("1\u{a0}234\u{a0}567", "1234567"),
    ("12.3456", "12.3456"),
    ("1.2340", "1.2340"),
    ("1.23.45", "no"),
    ("1,23,456", "no"),
    ("1.234,567,8", "no"),
    ("-5", "no"),
    ("-€5", "no"),
    ("1e3", "no"),
    ("twelve", "no"),
    ("€12", "12"),
    ("12,50€", "12.50"),
];

/// The bank's amount: a text.
const TEXT: &str = r"^[0-9]+(\.[0-9]+)?$";

fn read(property: &Value, said: &str) -> Result<Json, AnswerError> {
    let schema = json!({ "required": ["to", "amount"], "properties": {
        "to": { "type": "string" }, "amount": property, "memo": { "type": "string" } } });
    let reading = words::read(
        &to_raw_value(&schema).unwrap(),
        &Members::default(),
        &format!("acme {said}"),
    );
    match reading.faults.first() {
        Some((_, fault)) => Err(*fault),
        None => Ok(reading.given.get("amount").unwrap().clone()),
    }
}

#[test]
fn a_number_and_a_text_of_digits_are_read_alike() {
    let text = json!({ "type": "string", "pattern": TEXT });
    let numbers = [
        json!({ "type": "number" }),
        json!({ "type": ["number", "null"] }),
        json!({ "type": "number", "exclusiveMinimum": 0 }),
    ];
    for (said, meant) in AMOUNTS {
        for property in numbers.iter().chain([
            &text,
            &json!({ "type": "string", "format": "decimal" }),
            &json!({ "type": "string", "pattern": r"\d+(\.\d{1,4})?" }),
            &json!({ "type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$" }),
        ]) {
            let read = read(property, said);
            match *meant {
                "ask" => assert_eq!(read, Err(AnswerError::AmbiguousNumber), "{property} {said}"),
                "no" => assert!(read.is_err(), "{property} {said}: {read:?}"),
                value => {
                    let written = match read {
                        Ok(Json::Text(text)) => text,
                        Ok(number) => number.to_string(),
                        Err(why) => panic!("{property} {said}: {why:?}"),
                    };
                    assert_eq!(written, value, "{property} {said}");
                }
            }
        }
    }
}

#[test]
fn a_text_is_written_as_its_pattern_wants_it() {
    for (pattern, said, written) in [
        (r"^\d+\.\d{2}$", "12", Some("12.00")),
        (r"^\d+\.\d{2}$", "12,5", Some("12.50")),
        (r"^\d+\.\d{2}$", "12,345.60", Some("12345.60")),
        (r"^\d+\.\d{2}$", "12.3456", None),
        (r"^\d+,\d{2}$", "1,234.50", Some("1234,50")),
        (r"^\d+(\.\d{1,3})?$", "1.2340", Some("1.234")),
        (r"^-?\d+(\.\d+)?$", "-5", Some("-5")),
    ] {
        let read = read(&json!({ "type": "string", "pattern": pattern }), said);
        assert_eq!(
            read.ok().as_ref().and_then(Json::as_text),
            written,
            "{pattern} {said}"
        );
    }
}

#[test]
fn a_code_of_digits_is_no_amount_and_stays_as_it_was_written() {
    for (pattern, said) in [
        (r"^[0-9]{4}$", "0042"),
        (r"^[0-9]+$", "001234"),
        (r"^[A-Z]{2}[0-9]{2}[A-Z0-9]+$", "DE89370400440532013000"),
        (r"^\+?[0-9 .]+$", "1.234"),
        (r"^\d{3}\.\d{3}$", "123.456"),
        (r"^\d+(\.\d+)*$", "1.234"),
        (r"^\d{1,2}[.:]\d{2}$", "12.50"),
        (r"^.+$", "1.234"),
        (r"\d", "1.234"),
    ] {
        let read = read(&json!({ "type": "string", "pattern": pattern }), said);
        assert_eq!(read.unwrap().as_text(), Some(said), "{pattern}");
    }
    let plain = read(&json!({ "type": "string" }), "1.234");
    assert_eq!(plain.unwrap().as_text(), Some("1.234"));
}

#[test]
fn below_zero_is_read_where_the_schema_says_so_or_the_word_does() {
    let value = |property: Value, said: &str| read(&property, said).map(|value| value.to_string());
    let cold = json!({ "type": "number", "minimum": -50 });
    assert_eq!(value(cold, "-5"), Ok("-5".to_owned()));
    let number = json!({ "type": "number" });
    assert_eq!(value(number.clone(), "-5"), Err(AnswerError::NotANumber));
    assert_eq!(value(number.clone(), "\"minus 5\""), Ok("-5".to_owned()));
    assert_eq!(value(number, "\"menos 0,5\""), Ok("-0.5".to_owned()));
    let whole = json!({ "type": "integer" });
    assert_eq!(value(whole.clone(), "007"), Ok("7".to_owned()));
    assert_eq!(
        value(whole.clone(), "1.234"),
        Err(AnswerError::AmbiguousNumber)
    );
    assert_eq!(value(whole, "1.234.567"), Ok("1234567".to_owned()));
}

#[test]
fn a_blank_in_a_number_is_not_read_as_the_end_of_it() {
    for property in [
        json!({ "type": "number" }),
        json!({ "type": "string", "pattern": TEXT }),
    ] {
        for said in ["1 234,50", "12 345", "1 234 567 May"] {
            let read = read(&property, said);
            assert_eq!(read, Err(AnswerError::AmbiguousNumber), "{said}");
        }
        assert!(read(&property, "12 bottles").is_ok());
        assert!(read(&property, "12 50").is_ok());
    }
    // Two numbers are two numbers.
    let schema = json!({ "required": ["a", "b"], "properties": { "a": { "type": "number" }, "b": { "type": "number" } } });
    let reading = words::read(
        &to_raw_value(&schema).unwrap(),
        &Members::default(),
        "1 234",
    );
    assert!(reading.is_complete());
}

async fn people(fixture: &SkillsFixture) -> Vec<(&'static str, Client)> {
    let mut people = Vec::new();
    for locale in ["en", "es", "fr"] {
        let person = DevelopmentUser {
            user: format!("ana-{locale}"),
            roles: vec!["employee".to_owned()],
            locale: Some(locale.to_owned()),
            ..DevelopmentUser::default()
        };
        people.push((locale, fixture.world.someone(&person).await));
    }
    people
}

async fn fixture() -> SkillsFixture {
    let own = "tools: [send_money] }, defaults: { currency: EUR, from_account: current }";
    SkillsFixture::with(&super::PACK.replace("tools: [send_money] }", own)).await
}

/// The amount of the newest own request for consent, and how many there are.
async fn newest(client: &Client) -> (usize, Value) {
    let page = client
        .get("/v1/approvals?role=requester&limit=100")
        .await
        .expect(200);
    let items = page["items"].as_array().unwrap();
    let Some(first) = items.first() else {
        return (0, Value::Null);
    };
    let path = format!("/v1/approvals/{}", first["id"].as_str().unwrap());
    (items.len(), client.get(&path).await.expect(200))
}

const READINGS: [(&str, &str); 3] = [
    ("en", "“1.234” is 1234 or 1.234."),
    ("es", "«1.234» es 1234 o 1,234."),
    ("fr", "« 1.234 » est 1234 ou 1,234."),
];

#[tokio::test]
async fn an_amount_means_one_thing_in_a_command_in_every_language() {
    let fixture = fixture().await;
    for (locale, ana) in people(&fixture).await {
        for (said, meant) in AMOUNTS.iter().filter(|(said, _)| !said.contains('\'')) {
            let chat = ana.open("bank").await;
            let (before, _) = newest(&ana).await;
            let parts = answer(&ana, &chat, &format!("/pay acme {said}")).await;
            let told = texts(&parts);
            assert!(!told.contains("[0-9]") && !told.contains('^'), "{told}");
            let (after, request) = newest(&ana).await;
            if ["ask", "no"].contains(meant) {
                assert_eq!(
                    (after, &parts.last().unwrap()["field"]),
                    (before, &json!("amount")),
                    "{locale} {said}: {told}"
                );
                answer(&ana, &chat, "/cancel").await;
            } else {
                assert_eq!(after, before + 1, "{locale} {said}: {told}");
                assert_eq!(request["arguments"]["amount"], *meant, "{locale} {said}");
                let cancel = format!("/v1/approvals/{}/cancel", request["id"].as_str().unwrap());
                ana.post(&cancel, json!({})).await;
            }
        }
    }
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn what_two_people_read_differently_is_asked_again_with_both_readings() {
    let fixture = fixture().await;
    for ((_, ana), (_, readings)) in people(&fixture).await.into_iter().zip(READINGS) {
        let chat = ana.open("bank").await;
        // As a word of the command, as an answer in the chat, and as one for the field.
        let told = texts(&answer(&ana, &chat, "/pay acme 1.234").await);
        assert!(told.contains(readings), "{told}");
        let told = texts(&answer(&ana, &chat, "1.234").await);
        assert!(told.contains(readings), "{told}");
        let path = format!("/v1/conversations/{chat}/messages");
        let body = json!({ "answer": { "field": "amount", "value": "1.234" } });
        let posted = ana.post(&path, body).await.expect(202);
        crate::support::wait::ended(&ana, posted["run"]["id"].as_str().unwrap()).await;
        assert_eq!(newest(&ana).await.0, 0);
        let told = texts(&answer(&ana, &chat, "twelve").await);
        assert!(!told.contains("[0-9]"), "{told}");
        answer(&ana, &chat, "1.234,50").await;
        assert_eq!(newest(&ana).await.1["arguments"]["amount"], "1234.50");
    }
}

#[tokio::test]
async fn amounts_are_shown_as_the_reader_writes_them_beside_the_exact_ones() {
    let fixture = fixture().await;
    for ((locale, ana), written) in
        people(&fixture)
            .await
            .into_iter()
            .zip(["1,234.50", "1.234,50", "1\u{202f}234,50"])
    {
        let chat = ana.open("bank").await;
        answer(&ana, &chat, "/pay acme 1,234.50").await;
        let request = newest(&ana).await.1;
        request
            .has(json!({ "arguments": { "amount": "1234.50" }, "amounts": { "amount": written } }));
        let cfo = DevelopmentUser {
            user: format!("cfo-{locale}"),
            roles: vec!["cfo".to_owned()],
            locale: Some(locale.to_owned()),
            ..DevelopmentUser::default()
        };
        let cfo = fixture.world.someone(&cfo).await;
        let told = texts(&answer(&cfo, &cfo.open("bank").await, "/approvals").await);
        assert!(told.contains("1234.50\""), "{told}");
        assert!(
            told.contains(&format!("\n    \"amount\" = {written}")),
            "{told}"
        );
        let id = request["id"].as_str().unwrap();
        let seen = cfo.get(&format!("/v1/approvals/{id}")).await.expect(200);
        seen.has(json!({ "arguments": { "amount": "1234.50" }, "amounts": { "amount": written } }));
        let small = ana.open("bank").await;
        answer(&ana, &small, "/pay acme 12").await;
        assert_eq!(newest(&ana).await.1["amounts"], Value::Null);
    }
}

#[tokio::test]
async fn every_protocol_and_the_terminal_ask_again_alike() {
    let fixture = fixture().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let bodies = |said: &str| {
        let part = json!({ "type": "text", "text": said });
        [
            (
                "/v1/chat/completions",
                json!({ "model": "bank", "messages": [{ "role": "user", "content": said }] }),
            ),
            ("/v1/responses", json!({ "model": "bank", "input": said })),
            (
                "/v1/ui/chat",
                json!({ "id": said, "agent": "bank", "messages": [{ "id": "m", "role": "user", "parts": [part] }] }),
            ),
            (
                "/v1/agui/bank",
                json!({ "threadId": said, "runId": "r", "messages": [{ "id": "m", "role": "user", "content": said }] }),
            ),
        ]
    };
    for (path, body) in bodies("/pay acme 1.234") {
        let told = ann.post(path, body).await.text;
        assert!(told.contains("“1.234” is 1234 or 1.234."), "{path}: {told}");
        assert!(!told.contains("[0-9]"), "{path}: {told}");
        assert_eq!(newest(&ann).await.0, 0, "{path}");
    }
    for (at, (path, body)) in bodies("/pay acme 1.234,50").into_iter().enumerate() {
        ann.post(path, body).await;
        let (count, request) = newest(&ann).await;
        assert_eq!(
            (count, &request["arguments"]["amount"]),
            (at + 1, &json!("1234.50")),
            "{path}"
        );
    }
    let bob = fixture.world.user("bob", &["employee"]).await;
    let mut script = Terminal::piped(&fixture.world.url, &bob);
    for line in ["/pay acme 1.234", "12,50"] {
        script.enters(line);
    }
    let shown = script.ends().await;
    assert!(shown.contains("“1.234” is 1234 or 1.234."), "{shown}");
    assert_eq!(newest(&bob).await.1["arguments"]["amount"], "12.50");
}
