//! What an operator does to the replicas, and what befalls them: faults of each kind every minute, the steps of a
//! rotation as `docs/keys.md` has them, and an upgrade.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use domain::{clock, config::Environment};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::{sync::Mutex, time::sleep};

use super::{Hour, REPLICAS, until};
use crate::{
    support::pooler::Pooler,
    torture::{
        lives::{self, SeenRequest},
        people::People,
        processes::{Fleet, LEASE},
    },
};

pub const KEYS: &str = "MCP_CONFIG_ENCRYPTION_KEYS";
/// Faults begin so far apart. With five of them, a third of each minute is quiet.
const APART: Duration = Duration::from_secs(8);
/// Replicas seal with a promoted key after this time at the latest.
const FOLLOWED: Duration = Duration::from_secs(30);
/// For a step of the rotation. A replica that was killed without the new key counts for a minute.
const STEP: Duration = Duration::from_mins(5);
/// How long the trace of a trouble lasts: leases end, connections are opened, runs are taken over.
const AFTERMATH: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Freeze,
    Cut,
    Stall,
    Restart,
}

impl Fault {
    const ALL: [Self; 5] = [
        Self::Kill,
        Self::Freeze,
        Self::Cut,
        Self::Stall,
        Self::Restart,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "`kill -9` of a replica",
            Self::Freeze => "freezes past the lease",
            Self::Cut => "cuts of all connections to Postgres",
            Self::Stall => "times Postgres fell silent",
            Self::Restart => "restarts of the pooler",
        }
    }
}

/// From when to when something was done to the replicas.
#[derive(Clone, Default)]
pub struct Troubles(Vec<(Instant, Instant)>);

impl Troubles {
    /// Whether nothing was done to the replicas between two moments, nor shortly before.
    pub fn is_calm(&self, from: Instant, to: Instant) -> bool {
        self.0
            .iter()
            .all(|(begun, ended)| to < *begun || from > *ended + AFTERMATH)
    }
}

pub struct Operator<'a> {
    hour: &'a Hour,
    begun: Instant,
    people: &'a People,
    fleet: &'a Mutex<Fleet>,
    pooler: &'a Pooler,
    /// Those that go on have no end.
    troubles: std::sync::Mutex<Vec<(Instant, Option<Instant>)>>,
}

/// What was done besides faults.
pub struct Maintained {
    pub held: Vec<SeenRequest>,
    /// What the rotation took, from the first replica that gets the new key to the old key that is retired.
    pub rotation: Duration,
    pub upgrade: Duration,
}

/// A value of `MCP_CONFIG_ENCRYPTION_KEYS`.
pub fn ring(ids: &[&str]) -> String {
    let keys = ids.iter().map(|id| {
        let byte = id.bytes().last().expect("a key has a name");
        format!("{id}:{}", format!("{byte:02x}").repeat(32))
    });
    keys.collect::<Vec<_>>().join(",")
}

impl<'a> Operator<'a> {
    pub fn new(
        hour: &'a Hour,
        begun: Instant,
        people: &'a People,
        fleet: &'a Mutex<Fleet>,
        pooler: &'a Pooler,
    ) -> Self {
        Self {
            hour,
            begun,
            people,
            fleet,
            pooler,
            troubles: std::sync::Mutex::default(),
        }
    }

    pub fn troubles(&self) -> Troubles {
        let now = clock::instant();
        let troubles = self.troubles.lock().unwrap();
        let troubles = troubles
            .iter()
            .map(|(begun, ended)| (*begun, ended.unwrap_or(now)));
        Troubles(troubles.collect())
    }

    async fn trouble<T>(&self, work: impl Future<Output = T>) -> T {
        let at = {
            let mut troubles = self.troubles.lock().unwrap();
            troubles.push((clock::instant(), None));
            troubles.len() - 1
        };
        let done = work.await;
        self.troubles.lock().unwrap()[at].1 = Some(clock::instant());
        done
    }

