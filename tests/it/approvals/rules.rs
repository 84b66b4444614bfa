//! Which state may follow which, and the codes of requests.

use domain::approval::{State, code, parse_code};

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
