//! A call whose server may ask its user something first. A question is put to the user and the call is over: what it
//! needs to go on is a row. What must not be asked is declined at once, which is an answer like any other: the server
//! has answered before each repetition, so that none of them repeats a call of unknown outcome.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{
    Call, connect, denied, live, refused,
    send::{Permit, counted_result},
    unknown,
};
use crate::{
    app::{
        App,
        chat::elicitations::{self, About, Asker},
    },
    domain::{
        elicitation::{Answer, InputRequired, Leave, Refusal, left},
        message::{CallStatus, ToolResult},
        policy::{Decision, decide},
        texts,
        tool::ToolOutcome,
    },
    mcp::{CallError, CallOptions},
};

/// Times that a call is made again without the user: something was declined for them, or nothing was asked.
const ALONE: usize = 4;
/// Times that the user is asked in the course of one call.
const ROUNDS: i32 = 5;

/// A call that passed the gate.
pub(super) struct Ready<'a> {
    pub permit: Permit<'a>,
    pub tool: &'a str,
    pub arguments: Box<RawValue>,
    /// How often its user has been asked.
    pub rounds: i32,
}

/// A call whose user has answered.
pub struct Answered {
    /// Whose connection it was.
    pub credential: String,
    pub arguments: Box<RawValue>,
    pub answer: Answer,
    pub rounds: i32,
}

/// What comes after the server has asked.
enum Next {
    Again(Answer),
    Over(ToolResult),
}

/// Makes the call, again while its server's questions need nobody.
pub(super) async fn make(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: Ready<'_>,
    mut answer: Option<Answer>,
) -> ToolResult {
    for _ in 0..ALONE {
        let asker_now = call.asker.filter(|asker| asker.live);
        let (questions, put) = mpsc::unbounded_channel();
        let options = CallOptions {
            live: asker_now.map(|_| questions),
            progress: Some(call.progress.clone()),
            cancel: call.cancel.clone(),
            once: None,
            asks: call.asker.is_some(),
            answer: answer.take(),
        };
        let calling = Box::pin(ready.permit.call(ready.tool, &ready.arguments, options));
        let sent = match asker_now {
            Some(asker) => {
                let about = about(call, &ready, asker);
                Box::pin(live::attend(app, &about, put, calling)).await
            }
            None => calling.await,
        };
        let (
            Ok(ToolOutcome {
                input: Some(input), ..
            }),
            Some(asker),
        ) = (&sent, call.asker)
        else {
            tell_of_declined(app, call, &ready, &sent).await;
            return ready.permit.into_result(call.call_id, sent);
        };
        let result = match go_on(app, call, &ready, asker, input).await {
            Next::Again(given) => {
                answer = Some(given);
                continue;
            }
            Next::Over(result) => result,
        };
        ready.permit.end(result.status);
        return result;
    }
    let text = "failed: the server asks again and again instead of answering".to_owned();
    let result = failed(call, text);
    ready.permit.end(result.status);
    result
}

async fn go_on(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: &Ready<'_>,
    asker: Asker,
    input: &InputRequired,
) -> Next {
    let about = about(call, ready, asker);
    match &input.questions {
        Ok(questions) if questions.is_empty() => {
            Next::Again(Answer { state: input.state.clone(), ..Answer::default() })
        }
        Ok(_) if ready.rounds >= ROUNDS => {
            Next::Over(failed(call, format!("failed: the server asked the user {ROUNDS} times and asks again")))
        }
        Ok(questions) => Next::Over(match elicitations::ask(app, &about, questions, input).await {
            Ok(true) => waiting(call),
            Ok(false) => failed(
                call,
                "failed: the server asks the user for input, and another question is open in the chat already. When \
                 that one is answered, make this call again"
                    .to_owned(),
            ),
            Err(error) => {
                tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "a question could not be kept");
                failed(
                    call,
                    "failed: the server asks the user for input, and the question could not be kept".to_owned(),
                )
            }
        }),
        Err(Refusal::Secret(what)) => {
            tell(app, &about, "input_declined", texts::Key::AskSecret, what).await;
            Next::Again(left(&input.keys, Leave::Decline, input.state.clone()))
        }
        Err(Refusal::Unanswerable(why)) => {
            tell(app, &about, "input_declined", texts::Key::AskUnanswerable, why).await;
            Next::Over(failed(call, format!("failed: the server asks for {why}, which nobody can answer here")))
        }
    }
}

