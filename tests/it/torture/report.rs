//! What is told: a line that moves while it runs, and the numbers at the end.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use super::{
    Amount,
    faults::Fault,
    judge::Evidence,
    lives::{Choice, Heard},
    people::People,
};

const WIDTH: usize = 30;

/// Draws how far it is, where somebody looks.
pub async fn bar(people: &People, amount: &Amount, faults: usize) -> Infallible {
    let requests = amount.requests;
    if !amount.told || !io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    loop {
        let (begun, struck) = people.progress();
        let filled = begun * WIDTH / requests;
        let bar: String = (0..WIDTH)
            .map(|at| if at < filled { '#' } else { '-' })
            .collect();
        let mut stderr = io::stderr().lock();
        let line =
            format!("\r[{bar}] {begun} of {requests} requests, {struck} of {faults} faults\x1b[K");
        // Nobody is left to look when this fails.
        let _ = stderr
            .write_all(line.as_bytes())
            .and_then(|()| stderr.flush());
        drop(stderr);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub struct Report {
    seed: u64,
    took: Duration,
    counts: Counts,
    replicas: usize,
    faults: [usize; 5],
    /// What became of the calls on their way to the bank.
    pub calls: String,
    /// What became of calls of the tool that changed.
    pub stamps: String,
    unanswered: usize,
    settled_after: time::Duration,
}

/// What the evidence comes to, in numbers.
pub struct Counts {
    pub requests: usize,
    /// Those that only their own clerk decides about.
    pub confirmations: usize,
    pub direct: usize,
    /// Those that rules forbid.
    pub in_vain: usize,
    pub states: BTreeMap<&'static str, usize>,
    pub executed: usize,
    pub acknowledged: BTreeMap<&'static str, usize>,
    /// Words that came too late.
    pub refused: usize,
}

impl Counts {
    pub fn of(evidence: &Evidence) -> Self {
        let mut states = BTreeMap::new();
        for request in evidence.requests.values() {
            *states.entry(request.state.into_str()).or_default() += 1;
        }
        let (mut acknowledged, mut refused) = (BTreeMap::new(), 0);
        for word in evidence
            .requests
            .values()
            .flat_map(|request| &request.words)
        {
            let name = match word.choice {
                Choice::Approve => "approve",
                Choice::Reject => "reject",
                Choice::Cancel => "cancel",
                Choice::Intrude => "intrude",
            };
            match word.heard {
                Heard::Yes(_) => *acknowledged.entry(name).or_default() += 1,
                _ => refused += 1,
            }
        }
        Self {
            requests: evidence.requests.len(),
            confirmations: evidence.confirmations(),
            direct: evidence.direct.len(),
            in_vain: evidence.in_vain.len(),
            states,
            executed: evidence.ledger.len(),
            acknowledged,
            refused,
        }
    }
}

/// Numbers with their names.
pub fn listed(counts: &BTreeMap<&str, usize>) -> String {
    counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Report {
    pub fn of(
        amount: &Amount,
        faults: &[Fault],
        people: &People,
        evidence: &Evidence,
        took: Duration,
    ) -> Self {
        let struck = &faults[..people.progress().1];
        let count = |wanted| struck.iter().filter(|fault| **fault == wanted).count();
        Self {
            seed: amount.seed,
            took,
            counts: Counts::of(evidence),
            replicas: amount.replicas,
            faults: [
                Fault::Kill,
                Fault::Freeze,
                Fault::Crash,
                Fault::Cut,
                Fault::Stall,
            ]
            .map(count),
            calls: String::new(),
            stamps: String::new(),
            unanswered: people.answers.unanswered(),
            settled_after: evidence.settled_after,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let [kills, freezes, crashes, cuts, stalls] = self.faults;
        writeln!(
            f,
            "\ntorture: seed {}, {} replicas, {:.0} s",
            self.seed,
            self.replicas,
            self.took.as_secs_f64()
        )?;
        writeln!(
            f,
            "  faults        {kills} kills, {freezes} freezes past the lease, {crashes} crashes of Postgres, \
             {cuts} cuts of all its connections, {stalls} stalls"
        )?;
        writeln!(f, "  bank          {}", self.calls)?;
        writeln!(f, "  stamps        {}", self.stamps)?;
        writeln!(
            f,
            "  requests      {}, {} of them confirmations: {}",
            counts.requests,
            counts.confirmations,
            listed(&counts.states)
        )?;
        writeln!(
            f,
            "  executed      {} calls, by the ledgers; {} calls needed no consent, {} were forbidden",
            counts.executed, counts.direct, counts.in_vain
        )?;
        writeln!(
            f,
            "  acknowledged  {}; {} came too late",
            listed(&counts.acknowledged),
            counts.refused
        )?;
        writeln!(
            f,
            "  unanswered    {} HTTP requests, asked again where that is safe",
            self.unanswered
        )?;
        writeln!(
            f,
            "  settled       {:.1} s after the last fault",
            self.settled_after.as_seconds_f64()
        )
    }
}
