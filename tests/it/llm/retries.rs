//! Errors of a provider: what is asked again, what is waited for, what the user reads.

use std::sync::atomic::{AtomicUsize, Ordering};

use domain::{
    clock::{self, Clock},
    ids::{TenantId, UserId},
    secret::Secret,
};
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

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
    assert_eq!(body.get("max_tokens"), None);
    assert_eq!(body["max_completion_tokens"], 50);
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

/// An address where nobody listens.
async fn nowhere() -> Llm {
    Llm {
        base_url: Some("http://127.0.0.1:1/v1".parse().unwrap()),
        ..ScriptedModel::start().await.llm()
    }
}

/// An address where the first connections are closed before an answer; those that follow lead to a model. How many came.
async fn silence(model: &ScriptedModel, silent: usize) -> (Llm, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    let base_url = Some(base_url.parse().unwrap());
    let target = model.base_url().socket_addrs(|| None).unwrap();
    let came = Arc::new(AtomicUsize::new(0));
    let counter = came.clone();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            if counter.fetch_add(1, Ordering::SeqCst) >= silent {
                let mut to = TcpStream::connect(&*target).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
            }
        }
    });
    let llm = Llm {
        base_url,
        ..model.llm()
    };
    (llm, came)
}

fn request_of(user: &str) -> StepRequest {
    StepRequest {
        user: Some(UserId(user.into())),
        ..request()
    }
}

/// Models whose endpoints are left alone after some failures in a row.
fn models_that_leave_alone(failures: u32, pause: Duration) -> Models {
    let limits = Limits {
        breaker_failures: failures,
        breaker_pause: pause,
        attempts: 1,
        ..limits()
    };
    Models::with_limits(client(), limits)
}

async fn failure(models: &Models, llm: &Llm, request: StepRequest) -> ModelError {
    collect(models.step(llm, request)).await.1.unwrap_err()
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached_is_left_alone_for_a_while() {
    let llm = nowhere().await;
    let models = models_that_leave_alone(3, Duration::from_secs(15));
    for asked in 1..=5 {
        let error = failure(&models, &llm, request_of("ann")).await;
        assert_eq!(error.code(), "unavailable");
        let is_paused = matches!(error, ModelError::Paused { .. });
        assert_eq!(is_paused, asked > 3, "{asked}: {error}");
        assert_eq!(error.retry_after().is_some(), is_paused);
    }
    let of_another_tenant = StepRequest {
        tenant: Some(TenantId::new()),
        ..request()
    };
    let error = failure(&models, &llm, of_another_tenant).await;
    assert_eq!(
        error.retry_after(),
        None,
        "another tenant's requests are sent"
    );
    let other = ScriptedModel::start().await;
    other.reply(text("unaffected"));
    let reply = collect(models.step(&other.llm(), request())).await.1;
    assert_eq!(reply.unwrap().text, "unaffected");
}

#[tokio::test]
async fn an_endpoint_that_answers_is_never_left_alone() {
    let model = ScriptedModel::start().await;
    let models = models_that_leave_alone(2, Duration::from_secs(15));
    let cut = || text("An answer that breaks off").cut(2);
    for reply in [
        error(500, "this question breaks me"),
        error(503, "down"),
        raw([""]).status(502),
        cut(),
        cut(),
        error(500, "this question breaks me"),
    ] {
        model.reply(reply);
        let error = failure(&models, &model.llm(), request_of("ann")).await;
        assert!(!matches!(error, ModelError::Paused { .. }), "{error}");
    }
    model.reply(text("unaffected"));
    let reply = collect(models.step(&model.llm(), request_of("bob")))
        .await
        .1;
    assert_eq!(reply.unwrap().text, "unaffected");
}

#[tokio::test]
async fn a_question_that_an_endpoint_never_answers_stops_nobody_else() {
    let model = ScriptedModel::start().await;
    let (llm, came) = silence(&model, usize::MAX).await;
    let models = models_that_leave_alone(2, Duration::from_secs(15));
    for asked in 1..=4 {
        let error = failure(&models, &llm, request_of("ann")).await;
        assert!(!matches!(error, ModelError::Paused { .. }), "{error}");
        assert_eq!(came.load(Ordering::SeqCst), asked);
    }
    // Silent to several people, it is dead.
    failure(&models, &llm, request_of("bob")).await;
    let error = failure(&models, &llm, request_of("carl")).await;
    assert!(matches!(error, ModelError::Paused { .. }), "{error}");
    assert_eq!(came.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn an_endpoint_that_is_back_is_used_again() {
    let model = ScriptedModel::start().await;
    let (llm, _) = silence(&model, 2).await;
    let models = models_that_leave_alone(2, Duration::from_millis(50));
    for user in ["ann", "bob"] {
        failure(&models, &llm, request_of(user)).await;
    }
    model.on(|_| Some(text("back")));
    let deadline = clock::instant() + Duration::from_secs(20);
    loop {
        match collect(models.step(&llm, request())).await.1 {
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
