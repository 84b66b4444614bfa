//! What a request for consent is, without a database: small enough to be read and believed. Every action has an
//! answer in every state, so that any order of them is a test.
//!
//! People, requests and fences are numbers here; the one who compares knows their names.

use std::collections::BTreeMap;

use domain::{
    approval::{Choice, State},
    message::CallStatus,
};
use serde::Deserialize;

use super::{ASKS, DENIES, LIMITED, OF_TENANT, OF_USER, PEOPLE, Person, TIER, TOOLS};

/// What somebody does with one request.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Decide {
        by: usize,
        choice: Choice,
        /// Of the arguments that are there.
        right_hash: bool,
    },
    Cancel {
        by: usize,
    },
    Record {
        by: usize,
        happened: bool,
    },
    Claim,
    /// What an executor does: the one who claimed it last, or (1) the one before.
    Hold(usize, Held),
    /// What the sweep does.
    Expire,
    Lapse,
    GiveUp,
    /// What the clock does.
    Overdue,
    WindowOver,
    LeaseOver,
    LimitOver,
}

#[derive(Clone, Copy, Debug)]
pub enum Held {
    Beat,
    Start,
    Finish(CallStatus),
    Revoke,
    PutOff,
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub by: usize,
    pub tool: usize,
    pub amount: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Whether there was something to do.
    Was(bool),
    Is(State),
    /// The request, and whether it is a new one.
    Kept(usize, bool),
    /// By the code of the error.
    Refused(&'static str),
}

/// A request, as far as model and database can be compared.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Request {
    pub requester: String,
    pub tool: String,
    pub min_approvals: usize,
    pub self_approval: bool,
    pub state: State,
    pub votes: BTreeMap<String, Choice>,
    pub decided_by: Option<String>,
    pub overdue: bool,
    /// It was approved, and whether it is too late to begin.
    pub window_over: Option<bool>,
    /// Somebody has it or had it, and whether the lease is over.
    pub lease_over: Option<bool>,
    pub fence: usize,
    pub late_answer: bool,
    pub recorded_by: Option<String>,
    pub recorded_happened: Option<bool>,
}

/// Everything that is compared after each step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub requests: Vec<Request>,
    /// Action, actor and outcome of the lines in the audit trail.
    pub trail: Vec<(String, String, String)>,
    /// What the sweep would find.
    pub due: Vec<(usize, State)>,
    /// The numbers of one person's badges: own open requests, and those that wait for them.
    pub badges: (i64, i64),
    /// What counts for the limits.
    pub used: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    calls: Vec<Call>,
    pub requests: Vec<Request>,
    trail: Vec<(String, String, String)>,
    /// The pack wants more for some tools than it did before.
    pub strict: bool,
    /// What counts for the limits: the amounts of calls that were begun.
    used: usize,
    /// What the limits did.
    pub limited: Vec<&'static str>,
    /// Every transition that was made.
    pub turns: Vec<(State, State)>,
    /// In which states somebody came whose fence was an old one.
    pub fenced: Vec<State>,
}

fn is_open(state: State) -> bool {
    matches!(state, State::Pending | State::Approved | State::Executing)
}

impl Model {
    /// The consent that a call needs by now, the tiers of limits included; `None` when it is denied.
    fn consent(&self, call: Call) -> Option<(usize, bool)> {
        let total = self.used + call.amount;
        match call.tool {
            LIMITED if total > DENIES => None,
            LIMITED if total > ASKS => Some(TIER),
            tool => Some(TOOLS[tool].consent(self.strict)),
        }
    }

    pub fn ask(&mut self, call: Call) -> Answer {
        let Some((min_approvals, self_approval)) = self.consent(call) else {
            self.limited.push("denied");
            return Answer::Refused("denied");
        };
        let open = |at: &usize| is_open(self.requests[*at].state);
        let open: Vec<usize> = (0..self.requests.len()).filter(open).collect();
        let same = |at: &&usize| {
            let Call { by, tool, amount } = self.calls[**at];
            (by, tool, amount) == (call.by, call.tool, call.amount)
        };
        if let Some(same) = open.iter().find(same) {
            return Answer::Kept(*same, false);
        }
        let own = open
            .iter()
            .filter(|at| self.calls[**at].by == call.by)
            .count();
        if own >= OF_USER || open.len() >= OF_TENANT {
            return Answer::Refused("conflict");
        }
        if call.tool == LIMITED && self.used + call.amount > ASKS {
            self.limited.push("asked by a tier");
        }
        self.calls.push(call);
        self.requests.push(Request {
            requester: PEOPLE[call.by].name.to_owned(),
            tool: TOOLS[call.tool].name.to_owned(),
            min_approvals,
            self_approval,
            state: State::Pending,
            votes: BTreeMap::new(),
            decided_by: None,
            overdue: false,
            window_over: None,
            lease_over: None,
            fence: 0,
            late_answer: false,
            recorded_by: None,
            recorded_happened: None,
        });
        let at = self.requests.len() - 1;
        self.note(at, "requested", PEOPLE[call.by].name);
        Answer::Kept(at, true)
    }

