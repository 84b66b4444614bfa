//! What the model calls a tool.

mod socket; // and what its server is asked for then

use std::collections::HashSet;

use domain::{
    lookalike::{are_lookalikes, skeleton, spell_out},
    names::{Candidate, assign},
    policy::Standing,
};
use proptest::prelude::*;

fn names(pairs: &[(&str, &str)]) -> Vec<String> {
    assign(pairs.iter().map(|(server, tool)| Candidate {
        server,
        tool,
        standing: Standing::Unnamed,
    }))
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
fn a_new_tool_renames_none_that_the_pack_names_and_none_that_is_spelt_like_the_name() {
    let with = |first: (&str, Standing), second: (&str, Standing)| {
        assign([first, second].iter().map(|(tool, standing)| Candidate {
            server: "bank",
            tool,
            standing: *standing,
        }))
    };
    let other = Standing::Unnamed;
    for standing in [Standing::Named, Standing::Guarded, Standing::GuardedByName] {
        for (own, new) in [
            ("send.money", "send_money"),
            ("send_money", "send.money"),
            ("send.money", "send/money"),
        ] {
            let both = with((own, standing), (new, other));
            assert_eq!(both[0], "bank__send_money", "{own} {new}");
            assert!(both[1].starts_with("bank__send_money_"), "{both:?}");
            let turned = with((new, other), (own, standing));
            assert_eq!([&turned[1], &turned[0]], [&both[0], &both[1]]);
        }
    }
    let both = with(("send_money", other), ("send.money", other));
    assert_eq!(both[0], "bank__send_money");
}

#[test]
fn a_tool_that_is_called_like_the_hashed_name_of_another_has_a_name_of_its_own() {
    let hashed = names(&[("a", "read.file"), ("a", "read/file")])[0].clone();
    let third = hashed.strip_prefix("a__").unwrap();
    let all = names(&[("a", "read.file"), ("a", "read/file"), ("a", third)]);
    assert_eq!(all[0], hashed);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 3, "{all:?}");
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
        let both = |at: &usize| (pairs[*at].0.as_str(), pairs[*at].1.as_str());
        let plain = names(&(0..pairs.len()).map(|at| both(&at)).collect::<Vec<_>>());
        let other = names(&shuffled.iter().map(both).collect::<Vec<_>>());
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
    for (one, other) in [("ann", "anna"), ("ann", "ann2"), ("a-b", "a_b")] {
        assert!(!are_lookalikes(one, other), "{one:?} {other:?}");
    }
    assert!(!are_lookalikes("fred", "fred"));
    // A provider that ignores case takes them for one person.
    assert!(are_lookalikes("fred", "Fred"));
    assert_eq!(spell_out("fre\u{501}"), "fre\u{501}(U+0501)");
}
