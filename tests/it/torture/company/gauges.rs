//! What is measured while it runs: each replica every five seconds, the tables every minute.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs, io,
    io::Write as _,
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval};

use super::operator::{Operator, Troubles};
use crate::{
    support::pooler::Pooler,
    torture::{
        answers::{Kind, Timed},
        people::People,
    },
};

const EVERY: Duration = Duration::from_secs(5);
/// Of these one is a minute.
const A_MINUTE: usize = 12;

pub struct Gauges<'a> {
    begun: Instant,
    people: &'a People,
    pooler: &'a Pooler,
    seen: Mutex<Gauged>,
}

/// Everything that was measured.
#[derive(Default)]
pub struct Gauged {
    pub replicas: Vec<Reading>,
    pub tables: Vec<Tables>,
    pub minutes: Vec<Minute>,
    /// Of requests that were answered well: when, since the beginning, and whether nothing was done to the replicas then.
    pub times: Vec<(Time, bool)>,
}

/// A replica at a moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Since the beginning.
    pub at: Duration,
    pub replica: usize,
    pub process: u32,
    /// Mebibytes.
    pub memory: f64,
    pub descriptors: f64,
    pub threads: f64,
}

/// All tables at a moment.
#[derive(Clone, Debug)]
pub struct Tables {
    pub at: Duration,
    pub tables: BTreeMap<String, Table>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Table {
    pub rows: f64,
    pub dead: f64,
    /// With its indexes.
    pub bytes: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub kind: Kind,
    pub at: Duration,
    pub took: Duration,
}

/// A line of the table.
pub struct Minute {
    pub number: usize,
    pub replicas: Vec<Reading>,
    pub tables: Tables,
    pub statements_a_second: f64,
    pub answers_a_second: f64,
    /// In milliseconds, half and 99 %, in calm.
    pub times: Vec<(Kind, Option<[f64; 2]>)>,
    pub unanswered: usize,
}

pub const KINDS: [(Kind, &str); 3] = [
    (Kind::Turn, "turn"),
    (Kind::Read, "read"),
    (Kind::Decision, "decision"),
];

impl<'a> Gauges<'a> {
    pub fn new(begun: Instant, people: &'a People, pooler: &'a Pooler) -> Self {
        Self {
            begun,
            people,
            pooler,
            seen: Mutex::default(),
        }
    }

    /// Measures until it is dropped, and prints a line a minute.
    pub async fn watch(&self, operator: &Operator<'_>) -> Infallible {
        let mut pace = interval(EVERY);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut statements, mut answered, mut unanswered) = (self.pooler.statements(), 0, 0);
        let mut last = self.begun;
        let _ = writeln!(io::stderr(), "{}", Minute::head());
        for tick in 0.. {
            pace.tick().await;
            let readings = self.read_replicas();
            self.seen.lock().unwrap().replicas.extend(readings.clone());
            if tick % A_MINUTE != 0 {
                continue;
            }
            let tables = self.read_tables().await;
            if tick == 0 {
                continue;
            }
            let seconds = last.elapsed().as_secs_f64();
            let timed = self.people.answers.timed();
            let troubles = operator.troubles();
            let is_of_now = |timed: &&Timed| {
                timed.sent >= last && troubles.is_calm(timed.sent, timed.sent + timed.took)
            };
            let calm: Vec<_> = timed.iter().filter(is_of_now).collect();
            let times = KINDS.map(|(kind, _)| {
                let of_kind = calm.iter().filter(|timed| timed.kind == kind);
                (kind, quantiles(of_kind.map(|timed| timed.took).collect()))
            });
            let minute = Minute {
                number: tick / A_MINUTE,
                replicas: readings,
                tables,
                statements_a_second: count(self.pooler.statements() - statements) / seconds,
                answers_a_second: count(timed.len() - answered) / seconds,
                times: times.to_vec(),
                unanswered: self.people.answers.unanswered() - unanswered,
            };
            statements = self.pooler.statements();
            answered = timed.len();
            unanswered = self.people.answers.unanswered();
            last = domain::clock::instant();
            // Nobody is left to read it when this fails.
            let _ = writeln!(io::stderr(), "{minute}");
            self.seen.lock().unwrap().minutes.push(minute);
        }
        unreachable!("nobody waits for so many minutes")
    }

    fn read_replicas(&self) -> Vec<Reading> {
        let places = self.people.places.all();
        let readings = places.iter().enumerate().filter_map(|(replica, place)| {
            // One that was killed a moment ago has no numbers any more.
            let status = fs::read_to_string(format!("/proc/{}/status", place.process)).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<f64>().ok()
            };
            let open = fs::read_dir(format!("/proc/{}/fd", place.process)).ok()?;
            Some(Reading {
                at: self.begun.elapsed(),
                replica,
                process: place.process,
                memory: field("VmRSS:")? / 1024.0,
                descriptors: count(open.count()),
                threads: field("Threads:")?,
            })
        });
        readings.collect()
    }

    pub async fn read_tables(&self) -> Tables {
        let sql = "select relname::text, n_live_tup::float8, n_dead_tup::float8,
                          pg_total_relation_size(relid)::float8
                   from pg_stat_user_tables";
        let rows: Vec<(String, f64, f64, f64)> = self.people.rows(sql).await;
        let tables = rows
            .into_iter()
            .map(|(name, rows, dead, bytes)| (name, Table { rows, dead, bytes }));
        let tables = Tables {
            at: self.begun.elapsed(),
            tables: tables.collect(),
        };
        self.seen.lock().unwrap().tables.push(tables.clone());
        tables
    }

    /// All of it, once it is over.
    pub fn gauged(&self, troubles: &Troubles) -> Gauged {
        let mut gauged = std::mem::take(&mut *self.seen.lock().unwrap());
        let timed = self.people.answers.timed();
        let times = timed.iter().filter_map(|&Timed { kind, sent, took }| {
            // What was asked before it began was asked of empty caches.
            let at = sent.checked_duration_since(self.begun)?;
            let is_calm = troubles.is_calm(sent, sent + took);
            Some((Time { kind, at, took }, is_calm))
        });
        gauged.times = times.collect();
        gauged
    }
}

/// In milliseconds: half of them took less than the first, and 99 % less than the second. `None` when there are too few.
pub fn quantiles(mut times: Vec<Duration>) -> Option<[f64; 2]> {
    times.sort_unstable();
    let at = |percent: usize| {
        let time = times.get((times.len().checked_sub(1)?) * percent / 100)?;
        Some(time.as_secs_f64() * 1000.0)
    };
    Some([at(50)?, at(99)?])
}

/// A number of things, to be divided.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52")]
pub fn count(number: usize) -> f64 {
    number as f64
}
