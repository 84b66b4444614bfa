//! Several processes of the product on one Postgres, people who ask, approve, reject, cancel and let expire at
//! random, and faults in their midst: processes are killed, or stand still past their lease; the database crashes.
//! The bank's own ledger is the truth. Whatever happens, nothing is executed twice, nor without consent, nor with
//! other arguments; nothing that was acknowledged is lost; and everything comes to an end soon after the faults.
//!
//! `make torture` is the same with bigger numbers: `CHATELAINE_TORTURE=requests:kills` or `requests:kills:seed`.

mod faults; // what fails, and when
mod judge; // what must hold whatever failed
mod lives; // a request from its asking to the last word about it
mod people; // who asks and decides, and how they insist
mod processes; // the replicas and the database
mod report; // what is told during it and after it

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, resume_unwind},
    path::Path,
    time::Duration,
};

use chatelaine::domain::{clock, config::Environment};
use futures_util::{FutureExt, StreamExt, stream};

use self::{
    judge::Evidence,
    people::People,
    processes::{Database, Fleet},
    report::Report,
};
use super::support::bank::start_slow_bank;

const REPLICAS: usize = 3;
/// Requests under way at once.
const LANES: usize = 24;
/// Between an execution and the bank's answer, so that faults meet calls that are under way.
const LINGER: Duration = Duration::from_millis(500);
/// Everything is at an end so long after the last fault.
const SETTLED: Duration = Duration::from_secs(60);

/// How much of it.
struct Amount {
    requests: usize,
    kills: usize,
    seed: u64,
    /// Somebody waits for it and wants to read what came of it.
    told: bool,
}

impl Amount {
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
                seed: 4,
                told: false,
            };
        };
        let numbers: Vec<u64> = asked
            .split(':')
            .filter_map(|number| number.parse().ok())
            .collect();
        let (requests, kills, seed) = match numbers[..] {
            [requests, kills] => (requests, kills, rand::random()),
            [requests, kills, seed] => (requests, kills, seed),
            _ => {
                panic!("CHATELAINE_TORTURE: {asked:?} is not requests:kills or requests:kills:seed")
            }
        };
        let number = |number: u64| usize::try_from(number).unwrap();
        Self {
            requests: number(requests),
            kills: number(kills),
            seed,
            told: true,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_or_without_consent_whatever_fails() {
    let amount = Amount::asked();
    let folder = tempfile::Builder::new()
        .prefix("torture-")
        .tempdir_in("/tmp")
        .unwrap();
    // Root's Postgres runs as another user, who must pass through.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let ran = AssertUnwindSafe(torture(&amount, folder.path()))
        .catch_unwind()
        .await;
    match ran {
        Ok(report) if amount.told => write!(std::io::stderr(), "{report}").unwrap(),
        Ok(_) => {}
        Err(panic) => {
            let (kept, seed) = (folder.keep(), amount.seed);
            let _ = writeln!(
                std::io::stderr(),
                "torture: seed {seed}; what the processes said is in {}",
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
    processes::furnish(folder, &bank.url);
    let people = People::invite(amount.seed, &database, folder).await;
    let mut fleet = Fleet::start(folder, &database, &people.addresses, REPLICAS).await;
    let faults = faults::drawn(amount);

    let bar = report::bar(&people, amount, faults.len());
    let requests = stream::iter(0..amount.requests)
        .map(|at| lives::live(&people, at))
        .buffer_unordered(LANES);
    let watched = async {
        tokio::select! {
            lives = requests.collect::<Vec<_>>() => lives,
            never = bar => match never {},
        }
    };
    let struck = faults::strike(amount, &faults, &people, &mut fleet, &mut database);
    let ((), lives) = tokio::join!(struck, watched);

    // Whatever nobody has decided runs out now, and so does what was asked for without an answer.
    let calm = people.let_everything_expire().await;
    let open = people.until_nothing_is_open(SETTLED).await;
    // In order, so that whatever they have sent is in the ledger.
    fleet.stop().await;
    let ledger = bank.books.entries();
    let evidence = Evidence::gather(&people, &ledger, lives, calm, open).await;
    database.stop().await;
    let report = Report::of(amount, &faults, &people, &evidence, started.elapsed());
    let complaints = evidence.complaints();
    assert!(
        complaints.is_empty(),
        "seed {}:\n{}\n{report}",
        amount.seed,
        complaints.join("\n")
    );
    assert!(
        evidence.requests.len() >= amount.requests,
        "there were too few requests\n{report}"
    );
    report
}
