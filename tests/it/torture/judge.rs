//! What must hold whatever failed, read off three accounts of the same events: the bank's ledger, the database's
//! rows, and what clients were told.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::{
    approval::State,
    canonical::{self, Hash},
    json::Json,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    lives::{Choice, Heard, Life, Word},
    people::People,
    processes::Tiers,
};
use crate::support::bank::books::Entry;

/// The server whose calls are confirmed by whoever asks for them.
pub const DESK: &str = "desk";
/// The server whose sum is limited.
pub const TILL: &str = "till";

pub struct Evidence {
    pub requests: BTreeMap<Uuid, Request>,
    /// What the bank executed, refusals of its own among it, and what was sealed.
    pub ledger: Vec<Executed>,
    /// Hashes of the arguments of calls that needed no consent.
    pub direct: HashSet<Hash>,
    /// Hashes of the arguments of calls that rules forbid.
    pub in_vain: HashSet<Hash>,
    /// Calls of the tools that change.
    pub stamped: usize,
    /// Hashes of the arguments of calls that have a line in the audit trail.
    pub audited: HashSet<Hash>,
    pub till: Till,
    /// Requests and runs that were not at an end in time.
    pub open: Vec<(Uuid, String)>,
    /// Between the end of the faults and the end of the last request.
    pub settled_after: time::Duration,
}

/// What went through the till, whose sum is limited. In cents.
pub struct Till {
    pub limits: Tiers,
    /// What limits count, calls of unknown outcome among them.
    pub taken: u64,
    /// The part of it that nobody approved.
    pub taken_directly: u64,
}

impl Till {
    async fn read(people: &People, limits: Tiers) -> Self {
        let taken: Vec<(String, String)> = people
            .rows(
                "select coalesce(sum(amount), 0.00)::text,
                        coalesce(sum(amount) filter (where id not in (select id from approvals)), 0.00)::text
                 from limit_uses",
            )
            .await;
        Self {
            limits: limits.times(100),
            taken: cents(&taken[0].0),
            taken_directly: cents(&taken[0].1),
        }
    }
}

/// A request for approval: as the database keeps it, and what was said about it.
pub struct Request {
    pub code: String,
    pub server: String,
    pub requester: String,
    pub state: State,
    pub args_sha256: Hash,
    pub min_approvals: usize,
    /// Nobody but its requester decides about it.
    pub is_confirmation: bool,
    /// By whom, whether it is an approval, and why.
    pub votes: Vec<(String, bool, String)>,
    /// Its requester saw it waiting, and this is the hash of what they had asked for.
    pub sent: Option<Hash>,
    pub words: Vec<Word>,
}

pub struct Executed {
    pub what: String,
    pub cents: u64,
    /// What the policy wants for a call with these arguments, where it wants any; `None`: no such call may be made.
    pub min_approvals: Option<usize>,
    pub args_sha256: Hash,
    /// Of the arguments as the model wrote them, which is what the trail has of a call that needs no consent.
    pub written_sha256: Hash,
}

