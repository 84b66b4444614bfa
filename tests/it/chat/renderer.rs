//! What a terminal shows of a conversation's events.

use serde_json::json;
use terminal::{event::ConversationEvent, renderer::Renderer, style::Style};

fn message(seq: i64, role: &str, run: &str, text: &str) -> ConversationEvent {
    let (role, run, text) = (role.to_owned(), run.to_owned(), text.to_owned());
    ConversationEvent::Message {
        seq,
        role,
        run,
        text,
        secret: false,
        waits: false,
    }
}

fn delta(text: &str) -> ConversationEvent {
    ConversationEvent::Delta {
        run: "a".to_owned(),
        text: text.to_owned(),
    }
}

fn shown(renderer: &mut Renderer, event: &[ConversationEvent]) -> String {
    for event in event {
        renderer.show(event);
    }
    renderer.take()
}

fn at_a_terminal() -> Renderer {
    Renderer::new(Style::of_width(40))
}

#[test]
fn at_a_terminal_only_what_changed_is_written_again() {
    let mut renderer = at_a_terminal();
    let first = shown(&mut renderer, &[delta("One.\n\nA **bo")]);
    assert!(first.ends_with("One.\n\nA **bo"), "{first:?}");
    assert_eq!(shown(&mut renderer, &[delta("l")]), "l");
    let bold = shown(&mut renderer, &[delta("d** word")]);
    assert_eq!(bold, "\r\u{1b}[JA \u{1b}[0;1mbold\u{1b}[0m word");
}

#[test]
fn at_a_terminal_a_call_is_one_line_when_it_is_over() {
    let mut renderer = at_a_terminal();
    let (call, server, tool) = ("c".to_owned(), "bank".to_owned(), "pay".to_owned());
    let started = ConversationEvent::ToolStarted { call, server, tool };
    assert_eq!(shown(&mut renderer, &[started]), "");
    assert_eq!(renderer.current_call(), Some("bank pay"));
    let finished = ConversationEvent::parse(
        "tool_finished",
        &json!({ "call_id": "c", "server": "bank", "tool": "pay", "status": "failed" }),
    );
    // Also where its start was not heard.
    for mut renderer in [renderer, at_a_terminal()] {
        let line = shown(&mut renderer, std::slice::from_ref(&finished));
        assert!(line.contains("bank pay: failed"), "{line:?}");
        assert_eq!(renderer.current_call(), None);
    }
}

#[test]
fn a_streamed_answer_is_not_repeated_and_not_cut() {
    let mut renderer = Renderer::new(Style::detect(true));
    let other = message(1, "system", "b", "Meanwhile.");
    assert_eq!(
        shown(&mut renderer, &[delta("So "), other, delta("it ended.")]),
        "‹ So it ended."
    );
    assert_eq!(
        shown(
            &mut renderer,
            &[message(2, "assistant", "a", "So it ended.")]
        ),
        "\n‹ Meanwhile.\n"
    );
}

#[test]
fn above_a_prompt_only_whole_lines_are_written() {
    let mut renderer = Renderer::new(Style::detect(true));
    renderer.show(&delta("one\ntwo"));
    assert_eq!(
        (renderer.take_lines(), renderer.take_lines()),
        ("‹ one\n".to_owned(), String::new())
    );
    renderer.show(&message(1, "assistant", "a", "one\ntwo"));
    assert_eq!(renderer.take_lines(), "two\n");
}

#[test]
fn after_a_gap_the_whole_message_is_said() {
    let mut renderer = Renderer::new(Style::detect(true));
    assert_eq!(shown(&mut renderer, &[delta("So ")]), "‹ So ");
    renderer.missed();
    let rest = [
        delta("ended."),
        message(1, "assistant", "a", "So it ended."),
    ];
    assert_eq!(
        shown(&mut renderer, &rest),
        "\n  (interrupted)\n‹ So it ended.\n"
    );
}

#[test]
fn history_is_not_said_again_and_nothing_steers_the_terminal() {
    let mut renderer = Renderer::new(Style::detect(true));
    renderer.mark_shown(1);
    let messages = [
        message(1, "system", "", "Old."),
        message(2, "system", "", "New\u{1b}[2J."),
    ];
    assert_eq!(shown(&mut renderer, &messages), "‹ New[2J.\n");
}
