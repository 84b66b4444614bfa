//! What flat means, in numbers, and the tables that are printed.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    time::Duration,
};

use domain::canonical::Hash;

use super::{
    COMPANIES, REPLICAS,
    gauges::{Gauged, KINDS, Minute, Reading, Tables, Time, count, quantiles},
};
use crate::torture::{
    answers::Kind,
    judge::Evidence,
    report::{Counts, listed},
};

/// How much more there may be of something: so many times as much, and so much besides.
#[derive(Clone, Copy)]
struct Bound {
    factor: f64,
    slack: f64,
}

const fn bound(factor: f64, slack: f64) -> Bound {
    Bound { factor, slack }
}

/// Mebibytes by which the memory of a replica may be more. In half an hour a replica answers some 20,000 requests, so
/// that a leak of a KiB for each is found. Less than that is the allocator's own.
const MEMORY: Bound = bound(1.0, 20.0);
/// Descriptors: connections of clients come and go by the dozen.
const DESCRIPTORS: Bound = bound(1.0, 48.0);
/// Threads: those for blocking work end when they were idle for ten seconds.
const THREADS: Bound = bound(1.0, 8.0);
/// Half of the calm requests of the second half may take so much longer than those of the first, and so many
/// milliseconds more: a machine is not always as fast. What grows with the rows or with the time is at least twice as
/// slow, since there are twice as many of them.
const HALF: Bound = bound(1.3, 10.0);
/// The slowest of a hundred vary more.
const MOST: Bound = bound(1.5, 100.0);
/// Fewer requests of a half say nothing about the slowest of a hundred.
const FEW: usize = 100;
/// The rows of each table may grow by so much more, since what is drawn is not even.
const ROWS: Bound = bound(1.3, 500.0);
/// The bytes: Postgres gives tables and indexes room in steps.
const BYTES: Bound = bound(1.5, 4.0 * 1024.0 * 1024.0);
/// Dead rows that may be left, as a share of the rows and besides: autovacuum begins at a fifth, and looks once a minute.
const DEAD: Bound = bound(0.4, 5000.0);
/// What these tables have is soon gone, whatever happened: a row for each replica of the last hour at most.
const PASSING: [&str; 8] = [
    "elicitations",
    "flows",
    "jobs",
    "keks",
    "key_holders",
    "replicas",
    "stream_tickets",
    "usage_additions",
];
const PASSING_ROWS: f64 = 300.0;

pub struct Report {
    pub time: Duration,
    pub rate: f64,
    pub seed: u64,
    pub faults: BTreeMap<&'static str, usize>,
    pub rotation: Duration,
    pub upgrade: Duration,
    /// What became of the calls on their way to the bank.
    pub calls: String,
    pub statuses: BTreeMap<u16, usize>,
    /// Ids of rows that people were shown.
    pub shown: usize,
    pub counts: Counts,
    pub settled_after: time::Duration,
    pub gauged: Gauged,
    /// Statements that the pooler does not allow.
    pub misuse: Vec<String>,
}

/// Most of what was asked for before the key was rotated must have been sent: its arguments were sealed with the old one.
/// One of six calls is spoiled by the bank's link.
pub fn held(held: &[Hash], evidence: &Evidence) -> Option<String> {
    let sent: HashSet<_> = evidence
        .ledger
        .iter()
        .map(|call| call.args_sha256)
        .collect();
    let kept = held.iter().filter(|hash| sent.contains(*hash)).count();
    (kept * 2 < held.len()).then(|| {
        format!(
            "{kept} of {} calls were sent that were approved after the rotation",
            held.len()
        )
    })
}

