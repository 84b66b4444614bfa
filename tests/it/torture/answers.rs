//! Every answer that the people got: how long it took, its status, the ids in it, and whose words.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Mutex,
    time::{Duration, Instant},
};

use rand::{RngExt, rngs::StdRng};
use uuid::Uuid;

/// What begins the mark of a company: each text that its people say has it, with a number of three digits.
const MARK: &str = "company-";
/// Ids that others ask for.
const RECENT: usize = 1000;
/// Complaints that are kept; thousands of the same say no more.
const COMPLAINTS: usize = 50;

/// What a request is for, as the report tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A message to the agent, until it has answered.
    Turn,
    Read,
    Decision,
    Other,
}

/// An answer that came.
pub struct Answer<'a> {
    pub kind: Kind,
    pub path: &'a str,
    /// When its request was sent.
    pub sent: Instant,
    pub took: Duration,
    pub status: u16,
    pub text: &'a str,
}

/// A request that was answered for good.
#[derive(Clone, Copy)]
pub struct Timed {
    pub kind: Kind,
    pub sent: Instant,
    pub took: Duration,
}

#[derive(Default)]
pub struct Answers(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    timed: Vec<Timed>,
    statuses: BTreeMap<u16, usize>,
    /// Requests that nobody answered.
    silent: usize,
    /// What each company was shown.
    ids: HashSet<(usize, Uuid)>,
    /// What each company was told is there now.
    promised: HashSet<(usize, Uuid)>,
    recent: Vec<(usize, Uuid)>,
    complaints: Vec<String>,
}

/// What begins each text of a company.
pub fn mark(company: usize) -> String {
    format!("{MARK}{company:03}")
}

/// The companies whose marks a text has.
pub fn marks(text: &str) -> HashSet<usize> {
    let found = text.match_indices(MARK).filter_map(|(at, _)| {
        let number = text.get(at + MARK.len()..at + MARK.len() + 3)?;
        number.parse().ok()
    });
    found.collect()
}

/// The ids that a text has.
fn ids(text: &str) -> impl Iterator<Item = Uuid> {
    text.match_indices('-').filter_map(|(dash, _)| {
        let start = dash.checked_sub(8)?;
        let id = text.as_bytes().get(start..start + 36)?;
        // Each id is found at its first dash alone.
        Uuid::try_parse_ascii(id).ok()
    })
}

impl Answers {
    pub fn note(&self, company: usize, answer: &Answer<'_>) {
        self.note_text(company, answer.path, answer.status < 300, answer.text);
        let mut seen = self.0.lock().unwrap();
        *seen.statuses.entry(answer.status).or_default() += 1;
        if (200..300).contains(&answer.status) {
            let Answer {
                kind, sent, took, ..
            } = *answer;
            seen.timed.push(Timed { kind, sent, took });
        }
        if [201, 202].contains(&answer.status) {
            let promised = ids(answer.text).map(|id| (company, id));
            seen.promised.extend(promised);
        }
        if answer.status == 500 {
            seen.complain(format!("{}: 500 {}", answer.path, answer.text));
        }
    }

    /// Notes whose words and ids a company was shown. The ids count where `is_good`: a refusal may repeat what was asked
    /// for.
    pub fn note_text(&self, company: usize, path: &str, is_good: bool, text: &str) {
        let mut seen = self.0.lock().unwrap();
        for other in marks(text) {
            if other != company {
                let (shown, of) = (mark(company), mark(other));
                seen.complain(format!("{path}: {shown} was shown a text of {of}"));
            }
        }
        if !is_good {
            return;
        }
        for id in ids(text) {
            if seen.ids.insert((company, id)) {
                // The newest ones are asked for most.
                let at = seen.ids.len() % RECENT;
                match seen.recent.get_mut(at) {
                    Some(recent) => *recent = (company, id),
                    None => seen.recent.push((company, id)),
                }
            }
        }
    }

    pub fn note_silence(&self) {
        self.0.lock().unwrap().silent += 1;
    }

    pub fn complain(&self, complaint: String) {
        self.0.lock().unwrap().complain(complaint);
    }

    /// Something that another company was shown.
    pub fn any_of_others(&self, company: usize, random: &mut StdRng) -> Option<Uuid> {
        let seen = self.0.lock().unwrap();
        let others = seen.recent.iter().filter(|(of, _)| *of != company);
        let others: Vec<_> = others.collect();
        let at = random.random_range(0..others.len().max(1));
        others.get(at).map(|(_, id)| *id)
    }