    /// `newest` is the fence of whoever claimed it last before anything of this step was done.
    pub fn act(&mut self, at: usize, action: Action, newest: usize) -> Answer {
        let request = &mut self.requests[at];
        match action {
            Action::Decide {
                by,
                choice,
                right_hash,
            } => self.decide(at, &PEOPLE[by], choice, right_hash),
            Action::Cancel { by } => self.cancel(at, &PEOPLE[by]),
            Action::Record { by, happened } => self.record(at, &PEOPLE[by], happened),
            Action::Claim => {
                let free = request.state == State::Approved
                    && request.window_over == Some(false)
                    && request.lease_over != Some(false);
                if free {
                    request.fence += 1;
                    request.lease_over = Some(false);
                }
                Answer::Was(free)
            }
            Action::Hold(back, held) if back < newest => self.hold(at, held, newest - back),
            Action::Hold(..) => Answer::Done,
            Action::Expire => {
                let due = request.state == State::Pending && request.overdue;
                self.swept(at, due, State::Expired, "expired")
            }
            Action::Lapse => {
                let late = request.window_over == Some(true) && request.lease_over != Some(false);
                let due = request.state == State::Approved && late;
                self.swept(at, due, State::Lapsed, "lapsed")
            }
            Action::GiveUp => {
                let due = request.state == State::Executing && request.lease_over == Some(true);
                self.swept(at, due, State::OutcomeUnknown, "executed")
            }
            Action::Overdue => {
                request.overdue = true;
                Answer::Done
            }
            Action::WindowOver => {
                request.window_over = request.window_over.map(|_| true);
                Answer::Done
            }
            Action::LeaseOver => {
                request.lease_over = request.lease_over.map(|_| true);
                Answer::Done
            }
            Action::LimitOver => {
                self.used = 0;
                Answer::Done
            }
        }
    }

    fn decide(&mut self, at: usize, by: &Person, choice: Choice, right_hash: bool) -> Answer {
        let consent = self.consent(self.calls[at]);
        let (tool, request) = (self.calls[at].tool, &mut self.requests[at]);
        let (holds, own) = (by.may(tool), by.name == request.requester);
        if by.roles.is_empty() || !holds || (own && !request.self_approval) {
            return refused(by, own);
        }
        if !right_hash {
            return Answer::Refused("conflict");
        }
        if let Some(before) = request.votes.get(by.name) {
            return if *before == choice {
                Answer::Is(request.state)
            } else {
                Answer::Refused("conflict")
            };
        }
        if request.state != State::Pending || request.overdue {
            return Answer::Refused("conflict");
        }
        let asked_under = (request.min_approvals, request.self_approval);
        if choice == Choice::Approve && Some(asked_under) != consent {
            if consent.is_none() {
                self.limited.push("too much at a vote");
            }
            self.turn(at, State::Revoked);
            self.note(at, "revoked", "system");
            return Answer::Refused("conflict");
        }
        request.votes.insert(by.name.to_owned(), choice);
        let approvals = request
            .votes
            .values()
            .filter(|vote| **vote == Choice::Approve)
            .count();
        if choice == Choice::Reject {
            request.decided_by = Some(by.name.to_owned());
            self.turn(at, State::Rejected);
        } else if approvals >= request.min_approvals {
            request.decided_by = Some(by.name.to_owned());
            request.window_over = Some(false);
            self.turn(at, State::Approved);
        }
        self.note(
            at,
            if choice == Choice::Approve {
                "approved"
            } else {
                "rejected"
            },
            by.name,
        );
        Answer::Is(self.requests[at].state)
    }

    fn cancel(&mut self, at: usize, by: &Person) -> Answer {
        let request = &mut self.requests[at];
        if by.name != request.requester {
            return Answer::Refused("not_found");
        }
        if request.state == State::Cancelled {
            return Answer::Is(State::Cancelled);
        }
        if request.state != State::Pending || request.overdue {
            return Answer::Refused("conflict");
        }
        request.decided_by = Some(by.name.to_owned());
        self.turn(at, State::Cancelled);
        self.note(at, "cancelled", by.name);
        Answer::Is(State::Cancelled)
    }

