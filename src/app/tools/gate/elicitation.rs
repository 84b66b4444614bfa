//! Calls whose server may first ask the user something. An allowed question is put to the user (`elicitations`). A
//! forbidden one is declined at once, which is an answer like any other. A call is repeated only after the server has
//! answered with a question, so a call of unknown outcome is never repeated.
//!
//! Invariant: when a call has ended in any way, the questions that were asked while it was open have ended too.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::app::{
    App,
    tools::{
        elicitations::{self, ElicitationTarget},
        gate::{
            Call, connect, deny, refuse,
            send::{CallContext, Permit, counted_result},
            unknown_tool,
        },
    },
};
use domain::{
    elicitation::{
        Answer, Dismissal, Elicitation, InputRequired, Question, Refusal, Request, State,
    },
    error::Error,
    ids::RunId,
    message::{CallStatus, ToolResult},
    policy::{Decision, decide},
    principal::Principal,
    run::ClaimedRun,
    texts,
    tool::ToolOutcome,
};
use mcp::{CallOptions, LiveQuestion};
use store::audit::AuditRow;

/// How often a call is sent without the user's help: its questions were declined for them, or it had none.
const MAX_SENDS: usize = 4;
/// How often the user is asked for one call.
const MAX_ROUNDS: i32 = 5;

/// A call that passed the gate.
pub(super) struct AdmittedCall<'a> {
    pub permit: Permit<'a>,
    pub tool: &'a str,
    pub arguments: Box<RawValue>,
    /// How often the user has been asked for this call.
    pub rounds: i32,
}

/// A call whose user has answered.
pub struct AnsweredCall {
    /// The credential of the connection that the server asked on.
    pub credential: String,
    pub arguments: Box<RawValue>,
    pub answer: Answer,
    pub rounds: i32,
}

/// Makes the call, and repeats it while the server's questions need no user.
pub(super) async fn make(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: AdmittedCall<'_>,
    mut answer: Option<Answer>,
) -> ToolResult {
    let live = call.elicitation.is_some_and(|target| target.live);
    let target = call.elicitation.zip(call.run);
    let draft = target.map(|(target, run)| draft(call, &ready, target, run));
    let (principal, arguments) = (call.principal, &*ready.arguments);
    let asking = draft.map(|draft| CallQuestions {
        app,
        principal,
        arguments,
        draft,
    });
    for _ in 0..MAX_SENDS {
        let (questions, asked) = mpsc::unbounded_channel();
        let options = CallOptions {
            live: live.then_some(questions),
            progress: Some(call.progress.clone()),
            cancel: call.cancel.clone(),
            once: None,
            asks: asking.is_some(),
            answer: answer.take(),
            ..CallOptions::default()
        };
        let calling = Box::pin(ready.permit.call(ready.tool, arguments, options));
        let sent = match &asking {
            Some(asking) if live => Box::pin(asking.answer_while_open(asked, calling)).await,
            _ => calling.await,
        };
        let Some(asked) = ask_user(asking.as_ref(), sent.as_ref().ok()).await else {
            return ready.permit.into_result(call.call_id, sent);
        };
        let result = match asked {
            QuestionOutcome::Answer(given) => {
                answer = Some(given);
                continue;
            }
            QuestionOutcome::User => await_input(call),
            QuestionOutcome::Failed(reason) => fail(call, &reason),
        };
        ready.permit.end(result.status);
        return result;
    }
    let result = fail(call, "the server asks again and again instead of answering");
    ready.permit.end(result.status);
    result
}

/// Puts the server's questions to the user. `None` when there are none and the call has ended; the user is then told
/// of questions that came too late.
async fn ask_user(
    asking: Option<&CallQuestions<'_>>,
    outcome: Option<&ToolOutcome>,
) -> Option<QuestionOutcome> {
    let (asking, outcome) = asking.zip(outcome)?;
    if let Some(input) = &outcome.input {
        return Some(asking.ask(input).await);
    }
    for message in &outcome.declined {
        asking
            .notify_declined(texts::Key::AskTooLate, message)
            .await;
    }
    None
}

/// The outcome of questions that a server returned instead of a result.
enum QuestionOutcome {
    /// They need no user.
    Answer(Answer),
    /// The user is being asked, and the call is over.
    User,
    Failed(String),
}

