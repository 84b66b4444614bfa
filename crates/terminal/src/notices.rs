//! Lines about approval requests: one when the request of another user needs this user's decision, one when another
//! approver has decided it, and one when a call that this user approved has ended. The server sends notices of what waits,
//! again to each conversation that is opened, and states, some of them twice; each line is shown once.

use std::collections::HashMap;

use serde_json::Value;

pub struct Notices {
    /// The user who reads them.
    me: String,
    /// The requests that this user may have seen, with the last notice about each.
    known: HashMap<String, NoticeState>,
    /// The address and the number of the last notice of what waits.
    waiting: Option<(String, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NoticeState {
    Waits,
    Decided,
    /// The call of a request that this user approved has ended.
    Ended,
    /// It is not known whether the call was carried out.
    Unknown,
}

impl Notices {
    pub fn new(me: String) -> Self {
        Self {
            me,
            known: HashMap::new(),
            waiting: None,
        }
    }

    /// Takes a notice of what waits for the user's decision, and returns the line to show.
    pub fn receive_waiting(&mut self, notice: &Value) -> Option<String> {
        let told = Some((
            notice["link"].as_str()?.to_owned(),
            notice["count"].as_u64()?,
        ));
        let is_new = self.waiting != told;
        self.waiting = told;
        is_new.then(|| notice["text"].as_str().map(str::to_owned))?
    }

    /// Takes the current state of a request, and returns the line to show. The user's own requests are shown in their
    /// conversation.
    pub fn receive(&mut self, request: &Value) -> Option<String> {
        if request["own"] == true {
            return None;
        }
        let known = self.known.get(&id(request)).copied();
        let by_me = request["decided_by"] == self.me.as_str();
        let approved_by_me = request["votes"].as_array().is_some_and(|votes| {
            votes
                .iter()
                .any(|vote| vote["by"] == self.me.as_str() && vote["decision"] == "approve")
        });
        let (said, aloud) = match (request["state"].as_str()?, known) {
            // The notice of the conversation has told it.
            ("pending", None) if request["decidable"] == true => (NoticeState::Waits, false),
            ("pending", _) | (_, None | Some(NoticeState::Unknown | NoticeState::Ended)) => {
                return None;
            }
            ("outcome_unknown", _) => (NoticeState::Unknown, true),
            ("approved" | "executing", Some(NoticeState::Decided)) => return None,
            (state, _) if approved_by_me && !["approved", "executing"].contains(&state) => {
                (NoticeState::Ended, true)
            }
            (_, Some(NoticeState::Waits)) => (NoticeState::Decided, !by_me),
            (_, Some(NoticeState::Decided)) => return None,
        };
        self.known.insert(id(request), said);
        let text = request["text"].as_str()?;
        aloud.then(|| text.to_owned())
    }
}

fn id(request: &Value) -> String {
    request["id"].as_str().unwrap_or_default().to_owned()
}
