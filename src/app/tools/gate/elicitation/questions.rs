//! The questions of one call, which its user answers while the call is open or later.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{MAX_ROUNDS, QuestionOutcome, log_store_failure};
use crate::{
    app::{App, tools::elicitations},
    domain::{
        elicitation::{Answer, Dismissal, Elicitation, InputRequired, Question, Refusal, Request},
        principal::Principal,
        texts,
    },
    mcp::LiveQuestion,
};

/// The questions of one call.
pub(super) struct CallQuestions<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) principal: &'a Principal,
    pub(super) arguments: &'a RawValue,
    /// Each question has a row of its own, made from this one.
    pub(super) draft: Elicitation,
}

impl CallQuestions<'_> {
    /// The row and the request of questions that the user is asked.
    pub(super) fn elicitation(
        &self,
        input: &InputRequired,
        questions: &[Question],
    ) -> (Elicitation, Request) {
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

    /// Asks what the server wants to know before it goes on. The call is over.
    pub(super) async fn ask(&self, input: &InputRequired) -> QuestionOutcome {
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
                    Refusal::Secret(_) => QuestionOutcome::Answer(declined(input)),
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

    /// Waits for a call and answers what its server asks meanwhile, one question after the other.
    pub(super) async fn answer_while_open<T>(
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
                        // The server withdrew its question, or its time is over.
                        () = to.closed() => {}
                        () = over.cancelled() => {}
                        // The run is to be handed on; the question would hold it up.
                        () = self.app.shutdown.cancelled() => {}
                    }
                };
                // Dropped instead, the question is cancelled.
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

    /// The answer to a question whose server waits for it.
    async fn answer_live(
        &self,
        input: &InputRequired,
        abandoned: impl Future<Output = ()>,
    ) -> Option<Answer> {
        let questions = match &input.questions {
            Ok(questions) => questions,
            Err(refusal) => {
                self.notify_refused(refusal).await;
                return Some(declined(input));
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
                Some(declined(input))
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

    pub(super) async fn notify_declined(&self, key: texts::Key, what: &str) {
        elicitations::notify_declined(self.app, self.principal, &self.draft, key, what).await;
    }
}

pub(super) fn declined(input: &InputRequired) -> Answer {
    Answer::dismissed(&input.keys, Dismissal::Decline, input.state.clone())
}