impl Evidence {
    pub async fn gather(
        people: &People,
        ledger: &[Entry],
        lives: Vec<Life>,
        calm: OffsetDateTime,
        open: Vec<(Uuid, String)>,
        limits: Tiers,
    ) -> Self {
        #[derive(sqlx::FromRow)]
        struct Row {
            id: Uuid,
            code: String,
            server: String,
            requester: String,
            state: State,
            args_sha256: Vec<u8>,
            min_approvals: i32,
            approvers: Vec<String>,
            finished_at: Option<OffsetDateTime>,
        }
        let rows: Vec<Row> = people
            .rows(
                "select id, code, server, requester, state, args_sha256, min_approvals, approvers, finished_at
                 from approvals",
            )
            .await;
        let last = rows.iter().filter_map(|row| row.finished_at).max();
        let last = last.unwrap_or(calm);
        let requests = rows.into_iter().map(|row| {
            let request = Request {
                code: row.code,
                server: row.server,
                requester: row.requester,
                state: row.state,
                args_sha256: canonical::hash_of_row(row.args_sha256).unwrap(),
                min_approvals: usize::try_from(row.min_approvals).unwrap(),
                is_confirmation: row.approvers.is_empty(),
                votes: Vec::new(),
                sent: None,
                words: Vec::new(),
            };
            (row.id, request)
        });
        let mut requests: BTreeMap<_, _> = requests.collect();
        let votes: Vec<(Uuid, String, String, Option<String>)> = people
            .rows("select approval_id, approver, choice, reason from approval_votes")
            .await;
        for (id, by, choice, reason) in votes {
            let request = requests.get_mut(&id).expect("a vote names its request");
            request
                .votes
                .push((by, choice == "approve", reason.unwrap_or_default()));
        }
        let (mut direct, mut in_vain, mut stamped) = (HashSet::new(), HashSet::new(), 0);
        for life in lives {
            let seen = match life {
                Life::Waited(seen) => seen,
                Life::Direct(args_sha256) => {
                    direct.insert(args_sha256);
                    continue;
                }
                Life::InVain(args_sha256) => {
                    in_vain.insert(args_sha256);
                    continue;
                }
                Life::Stamped => {
                    stamped += 1;
                    continue;
                }
            };
            let request = requests.get_mut(&seen.approval);
            let request = request
                .unwrap_or_else(|| panic!("request {} was shown, and it is gone", seen.approval));
            (request.sent, request.words) = (Some(seen.args_sha256), seen.words);
        }
        let executed = ledger.iter().map(|entry| Executed {
            what: format!("{} {}", entry.tool, entry.arguments),
            cents: cents(entry.arguments["amount"].as_str().unwrap()),
            min_approvals: min_approvals(entry),
            args_sha256: canonical::hash(&canonical::text(&Json::from(&entry.arguments)).unwrap()),
            written_sha256: Sha256::digest(entry.arguments.to_string()).into(),
        });
        let audited: Vec<(Vec<u8>,)> = people
            .rows("select args_sha256 from audit where action = 'tool.call' and args_sha256 is not null")
            .await;
        let audited = audited
            .into_iter()
            .map(|(hash,)| canonical::hash_of_row(hash).unwrap());
        let settled_after = (last - calm).max(time::Duration::ZERO);
        Self {
            requests,
            ledger: executed.collect(),
            direct,
            in_vain,
            stamped,
            audited: audited.collect(),
            till: Till::read(people, limits).await,
            open,
            settled_after,
        }
    }

    /// How many calls were asked for, at least.
    pub fn lives(&self) -> usize {
        self.requests.len() + self.direct.len() + self.in_vain.len() + self.stamped
    }

    /// How many requests only their requesters decide about.
    pub fn confirmations(&self) -> usize {
        let requests = self.requests.values();
        requests.filter(|request| request.is_confirmation).count()
    }

    /// Everything that must not be, each in a sentence that names the request.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut requests_of: HashMap<Hash, Vec<&Request>> = HashMap::new();
        for request in self.requests.values() {
            let same = requests_of.entry(request.args_sha256).or_default();
            same.push(request);
        }
        let mut times: HashMap<Hash, usize> = HashMap::new();
        let (mut at_till, mut directly) = (0, 0);
        for executed in &self.ledger {
            let times = times.entry(executed.args_sha256).or_default();
            *times += 1;
            let mut complain = |what: String| complaints.push(format!("{what}: {}", executed.what));
            let request = requests_of.get(&executed.args_sha256);
            let request = request.and_then(|same| same.first());
            let is_direct = self.direct.contains(&executed.args_sha256);
            match (request, executed.min_approvals) {
                (_, None) => complain("executed, and a rule forbids it".to_owned()),
                (Some(request), Some(wanted)) if request.min_approvals != wanted => {
                    complain(format!(
                        "executed with another number of approvals than {wanted}"
                    ));
                }
                (None, _) if !is_direct => {
                    complain("executed with arguments that nobody asked for".to_owned());
                }
                _ => {}
            }
            if is_direct || request.is_some_and(|request| request.server == TILL) {
                at_till += executed.cents;
                directly += request.map_or(executed.cents, |_| 0);
            }
            if is_direct && *times > 1 {
                complain(format!("executed {times} times for a client that repeats"));
            }
            if self.in_vain.contains(&executed.args_sha256) {
                complain("executed, and its amount stands twice or is nobody's to pay".to_owned());
            }
            let hashes = [executed.args_sha256, executed.written_sha256];
            if !hashes.iter().any(|hash| self.audited.contains(hash)) {
                complaints.push(format!(
                    "executed without a line in the audit trail: {}",
                    executed.what
                ));
            }
        }
        let Till {
            limits: Tiers { asks, holds },
            taken,
            taken_directly,
        } = self.till;
        if !(at_till <= taken && taken <= holds) {
            complaints.push(format!(
                "the till holds {holds} cents, limits count {taken}, and {at_till} were executed"
            ));
        }
        if !(directly <= taken_directly && taken_directly <= asks) {
            complaints.push(format!(
                "the till asks above {asks} cents, limits count {taken_directly} that nobody approved, and {directly} were \
                 executed"
            ));
        }
        for (id, request) in &self.requests {
            let named = format!(
                "request {} ({id}), {}",
                request.code,
                request.state.into_str()
            );
            let times = times.get(&request.args_sha256).copied().unwrap_or_default();
            let mut complain = |what: String| complaints.push(format!("{named}: {what}"));
            if requests_of[&request.args_sha256].len() > 1 {
                complain("the same call, said once, became several requests".to_owned());
            }
            if self.in_vain.contains(&request.args_sha256) {
                complain("a rule forbids it, and people were asked".to_owned());
            }
            if request.sent.is_some_and(|sent| sent != request.args_sha256) {
                complain("its arguments are not those that were sent".to_owned());
            }
            executions(request, times)
                .into_iter()
                .for_each(&mut complain);
            votes(request).into_iter().for_each(&mut complain);
            confirmation(request).into_iter().for_each(&mut complain);
            request
                .words
                .iter()
                .filter_map(|word| broken_promise(request, word))
                .for_each(&mut complain);
        }
        for (id, what) in &self.open {
            complaints.push(format!("{what} ({id}): still open long after the faults"));
        }
        complaints
    }
}

