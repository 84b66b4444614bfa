//! What a server of the older revisions asks while its call is open: put to the user of the call, in the conversation,
//! while the call goes on.
//!
//! Invariant: when the call is over, however it ended, so are its questions.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::input::tell;
use crate::{
    app::{
        App,
        chat::elicitations::{
            About,
            live::{self, Open},
        },
    },
    domain::{
        elicitation::{Answer, InputRequired, Leave, Refusal, left},
        texts,
    },
    mcp::LiveQuestion,
};

/// Waits for a call, and puts its questions meanwhile.
pub(super) async fn attend<T>(
    app: &Arc<App>,
    about: &About<'_>,
    mut questions: mpsc::UnboundedReceiver<LiveQuestion>,
    call: impl Future<Output = T>,
) -> T {
    let open = Open::default();
    let asking = async {
        while let Some(question) = questions.recv().await {
            put(app, about, question, &open).await;
        }
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        biased;
        outcome = call => outcome,
        () = asking => unreachable!("it waits for ever"),
    };
    withdraw(app, about, &open).await;
    outcome
}

/// Puts one question and hands over what became of it.
async fn put(app: &Arc<App>, about: &About<'_>, question: LiveQuestion, open: &Open) {
    let LiveQuestion {
        input,
        answer: mut to,
    } = question;
    let given = tokio::select! {
        given = answer(app, about, &input, open) => given,
        // The server does not want it any more, or waits for nobody so long.
        () = to.closed() => None,
        // The run is to be handed on, and this would hold it up.
        () = app.shutdown.cancelled() => None,
    };
    withdraw(app, about, open).await;
    // Dropped instead, it is cancelled.
    if let Some(given) = given {
        // The server may have changed its mind meanwhile.
        let _ = to.send(given);
    }
}

async fn answer(
    app: &Arc<App>,
    about: &About<'_>,
    input: &InputRequired,
    open: &Open,
) -> Option<Answer> {
    let declined = || Some(left(&input.keys, Leave::Decline, None));
    let (key, what) = match &input.questions {
        Ok(questions) => match live::ask(app, about, questions, input, open).await {
            Ok(Some(answer)) => return Some(answer),
            Ok(None) => {
                let message = questions.first().map(|question| question.message.as_str());
                (texts::Key::AskTooLate, message.unwrap_or_default())
            }
            Err(error) => {
                tracing::error!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "a question could not be kept"
                );
                return None;
            }
        },
        Err(Refusal::Secret(what)) => (texts::Key::AskSecret, what.as_str()),
        Err(Refusal::Unanswerable(why)) => (texts::Key::AskUnanswerable, why.as_str()),
    };
    tell(app, about, "input_declined", key, what).await;
    declined()
}

async fn withdraw(app: &Arc<App>, about: &About<'_>, open: &Open) {
    if let Err(error) = live::withdraw(app, about.principal, open).await {
        tracing::warn!(%error, server = %about.server, "a question could not be withdrawn; it ends by the clock");
    }
}
