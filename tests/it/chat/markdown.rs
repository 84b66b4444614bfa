//! Markdown at a terminal.

use terminal::{markdown::render, style::Style};

fn plain(text: &str) -> String {
    let rendered = render(text, &Style::of_width(32));
    let mut plain = String::new();
    let mut pieces = rendered.split("\u{1b}[");
    plain.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        plain.push_str(piece.split_once('m').map_or("", |(_, text)| text));
    }
    plain
}

#[test]
fn blocks_are_apart_and_lists_are_indented() {
    let text =
        "# Rates\nOne **euro** is *1.08* dollars today, and was more.\n\n- a\n- b\n  1. c\n\nEnd.";
    let expected =
        "Rates\n\nOne euro is 1.08 dollars today,\nand was more.\n\n• a\n• b\n  1. c\n\nEnd.";
    assert_eq!(plain(text), expected);
}

#[test]
fn code_tables_quotes_and_links_keep_their_shape() {
    assert_eq!(
        plain("```sh\nls  -l\n\ncat x\n```"),
        "  ls  -l\n\n  cat x".replace("\n\n", "\n  \n")
    );
    assert_eq!(plain("| a | b |\n|---|--:|\n| one | 2 |"), "a    b\none  2");
    assert_eq!(plain("> said\n> again"), "│ said\n│ again");
    assert_eq!(plain("[here](https://a.b)"), "here (https://a.b)");
    assert_eq!(plain("a\nb"), "a\nb");
}

#[test]
fn attributes_are_ended_on_every_line() {
    let style = Style::of_width(20);
    let shown = render("**one two three four five six**", &style);
    for line in shown.lines() {
        assert!(
            line.starts_with("\u{1b}[0;1m") && line.ends_with("\u{1b}[0m"),
            "{line:?}"
        );
    }
}
