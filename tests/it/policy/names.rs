//! Names that are close to the name of a tool, and tools that look like another.

use domain::policy::{ToolPattern, names::is_close};

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

fn can_be_taken(guard: &str, tool: &str) -> bool {
    ToolPattern(guard.to_owned()).can_be_taken_for(tool)
}

#[test]
fn a_tool_is_taken_for_another_by_case_separators_looks_and_versions() {
    for tool in [
        "Send_Money",
        "SEND-MONEY",
        "sendMoney",
        "sendmoney",
        "send.money",
        "send/money",
        "send:money",
        "_send__money_",
        "send_m0ney",
        "send_rnoney",
        "s\u{435}nd_m\u{43e}ney",
        "\u{ff53}end_money",
        "send_m\u{3bf}ney",
        "send_money2",
        "send_money_2",
        "send_money_v2",
        "sendMoneyV2",
        "send_money_v2.1",
        "send_money_version_3",
        "send_money_new",
        "SendMoneyNew",
        "send_money_old",
        "send_money_beta",
        "send_money_2025-11-25",
        "send_money_new_2",
        "v2/send_money",
        "beta_send_money",
    ] {
        assert!(can_be_taken("send_money", tool), "{tool}");
    }
    for tool in [
        "send_money_status",
        "send_mail",
        "resend_money",
        "send_monkey",
        "money_send",
        "send",
        "money",
        "send_money_to",
        "list_send_money",
        "send_money_v",
        "get_balance",
    ] {
        assert!(!can_be_taken("send_money", tool), "{tool}");
    }
}

#[test]
fn a_version_in_the_guarded_name_is_a_version_and_a_number_alone_is_not() {
    assert!(can_be_taken("send_money_v2", "send_money"));
    assert!(can_be_taken("send_money_v2", "send_money_v3"));
    assert!(can_be_taken("send_money_new", "sendmoney"));
    assert!(can_be_taken("approve_tier2", "approve_tier_2"));
    assert!(!can_be_taken("approve_tier2", "approve_tier1"));
    assert!(!can_be_taken("approve_tier2", "approve_tier"));
}

#[test]
fn a_wildcard_beside_a_separator_stands_for_words() {
    for tool in [
        "Pay_money",
        "payMoney",
        "paymoney",
        "pay.money",
        "PAY",
        "pay/x_v2",
    ] {
        assert_eq!(can_be_taken("pay_*", tool), tool != "PAY", "{tool}");
    }
    for tool in ["payments_list", "payeeSearch", "repay_money", "list_pay"] {
        assert!(!can_be_taken("pay_*", tool), "{tool}");
    }
    assert!(can_be_taken("*_money", "sendMoney"));
    assert!(can_be_taken("*_money", "send.money_v2"));
    assert!(can_be_taken("get_*_secret", "get.User.Secret"));
    assert!(!can_be_taken("*_*", "ping"));
}
