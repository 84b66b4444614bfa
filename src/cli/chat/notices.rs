//! Lines about approval requests: one when another user's request needs this user's decision, one when
//! another approver has decided it. The server sends states, some of them twice; each line is shown once.

use std::collections::HashMap;

use serde_json::Value;

pub struct Notices {
    /// The user who reads them.
    me: String,
    /// The requests that this user may have seen, with the last notice about each.
    known: HashMap<String, NoticeState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NoticeState {
    Waits,
    Decided,
    /// Nobody knows whether it was carried out.
    Unknown,
}

impl Notices {
    pub fn new(me: String) -> Self {
        Self {
            me,
            known: HashMap::new(),
        }
    }

    /// What waits already at the start is said in one line. `more`: these are not all.
    pub fn begin(&mut self, waiting: &[Value], more: bool) -> Option<String> {
        let theirs = waiting.iter().filter(|request| request["own"] != true);
        self.known
            .extend(theirs.map(|request| (id(request), NoticeState::Waits)));
        match waiting.len() {
            0 => None,
            1 => Some("⏳ 1 request waits for your decision: /approvals".to_owned()),
            many => {
                let more = if more { "More than " } else { "" };
                Some(format!(
                    "⏳ {more}{many} requests wait for your decision: /approvals"
                ))
            }
        }
    }

    /// Takes a request's current state; returns the line to show. The user's own requests are shown in their
    /// conversation.
    pub fn receive(&mut self, request: &Value) -> Option<String> {
        if request["own"] == true {
            return None;
        }
        let known = self.known.get(&id(request)).copied();
        let by_me = request["decided_by"] == self.me.as_str();
        let (said, aloud) = match (request["state"].as_str()?, known) {
            ("pending", None) if request["decidable"] == true => (NoticeState::Waits, true),
            ("pending", _) | (_, None | Some(NoticeState::Unknown)) => return None,
            ("outcome_unknown", _) => (NoticeState::Unknown, true),
            (_, Some(NoticeState::Waits)) => (NoticeState::Decided, !by_me),
            (_, Some(NoticeState::Decided)) => return None,
        };
        self.known.insert(id(request), said);
        let text = request["text"].as_str()?;
        aloud.then(|| {
            if said == NoticeState::Waits {
                format!("{text} /approvals shows it.")
            } else {
                text.to_owned()
            }
        })
    }
}

fn id(request: &Value) -> String {
    request["id"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(state: &str, by: Option<&str>) -> Value {
        json!({ "id": "1", "state": state, "own": false, "decidable": state == "pending", "decided_by": by,
                "text": format!("{state}.") })
    }

    fn said(notices: &mut Notices, state: &str, by: Option<&str>) -> String {
        notices.receive(&request(state, by)).unwrap_or_default()
    }

    #[test]
    fn a_request_is_told_once_and_so_is_somebody_elses_decision() {
        let mut notices = Notices::new("bob".to_owned());
        assert_eq!(
            said(&mut notices, "pending", None),
            "pending. /approvals shows it."
        );
        assert_eq!(said(&mut notices, "pending", None), "");
        assert_eq!(said(&mut notices, "approved", Some("carl")), "approved.");
        for state in ["approved", "executing", "succeeded", "pending"] {
            assert_eq!(said(&mut notices, state, Some("carl")), "", "{state}");
        }
    }

    #[test]
    fn ones_own_decision_is_no_news_but_an_outcome_that_nobody_knows_is() {
        let mut notices = Notices::new("bob".to_owned());
        said(&mut notices, "pending", None);
        assert_eq!(said(&mut notices, "executing", Some("bob")), "");
        assert_eq!(
            said(&mut notices, "outcome_unknown", Some("bob")),
            "outcome_unknown."
        );
        assert_eq!(said(&mut notices, "outcome_unknown", Some("bob")), "");
    }

    #[test]
    fn what_was_there_before_is_one_line() {
        let mut notices = Notices::new("bob".to_owned());
        assert_eq!(notices.begin(&[], false), None);
        let line = notices.begin(&[request("pending", None)], false);
        assert_eq!(
            line.as_deref(),
            Some("⏳ 1 request waits for your decision: /approvals")
        );
        assert_eq!(said(&mut notices, "pending", None), "");
        assert_eq!(said(&mut notices, "rejected", Some("carl")), "rejected.");
    }

    #[test]
    fn what_ended_before_and_ones_own_requests_are_not_told() {
        let mut notices = Notices::new("bob".to_owned());
        assert_eq!(said(&mut notices, "rejected", Some("carl")), "");
        let mut own = request("pending", None);
        own["own"] = true.into();
        assert_eq!(notices.receive(&own), None);
    }
}
