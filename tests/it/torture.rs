//! Several processes of the product on one Postgres, people who ask (some through a chat client, which by itself sends
//! again what failed), approve, reject, cancel and let expire at random, and faults in their midst: processes are killed, or stand still past their lease; the database crashes, or
//! its connections are cut or stall; calls of the bank and answers of the model are delayed, cut, garbled or refused.
//! In their midst a server changes its tools now and then, which an admin accepts later, and the bank forgets sessions.
//! The bank's own ledger is the truth. Whatever happens, nothing is executed twice, nor without consent, nor with
//! other arguments, nor against a rule or above a limit, nor while its tool is held; nothing that was acknowledged is lost;
//! each call that was executed has its line in the audit trail; and everything comes to an end soon after the faults.
//!
//! `make torture` is the same with bigger numbers: `CHATELAINE_TORTURE=requests:kills[:seed[:minutes]]`.

mod answers; // what the people were answered, and whose it is
mod bank_link; // spoils calls on their way to the bank
mod company; // an hour of a company, with all of this and an upgrade in its midst
mod database_link; // cuts and stalls what goes to Postgres
mod faults; // what fails, and when
mod judge; // what must hold whatever failed
mod lives; // a request from its asking to the last word about it
mod model; // calls what it is told to call, and fails at times
mod people; // who asks and decides, and how they insist
mod processes; // the replicas and the database
mod report; // what is told during it and after it
mod stamps; // a server that changes its tools, and who accepts that

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, resume_unwind},
    path::Path,
    time::Duration,
};

use domain::{clock, config::Environment};
use futures_util::{FutureExt, StreamExt, stream};

use self::{
    bank_link::BankLink,
    database_link::DatabaseLink,
    judge::Evidence,
    people::{People, Population},
    processes::{Database, Doors, Fleet, PackValues, Tiers},
    report::Report,
    stamps::Stamps,
};
use super::support::{bank::start_slow_bank, seed::of_run};

/// Requests under way at once.
const LANES: usize = 24;
/// Between an execution and the bank's answer, so that faults meet calls that are under way.
const LINGER: Duration = Duration::from_millis(500);
/// Everything is at an end so long after the last fault.
const SETTLED: Duration = Duration::from_secs(90);
/// Without a limit of minutes.
const ENOUGH: Duration = Duration::from_hours(24);

/// How much of it.
struct Amount {
    requests: usize,
    kills: usize,
    seed: u64,
    replicas: usize,
    /// For requests to begin; fewer than `requests` have begun then, if need be.
    time: Duration,
    /// Somebody waits for it and wants to read what came of it.
    told: bool,
}

impl Amount {
    /// The till: a quarter of what is asked for there needs nobody, and much of what chiefs approve of the rest is too much.
    fn till(&self) -> Tiers {
        let requests = u64::try_from(self.requests).unwrap();
        Tiers {
            asks: (requests * requests / 80).max(1),
            holds: (requests * requests / 60).max(1),
        }
    }

