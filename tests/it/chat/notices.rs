//! What a terminal says about requests for consent.

use serde_json::{Value, json};
use terminal::notices::Notices;

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
    let waiting =
        |count: u64| json!({ "text": format!("{count} wait."), "count": count, "link": "/1" });
    let one = notices.receive_waiting(&waiting(1));
    assert_eq!(one.as_deref(), Some("1 wait."));
    assert_eq!(said(&mut notices, "pending", None), "");
    // Another conversation is opened.
    assert_eq!(notices.receive_waiting(&waiting(1)), None);
    let more = notices.receive_waiting(&waiting(2));
    assert_eq!(more.as_deref(), Some("2 wait."));
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
fn what_ended_before_and_ones_own_requests_are_not_told() {
    let mut notices = Notices::new("bob".to_owned());
    assert_eq!(said(&mut notices, "rejected", Some("carl")), "");
    let mut own = request("pending", None);
    own["own"] = true.into();
    assert_eq!(notices.receive(&own), None);
}
