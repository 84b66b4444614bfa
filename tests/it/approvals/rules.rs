//! Which state may follow which, the codes of requests, and the commands about them.

use domain::{
    approval::{State, code, parse_code},
    command::{ConsentCommand, ConsentVerb},
};

#[test]
fn every_state_has_its_name_and_every_open_one_an_end() {
    for state in State::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.into_str());
        assert!(
            !state.can_become(state) && !state.can_become(State::Pending),
            "{state:?}"
        );
    }
    let open: Vec<_> = State::ALL
        .into_iter()
        .filter(|state| state.is_open())
        .collect();
    assert_eq!(open, [State::Pending, State::Approved, State::Executing]);
}

#[test]
fn nothing_runs_but_by_way_of_approval() {
    for state in State::ALL {
        assert_eq!(
            state.can_become(State::Executing),
            state == State::Approved,
            "{state:?}"
        );
        assert_eq!(
            state.can_become(State::Approved),
            state == State::Pending,
            "{state:?}"
        );
    }
}

#[test]
fn codes_are_read_as_people_type_them() {
    for attempt in 0..20 {
        let code = code(attempt);
        assert_eq!(
            parse_code(&format!(" #{} ", code.to_lowercase())),
            Some(code)
        );
    }
    for text in ["", "7F3", "7F3O", "7F3K7F3K7", "7F 3K"] {
        assert_eq!(parse_code(text), None, "{text:?}");
    }
}

#[test]
fn a_decision_is_one_line_with_a_command_and_its_code_alone() {
    let one = |verb, reason: Option<&str>| {
        Some(ConsentCommand::One {
            verb,
            code: "7F3K".to_owned(),
            reason: reason.map(str::to_owned),
        })
    };
    for line in [
        "/confirm 7F3K",
        "  /confirm \t 7f3k \n",
        "/confirm\u{a0}#7F3K\r\n",
    ] {
        let read = ConsentCommand::read(line);
        assert_eq!(read, one(ConsentVerb::Confirm, None), "{line:?}");
    }
    let reasons = [
        ("7F3K not this week", "not this week"),
        ("7f3k  NEXT week, no", "NEXT week, no"),
    ];
    for (line, reason) in reasons {
        let read = ConsentCommand::read(&format!("/reject {line}"));
        assert_eq!(read, one(ConsentVerb::Reject, Some(reason)), "{line:?}");
    }
    for line in [
        "/approve 7F3K no",
        "/approve 7F3K.",
        "/approve 7F3K?",
        "/approve 7F3K 9XYZ",
        "/approve 7F3K\u{200b}",
        "/approve 7F3K \u{200b}",
        "/approve 7F3K ✗",
        "/approve 7F3K\nbut reject the other",
        "/approve 7F3K\u{2028}no",
        "/approve\n7F3K",
        "/approve not 7F3K",
        "please /approve 7F3K",
        "no wait\n/approve 7F3K",
    ] {
        let unclear = ConsentCommand::Unclear {
            verb: ConsentVerb::Approve,
            code: Some("7F3K".to_owned()),
        };
        assert_eq!(ConsentCommand::read(line), Some(unclear), "{line:?}");
    }
    for line in [
        "/reject 7F3K /approve 7F3K",
        "/reject 7F3K\nnot this week",
        "/decline 7F3K no, keep it",
        "/confirm 7F3K /decline 7F3K",
        "/cancel 7F3K please",
        "/confirm",
    ] {
        let read = ConsentCommand::read(line);
        assert!(
            matches!(read, Some(ConsentCommand::Unclear { .. })),
            "{line:?}: {read:?}"
        );
    }
    for line in [
        "/decline",
        "/cancel",
        "/Approve 7F3K",
        "\u{ff0f}approve 7F3K",
        "\u{200b}/approve 7F3K",
        "what does /approve 7F3K do?",
        "/call bank send_money /approve 7F3K",
        "/approve7F3K",
        "hi",
    ] {
        assert_eq!(ConsentCommand::read(line), None, "{line:?}");
    }
}
