//! Errors of a provider: what is asked again, what is waited for, what the user reads.

use chatelaine::domain::{
    clock::{self, Clock},
    ids::TenantId,
    secret::Secret,
};
use time::{OffsetDateTime, format_description::well_known::Rfc2822};

use super::*;
use crate::support::model::{error, events, raw};

#[tokio::test]
async fn an_overloaded_model_is_asked_three_times() {
    let model = ScriptedModel::start().await;
    for status in [429, 500, 502, 503, 504, 529] {
        let before = model.requests().len();
        model
            .reply(error(status, "busy"))
            .reply(error(status, "busy"))
            .reply(text("at last"));
        assert_eq!(
            ask(&model.llm(), request()).await.unwrap().text,
            "at last",
            "{status}"
        );
        assert_eq!(model.requests().len() - before, 3);
    }
}

#[tokio::test]
async fn after_three_attempts_the_user_is_told() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(error(503, "no capacity.")));
    let error = ask(&model.llm(), request()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the model does not answer at the moment: no capacity; try again in a minute"
    );
    assert_eq!(model.requests().len(), 3);
}

#[tokio::test]
async fn what_will_not_change_is_asked_once() {
    let model = ScriptedModel::start().await;
    let cases = [
        (400, "bad_request"),
        (401, "unauthorized"),
        (402, "unauthorized"),
        (403, "unauthorized"),
        (404, "not_found"),
        (413, "bad_request"),
        (422, "bad_request"),
        (302, "protocol"),
    ];
    for (number, (status, code)) in cases.into_iter().enumerate() {
        model.reply(error(status, "no").header("location", "http://127.0.0.1:1/"));
        assert_eq!(
            ask(&model.llm(), request()).await.unwrap_err().code(),
            code,
            "{status}"
        );
        assert_eq!(model.requests().len(), number + 1, "{status}");
    }
}

#[tokio::test]
async fn an_empty_account_is_the_operators_to_fix() {
    let model = ScriptedModel::start().await;
    let body = json!({ "error": { "message": "You exceeded your current quota", "code": "insufficient_quota" } });
    model.reply(raw([body.to_string()]).status(429));
    let error = ask(&model.llm(), request()).await.unwrap_err();
    assert_eq!(
        error,
        ModelError::Unauthorized("You exceeded your current quota".to_owned())
    );
}

#[tokio::test]
async fn a_provider_is_given_the_time_it_asks_for() {
    let model = ScriptedModel::start().await;
    model
        .reply(error(429, "slow down").retry_after("1"))
        .reply(text("ok"));
    let start = clock::instant();
    ask(&model.llm(), request()).await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_secs(1),
        "asked again after {:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_provider_that_asks_for_too_much_patience_is_not_waited_for() {
    let model = ScriptedModel::start().await;
    model.reply(error(429, "tomorrow").retry_after("3600"));
    let error = ask(&model.llm(), request()).await.unwrap_err();
    assert_eq!(
        error,
        ModelError::RateLimited {
            retry_after: Some(Duration::from_secs(3600))
        }
    );
    assert_eq!(
        error.to_string(),
        "the model has too many requests; try again in 3600 seconds"
    );
}

#[tokio::test]
async fn the_time_may_be_given_as_a_date() {
    let model = ScriptedModel::start().await;
    let at: OffsetDateTime = Clock::System.now() + Duration::from_secs(120);
    let date = at.format(&Rfc2822).unwrap().replace("+0000", "GMT");
    model.reply(error(503, "later").retry_after(date));
    let wait = ask(&model.llm(), request())
        .await
        .unwrap_err()
        .retry_after()
        .unwrap();
    assert!((110..=120).contains(&wait.as_secs()), "{wait:?}");
}

#[tokio::test]
async fn a_model_that_is_down_is_unavailable() {
    let model = ScriptedModel::start().await;
    let llm = Llm {
        base_url: Some("http://127.0.0.1:1/v1".parse().unwrap()),
        ..model.llm()
    };
    let error = ask(&llm, request()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn an_error_before_any_text_is_asked_again() {
    let model = ScriptedModel::start().await;
    model
        .reply(events([
            json!({ "error": { "message": "Overloaded", "type": "overloaded_error" } }),
        ]))
        .reply(text("ok"));
    assert_eq!(ask(&model.llm(), request()).await.unwrap().text, "ok");
}

#[tokio::test]
async fn a_field_that_an_endpoint_refuses_is_left_out_and_stays_out() {
    let model = ScriptedModel::start().await;
    model.on(|request| {
        let refuse = |what: &str| {
            Some(error(
                400,
                &format!("Unsupported value: '{what}' does not support that"),
            ))
        };
        if request.get("temperature").is_some() {
            refuse("temperature")
        } else if request.get("stream_options").is_some() {
            refuse("stream_options")
        } else {
            Some(text("ok").without_usage())
        }
    });
    let llm = Llm {
        temperature: Some(0.3),
        ..model.llm()
    };
    let models = models();
    for asked in [3, 4] {
        let reply = collect(models.step(&llm, request())).await.1.unwrap();
        assert_eq!(reply.text, "ok");
        assert_eq!(model.requests().len(), asked);
    }
}

#[tokio::test]
async fn a_field_that_is_refused_although_it_is_not_there_is_an_error() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(error(400, "temperature, again")));
    assert_eq!(
        ask(&model.llm(), request()).await.unwrap_err().code(),
        "bad_request"
    );
    assert_eq!(model.requests().len(), 2);
}