/// Whether `later` is more than `earlier` allows.
fn is_more(later: f64, earlier: f64, bound: Bound) -> bool {
    later > earlier * bound.factor + bound.slack
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// What of a replica must stay what it is.
struct Gauge {
    what: &'static str,
    value: fn(&Reading) -> f64,
    bound: Bound,
}

static GAUGES: [Gauge; 3] = [
    Gauge {
        what: "MiB of memory",
        value: |reading| reading.memory,
        bound: MEMORY,
    },
    Gauge {
        what: "descriptors",
        value: |reading| reading.descriptors,
        bound: DESCRIPTORS,
    },
    Gauge {
        what: "threads",
        value: |reading| reading.threads,
        bound: THREADS,
    },
];

/// What the first replica, which is never killed, needs more of at the end of its last life than in the midst of it.
fn growing(readings: &[Reading]) -> Vec<String> {
    let of_first: Vec<_> = readings.iter().filter(|it| it.replica == 0).collect();
    let Some(last) = of_first.last() else {
        return vec!["nothing was measured".to_owned()];
    };
    let life: Vec<_> = of_first
        .iter()
        .filter(|it| it.process == last.process)
        .collect();
    // Caches fill and connections are opened in the first quarter.
    let life = &life[life.len() / 4..];
    let third = life.len() / 3;
    let (midst, end) = (&life[..third], &life[life.len() - third..]);
    let grown = GAUGES.iter().filter_map(|gauge| {
        let earlier = median(midst.iter().map(|it| (gauge.value)(it)))?;
        let later = median(end.iter().map(|it| (gauge.value)(it)))?;
        let what = gauge.what;
        is_more(later, earlier, gauge.bound).then(|| {
            format!("a replica has {later:.0} {what} at the end of its life, {earlier:.0} before")
        })
    });
    grown.collect()
}

/// What the first replica has of something in one half of the time and in the other.
struct Halves {
    gauge: &'static Gauge,
    earlier: f64,
    later: f64,
}

fn halves(readings: &[Reading], half: Duration) -> Vec<Halves> {
    let of_first = || readings.iter().filter(|it| it.replica == 0);
    let halves = GAUGES.iter().filter_map(|gauge| {
        let earlier = median(of_first().filter(|it| it.at < half).map(gauge.value))?;
        let later = median(of_first().filter(|it| it.at >= half).map(gauge.value))?;
        Some(Halves {
            gauge,
            earlier,
            later,
        })
    });
    halves.collect()
}

/// Half and 99 % of the calm requests of each half of the time, and how many there are.
fn times(times: &[(Time, bool)], kind: Kind, half: Duration) -> [(Option<[f64; 2]>, usize); 2] {
    [false, true].map(|is_later| {
        let calm = times.iter().filter(|(time, is_calm)| {
            *is_calm && time.kind == kind && (time.at >= half) == is_later
        });
        let calm: Vec<_> = calm.map(|(time, _)| time.took).collect();
        let number = calm.len();
        (quantiles(calm), number)
    })
}

fn slower(all: &[(Time, bool)], half: Duration) -> Vec<String> {
    let mut complaints = Vec::new();
    for (kind, name) in KINDS {
        let [(Some(earlier), before), (Some(later), after)] = times(all, kind, half) else {
            complaints.push(format!("no {name} was answered in one half of the time"));
            continue;
        };
        for (at, share, bound) in [(0, "half", HALF), (1, "99 %", MOST)] {
            let says_something = at == 0 || before.min(after) >= FEW;
            if says_something && is_more(later[at], earlier[at], bound) {
                complaints.push(format!(
                    "{share} of the calm {name}s take up to {:.0} ms, and {:.0} ms before",
                    later[at], earlier[at]
                ));
            }
        }
    }
    complaints
}

/// Tables that grow faster than they did, or are not tidied up.
fn swelling(snapshots: &[Tables], half: Duration) -> Vec<String> {
    let (Some(first), Some(last)) = (snapshots.first(), snapshots.last()) else {
        return vec!["no table was measured".to_owned()];
    };
    let is_nearer = |snapshot: &&Tables| snapshot.at.abs_diff(half);
    let middle = snapshots.iter().min_by_key(is_nearer).unwrap_or(first);
    let mut complaints = Vec::new();
    for (name, end) in &last.tables {
        let at = |snapshot: &Tables| snapshot.tables.get(name).copied().unwrap_or_default();
        // Some tables have their first rows minutes later: the words of the search wait.
        let is_before = |snapshot: &&Tables| snapshot.at < middle.at && at(snapshot).rows == 0.0;
        let start = snapshots
            .iter()
            .take_while(is_before)
            .last()
            .unwrap_or(first);
        let (begin, mid) = (at(start), at(middle));
        // As if both parts had taken as long.
        let seconds = |snapshot: &Tables| snapshot.at.as_secs_f64();
        let longer = (seconds(middle) - seconds(start)) / (seconds(last) - seconds(middle));
        let mut compare = |what, before: f64, after: f64, bound| {
            if is_more(after * longer.min(1.0), before, bound) {
                complaints.push(format!(
                    "the {what} of {name} grew by {before:.0} in the first half and by {after:.0} in the second"
                ));
            }
        };
        compare("rows", mid.rows - begin.rows, end.rows - mid.rows, ROWS);
        compare(
            "bytes",
            mid.bytes - begin.bytes,
            end.bytes - mid.bytes,
            BYTES,
        );
        if is_more(end.dead, end.rows, DEAD) {
            complaints.push(format!(
                "{name} has {:.0} dead rows beside {:.0}",
                end.dead, end.rows
            ));
        }
        if PASSING.contains(&name.as_str()) && end.rows > PASSING_ROWS {
            complaints.push(format!("{name} keeps {:.0} rows", end.rows));
        }
    }
    complaints
}

impl Report {
    pub fn complaints(&self) -> Vec<String> {
        let (half, gauged) = (self.time / 2, &self.gauged);
        let mut complaints = growing(&gauged.replicas);
        for Halves {
            gauge,
            earlier,
            later,
        } in halves(&gauged.replicas, half)
        {
            if is_more(later, earlier, gauge.bound) {
                let what = gauge.what;
                complaints.push(format!(
                    "a replica has {later:.0} {what} in the second half, {earlier:.0} in the first"
                ));
            }
        }
        complaints.extend(slower(&gauged.times, half));
        complaints.extend(swelling(&gauged.tables, half));
        complaints.extend(
            self.misuse
                .iter()
                .map(|sql| format!("not for a pooler: {sql}")),
        );
        // Nobody may take a calm for a success.
        if self.faults.len() < 5 || self.counts.executed == 0 || self.shown == 0 {
            complaints.push("there was too little to see".to_owned());
        }
        complaints
    }
}

/// The table of `docs/reliability.md`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, gauged, .. } = self;
        let half = self.time / 2;
        let mut row = |what: &str, value: String| writeln!(f, "| {what} | {value} |");
        row("seed", self.seed.to_string())?;
        row(
            "time, activities",
            format!(
                "{:.0} minutes, {} a second",
                self.time.as_secs_f64() / 60.0,
                self.rate
            ),
        )?;
        row("companies, replicas", format!("{COMPANIES}, {REPLICAS}"))?;
        let faults = self
            .faults
            .iter()
            .map(|(name, times)| format!("{times} {name}"));
        row("faults", faults.collect::<Vec<_>>().join(", "))?;
        row("on the way to the bank", self.calls.clone())?;
        let (rotation, upgrade) = (self.rotation.as_secs(), self.upgrade.as_secs());
        row("rotation, upgrade", format!("{rotation} s, {upgrade} s"))?;
        row(
            "requests for approval",
            format!("{}: {}", counts.requests, listed(&counts.states)),
        )?;
        row("calls in the bank's ledger", counts.executed.to_string())?;
        let acknowledged = listed(&counts.acknowledged);
        row(
            "acknowledged",
            format!("{acknowledged}; {} came too late", counts.refused),
        )?;
        let statuses = self.statuses.iter().map(|(status, times)| match status {
            0 => format!("{times} without an answer"),
            _ => format!("{times} × {status}"),
        });
        row("HTTP requests", statuses.collect::<Vec<_>>().join(", "))?;
        row("ids that people were shown", self.shown.to_string())?;
        row(
            "settled",
            format!(
                "{:.1} s after the last fault",
                self.settled_after.as_seconds_f64()
            ),
        )?;
        writeln!(f, "\n| | first half | second half |\n|---|---|---|")?;
        for it in halves(&gauged.replicas, half) {
            let (earlier, later) = (it.earlier, it.later);
            writeln!(f, "| {} | {earlier:.0} | {later:.0} |", it.gauge.what)?;
        }
        for (kind, name) in KINDS {
            let halves = times(&gauged.times, kind, half)
                .map(|(times, number)| format!("{} ms of {number}", shown(times)));
            writeln!(f, "| {name}s: half, 99 % | {} |", halves.join(" | "))?;
        }
        Ok(())
    }
}