    /// Requests that nobody answered, or only that it cannot be said now.
    pub fn unanswered(&self) -> usize {
        let seen = self.0.lock().unwrap();
        let late = seen
            .statuses
            .iter()
            .filter(|(status, _)| is_not_for_good(**status));
        seen.silent + late.map(|(_, count)| count).sum::<usize>()
    }

    pub fn timed(&self) -> Vec<Timed> {
        self.0.lock().unwrap().timed.clone()
    }

    /// How many requests were answered with each status; 0 is no answer.
    pub fn statuses(&self) -> BTreeMap<u16, usize> {
        let seen = self.0.lock().unwrap();
        let mut statuses = seen.statuses.clone();
        statuses.insert(0, seen.silent);
        statuses
    }

    /// What no company may have been shown, by the companies that own each row, and what is gone although somebody was
    /// told that it is there.
    pub fn complaints(&self, owners: &HashMap<Uuid, usize>) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        let mut complaints = seen.complaints.clone();
        for (company, id) in &seen.ids {
            if let Some(owner) = owners.get(id).filter(|owner| *owner != company) {
                let (shown, of) = (mark(*company), mark(*owner));
                complaints.push(format!("{shown} was shown the id {id}, which is {of}'s"));
            }
        }
        for (company, id) in &seen.promised {
            if !owners.contains_key(id) {
                let told = mark(*company);
                complaints.push(format!("{told} was told that {id} is there, and it is not"));
            }
        }
        complaints
    }

    /// How many ids of rows were shown.
    pub fn shown(&self, owners: &HashMap<Uuid, usize>) -> usize {
        let seen = self.0.lock().unwrap();
        let known = seen.ids.iter().filter(|(_, id)| owners.contains_key(id));
        known.count()
    }
}

impl Seen {
    fn complain(&mut self, complaint: String) {
        if self.complaints.len() < COMPLAINTS {
            self.complaints.push(complaint);
        }
    }
}

/// An answer after which one asks again.
pub fn is_not_for_good(status: u16) -> bool {
    status >= 500 || status == 429
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Uuid = Uuid::from_u128(0x0192_aaaa_bbbb_7ccc_8ddd_1234_5678_9abc);

    fn shown(company: usize, status: u16, text: &str) -> Answers {
        let answers = Answers::default();
        answers.note(
            company,
            &Answer {
                kind: Kind::Read,
                path: "/v1/approvals",
                sent: domain::clock::instant(),
                took: Duration::ZERO,
                status,
                text,
            },
        );
        answers
    }

    #[test]
    fn an_id_of_another_company_is_found() {
        let text = format!(r#"{{"items":[{{"id":"{ID}"}}]}}"#);
        let owners = HashMap::from([(ID, 3)]);
        assert!(shown(3, 200, &text).complaints(&owners).is_empty());
        let found = shown(4, 200, &text).complaints(&owners);
        assert_eq!(
            found,
            [format!(
                "company-004 was shown the id {ID}, which is company-003's"
            )]
        );
        assert!(
            shown(4, 404, &text).complaints(&owners).is_empty(),
            "a refusal repeats what was asked for"
        );
    }

    #[test]
    fn a_text_of_another_company_is_found_whatever_the_status() {
        for status in [200, 404] {
            let text = r#"{"customer": "customer 7 of company-012"}"#;
            let found = shown(1, status, text).complaints(&HashMap::new());
            assert_eq!(
                found,
                ["/v1/approvals: company-001 was shown a text of company-012"]
            );
            let own = shown(12, status, text).complaints(&HashMap::new());
            assert!(own.is_empty(), "{own:?}");
        }
    }

    #[test]
    fn what_was_acknowledged_and_is_gone_is_found() {
        let text = format!(r#"{{"run":{{"id":"{ID}"}}}}"#);
        let gone = shown(1, 202, &text).complaints(&HashMap::new());
        assert_eq!(
            gone,
            [format!(
                "company-001 was told that {ID} is there, and it is not"
            )]
        );
        let owners = HashMap::from([(ID, 1)]);
        assert!(shown(1, 202, &text).complaints(&owners).is_empty());
    }

    #[test]
    fn a_500_is_a_complaint_and_a_503_is_none() {
        let found = shown(1, 500, "internal").complaints(&HashMap::new());
        assert_eq!(found, ["/v1/approvals: 500 internal"]);
        let busy = shown(1, 503, "busy");
        assert!(busy.complaints(&HashMap::new()).is_empty());
        assert_eq!(busy.unanswered(), 1);
    }
}
