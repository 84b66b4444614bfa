//! An hour of a company: three replicas behind a pooler in transaction mode, fifty tenants, two thousand people of whom
//! few ask much and many ask little, a fault of each kind every minute, a rotation of the sealing key after a third of the
//! time and an upgrade after half of it. In the end the judge of the torture has nothing to say, no company has seen
//! anything of another one, and memory, descriptors, threads, tables and times are in the second half what they were
//! in the first.
//!
//! Postgres itself does not crash here, as it does in the torture: a crash throws away its own account of dead rows, and
//! with one a minute nothing would ever be vacuumed.
//!
//! `make soak-company` runs it: `CHATELAINE_SOAK_COMPANY=minutes[:activities a second[:seed]]`. It takes minutes and both
//! processors, so that without the variable nothing is done. `CHATELAINE_SOAK_NEXT_PROGRAM` is what the upgrade leads to,
//! else the same program is started again. It needs Linux, whose `/proc` it reads.

mod gauges; // what is measured while it runs
mod load; // who does what
mod operator; // faults, the rotation and the upgrade
mod verdict; // what flat means, and the table

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use domain::{clock, config::Environment};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use self::{
    gauges::Gauges,
    operator::{Operator, ring},
    verdict::Report,
};
use super::{
    LINGER, SETTLED,
    bank_link::BankLink,
    database_link::DatabaseLink,
    in_a_folder,
    judge::Evidence,
    lives::{self, Life},
    model,
    people::{People, Population},
    processes::{self, Database, Doors, Fleet, PackValues, Tiers},
    report::Counts,
};
use crate::support::{bank::start_slow_bank, pooler::Pooler};

const COMPANIES: usize = 50;
const CLERKS: usize = 37;
const CHIEFS: usize = 3;
const REPLICAS: usize = 3;
/// Sessions of Postgres for all replicas together, which open up to 36 connections.
const SESSIONS: usize = 20;
/// Activities begun in a second, where nothing else is asked for. A call that needs consent is a dozen requests. Two
/// processors have time left then: without, a machine is slow for reasons of its own.
const RATE: f64 = 6.0;
/// Requests that are made before the rotation and approved after the upgrade.
const HELD: usize = 20;
/// Minutes after which a request expires that nobody has decided about.
const OPEN: u32 = 2;
/// More than anybody asks for at a till, so that its sums are counted and nobody is refused.
const PLENTY: Tiers = Tiers {
    asks: 1_000_000_000_000,
    holds: 1_000_000_000_000,
};

/// How long and how much.
struct Hour {
    time: Duration,
    rate: f64,
    seed: u64,
}

impl Hour {
    fn population(&self) -> Population {
        Population {
            companies: COMPANIES,
            clerks: CLERKS,
            chiefs: CHIEFS,
            exponent: 1.0,
            seed: self.seed,
            is_told: true,
        }
    }

