//! What the model calls a tool.

mod socket; // and what its server is asked for then

use std::collections::HashSet;

use chatelaine::domain::{
    lookalike::{are_lookalikes, skeleton, spell_out},
    names::assign,
};
use proptest::prelude::*;

fn names(pairs: &[(&str, &str)]) -> Vec<String> {
    assign(pairs.iter().copied())
}

#[test]
fn a_plain_name_is_server_and_tool() {
    assert_eq!(names(&[("bank", "get_balances")]), ["bank__get_balances"]);
}

#[test]
fn what_a_model_cannot_say_is_folded() {
    assert_eq!(names(&[("files", "read.file")]), ["files__read_file"]);
}

#[test]
fn a_name_begins_as_every_provider_wants_it() {
    assert_eq!(
        names(&[("2nd", "read"), ("Ab", "read")]),
        ["_2nd__read", "Ab__read"]
    );
}

#[test]
fn the_same_tool_of_two_servers_has_two_names() {
    assert_eq!(names(&[("a-b", "x"), ("a_b", "x")]), ["a-b__x", "a_b__x"]);
}

#[test]
fn two_tools_that_fold_to_one_name_both_get_a_hash() {
    let both = names(&[("a", "read.file"), ("a", "read/file")]);
    assert_ne!(both[0], both[1]);
    assert!(
        both.iter().all(|name| name.starts_with("a__read_file_")),
        "{both:?}"
    );
}

#[test]
fn a_long_name_is_cut_and_stays_apart_from_its_sibling() {
    let long = "x".repeat(128);
    let (first, second) = (format!("{long}1"), format!("{long}2"));
    let both = names(&[("server", &first), ("server", &second)]);
    assert_ne!(both[0], both[1]);
    assert!(both.iter().all(|name| name.len() == 64), "{both:?}");
}

proptest! {
    #[test]
    fn names_are_valid_unique_and_independent_of_the_order(
        pairs in prop::collection::hash_set(("[a-c0-1][a-c_]{0,2}", "[a-c_./é]{1,70}"), 1..20),
        seed: u64,
    ) {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let mut shuffled: Vec<_> = (0..pairs.len()).collect();
        shuffled.sort_by_key(|at| (u64::try_from(*at).unwrap_or(0) ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let plain = assign(pairs.iter().map(|(s, t)| (s.as_str(), t.as_str())));
        let other = assign(shuffled.iter().map(|at| (pairs[*at].0.as_str(), pairs[*at].1.as_str())));
        for (place, at) in shuffled.iter().enumerate() {
            prop_assert_eq!(&other[place], &plain[*at]);
        }
        prop_assert_eq!(plain.iter().collect::<HashSet<_>>().len(), plain.len());
        for name in &plain {
            prop_assert!(!name.starts_with(|c: char| c.is_ascii_digit()));
            prop_assert!(name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        }
    }
}

#[test]
fn texts_that_look_alike_have_one_skeleton() {
    for (one, other) in [
        ("fred", "fre\u{501}"),
        ("paypal", "p\u{430}yp\u{430}l"),
        ("send_money", "\u{455}end_m\u{43e}n\u{435}y"),
        ("Alpha", "\u{391}lpha"),
        ("send_money", "\u{ff53}end_money"),
        ("Ivan", "lvan"),
        ("amy", "arny"),
        ("fred", "fr\u{200b}ed"),
        ("fred", "fred "),
        ("fred smith", "fred\u{a0}smith"),
        ("\u{e9}mile", "e\u{301}mile"),
    ] {
        assert_eq!(skeleton(one), skeleton(other), "{one:?} {other:?}");
        assert!(are_lookalikes(one, other), "{one:?} {other:?}");
    }
    for (one, other) in [
        ("fred", "Fred"),
        ("ann", "anna"),
        ("ann", "ann2"),
        ("a-b", "a_b"),
    ] {
        assert!(!are_lookalikes(one, other), "{one:?} {other:?}");
    }
    assert!(!are_lookalikes("fred", "fred"));
    assert_eq!(spell_out("fre\u{501}"), "fre\u{501}(U+0501)");
}