    /// What the environment asks for, else what every run of the tests has time for: always the same, since nobody
    /// could find again what another seed found.
    fn asked() -> Self {
        let env = Environment::from_process();
        let Some(asked) = env
            .get("CHATELAINE_TORTURE")
            .filter(|asked| !asked.is_empty())
        else {
            return Self {
                requests: 500,
                kills: 10,
                seed: of_run(4),
                replicas: 3,
                time: ENOUGH,
                told: false,
            };
        };
        let numbers: Vec<u64> = asked
            .split(':')
            .filter_map(|number| number.parse().ok())
            .collect();
        let (requests, kills, seed, time) = match numbers[..] {
            [requests, kills] => (requests, kills, rand::random(), ENOUGH),
            [requests, kills, seed] => (requests, kills, seed, ENOUGH),
            [requests, kills, seed, minutes] => {
                (requests, kills, seed, Duration::from_mins(minutes))
            }
            _ => panic!(
                "CHATELAINE_TORTURE: {asked:?} is not requests:kills, requests:kills:seed or \
                 requests:kills:seed:minutes"
            ),
        };
        let number = |number: u64| usize::try_from(number).unwrap();
        Self {
            requests: number(requests),
            kills: number(kills),
            seed,
            replicas: 4,
            time,
            told: true,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_or_without_consent_whatever_fails() {
    let amount = Amount::asked();
    let work = async |folder: &Path| torture(&amount, folder).await;
    let report = in_a_folder("torture", amount.seed, work).await;
    if amount.told {
        write!(std::io::stderr(), "{report}").unwrap();
    }
}

/// Does it in a folder of its own, which is kept with what the processes said when it fails.
async fn in_a_folder<T>(name: &str, seed: u64, work: impl AsyncFnOnce(&Path) -> T) -> T {
    let folder = tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in("/tmp")
        .unwrap();
    // Root's Postgres runs as another user, who must pass through.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    match AssertUnwindSafe(work(folder.path())).catch_unwind().await {
        Ok(done) => done,
        Err(panic) => {
            let kept = folder.keep();
            let _ = writeln!(
                std::io::stderr(),
                "{name}: seed {seed}; what the processes said is in {}",
                kept.display()
            );
            resume_unwind(panic);
        }
    }
}

async fn torture(amount: &Amount, folder: &Path) -> Report {
    let started = clock::instant();
    let bank = start_slow_bank(None, LINGER).await;
    let mut database = Database::start(folder).await;
    let link = BankLink::start(&bank.url, amount.seed).await;
    let model = model::start(amount.seed).await;
    let model_url = model.scripted.base_url();
    let stamps = Stamps::start().await;
    let values = PackValues {
        bank: &link,
        model: model_url.as_str(),
        stamps: Some(stamps.url()),
        minutes: 600,
        till: amount.till(),
    };
    processes::write_pack(folder, &values);
    let population = Population {
        companies: 1,
        clerks: 8,
        chiefs: 3,
        exponent: 0.0,
        seed: amount.seed,
        is_told: amount.told,
    };
    let people = People::invite(&population, &database, folder).await;
    let doors = Doors {
        ordinary: DatabaseLink::start(database.url()).await,
        direct: None,
    };
    let mut fleet = Fleet::new(folder, doors, &people.places);
    fleet.grow(amount.replicas).await;
    let faults = faults::drawn(amount);

    let bar = report::bar(&people, amount, faults.len());
    let requests = stream::iter(0..amount.requests)
        .map(|at| lives::live(&people, &stamps, at))
        .buffer_unordered(LANES);
    let watched = async {
        tokio::select! {
            lives = requests.filter_map(std::future::ready).collect::<Vec<_>>() => lives,
            never = bar => match never {},
        }
    };
    let struck = faults::strike(amount, &faults, &people, &mut fleet, &mut database);
    let changed = stamps.change(&people, amount.requests);
    let ((), lives, ()) = tokio::join!(struck, watched, changed);

    // Whatever nobody has decided runs out now, and so does what was asked for without an answer.
    let calm = people.let_everything_expire().await;
    let open = people.until_nothing_is_open(SETTLED).await;
    // In order, so that whatever they have sent is in the ledger.
    fleet.stop().await;
    let mut ledger = bank.books.entries();
    ledger.extend(stamps.seals());
    let evidence = Evidence::gather(&people, &ledger, lives, calm, open, amount.till()).await;
    let owners = people.owners().await;
    database.stop().await;
    let mut report = Report::of(amount, &faults, &people, &evidence, started.elapsed());
    report.calls = link.report();
    report.stamps = stamps.report();
    let mut complaints = evidence.complaints();
    complaints.extend(people.answers.complaints(&owners));
    complaints.extend(model.complaints());
    complaints.extend(stamps.complaints(&people));
    assert!(
        complaints.is_empty(),
        "seed {}:\n{}\n{report}",
        amount.seed,
        complaints.join("\n")
    );
    assert!(
        evidence.lives() >= people.progress().0,
        "there were too few requests\n{report}"
    );
    report
}