    /// Lets every fault strike once a minute, in any order; how often each did.
    pub async fn strike(&self) -> BTreeMap<&'static str, usize> {
        let mut random = StdRng::seed_from_u64(self.hour.seed ^ 4);
        let (end, mut struck) = (self.begun + self.hour.time, BTreeMap::new());
        for minute in 0.. {
            let mut faults = Fault::ALL;
            faults.shuffle(&mut random);
            for (at, fault) in (0_u32..).zip(faults) {
                let within = Duration::from_millis(random.random_range(0..2000));
                let moment = self.begun + Duration::from_mins(minute) + APART * at + within;
                if moment >= end {
                    return struck;
                }
                until(moment).await;
                self.trouble(self.strike_with(fault, &mut random)).await;
                *struck.entry(fault.name()).or_default() += 1;
            }
        }
        struck
    }

    async fn strike_with(&self, fault: Fault, random: &mut StdRng) {
        match fault {
            // The first one is never killed, so that what grows can be seen.
            Fault::Kill => {
                let at = random.random_range(1..REPLICAS);
                self.fleet.lock().await.kill(at).await;
            }
            Fault::Freeze => {
                let at = random.random_range(0..REPLICAS);
                let time = LEASE.mul_f64(random.random_range(1.2..2.0));
                self.fleet.lock().await.freeze(at, time).await;
            }
            Fault::Cut => self.fleet.lock().await.database.cut(),
            Fault::Stall => {
                let time = Duration::from_millis(random.random_range(500..3000));
                self.fleet.lock().await.database.stall(time).await;
            }
            Fault::Restart => self.pooler.restart(),
        }
    }

    /// Rotates the sealing key after a third of the time and upgrades after half of it, or as soon as the rotation is done.
    /// Then what waited since before the first of these is approved.
    pub async fn maintain(&self, held: Vec<(usize, SeenRequest)>) -> Maintained {
        until(self.begun + self.hour.time / 3).await;
        let started = clock::instant();
        self.rotate().await;
        let rotation = started.elapsed();
        until(self.begun + self.hour.time / 2).await;
        let started = clock::instant();
        let env = Environment::from_process();
        if let Some(next) = env.get("CHATELAINE_SOAK_NEXT_PROGRAM") {
            self.fleet.lock().await.program = next.into();
        }
        self.restart_each().await;
        let upgrade = started.elapsed();
        let mut random = StdRng::seed_from_u64(self.hour.seed ^ 5);
        let mut approved = Vec::new();
        for (company, mut seen) in held {
            lives::approve(self.people, company, &mut seen, &mut random).await;
            approved.push(seen);
        }
        Maintained {
            held: approved,
            rotation,
            upgrade,
        }
    }

    async fn rotate(&self) {
        self.set_keys(&["k1", "k2"]).await;
        self.insist(&["keys", "add", "k2"]).await;
        self.restart_each().await;
        self.insist(&["keys", "promote", "k2"]).await;
        sleep(FOLLOWED).await;
        self.insist(&["keys", "rewrap"]).await;
        self.insist(&["keys", "retire", "k1"]).await;
        // The upgrade takes the old key away.
        self.set_keys(&["k2"]).await;
    }

    async fn set_keys(&self, ids: &[&str]) {
        let mut fleet = self.fleet.lock().await;
        fleet.variables.insert(KEYS, ring(ids));
    }

    /// One after the other, so that there is always somebody who answers.
    async fn restart_each(&self) {
        for at in 0..REPLICAS {
            let restarted = async { self.fleet.lock().await.restart(at).await };
            self.trouble(restarted).await;
        }
    }

    /// A command of the product, until no fault is in its way.
    async fn insist(&self, arguments: &[&str]) {
        let deadline = clock::instant() + STEP;
        loop {
            let command = self.fleet.lock().await.command(arguments);
            let mut command = tokio::process::Command::from(command);
            let output = command.kill_on_drop(true).output().await.unwrap();
            if output.status.success() {
                return;
            }
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(clock::instant() < deadline, "{arguments:?}: {why}");
            sleep(Duration::from_secs(2)).await;
        }
    }
}