/// `12.5` is 1250.
fn cents(amount: &str) -> u64 {
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, ""));
    format!("{whole}{fraction:0<2}").parse().unwrap()
}

/// What the rules of the pack say of a call, those of limits aside.
fn min_approvals(entry: &Entry) -> Option<usize> {
    let amount = cents(entry.arguments["amount"].as_str().unwrap());
    let to = entry.arguments["to"].as_str().unwrap_or_default();
    let (most, needs_two) = match entry.tool.as_str() {
        "send_money" => (200_000_000, to == "sato" || amount >= 100_000_000),
        "seal" => (100_000, false),
        _ => (u64::MAX, false),
    };
    let is_paid = entry.tool != "send_money" || ["acme", "sato"].contains(&to);
    (is_paid && amount < most).then_some(1 + usize::from(needs_two))
}

/// How often a request may have been executed, by how it ended.
fn executions(request: &Request, times: usize) -> Option<String> {
    let fits = match request.state {
        State::Succeeded => times == 1,
        State::Failed | State::OutcomeUnknown => times <= 1,
        _ => times == 0,
    };
    (!fits).then(|| format!("executed {times} times"))
}

/// Approved is what enough people approved, and nothing else is.
fn votes(request: &Request) -> Option<String> {
    let approvals = request
        .votes
        .iter()
        .filter(|(_, approve, _)| *approve)
        .count();
    let enough = approvals >= request.min_approvals;
    let approved = match request.state {
        State::Approved
        | State::Executing
        | State::Succeeded
        | State::Failed
        | State::OutcomeUnknown
        | State::Lapsed => true,
        // A tool that changes takes also what nobody has decided yet.
        State::Revoked => return None,
        State::Pending | State::Rejected | State::Expired | State::Cancelled => false,
    };
    (enough != approved).then(|| format!("{approvals} of {} approvals", request.min_approvals))
}

/// What is asked for at the desk is confirmed by whoever asked, and nothing else is.
fn confirmation(request: &Request) -> Option<String> {
    if request.is_confirmation != (request.server == DESK) {
        return Some(format!(
            "the wrong people decide about a call of {}",
            request.server
        ));
    }
    let mut votes = request.votes.iter();
    let other = votes.find(|(by, ..)| request.is_confirmation && *by != request.requester)?;
    Some(format!(
        "{} confirmed what {} wanted",
        other.0, request.requester
    ))
}

