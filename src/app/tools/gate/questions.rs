//! Questions that a server asks during a call, instead of a result or while the call is open. An allowed question is
//! put to the user (`elicitations`). A forbidden one is declined at once, which is an answer like any other.
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
        elicitations,
        gate::{AdmittedCall, Call},
    },
};
use domain::{
    elicitation::{
        Answer, Dismissal, Elicitation, InputRequired, Question, Refusal, Request, State,
    },
    error::Error,
    principal::Principal,
    texts,
    tool::ToolOutcome,
};
use mcp::LiveQuestion;

/// How often the user is asked for one call.
const MAX_ROUNDS: i32 = 5;

/// Puts the questions to the user that a server returned instead of a result. `None` when there are none, so the call
/// has ended; the user is then told of questions that came too late.
pub(super) async fn ask_user(
    questions: Option<&CallQuestions<'_>>,
    outcome: Option<&ToolOutcome>,
) -> Option<QuestionOutcome> {
    let (questions, outcome) = questions.zip(outcome)?;
    if let Some(input) = &outcome.input {
        return Some(questions.ask(input).await);
    }
    for message in &outcome.declined {
        questions
            .notify_declined(texts::Key::AskTooLate, message)
            .await;
    }
    None
}

/// What happens to a call whose server returned questions instead of a result.
pub(super) enum QuestionOutcome {
    /// The call is sent again with this answer, which needed no user.
    Answer(Answer),
    /// The call has ended, and the user is being asked.
    User,
    /// The call has failed for this reason.
    Failed(String),
}

fn log_store_failure(error: &Error) {
    let error = error.with_cause();
    tracing::error!(error, "a question could not be kept");
}

/// The questions of one call, which the user answers while the call is open or later.
pub(super) struct CallQuestions<'a> {
    app: &'a Arc<App>,
    principal: &'a Principal,
    arguments: &'a RawValue,
    taken: Option<Uuid>,
    /// A row without a question, from which the row of each question is made.
    draft: Elicitation,
}

impl<'a> CallQuestions<'a> {
    /// `None` when the user of the call cannot be asked.
    pub fn for_call(
        app: &'a Arc<App>,
        call: &Call<'a>,
        ready: &'a AdmittedCall<'_>,
    ) -> Option<Self> {
        let (target, run) = call.elicitation.zip(call.run)?;
        let draft = Elicitation {
            id: Uuid::nil(),
            conversation: target.conversation,
            user: call.principal.user.clone(),
            agent: call.toolset.agent().clone(),
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
        };
        Some(Self {
            app,
            principal: call.principal,
            arguments: &ready.arguments,
            taken: ready.taken,
            draft,
        })
    }

    /// The row of questions to the user, and the request that the row will hold sealed.
    fn elicitation(&self, input: &InputRequired, questions: &[Question]) -> (Elicitation, Request) {
        let request = Request {
            arguments: self.arguments.to_owned(),
            keys: input.keys.clone(),
            questions: questions.to_vec(),
            state: input.state.clone(),
            taken: self.taken,
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
                log_store_failure(&error);
                QuestionOutcome::Failed(
                    "the server asks the user for input, and the question could not be kept"
                        .to_owned(),
                )
            }
        }
    }

    /// Waits for a call and answers its server's questions meanwhile, one after the other.
    pub async fn answer_while_open<T>(
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
                log_store_failure(&error);
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