/// The row from which the questions of a call are made.
fn draft(
    call: &Call<'_>,
    ready: &AdmittedCall<'_>,
    target: ElicitationTarget,
    run: RunId,
) -> Elicitation {
    Elicitation {
        id: Uuid::nil(),
        conversation: target.conversation,
        user: call.principal.user.clone(),
        agent: call.toolbox.agent().clone(),
        server: ready.permit.server().id.clone(),
        tool: ready.tool.to_owned(),
        run,
        call_id: call.call_id.to_owned(),
        credential: ready.permit.credential(),
        for_model: target.for_model,
        round: ready.rounds + 1,
        state: State::Open,
        step: 0,
        request: Vec::new(),
        entered: None,
        fault: None,
        answer_run: None,
        live: false,
    }
}

fn log_store_failure(error: Error) {
    let error = format!("{:#}", anyhow::Error::from(error));
    tracing::error!(error, "a question could not be kept");
}

/// The audit line of a call whose user has answered. It is written in the transaction that marks the call as sent.
pub fn opening_line(
    app: &Arc<App>,
    run: &ClaimedRun,
    elicitation: &Elicitation,
    arguments: &RawValue,
) -> AuditRow {
    let caller = CallContext {
        app,
        principal: &run.principal,
        agent: &elicitation.agent,
        run: Some(run.id),
        is_recorded: true,
    };
    let (server, tool) = (elicitation.server.as_str(), elicitation.tool.as_str());
    let unknown = CallStatus::OutcomeUnknown;
    AuditRow {
        detail: Some(format!("with the user's answer {}", elicitation.round)),
        ..caller.audit_row("tool.call", server, tool, arguments.get(), unknown)
    }
}

fn fail(call: &Call<'_>, reason: &str) -> ToolResult {
    let text = format!("failed: {reason}");
    counted_result(call.call_id, CallStatus::Failed, text)
}

/// The questions of one call, which the user answers while the call is open or later.
struct CallQuestions<'a> {
    app: &'a Arc<App>,
    principal: &'a Principal,
    arguments: &'a RawValue,
    /// The row from which the row of each question is made.
    draft: Elicitation,
}

impl CallQuestions<'_> {
    /// The row and the sealed request of questions to the user.
    fn elicitation(&self, input: &InputRequired, questions: &[Question]) -> (Elicitation, Request) {
        let request = Request {
            arguments: self.arguments.to_owned(),
            keys: input.keys.clone(),
            questions: questions.to_vec(),
            state: input.state.clone(),
        };
        let id = Uuid::now_v7();
        (
            Elicitation {
                id,
                ..self.draft.clone()
            },
            request,
        )
    }

    /// Puts questions to the user after the call has ended with them.
    async fn ask(&self, input: &InputRequired) -> QuestionOutcome {
        let questions = match &input.questions {
            Ok(questions) if questions.is_empty() => {
                let state = input.state.clone();
                return QuestionOutcome::Answer(Answer {
                    state,
                    ..Answer::default()
                });
            }
            Ok(_) if self.draft.round > MAX_ROUNDS => {
                return QuestionOutcome::Failed(format!(
                    "the server asked the user {MAX_ROUNDS} times and asks again"
                ));
            }
            Ok(questions) => questions,
            Err(refusal) => {
                self.notify_refused(refusal).await;
                return match refusal {
                    Refusal::Secret(_) => QuestionOutcome::Answer(decline(input)),
                    Refusal::Unanswerable(why) => QuestionOutcome::Failed(format!(
                        "the server asks for {why}, which nobody can answer here"
                    )),
                };
            }
        };
        let (elicitation, request) = self.elicitation(input, questions);
        match elicitations::ask(self.app, self.principal, elicitation, &request).await {
            Ok(true) => QuestionOutcome::User,
            Ok(false) => QuestionOutcome::Failed(
                "the server asks the user for input, and another question is open in the chat already. When that one \
                 is answered, make this call again"
                    .to_owned(),
            ),
            Err(error) => {
                log_store_failure(error);
                QuestionOutcome::Failed(
                    "the server asks the user for input, and the question could not be kept"
                        .to_owned(),
                )
            }
        }
    }

    /// Waits for a call and answers its server's questions meanwhile, one after the other.
    async fn answer_while_open<T>(
        &self,
        mut questions: mpsc::UnboundedReceiver<LiveQuestion>,
        call: impl Future<Output = T>,
    ) -> T {
        let over = CancellationToken::new();
        let answering = async {
            while let Some(Some(question)) = over.run_until_cancelled(questions.recv()).await {
                let LiveQuestion {
                    input,
                    answer: mut to,
                } = question;
                let abandoned = async {
                    tokio::select! {
                        // The server has withdrawn the question, or its time is over.
                        () = to.closed() => {}
                        () = over.cancelled() => {}
                        // The process stops and hands the run on, and must not wait for the user.
                        () = self.app.shutdown.cancelled() => {}
                    }
                };
                // When the channel is dropped without an answer, the question is cancelled.
                if let Some(answer) = self.answer_live(&input, abandoned).await {
                    let _ = to.send(answer);
                }
            }
        };
        let call = async {
            let outcome = call.await;
            over.cancel();
            outcome
        };
        tokio::join!(call, answering).0
    }

    /// Answers a question whose server waits for the answer.
    async fn answer_live(
        &self,
        input: &InputRequired,
        abandoned: impl Future<Output = ()>,
    ) -> Option<Answer> {
        let questions = match &input.questions {
            Ok(questions) => questions,
            Err(refusal) => {
                self.notify_refused(refusal).await;
                return Some(decline(input));
            }
        };
        let (elicitation, request) = self.elicitation(input, questions);
        let (app, principal) = (self.app, self.principal);
        match elicitations::ask_and_wait(app, principal, elicitation, &request, abandoned).await {
            Ok(Some(answer)) => Some(answer),
            Ok(None) => {
                let message = questions.first().map(|question| question.message.as_str());
                self.notify_declined(texts::Key::AskTooLate, message.unwrap_or_default())
                    .await;
                Some(decline(input))
            }
            Err(error) => {
                log_store_failure(error);
                None
            }
        }
    }

    async fn notify_refused(&self, refusal: &Refusal) {
        let (key, what) = match refusal {
            Refusal::Secret(what) => (texts::Key::AskSecret, what),
            Refusal::Unanswerable(why) => (texts::Key::AskUnanswerable, why),
        };
        self.notify_declined(key, what).await;
    }

    async fn notify_declined(&self, key: texts::Key, what: &str) {
        elicitations::notify_declined(self.app, self.principal, &self.draft, key, what).await;
    }
}

