//! What random tests draw from. `.ci/random` rolls another seed; proptest reads `PROPTEST_RNG_SEED` by itself.

use std::io::Write;

use domain::config::Environment;

/// `usual`, unless `CHATELAINE_SEED` names another one. It is printed, so that a failure can be repeated.
pub fn of_run(usual: u64) -> u64 {
    let rolled = Environment::from_process()
        .get("CHATELAINE_SEED")
        .and_then(|seed| seed.parse().ok());
    let seed = rolled.unwrap_or(usual);
    // Nobody is left to read it when this fails.
    let _ = writeln!(std::io::stdout(), "CHATELAINE_SEED={seed}");
    seed
}