/// Goes on with a call whose user has answered. Everything that was true when it was made is looked at again.
pub async fn resume(app: &Arc<App>, call: &Call<'_>, answered: Answered) -> ToolResult {
    let super::Target::Pair { server, tool } = call.target else {
        return denied(app, call, unknown(call));
    };
    let Some((spec, named)) = call.toolbox.by_pair(server, tool) else {
        return denied(app, call, unknown(call));
    };
    let allowed = match decide(spec, call.toolbox.standing(), &named.tool.name) {
        Decision::Allow(allowed) => allowed,
        Decision::Deny(_) => return denied(app, call, unknown(call)),
        Decision::Approve(_) => {
            let reason =
                "not executed: this call needs approval by now; make it again if the user wants it";
            return denied(app, call, reason.to_owned());
        }
    };
    let destination = match connect(app, call, spec).await {
        Ok(destination) => destination,
        Err(reason) => return denied(app, call, reason),
    };
    if destination.credential() != answered.credential {
        let reason = "not executed: the user's credential has changed since the server asked; make the call again";
        return denied(app, call, reason.to_owned());
    }
    let Answered {
        arguments,
        answer,
        rounds,
        ..
    } = answered;
    let detail = Some(format!("with the user's answer {rounds}"));
    let permit = match Permit::allowed(call.caller(app), &allowed, destination, &arguments, detail)
    {
        Ok(permit) => permit,
        Err(error) => return refused(call, format!("not executed: {error}")),
    };
    let ready = Ready {
        permit,
        tool: &named.tool.name,
        arguments,
        rounds,
    };
    make(app, call, ready, Some(answer)).await
}

/// A server of the older era asks while the call is open. What could not be put to the user was declined.
async fn tell_of_declined(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: &Ready<'_>,
    sent: &Result<ToolOutcome, CallError>,
) {
    let (Ok(outcome), Some(asker)) = (sent, call.asker) else {
        return;
    };
    for message in &outcome.declined {
        tell(
            app,
            &about(call, ready, asker),
            "input_declined",
            texts::Key::AskTooLate,
            message,
        )
        .await;
    }
}

fn about<'a>(call: &'a Call<'_>, ready: &'a Ready<'_>, asker: Asker) -> About<'a> {
    About {
        principal: call.principal,
        agent: call.toolbox.agent(),
        server: &ready.permit.server().id,
        tool: ready.tool,
        arguments: &ready.arguments,
        credential: ready.permit.credential(),
        run: call.run,
        call_id: call.call_id,
        asker,
        rounds: ready.rounds,
    }
}

pub(super) async fn tell(
    app: &Arc<App>,
    about: &About<'_>,
    code: &str,
    key: texts::Key,
    what: &str,
) {
    if let Err(error) = elicitations::tell(app, about, code, key, what).await {
        tracing::warn!(%error, server = %about.server, "a user could not be told what a server asked");
    }
}

fn waiting(call: &Call<'_>) -> ToolResult {
    let text = "not finished: the server wants to know something from the user first, and they are being asked in the \
                chat. Do not retry and do not answer for them. You will be told the outcome."
        .to_owned();
    counted_result(call.call_id, CallStatus::AwaitingInput, text)
}

fn failed(call: &Call<'_>, text: String) -> ToolResult {
    counted_result(call.call_id, CallStatus::Failed, text)
}
