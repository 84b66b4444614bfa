//! Names that are close to the name of a tool.

use chatelaine::domain::policy::names::is_close;

#[test]
fn names_are_close_in_a_letter_or_two_in_case_and_in_dashes() {
    for (name, tool) in [
        ("send_mony", "send_money"),
        ("send-money", "send_money"),
        ("Send_Money", "send_money"),
        ("sned_money", "send_money"),
        ("pay", "pax"),
    ] {
        assert!(is_close(name, tool), "{name} {tool}");
    }
    for (name, tool) in [
        ("send_money", "list_money"),
        ("pay", "buy"),
        ("send_mon*", "send_money"),
        ("get_balance", "get_rates"),
    ] {
        assert!(!is_close(name, tool), "{name} {tool}");
    }
}
