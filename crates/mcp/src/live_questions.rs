//! Questions that a server of the older revisions asks while a call is open. They go to the user of that call, through
//! the caller. While the user is asked, the time of the call stands still.
//!
//! Invariant: the questions of one call are asked one after the other. Neither their number nor the time that they take
//! together grows with what the server sends.

use std::time::{Duration, Instant};

use tokio::{
    sync::{Mutex, MutexGuard, mpsc::UnboundedSender, oneshot, watch},
    time::{sleep, timeout},
};

use domain::{
    clock,
    elicitation::{Answer, Dismissal, InputRequired},
};

/// Questions that the user of one call is asked.
const MAX_QUESTIONS: usize = 5;
/// How long a call waits for its user, all questions together.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// A question whose server waits for the answer. Dropping it cancels it. When the other end is gone, the answer is not
/// wanted any more.
#[derive(Debug)]
pub struct LiveQuestion {
    pub input: InputRequired,
    pub answer: oneshot::Sender<Answer>,
}

/// The questions of one call.
#[derive(Debug)]
pub(super) struct LiveQuestions {
    questions: UnboundedSender<LiveQuestion>,
    budget: Mutex<Budget>,
    /// The user is being asked now.
    open: watch::Sender<bool>,
}

#[derive(Debug)]
struct Budget {
    questions: usize,
    time: Duration,
}

impl LiveQuestions {
    pub(super) fn new(questions: UnboundedSender<LiveQuestion>) -> Self {
        let budget = Mutex::new(Budget {
            questions: MAX_QUESTIONS,
            time: TIME_LIMIT,
        });
        Self {
            questions,
            budget,
            open: watch::Sender::new(false),
        }
    }

    /// Asks and waits for the answer; `None` when the user was not asked.
    pub(super) async fn ask(&self, input: InputRequired) -> Option<Answer> {
        let mut budget = self.budget.lock().await;
        if budget.questions == 0 || budget.time.is_zero() {
            return None;
        }
        budget.questions -= 1;
        let (time_limit, keys) = (budget.time, input.keys.clone());
        let (answer, answered) = oneshot::channel();
        let _open = OpenQuestion::begin(self, budget);
        self.questions.send(LiveQuestion { input, answer }).ok()?;
        let answered = timeout(time_limit, answered).await;
        Some(match answered {
            Ok(Ok(answer)) => answer,
            // There was no answer in time, or the caller does not wait any more.
            Ok(Err(_)) | Err(_) => Answer::dismissed(&keys, Dismissal::Cancel, None),
        })
    }

    /// Ends when so much time has passed in which the user was not being asked.
    pub(super) async fn elapse(&self, mut time: Duration) {
        let mut open = self.open.subscribe();
        loop {
            let stands_still = *open.borrow_and_update();
            let began = clock::instant();
            tokio::select! {
                () = sleep(time), if !stands_still => return,
                changed = open.changed() => changed.expect("the sender lives as long as this"),
            }
            if !stands_still {
                time = time.saturating_sub(began.elapsed());
            }
        }
    }
}

/// A question that is open: until the answer, or until the server withdraws it.
struct OpenQuestion<'a> {
    call: &'a LiveQuestions,
    budget: MutexGuard<'a, Budget>,
    began: Instant,
}

impl<'a> OpenQuestion<'a> {
    fn begin(call: &'a LiveQuestions, budget: MutexGuard<'a, Budget>) -> Self {
        call.open.send_replace(true);
        Self {
            call,
            budget,
            began: clock::instant(),
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.budget.time = self.budget.time.saturating_sub(self.began.elapsed());
        self.call.open.send_replace(false);
    }
}