    fn asked() -> Option<Self> {
        let env = Environment::from_process();
        let asked = env
            .get("CHATELAINE_SOAK_COMPANY")
            .filter(|asked| !asked.is_empty())?;
        let wrong = || -> ! {
            panic!("CHATELAINE_SOAK_COMPANY: {asked:?} is not minutes[:activities a second[:seed]]")
        };
        let mut parts = asked.split(':');
        let mut number = || {
            let part = parts.next()?;
            Some(part.parse::<f64>().unwrap_or_else(|_| wrong()))
        };
        let (minutes, rate) = (number(), number());
        let seed = parts
            .next()
            .map(|part| part.parse().unwrap_or_else(|_| wrong()));
        Some(Self {
            time: Duration::from_secs_f64(minutes.unwrap_or_else(|| wrong()) * 60.0),
            rate: rate.unwrap_or(RATE),
            seed: seed.unwrap_or_else(rand::random),
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_of_a_company_leaves_everything_flat() {
    let Some(hour) = Hour::asked() else { return };
    let work = async |folder: &Path| live_through(&hour, folder).await;
    let report = in_a_folder("company", hour.seed, work).await;
    write!(std::io::stderr(), "{report}").unwrap();
}

async fn live_through(hour: &Hour, folder: &Path) -> Report {
    let bank = start_slow_bank(None, LINGER).await;
    let database = Database::start(folder).await;
    let pooler = Pooler::with_sessions(database.url(), SESSIONS);
    let doors = Doors {
        ordinary: DatabaseLink::start(&pooler.url).await,
        direct: Some(DatabaseLink::start(database.url()).await),
    };
    let link = BankLink::start(&bank.url, hour.seed).await;
    let model = model::start(hour.seed).await;
    model.scripted.keep_no_journal();
    let model_url = model.scripted.base_url();
    let values = PackValues {
        bank: &link,
        model: model_url.as_str(),
        stamps: None,
        minutes: OPEN,
        till: PLENTY,
    };
    processes::write_pack(folder, &values);
    let people = People::invite(&hour.population(), &database, folder).await;
    let mut fleet = Fleet::new(folder, doors, &people.places);
    fleet.variables.remove("MCP_CONFIG_ENCRYPTION_KEY");
    fleet.variables.insert(operator::KEYS, ring(&["k1"]));
    fleet.grow(REPLICAS).await;
    let fleet = Mutex::new(fleet);
    // Numbers that no activity has.
    let held = (0..HELD).map(|at| {
        let mut random = lives::random_of(&people, usize::MAX - at);
        let people = &people;
        async move {
            let clerk = people.draw_clerk(&mut random);
            let seen = lives::ask_for_later(people, clerk, &mut random).await;
            (clerk.company, seen)
        }
    });
    let held = join_all(held).await;

    let begun = clock::instant();
    let gauges = Gauges::new(begun, &people, &pooler);
    let operator = Operator::new(hour, begun, &people, &fleet, &pooler);
    let work = async {
        tokio::join!(
            load::work(hour, begun, &people),
            operator.strike(),
            operator.maintain(held),
        )
    };
    let (mut lives, faults, maintained) = tokio::select! {
        done = work => done,
        never = gauges.watch(&operator) => match never {},
        never = load::listen(&people) => match never {},
    };

    let calm = people.let_everything_expire().await;
    let open = people.until_nothing_is_open(SETTLED).await;
    gauges.read_tables().await;
    let troubles = operator.troubles();
    fleet.lock().await.stop().await;
    let ledger = bank.books.entries();
    let held: Vec<_> = maintained
        .held
        .iter()
        .map(|seen| seen.args_sha256)
        .collect();
    lives.extend(maintained.held.into_iter().map(Life::Waited));
    let all = PLENTY.times(COMPANIES as u64);
    let evidence = Evidence::gather(&people, &ledger, lives, calm, open, all).await;
    let owners = people.owners().await;
    database.stop().await;

    let mut complaints = evidence.complaints();
    complaints.extend(people.answers.complaints(&owners));
    complaints.extend(model.complaints());
    complaints.extend(verdict::held(&held, &evidence));
    let report = Report {
        time: hour.time,
        rate: hour.rate,
        seed: hour.seed,
        faults,
        rotation: maintained.rotation,
        upgrade: maintained.upgrade,
        calls: link.report(),
        statuses: people.answers.statuses(),
        shown: people.answers.shown(&owners),
        counts: Counts::of(&evidence),
        settled_after: evidence.settled_after,
        gauged: gauges.gauged(&troubles),
        misuse: pooler.misuse(),
    };
    complaints.extend(report.complaints());
    assert!(
        complaints.is_empty(),
        "seed {}:\n{}\n{report}",
        hour.seed,
        complaints.join("\n")
    );
    report
}

/// Sleeps until a moment, or not at all where it has passed.
async fn until(moment: Instant) {
    tokio::time::sleep_until(tokio::time::Instant::from_std(moment)).await;
}
