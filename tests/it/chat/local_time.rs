//! Times in the zone of the terminal.

use jiff::tz::TimeZone;
use terminal::local_time::{in_text, in_zone};

#[test]
fn times_are_local_and_other_words_stay() {
    let zone = TimeZone::fixed(jiff::tz::offset(1));
    assert_eq!(
        in_zone("2026-11-23T08:05:00Z", &zone).as_deref(),
        Some("23 Nov 09:05")
    );
    assert_eq!(in_zone("2026-11-23", &zone), None);
    assert_eq!(
        in_text("You approved\n  it. 2026-01-31"),
        "You approved\n  it. 2026-01-31"
    );
    assert!(!in_text("at (2026-11-23T08:05:00Z), then").contains('Z'));
    let arguments = "    {\"note\":\"not before 2026-11-23T08:05:00Z please\"}";
    assert_eq!(
        in_text(&format!("x\n\n{arguments}\n")),
        format!("x\n\n{arguments}\n")
    );
}
