//! Many calls by several callers at once, each timed.

use std::time::Duration;

use domain::clock;
use futures_util::future::join_all;

/// How long each call took, and all together.
pub struct Round {
    pub each: Vec<Duration>,
    pub whole: Duration,
}

impl Round {
    /// `at_once` callers make `each` calls, one after the other. `call` answers how long it took.
    pub async fn run<F>(
        at_once: usize,
        each: usize,
        call: impl Fn() -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Duration> + Send,
    {
        let start = clock::instant();
        let callers = (0..at_once).map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times = Vec::with_capacity(each);
                for _ in 0..each {
                    times.push(call().await);
                }
                times
            })
        });
        let each = join_all(callers)
            .await
            .into_iter()
            .flat_map(Result::unwrap)
            .collect();
        Self {
            each,
            whole: start.elapsed(),
        }
    }

    /// Calls a second.
    pub fn rate(&self) -> f64 {
        let calls = u32::try_from(self.each.len()).expect("thousands of calls");
        f64::from(calls) / self.whole.as_secs_f64()
    }
}