/// Milliseconds of half and of 99 %.
fn shown(times: Option<[f64; 2]>) -> String {
    times.map_or("-".to_owned(), |[half, most]| {
        format!("{half:.0}, {most:.0}")
    })
}

impl Minute {
    pub fn head() -> String {
        let times = KINDS.map(|(_, name)| format!("{name} ms"));
        format!(
            "| minute | memory MiB | descriptors | threads | database MiB | rows | dead | statements/s | answers/s | {} | unanswered |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|",
            times.join(" | ")
        )
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = GAUGES.each_ref().map(|gauge| {
            let values = self.replicas.iter().map(gauge.value);
            let values = values.map(|value| format!("{value:.0}"));
            values.collect::<Vec<_>>().join(" ")
        });
        let tables = self.tables.tables.values();
        let (mut bytes, mut rows, mut dead) = (0.0, 0.0, 0.0);
        for table in tables {
            bytes += table.bytes;
            rows += table.rows;
            dead += table.dead;
        }
        let times = self.times.iter().map(|(_, times)| shown(*times));
        write!(
            f,
            "| {} | {} | {:.0} | {rows:.0} | {dead:.0} | {:.0} | {:.0} | {} | {} |",
            self.number,
            each.join(" | "),
            bytes / 1024.0 / 1024.0,
            self.statements_a_second,
            self.answers_a_second,
            times.collect::<Vec<_>>().join(" | "),
            self.unanswered
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{super::gauges::Table, *};

    const HALF_AN_HOUR: Duration = Duration::from_mins(30);

    /// A replica that is upgraded after half of an hour, with so much memory in each of its 720 readings.
    fn life(memory: impl Fn(usize) -> f64) -> Vec<Reading> {
        let reading = |at: usize| Reading {
            at: Duration::from_secs(5 * at as u64),
            replica: 0,
            process: if at < 360 { 1 } else { 2 },
            memory: memory(at),
            descriptors: 100.0,
            threads: 10.0,
        };
        (0..720).map(reading).collect()
    }

    #[test]
    fn a_replica_that_grows_until_its_end_is_found() {
        // It fills its caches, and after the upgrade again.
        let filling = |at: usize| 60.0 + count((at % 360).min(60)) / 2.0;
        assert_eq!(growing(&life(filling)), [""; 0]);
        let leaking = |at: usize| filling(at) + count(at % 360) / 7.0;
        let found = growing(&life(leaking));
        assert!(
            found.len() == 1 && found[0].contains("MiB of memory at the end of its life"),
            "{found:?}"
        );
        let mut open = life(filling);
        for (at, reading) in open.iter_mut().enumerate() {
            reading.descriptors += count(at);
            reading.threads += count(at) / 10.0;
        }
        let found = growing(&open).join("; ");
        assert!(
            found.contains("descriptors at the end") && found.contains("threads at the end"),
            "{found}"
        );
    }

    #[test]
    fn a_replica_that_needs_more_once_there_are_more_rows_is_found() {
        let found = halves(&life(|at| 80.0 + count(at / 360) * 30.0), HALF_AN_HOUR);
        let memory = &found[0];
        assert!(is_more(memory.later, memory.earlier, memory.gauge.bound));
        let steady = &halves(&life(|_| 80.0), HALF_AN_HOUR)[0];
        assert!(!is_more(steady.later, steady.earlier, MEMORY));
    }

    /// An hour of turns, reads and decisions, each of which takes so many milliseconds.
    fn hour(took: impl Fn(u64) -> u64) -> Vec<(Time, bool)> {
        let time = |second: u64, kind| Time {
            kind,
            at: Duration::from_secs(second),
            took: Duration::from_millis(took(second)),
        };
        let seconds =
            (0..3600).flat_map(|second| KINDS.map(|(kind, _)| (time(second, kind), true)));
        seconds.collect()
    }

    #[test]
    fn what_takes_longer_and_longer_is_found() {
        let even = hour(|second| 20 + second % 50);
        assert_eq!(slower(&even, HALF_AN_HOUR), [""; 0]);
        let found = slower(&hour(|second| 20 + second / 20), HALF_AN_HOUR);
        assert_eq!(found.len(), 3, "{found:?}");
        // The slowest of them alone.
        let found = slower(
            &hour(|second| if second % 50 == 0 { second / 3 } else { 20 }),
            HALF_AN_HOUR,
        );
        assert!(
            found.len() == 3 && found[0].starts_with("99 % of the calm turns"),
            "{found:?}"
        );
        let mut troubled = even;
        for (_, is_calm) in &mut troubled {
            *is_calm = false;
        }
        let found = slower(&troubled, HALF_AN_HOUR);
        assert!(found[0].contains("no turn was answered"), "{found:?}");
    }

    /// A table with so many rows and dead rows in each minute.
    fn tables(name: &str, rows: impl Fn(f64) -> f64, dead: f64) -> Vec<Tables> {
        let snapshot = |minute: u32| {
            let rows = rows(f64::from(minute));
            let bytes = rows * 10_000.0;
            Tables {
                at: Duration::from_mins(minute.into()),
                tables: [(name.to_owned(), Table { rows, dead, bytes })].into(),
            }
        };
        (0..=60).map(snapshot).collect()
    }

    #[test]
    fn a_table_that_swells_is_found() {
        let even = |minute: f64| 100.0 * minute;
        assert_eq!(
            swelling(&tables("messages", even, 900.0), HALF_AN_HOUR),
            [""; 0]
        );
        let late = |minute: f64| even((minute - 10.0).max(0.0));
        let found = swelling(&tables("conversation_words", late, 0.0), HALF_AN_HOUR);
        assert_eq!(found, [""; 0]);
        let found = swelling(
            &tables("messages", |minute| even(minute) * minute / 10.0, 0.0),
            HALF_AN_HOUR,
        );
        assert!(
            found[0].starts_with("the rows of messages grew") && found[1].contains("the bytes"),
            "{found:?}"
        );
        let found = swelling(&tables("messages", even, 9000.0), HALF_AN_HOUR);
        assert_eq!(found, ["messages has 9000 dead rows beside 6000"]);
        let found = swelling(&tables("replicas", even, 0.0), HALF_AN_HOUR);
        assert_eq!(found, ["replicas keeps 6000 rows"]);
    }
}