fn decline(input: &InputRequired) -> Answer {
    Answer::dismissed(&input.keys, Dismissal::Decline, input.state.clone())
}

/// Makes a call again with its user's answer. All checks of the first call are repeated.
pub async fn resume(app: &Arc<App>, call: &Call<'_>, answered: AnsweredCall) -> ToolResult {
    let crate::app::tools::gate::CallTarget::Pair { server, tool } = call.target else {
        return deny(app, call, unknown_tool(app, call));
    };
    let Some((spec, named)) = call.toolbox.by_pair(server, tool) else {
        return deny(app, call, unknown_tool(app, call));
    };
    let allowed = match decide(spec, call.toolbox.access(), &named.tool.name) {
        Decision::Allow(allowed) => allowed,
        Decision::Deny(_) => return deny(app, call, unknown_tool(app, call)),
        Decision::Approve(_) => {
            let reason =
                "not executed: this call needs approval by now; make it again if the user wants it";
            return deny(app, call, reason.to_owned());
        }
    };
    let destination = match connect(app, call, spec).await {
        Ok(destination) => destination,
        Err(reason) => return deny(app, call, reason),
    };
    if destination.credential() != answered.credential {
        let reason = "not executed: the user's credential has changed since the server asked; make the call again";
        return deny(app, call, reason.to_owned());
    }
    let AnsweredCall {
        arguments,
        answer,
        rounds,
        ..
    } = answered;
    let permit = Permit::allowed(call.caller(app), &allowed, destination, &arguments, None);
    let permit = match permit.await {
        Ok(permit) => permit,
        Err(error) => return refuse(call, format!("not executed: {error}")),
    };
    let ready = AdmittedCall {
        permit,
        tool: &named.tool.name,
        arguments,
        rounds,
    };
    make(app, call, ready, Some(answer)).await
}

fn await_input(call: &Call<'_>) -> ToolResult {
    let text = "not finished: the server wants to know something from the user first, and they are being asked in the \
                chat";
    let advice = "do not retry and do not answer for them. You will be told the outcome.";
    ToolResult {
        advice: Some(advice.to_owned()),
        ..counted_result(call.call_id, CallStatus::AwaitingInput, text.to_owned())
    }
}
