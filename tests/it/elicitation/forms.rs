//! What may be asked, and what a person's text means.

use domain::elicitation::{Answer, AnswerError, Kind, Refusal, Step, read, steps};
use serde_json::{Value, json, value::to_raw_value};

use super::form;

fn asked(requests: &Value) -> Result<Vec<domain::elicitation::Question>, Refusal> {
    let raw =
        json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"});
    read(&to_raw_value(&raw).unwrap()).unwrap().questions
}

/// What a text means for a field of this schema.
fn value(property: &Value, text: &str) -> Result<Value, AnswerError> {
    let questions = asked(&form(&json!({ "f": property }))).unwrap();
    steps(&questions)[0].value(text)
}

#[test]
fn a_text_means_what_the_schema_says() {
    let whole = json!({"type": "integer", "minimum": 0});
    let date = json!({"type": "string", "format": "date"});
    let titled = json!({"type": "string", "oneOf": [{"const": "a", "title": "Alpha"}, {"const": "b", "title": "Beta"}]});
    let short = json!({"type": "string", "minLength": 2, "maxLength": 3});
    for (property, text, meant) in [
        (&whole, " 7 ", Ok(json!(7))),
        (&whole, "7.5", Err(AnswerError::NotANumber)),
        (&whole, "-1", Err(AnswerError::OutsideLimits)),
        (&date, "2026-11-22", Ok(json!("2026-11-22"))),
        (&date, "tomorrow", Err(AnswerError::OutsideLimits)),
        (&titled, "beta", Ok(json!("b"))),
        (&titled, "1", Ok(json!("a"))),
        (&titled, "gamma", Err(AnswerError::NotAnOption)),
        (&short, "öä", Ok(json!("öä"))),
        (&short, "long", Err(AnswerError::OutsideLimits)),
        (&short, " ", Err(AnswerError::Missing)),
    ] {
        assert_eq!(value(property, text), meant, "{property} {text:?}");
    }
    for text in ["inf", "NaN", "1e999"] {
        assert_eq!(
            value(&json!({"type": "number"}), text),
            Err(AnswerError::NotANumber),
            "{text}"
        );
    }
    for (text, meant) in [
        ("1,234", Err(AnswerError::AmbiguousNumber)),
        ("-12.345", Err(AnswerError::AmbiguousNumber)),
        ("1,234.50", Ok(json!(1234.5))),
        ("1.234,50", Ok(json!(1234.5))),
        ("12,50", Ok(json!(12.5))),
        ("0,125", Ok(json!(0.125))),
        ("1.2340", Ok(json!(1.234))),
        ("1234", Ok(json!(1234.0))),
    ] {
        assert_eq!(value(&json!({"type": "number"}), text), meant, "{text}");
    }
    let unfit = json!({"type": "integer", "default": "x"});
    assert_eq!(
        value(&unfit, "-"),
        Err(AnswerError::NotANumber),
        "a default that does not fit is none"
    );
}

#[test]
fn an_answer_is_not_printed() {
    let questions = asked(&form(&json!({ "f": {"type": "string"} }))).unwrap();
    let state = Some("of the server".to_owned());
    let answer = Answer::from_values(&questions, &[json!("12 Elm Street")], state);
    assert_eq!(
        answer.responses["ask"]["content"]["f"],
        json!("12 Elm Street")
    );
    assert_eq!(format!("{answer:?}"), "Answer { .. }");
}

#[test]
fn fields_come_in_the_order_of_the_server() {
    let raw = serde_json::value::RawValue::from_string(
        r#"{"inputRequests":{"ask":{"method":"elicitation/create","params":{"message":"m","requestedSchema":
            {"type":"object","properties":{"zebra":{"type":"string"},"ape":{"type":"boolean"}}}}}}}"#
            .to_owned(),
    )
    .unwrap();
    let questions = read(&raw).unwrap().questions.unwrap();
    let names: Vec<_> = steps(&questions)
        .iter()
        .map(|step| step.name().to_owned())
        .collect();
    assert_eq!(names, ["zebra", "ape"]);
    let Step::Field(_, ape) = steps(&questions)[1] else {
        panic!("a field")
    };
    assert_eq!(ape.kind, Kind::Boolean);
}

