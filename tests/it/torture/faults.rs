//! What fails: drawn before it begins, each in the midst of its share of the requests.

use std::time::Duration;

use domain::clock;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::time::{Instant, timeout_at};

use super::{
    Amount,
    people::People,
    processes::{Database, Fleet, LEASE},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of a replica, and another one in its place.
    Kill,
    /// A replica stands still until the others take it for dead, and then goes on as if nothing had been.
    Freeze,
    /// The database crashes and recovers.
    Crash,
    /// Every connection of the replicas to the database ends.
    Cut,
    /// Nothing passes between the replicas and the database for a while.
    Stall,
}

/// For ten kills three freezes, and two crashes, cuts and stalls of the database, in any order.
pub fn drawn(amount: &Amount) -> Vec<Fault> {
    let of = |fault, number: usize| std::iter::repeat_n(fault, number);
    let (freezes, of_database) = ((amount.kills * 3 / 10).max(1), (amount.kills / 5).max(1));
    let mut faults: Vec<_> = of(Fault::Kill, amount.kills)
        .chain(of(Fault::Freeze, freezes))
        .chain(of(Fault::Crash, of_database))
        .chain(of(Fault::Cut, of_database))
        .chain(of(Fault::Stall, of_database))
        .collect();
    faults.shuffle(&mut StdRng::seed_from_u64(amount.seed));
    faults
}

/// Lets each fault strike when a random one of its share of the requests has just begun. No request begins before
/// the fault of its share is due, so none of the work outruns the faults, nor they the work. When the time is up no
/// further request begins.
pub async fn strike(
    amount: &Amount,
    faults: &[Fault],
    people: &People,
    fleet: &mut Fleet,
    database: &mut Database,
) {
    let mut random = StdRng::seed_from_u64(amount.seed ^ 1);
    let share = amount.requests.div_ceil(faults.len());
    let over = Instant::from_std(clock::instant() + amount.time);
    for (at, fault) in faults.iter().enumerate() {
        people.admit(share);
        let moment = (at * share + random.random_range(1..=share)).min(amount.requests);
        if timeout_at(over, people.until_begun(moment)).await.is_err() {
            break;
        }
        let replica = random.random_range(0..fleet.size());
        let begun = clock::instant();
        match fault {
            Fault::Kill => fleet.kill(replica).await,
            Fault::Freeze => {
                fleet
                    .freeze(replica, LEASE.mul_f64(random.random_range(1.2..2.0)))
                    .await;
            }
            Fault::Crash => database.crash().await,
            Fault::Cut => fleet.database.cut(),
            Fault::Stall => {
                let time = Duration::from_millis(random.random_range(500..3000));
                fleet.database.stall(time).await;
            }
        }
        people.struck(begun);
        people.report(amount);
    }
    // Those of the last share may still begin, unless the time is up.
    if timeout_at(over, people.until_begun(amount.requests))
        .await
        .is_err()
    {
        people.admit_no_more();
    }
}
