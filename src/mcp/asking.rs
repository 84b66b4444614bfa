//! Whom a server may ask something while a call is open, as the older revisions do: the user of that call, through
//! whoever made it. While they are asked, the time of the call stands still.
//!
//! Invariant: the questions of one call are put one after the other, and neither their number nor the time that they
//! take together grows with what the server sends.

use std::time::{Duration, Instant};

use tokio::{
    sync::{Mutex, MutexGuard, mpsc::UnboundedSender, oneshot, watch},
    time::{sleep, timeout},
};

use crate::domain::{
    clock,
    elicitation::{Answer, InputRequired, Leave, left},
};

/// Questions that are put to the user of one call.
const MOST: usize = 5;
/// For how long the user of one call may be waited for, all questions together.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A question whose server waits for the answer. Dropped, it is cancelled; its answer is not wanted any more when
/// the other end is gone.
#[derive(Debug)]
pub struct LiveQuestion {
    pub input: InputRequired,
    pub answer: oneshot::Sender<Answer>,
}

/// Who is asked in the course of one call.
#[derive(Debug)]
pub(super) struct Asking {
    questions: UnboundedSender<LiveQuestion>,
    left: Mutex<Left>,
    /// Somebody is being asked now.
    open: watch::Sender<bool>,
}

#[derive(Debug)]
struct Left {
    questions: usize,
    time: Duration,
}

impl Asking {
    pub(super) fn new(questions: UnboundedSender<LiveQuestion>) -> Self {
        let left = Mutex::new(Left {
            questions: MOST,
            time: PATIENCE,
        });
        Self {
            questions,
            left,
            open: watch::Sender::new(false),
        }
    }

    /// Puts a question and waits for its answer; `None` when nobody was asked.
    pub(super) async fn ask(&self, input: InputRequired) -> Option<Answer> {
        let mut left_over = self.left.lock().await;
        if left_over.questions == 0 || left_over.time.is_zero() {
            return None;
        }
        left_over.questions -= 1;
        let (patience, keys) = (left_over.time, input.keys.clone());
        let (answer, answered) = oneshot::channel();
        let _open = Open::begin(self, left_over);
        self.questions.send(LiveQuestion { input, answer }).ok()?;
        let answered = timeout(patience, answered).await;
        Some(match answered {
            Ok(Ok(answer)) => answer,
            // Nobody answered in time, or nobody waits for the outcome of the call any more.
            Ok(Err(_)) | Err(_) => left(&keys, Leave::Cancel, None),
        })
    }

    /// Ends when so much time has passed in which nobody was being asked.
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

/// A question is open. Ends with the answer, or when the server does not want it any more.
struct Open<'a> {
    asking: &'a Asking,
    left: MutexGuard<'a, Left>,
    began: Instant,
}

impl<'a> Open<'a> {
    fn begin(asking: &'a Asking, left: MutexGuard<'a, Left>) -> Self {
        asking.open.send_replace(true);
        Self {
            asking,
            left,
            began: clock::instant(),
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.left.time = self.left.time.saturating_sub(self.began.elapsed());
        self.asking.open.send_replace(false);
    }
}
