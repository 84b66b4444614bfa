//! A call whose server may ask its user something first. A question is put to the user and the call is over: what it
//! needs to go on is a row. What must not be asked is declined at once, which is an answer like any other: the server
//! has answered before each repetition, so that none of them repeats a call of unknown outcome.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{Call, audit_row, came_of, denied, live, outcome_name, reach, refused, unknown};
use crate::{
    app::{
        App,
        chat::elicitations::{self, About, Asker},
        tools::approvals::recheck::credential_of,
    },
    domain::{
        elicitation::{Answer, InputRequired, Leave, Refusal, left},
        message::{CallStatus, ToolResult},
        policy::{Decision, decide},
        server::ServerSpec,
        texts,
        tool::ToolOutcome,
    },
    mcp::{CallError, CallOptions, Key},
};

/// Times that a call is made again without the user: something was declined for them, or nothing was asked.
const ALONE: usize = 4;
/// Times that the user is asked in the course of one call.
const ROUNDS: i32 = 5;

/// A call that passed the gate.
pub(super) struct Ready<'a> {
    pub key: Key,
    pub spec: &'a Arc<ServerSpec>,
    /// The server as it is for this user.
    pub target: Arc<ServerSpec>,
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
    ready: &Ready<'_>,
    answer: Option<Answer>,
) -> ToolResult {
    let mut answer = answer;
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
        let mcp = app.orchestrator.mcp(ready.spec, &app.mcp);
        let calling = Box::pin(mcp.call(
            &ready.key,
            &ready.target,
            ready.tool,
            &ready.arguments,
            options,
        ));
        let sent = match asker_now {
            Some(asker) => {
                Box::pin(live::attend(app, &about(call, ready, asker), put, calling)).await
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
            tell_of_declined(app, call, ready, &sent).await;
            return came_of(
                app,
                call.principal,
                call.call_id,
                &ready.key,
                ready.spec,
                sent,
            )
            .await;
        };
        match go_on(app, call, ready, asker, input).await {
            Next::Again(given) => answer = Some(given),
            Next::Over(result) => return result,
        }
    }
    failed(
        call,
        "failed: the server asks again and again instead of answering".to_owned(),
    )
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
    match decide(spec, call.toolbox.standing(), &named.tool.name) {
        Decision::Allow { .. } => {}
        Decision::Deny(_) => return denied(app, call, unknown(call)),
        Decision::Approve(_) => {
            let reason =
                "not executed: this call needs approval by now; make it again if the user wants it";
            return denied(app, call, reason.to_owned());
        }
    }
    let (key, target) = match reach(
        app,
        call.principal,
        call.toolbox.agent(),
        spec,
        Some(call.run),
    )
    .await
    {
        Ok(reached) => reached,
        Err(reason) => return denied(app, call, reason),
    };
    if credential_of(&key) != answered.credential {
        let reason = "not executed: the user's credential has changed since the server asked; make the call again";
        return denied(app, call, reason.to_owned());
    }
    let Answered {
        arguments,
        answer,
        rounds,
        ..
    } = answered;
    let what = (spec.id.as_str(), named.tool.name.as_str());
    let mut promised = audit_row(app, call, what, arguments.get(), CallStatus::OutcomeUnknown);
    promised.detail = Some(format!("with the user's answer {rounds}"));
    let line = match app.audit.reserve(promised) {
        Ok(line) => line,
        Err(error) => return refused(call, format!("not executed: {error}")),
    };
    let ready = Ready {
        key,
        spec,
        target,
        tool: &named.tool.name,
        arguments,
        rounds,
    };
    let result = make(app, call, &ready, Some(answer)).await;
    line.write(outcome_name(result.status));
    result
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
        server: &ready.spec.id,
        tool: ready.tool,
        arguments: &ready.arguments,
        credential: credential_of(&ready.key),
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
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => "awaiting_input").increment(1);
    ToolResult {
        call_id: call.call_id.to_owned(),
        status: CallStatus::AwaitingInput,
        text,
        raw: None,
        approval: None,
    }
}

fn failed(call: &Call<'_>, text: String) -> ToolResult {
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => "failed").increment(1);
    ToolResult {
        call_id: call.call_id.to_owned(),
        status: CallStatus::Failed,
        text,
        raw: None,
        approval: None,
    }
}
