//! What a terminal completes.

use terminal::completion::Words;

#[test]
fn commands_servers_and_codes_are_completed_where_they_belong() {
    let words = Words::default();
    words.set_servers(vec!["bank".to_owned(), "notes".to_owned()]);
    words.set_codes(vec!["V8RZ".to_owned()]);
    words.set_skills(vec!["rate".to_owned()]);
    let complete = |line: &str| words.complete(line).1.concat();
    assert_eq!(complete("/approv"), "/approvals /approve ");
    assert_eq!(complete("/ra"), "/rate ");
    assert_eq!(words.complete("/connect n"), (9, vec!["notes ".to_owned()]));
    assert_eq!(complete("/approve v8"), "V8RZ ");
    assert_eq!(complete("what is /"), "");
}