/// What was acknowledged and is not so.
fn broken_promise(request: &Request, word: &Word) -> Option<String> {
    let (by, choice) = (word.by.name(), word.choice);
    let seen = match &word.heard {
        Heard::Yes(state) => *state,
        Heard::No => return None,
        Heard::Nonsense(answer) => {
            return Some(format!("{by} wanted to {choice:?} and was told {answer}"));
        }
    };
    let kept = |approve| {
        request
            .votes
            .iter()
            .any(|vote| vote.0 == by && vote.1 == approve)
    };
    // Two words of one person with the same choice are one vote, with the reason of the first.
    let reason = |approve| {
        let said = |reason: &str| {
            request
                .words
                .iter()
                .any(|word| word.by.name() == by && word.reason == reason)
        };
        request
            .votes
            .iter()
            .any(|vote| vote.0 == by && vote.1 == approve && said(&vote.2))
    };
    let holds = match choice {
        Choice::Approve => kept(true) && reason(true),
        Choice::Reject => kept(false) && reason(false) && request.state == State::Rejected,
        Choice::Cancel => request.state == State::Cancelled,
        // Nobody may be told so.
        Choice::Intrude => false,
    };
    if !holds {
        return Some(format!(
            "{by} was told that their {choice:?} is done, and it is not"
        ));
    }
    let went_on = seen == request.state || seen.is_open();
    (!went_on).then(|| {
        format!(
            "{by} was shown it as {}, which is no state to leave",
            seen.into_str()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{super::people::Who, *};

    fn chief() -> Who {
        Who::chief(0, 0)
    }

    /// A request that ended so, which its chief approved, with words of theirs, and so many executions.
    fn evidence(
        state: State,
        approvals: usize,
        words: &[(Choice, Heard)],
        times: usize,
    ) -> Evidence {
        let word = |(choice, heard): &(Choice, Heard)| Word {
            by: chief(),
            choice: *choice,
            reason: "why".to_owned(),
            heard: heard.clone(),
        };
        let request = Request {
            code: "7F3K".to_owned(),
            server: "bank".to_owned(),
            requester: "clerk-0".to_owned(),
            state,
            args_sha256: [1; 32],
            min_approvals: 1,
            is_confirmation: false,
            votes: (0..approvals)
                .map(|_| (chief().name(), true, "why".to_owned()))
                .collect(),
            sent: Some([1; 32]),
            words: words.iter().map(word).collect(),
        };
        let executed = (0..times).map(|_| Executed {
            what: "send_money".to_owned(),
            cents: 100,
            min_approvals: Some(1),
            args_sha256: [1; 32],
            written_sha256: [1; 32],
        });
        Evidence {
            requests: [(Uuid::nil(), request)].into(),
            ledger: executed.collect(),
            direct: HashSet::new(),
            in_vain: HashSet::new(),
            stamped: 0,
            audited: [[1; 32], [2; 32]].into(),
            till: till([1000, 1000], 1000, 1000),
            open: Vec::new(),
            settled_after: time::Duration::ZERO,
        }
    }

    fn till([asks, holds]: [u64; 2], taken: u64, taken_directly: u64) -> Till {
        Till {
            limits: Tiers { asks, holds },
            taken,
            taken_directly,
        }
    }

    fn complaint(evidence: &Evidence) -> String {
        evidence.complaints().join("; ")
    }

    #[test]
    fn what_was_done_once_with_consent_is_fine() {
        let heard = [
            (Choice::Approve, Heard::Yes(State::Approved)),
            (Choice::Cancel, Heard::No),
        ];
        assert_eq!(complaint(&evidence(State::Succeeded, 1, &heard, 1)), "");
        assert_eq!(
            complaint(&evidence(State::OutcomeUnknown, 1, &heard, 0)),
            ""
        );
        assert_eq!(complaint(&evidence(State::Expired, 0, &[], 0)), "");
    }

    #[test]
    fn what_was_executed_too_often_or_without_consent_is_found() {
        for (state, approvals, times) in [
            (State::Succeeded, 1, 2),
            (State::Succeeded, 1, 0),
            (State::OutcomeUnknown, 1, 2),
            (State::Rejected, 0, 1),
            (State::Expired, 0, 1),
            (State::Cancelled, 0, 1),
            (State::Revoked, 1, 1),
        ] {
            let found = complaint(&evidence(state, approvals, &[], times));
            assert!(
                found.contains("7F3K") && found.contains(&format!("executed {times} times")),
                "{state:?}: {found}"
            );
        }
        assert!(complaint(&evidence(State::Succeeded, 0, &[], 1)).contains("0 of 1 approvals"));
        assert!(complaint(&evidence(State::Expired, 1, &[], 0)).contains("1 of 1 approvals"));
    }

    #[test]
    fn what_a_client_that_repeats_made_run_twice_is_found() {
        let mut evidence = evidence(State::Expired, 0, &[], 2);
        evidence.requests.clear();
        evidence.direct = [[1; 32]].into();
        let found = complaint(&evidence);
        assert!(
            found.contains("executed 2 times for a client that repeats: send_money"),
            "{found}"
        );
        evidence.ledger.pop();
        assert_eq!(complaint(&evidence), "");
    }

    #[test]
    fn too_few_approvals_and_a_till_that_held_too_much_are_found() {
        let mut large = evidence(State::Succeeded, 1, &[], 1);
        large.ledger[0].min_approvals = Some(2);
        let found = complaint(&large);
        assert!(
            found.contains("another number of approvals than 2: send_money"),
            "{found}"
        );
        for (limits, taken, directly) in [
            ([199, 199], 200, 200),
            ([1000, 1000], 199, 200),
            ([199, 1000], 200, 200),
            ([1000, 1000], 200, 199),
        ] {
            let mut direct = evidence(State::Expired, 0, &[], 2);
            direct.requests.clear();
            direct.direct = [[1; 32]].into();
            direct.till = till(limits, taken, directly);
            let found = complaint(&direct);
            assert!(found.contains("200 were executed"), "{found}");
        }
        // What was approved counts for the upper limit alone.
        for (limits, is_right) in [([0, 100], true), ([0, 99], false)] {
            let mut approved = evidence(State::Succeeded, 1, &[], 1);
            let request = approved.requests.get_mut(&Uuid::nil()).unwrap();
            request.server = TILL.to_owned();
            approved.till = till(limits, 100, 0);
            assert_eq!(complaint(&approved).is_empty(), is_right, "{limits:?}");
        }
    }

    #[test]
    fn what_rules_forbid_is_found_executed_and_asked_for() {
        let mut forbidden = evidence(State::Succeeded, 1, &[], 1);
        forbidden.ledger[0].min_approvals = None;
        let found = complaint(&forbidden);
        assert!(found.contains("a rule forbids it: send_money"), "{found}");
        let mut in_vain = evidence(State::Succeeded, 1, &[], 1);
        in_vain.in_vain = [[1; 32]].into();
        let found = complaint(&in_vain);
        assert!(
            found.contains("stands twice") && found.contains("people were asked"),
            "{found}"
        );
    }

    #[test]
    fn a_confirmation_by_somebody_else_and_a_desk_without_one_are_found() {
        let mut desk = evidence(State::Succeeded, 1, &[], 1);
        let request = desk.requests.get_mut(&Uuid::nil()).unwrap();
        request.server = DESK.to_owned();
        assert!(complaint(&desk).contains("the wrong people decide about a call of desk"));
        let request = desk.requests.get_mut(&Uuid::nil()).unwrap();
        request.is_confirmation = true;
        assert!(complaint(&desk).contains("chief-0 confirmed what clerk-0 wanted"));
        let request = desk.requests.get_mut(&Uuid::nil()).unwrap();
        request.requester = chief().name();
        assert_eq!(complaint(&desk), "");
        let intruded = [(Choice::Intrude, Heard::Yes(State::Approved))];
        let found = complaint(&evidence(State::Succeeded, 1, &intruded, 1));
        assert!(found.contains("and it is not"), "{found}");
    }

    #[test]
    fn other_arguments_are_found() {
        let mut other = evidence(State::Succeeded, 1, &[], 1);
        (other.ledger[0].args_sha256, other.ledger[0].written_sha256) = ([2; 32], [2; 32]);
        let found = complaint(&other);
        assert!(
            found.contains("that nobody asked for: send_money")
                && found.contains("executed 0 times"),
            "{found}"
        );
        let mut kept = evidence(State::Expired, 0, &[], 0);
        kept.requests.get_mut(&Uuid::nil()).unwrap().sent = Some([2; 32]);
        assert!(complaint(&kept).contains("not those that were sent"));
    }

    #[test]
    fn a_lost_word_is_found() {
        for (state, approvals, choice, seen) in [
            (State::Expired, 0, Choice::Approve, State::Pending),
            (State::Expired, 0, Choice::Reject, State::Rejected),
            (State::Succeeded, 1, Choice::Reject, State::Rejected),
            (State::Succeeded, 1, Choice::Cancel, State::Cancelled),
        ] {
            let found = complaint(&evidence(
                state,
                approvals,
                &[(choice, Heard::Yes(seen))],
                usize::from(approvals > 0),
            ));
            assert!(
                found.contains("and it is not"),
                "{state:?} {choice:?}: {found}"
            );
        }
        let shown = [(Choice::Approve, Heard::Yes(State::Failed))];
        assert!(
            complaint(&evidence(State::Succeeded, 1, &shown, 1)).contains("shown it as failed")
        );
        let nonsense = [(Choice::Approve, Heard::Nonsense("404".to_owned()))];
        assert!(complaint(&evidence(State::Expired, 0, &nonsense, 0)).contains("was told 404"));
    }

    #[test]
    fn what_does_not_end_is_found() {
        let mut open = evidence(State::Executing, 1, &[], 0);
        open.open
            .push((Uuid::nil(), "run of alice is queued".to_owned()));
        assert!(complaint(&open).contains("run of alice is queued"));
    }

    #[test]
    fn a_call_without_a_line_in_the_trail_is_found() {
        let mut silent = evidence(State::Succeeded, 1, &[], 1);
        silent.audited.clear();
        assert!(complaint(&silent).contains("without a line in the audit trail: send_money"));
    }
}
