//! How long to wait before a failed piece of work is tried again. The caller passes the random number, so
//! that this is pure.

use std::time::Duration;

/// `first`, doubled with each failure after the first, up to `longest`, and then spread.
pub fn delay(first: Duration, longest: Duration, failures: u32, chance: f64) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    spread(doubled.min(longest), chance)
}

/// Changes a delay by up to a fifth, by a chance from 0 to 1, so that work that failed together is not
/// retried together.
pub fn spread(delay: Duration, chance: f64) -> Duration {
    delay.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}
