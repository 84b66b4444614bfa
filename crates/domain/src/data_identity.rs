//! Which data a database has. A database that was restored does not know what was done after its backup, and would do it
//! again, so who works with it must notice that it is not what it was.
//!
//! A row says where the data was when a replica last worked with it, which tells a dump that was restored elsewhere, an
//! upgrade or a standby that took over. A volume that was put back has the row of its time, too. What tells it is a
//! witness outside of the database: each replica remembers the newest state of the row that it has seen.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Where the data is, and how far its log is, as Postgres says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataIdentity {
    pub place: Place,
    /// It grows when a standby takes over, and when a backup is recovered to a point in time.
    pub timeline: Option<i32>,
    /// Of the log, in bytes.
    pub position: i64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The identifier of the cluster; `None` where the role may not read it.
    pub system: Option<i64>,
    pub database: i64,
    pub table: i64,
}

/// How new the row is. Of two states at one place the later one is the greater.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Age {
    #[serde(with = "time::serde::rfc3339")]
    pub confirmed_at: OffsetDateTime,
    pub beats: i64,
}

/// The row.
#[derive(Clone, Debug)]
pub struct KnownData {
    pub identity: DataIdentity,
    pub age: Age,
    /// A replica has seen a later state of the row.
    pub is_behind: bool,
}

/// The newest state of the row that a replica has seen.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Witness {
    pub place: Place,
    pub age: Age,
    /// This process saw it, and not one before it.
    #[serde(skip)]
    pub is_alive: bool,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// A standby took over, or a backup was recovered to a point in time. Who starts now cannot know which.
    Recovered,
    /// A replica has seen what the database does not have.
    Behind,
    /// Why it is not what it was.
    Other(&'static str),
}

/// Compares the row with what Postgres says now. Where the row is missing, replicas have not worked with the data yet.
pub fn compare(row: Option<&KnownData>, now: &DataIdentity, witness: Option<Witness>) -> Verdict {
    // Of what was in another place, such as a copy for tests, a witness says nothing.
    let witness = witness.filter(|witness| witness.place == now.place);
    let Some(row) = row else {
        return witness.map_or(Verdict::Same, |_| Verdict::Behind);
    };
    let (kept, differ) = (&row.identity, |a: Option<i64>, b| {
        a.zip(b).is_some_and(|(a, b)| a != b)
    });
    if differ(kept.place.system, now.place.system) {
        return Verdict::Other("it is in another cluster of Postgres");
    }
    if kept.place.database != now.place.database {
        return Verdict::Other("it is in another database of the server");
    }
    if kept.place.table != now.place.table {
        return Verdict::Other("its tables were made anew");
    }
    if row.is_behind || witness.is_some_and(|witness| witness.age > row.age) {
        return Verdict::Behind;
    }
    if now.position < kept.position {
        return Verdict::Other("its log went back");
    }
    let timelines = kept.timeline.zip(now.timeline);
    match timelines.map(|(kept, now)| now.cmp(&kept)) {
        Some(std::cmp::Ordering::Less) => Verdict::Other("its log is on an earlier timeline"),
        Some(std::cmp::Ordering::Greater) if !witness.is_some_and(|it| it.is_alive) => {
            Verdict::Recovered
        }
        _ => Verdict::Same,
    }
}