    fn record(&mut self, at: usize, by: &Person, happened: bool) -> Answer {
        let (holds, request) = (by.may(self.calls[at].tool), &mut self.requests[at]);
        if !holds {
            return refused(by, by.name == request.requester);
        }
        if let Some(first) = &request.recorded_by {
            let again = first == by.name && request.recorded_happened == Some(happened);
            return if again {
                Answer::Is(request.state)
            } else {
                Answer::Refused("conflict")
            };
        }
        if request.state != State::OutcomeUnknown {
            return Answer::Refused("conflict");
        }
        request.recorded_by = Some(by.name.to_owned());
        request.recorded_happened = Some(happened);
        self.note(at, "recorded", by.name);
        Answer::Is(State::OutcomeUnknown)
    }

    fn hold(&mut self, at: usize, held: Held, fence: usize) -> Answer {
        let (call, consent) = (self.calls[at], self.consent(self.calls[at]));
        let request = &mut self.requests[at];
        let holds = request.fence == fence;
        let (approved, executing) = (
            request.state == State::Approved,
            request.state == State::Executing,
        );
        let requester = PEOPLE[self.calls[at].by].name;
        if !holds {
            self.fenced.push(request.state);
        }
        match held {
            Held::Beat => {
                let alive = holds && (approved || executing);
                if alive {
                    request.lease_over = Some(false);
                }
                return Answer::Was(alive);
            }
            Held::PutOff if holds && approved => request.lease_over = Some(false),
            Held::Start if holds && approved => {
                // Nothing but limits is looked at again in the moment in which it begins.
                if call.tool == LIMITED {
                    if consent != Some((request.min_approvals, request.self_approval)) {
                        self.limited.push("too much to begin");
                        return Answer::Was(false);
                    }
                    self.used += call.amount;
                }
                self.turn(at, State::Executing);
                self.note(at, "executing", requester);
                return Answer::Was(true);
            }
            Held::Start => return Answer::Refused("conflict"),
            Held::Finish(status) if holds && executing => {
                let to = match status {
                    CallStatus::Succeeded => State::Succeeded,
                    CallStatus::OutcomeUnknown => State::OutcomeUnknown,
                    _ => State::Failed,
                };
                self.turn(at, to);
                self.note(at, "executed", requester);
            }
            Held::Finish(_) if request.state == State::OutcomeUnknown && !request.late_answer => {
                request.late_answer = true;
                self.note(at, "evidence", requester);
            }
            Held::Revoke if holds && approved => {
                self.turn(at, State::Revoked);
                self.note(at, "revoked", "system");
            }
            Held::PutOff | Held::Finish(_) | Held::Revoke => {}
        }
        Answer::Done
    }

    fn swept(&mut self, at: usize, due: bool, to: State, action: &str) -> Answer {
        if due {
            self.turn(at, to);
            self.note(at, action, "system");
        }
        Answer::Was(due)
    }

    fn turn(&mut self, at: usize, to: State) {
        let request = &mut self.requests[at];
        assert!(
            request.state.can_become(to),
            "the model itself: {:?} → {to:?}",
            request.state
        );
        self.turns.push((request.state, to));
        request.state = to;
        if to != State::Executing {
            request.lease_over = None;
        }
    }

    fn note(&mut self, at: usize, action: &str, actor: &str) {
        let outcome = self.requests[at].state.into_str().to_owned();
        self.trail
            .push((format!("approval.{action}"), actor.to_owned(), outcome));
    }

    /// With the badges of this person.
    pub fn view(&self, person: usize) -> View {
        let person = &PEOPLE[person];
        let due = self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, request)| match request.state {
                State::Pending => request.overdue,
                State::Approved => request.lease_over != Some(false),
                State::Executing => request.lease_over == Some(true),
                _ => false,
            });
        View {
            requests: self.requests.clone(),
            trail: self.trail.clone(),
            due: due.map(|(at, request)| (at, request.state)).collect(),
            badges: (self.own(person), self.waiting(person)),
            used: self.used,
        }
    }

    fn own(&self, person: &Person) -> i64 {
        let own = self
            .requests
            .iter()
            .filter(|request| is_open(request.state) && request.requester == person.name);
        i64::try_from(own.count()).unwrap()
    }

    fn waiting(&self, person: &Person) -> i64 {
        let waiting = self
            .requests
            .iter()
            .zip(&self.calls)
            .filter(|(request, call)| {
                request.state == State::Pending
                    && !request.overdue
                    && person.may(call.tool)
                    && (request.requester != person.name || request.self_approval)
                    && !request.votes.contains_key(person.name)
            });
        i64::try_from(waiting.count()).unwrap()
    }
}

/// To a person without any such role, and to the requester, who knows of the request, it is forbidden; to others it
/// is not there.
fn refused(by: &Person, own: bool) -> Answer {
    Answer::Refused(if by.roles.is_empty() || own {
        "forbidden"
    } else {
        "not_found"
    })
}