#[test]
fn names_of_secrets_are_known_in_every_spelling() {
    let text = json!({"type": "string"});
    for name in [
        "password",
        "userPassword",
        "API_KEY",
        "apiKey",
        "APIKey",
        "access-token",
        "pin",
        "cardNumber",
        "otp2",
        "secret",
        "Pass\u{200b}word",
        "p\u{ad}i\u{2060}n",
        "ｐａｓｓｗｏｒｄ",
        "2fa_code",
        "verification code",
        "\u{440}\u{430}ssword",
        "p a s s w o r d",
        "p.a.s.s.w.o.r.d",
        "P4ssw0rd",
        "pa$$w0rd",
        "pass word",
        "P I N",
        "k3y",
        "6-digit code we texted you",
        "Your 12-word recovery phrase",
        "Social security number",
        "密码",
        "Пароль",
        "Contrasena",
        "mot de passe",
        "Code reçu par SMS",
        "pa\u{301}ssword",
    ] {
        let refused = asked(&form(&json!({ name: text })));
        assert!(matches!(refused, Err(Refusal::Secret(_))), "{name}");
    }
    for name in [
        "keyword",
        "monkey",
        "opinion",
        "cardinal",
        "tokenizer",
        "spinner",
        "name",
        "currency code",
        "postal_code",
        "promo code",
        "passport number",
        "compass",
        "amount_pln",
        "Código postal",
        "code de la devise",
    ] {
        assert!(asked(&form(&json!({ name: text }))).is_ok(), "{name}");
    }
    let flag = json!({"showPassword": {"type": "boolean"}});
    assert!(asked(&form(&flag)).is_ok(), "yes or no is no secret");
    let mut told = form(&json!({"value": text}));
    for (message, is_secret) in [
        ("Paste your API key here", true),
        ("Type the 6 digit code from the SMS", true),
        ("Escribe el código que te enviamos", true),
        ("Введите пароль", true),
        ("Which p-a-s-s-w-o-r-d do you use?", true),
        ("Which keyboard do you use?", false),
        ("Pass the word on to whom?", false),
        ("Which code of conduct applies?", false),
    ] {
        told["ask"]["params"]["message"] = json!(message);
        assert_eq!(
            matches!(asked(&told), Err(Refusal::Secret(_))),
            is_secret,
            "{message}"
        );
    }
}

#[test]
fn what_is_too_much_is_refused() {
    let raw = |value: Value| to_raw_value(&value).unwrap();
    assert!(read(&raw(json!({"requestState": "s".repeat(70_000)}))).is_err());
    assert!(read(&raw(json!({"inputRequests": {"a": "x".repeat(70_000)}}))).is_err());
    assert!(read(&raw(json!({}))).is_err(), "it asks for nothing");
    let many: serde_json::Map<_, _> = (0..17)
        .map(|at| (format!("f{at}"), json!({"type": "string"})))
        .collect();
    assert!(matches!(
        asked(&form(&Value::Object(many))),
        Err(Refusal::Unanswerable(_))
    ));
}

#[test]
fn a_message_is_shown_without_what_deceives() {
    let mut told = form(&json!({"value": {"type": "string"}}));
    told["ask"]["params"]["message"] = json!(format!(
        "a\u{202e}b\u{7}c\u{200b}\u{e0041}{}",
        "x".repeat(3000)
    ));
    let questions = asked(&told).unwrap();
    assert!(questions[0].message.starts_with("abcx") && questions[0].message.ends_with('…'));
    assert_eq!(questions[0].message.chars().count(), 2001);
}