#[tokio::test]
async fn a_known_reasoning_model_gets_its_token_limit_under_its_own_name() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    ask(
        &Llm {
            model: "gpt-5-mini".to_owned(),
            max_tokens: Some(50),
            ..model.llm()
        },
        request(),
    )
    .await
    .unwrap();
    let body = model.last_request();
    assert_eq!(
        (body.get("max_tokens"), &body["max_completion_tokens"]),
        (None, &json!(50))
    );
}

#[tokio::test]
async fn the_key_is_in_no_message() {
    let model = ScriptedModel::start().await;
    let long = "word ".repeat(200);
    for status in [400, 401, 404, 500] {
        model.on(move |_| {
            Some(error(
                status,
                "Incorrect API key provided: tell-nobody-1. Or sk-proj-abcdef? \u{7}\n",
            ))
        });
        let llm = Llm {
            api_key: Some(Secret::new("tell-nobody-1")),
            ..model.llm()
        };
        let said = ask(&llm, request()).await.unwrap_err().to_string();
        assert!(
            !said.contains("tell-nobody-1") && !said.contains("abcdef"),
            "{said}"
        );
        assert!(
            said.contains("[secret]") && !said.contains(char::is_control),
            "{said}"
        );
    }
    let other = ScriptedModel::start().await;
    other.reply(error(400, &long));
    let said = ask(&other.llm(), request()).await.unwrap_err().to_string();
    assert!(said.len() < 400, "{said}");
}

#[tokio::test]
async fn a_body_that_is_not_json_is_not_repeated_to_the_user() {
    let model = ScriptedModel::start().await;
    model.reply(raw(["be brief: how much do I have?"]).status(400));
    let said = ask(&model.llm(), request()).await.unwrap_err().to_string();
    assert_eq!(
        said,
        "the model refused the request; start a new conversation or ask the operator"
    );
}

#[tokio::test]
async fn an_endpoint_that_keeps_failing_is_left_alone_for_a_while() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(error(503, "down")));
    let models = Models::with_limits(
        client(),
        Limits {
            breaker_failures: 4,
            ..limits()
        },
    );
    for asked in [3, 4, 4, 4] {
        let error = collect(models.step(&model.llm(), request()))
            .await
            .1
            .unwrap_err();
        assert_eq!(error.code(), "unavailable");
        assert_eq!(model.requests().len(), asked);
        assert_eq!(error.retry_after().is_some(), asked == 4);
    }
    let request_of_another = StepRequest {
        tenant: Some(TenantId::new()),
        ..request()
    };
    let of_another = collect(models.step(&model.llm(), request_of_another)).await;
    assert_eq!(of_another.1.unwrap_err().code(), "unavailable");
    assert_eq!(
        model.requests().len(),
        7,
        "another tenant's requests are sent"
    );
    let other = ScriptedModel::start().await;
    other.reply(text("unaffected"));
    assert_eq!(
        collect(models.step(&other.llm(), request()))
            .await
            .1
            .unwrap()
            .text,
        "unaffected"
    );
}

#[tokio::test]
async fn an_endpoint_that_is_back_is_used_again() {
    let model = ScriptedModel::start().await;
    let limits = Limits {
        breaker_failures: 2,
        attempts: 1,
        breaker_pause: Duration::from_millis(50),
        ..limits()
    };
    let models = Models::with_limits(client(), limits);
    model.reply(error(500, "down")).reply(error(500, "down"));
    for _ in 0..2 {
        collect(models.step(&model.llm(), request()))
            .await
            .1
            .unwrap_err();
    }
    model.on(|_| Some(text("back")));
    let deadline = clock::instant() + Duration::from_secs(20);
    loop {
        match collect(models.step(&model.llm(), request())).await.1 {
            Ok(reply) => break assert_eq!(reply.text, "back"),
            Err(error) => assert!(
                error.code() == "unavailable" && clock::instant() < deadline,
                "{error}"
            ),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_a_failure_of_the_endpoint_does_not_count() {
    let model = ScriptedModel::start().await;
    model.on(|_| Some(error(400, "no")));
    let models = Models::with_limits(
        client(),
        Limits {
            breaker_failures: 1,
            ..limits()
        },
    );
    for asked in 1..4 {
        assert_eq!(
            collect(models.step(&model.llm(), request()))
                .await
                .1
                .unwrap_err()
                .code(),
            "bad_request"
        );
        assert_eq!(model.requests().len(), asked);
    }
}
