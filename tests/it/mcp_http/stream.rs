//! Streams of events as the HTML standard has them (9.2.6), whatever the bytes look like and however they are cut.

use domain::clock;
use futures_util::FutureExt;
use mcp::fuzzing;
use proptest::prelude::*;
use sse_stream::Sse;

use crate::support::servers::soon;

/// The events of a body that comes in these pieces, written out.
async fn events(pieces: &[&[u8]]) -> Vec<String> {
    let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
    soon(fuzzing::events(pieces)).await
}

/// The same outside of a runtime: nothing of it waits.
fn at_once(pieces: Vec<Vec<u8>>) -> Vec<String> {
    fuzzing::events(pieces)
        .now_or_never()
        .expect("all pieces are there")
}

fn written(event: Sse) -> String {
    format!("{:?}", Ok::<_, String>(event))
}

fn data(text: &str) -> Sse {
    Sse::default().data(text)
}

/// What the standard says of a body whose last event is over, read with all of it at hand.
fn as_the_standard_says(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut events, mut event) = (Vec::new(), None::<Sse>);
    for line in text.split('\n') {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "" if line.is_empty() => events.extend(event.take().map(written)),
            "data" => {
                let data = &mut event.get_or_insert_default().data;
                *data = Some(
                    data.take()
                        .map_or(value.clone(), |data| format!("{data}\n{value}")),
                );
            }
            "event" => event.get_or_insert_default().event = Some(value),
            "id" if !value.contains('\0') => event.get_or_insert_default().id = Some(value),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                // The bounds are ours.
                if let Some(pause) = value
                    .parse::<u64>()
                    .ok()
                    .filter(|pause| *pause <= 3_600_000)
                {
                    event.get_or_insert_default().retry = Some(pause.max(250));
                }
            }
            _ => {}
        }
    }
    events
}

/// A piece of a stream, with everything in it that readers get wrong.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let texts: &[&[u8]] = &[
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data",
        b"data:",
        b"data: ",
        b"event: message",
        b"id: 7",
        b"id:",
        b"id: a\0b",
        b"retry: 5000",
        b"retry: 1",
        b"retry: soon",
        b"retry: -1",
        b"retry: 99999999999999999999999",
        b"retry:",
        b"retry: +9",
        b": comment",
        b":",
        b" ",
        b"x",
        "é😀".as_bytes(),
        "\u{feff}".as_bytes(),
        b"\xff",
        b"\xf0\x9f",
        b"foo: bar",
        b"\0",
    ];
    prop::sample::select(texts.to_vec()).prop_map(<[u8]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn events_are_the_same_however_their_bytes_are_cut(
        tokens in prop::collection::vec(token(), 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let body = tokens.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut pieces, mut rest) = (Vec::new(), &body[..]);
        for cut in cuts.iter().rev() {
            let (before, piece) = rest.split_at((*cut).min(rest.len()));
            pieces.insert(0, piece.to_vec());
            rest = before;
        }
        pieces.insert(0, rest.to_vec());
        let whole = at_once(vec![body.clone()]);
        prop_assert_eq!(at_once(pieces), whole);
    }

    #[test]
    fn events_are_those_of_the_standard(tokens in prop::collection::vec(token(), 0..40)) {
        let body = [tokens.concat(), b"\n\n".to_vec()].concat();
        let read = at_once(vec![body.clone()]);
        prop_assert_eq!(read, as_the_standard_says(&body));
    }
}

#[tokio::test]
async fn lines_end_as_they_like_and_what_is_no_field_is_read_over() {
    let (a, b) = (data("a"), data("b"));
    let both = [written(a.clone()), written(b)];
    for pieces in [
        &[&b"data: a\n\ndata: b\n\n"[..]][..],
        &[b"data: a\r\n\r\ndata: b\r\n\r\n"],
        &[b"data: a\r\rdata: b\r\r"],
        &[b"data: a\r", b"\n\r", b"\ndata: b\r\n", b"\r\n"],
        &[b"data: a\n\r\ndata: b\r\n\r"],
        &[b"\xef", b"\xbb", b"\xbfdata: a\n\ndata: b\n\n"],
        &[b": hello\n:\n\ndata: a\nfoo: bar\nno colon\n\n\n\ndata: b\n\n"],
        // A stream that ends without a blank line has answered all the same.
        &[b"data: a\n\ndata: b\n"],
        &[b"data: a\n\ndata: b"],
    ] {
        assert_eq!(events(pieces).await, both, "{pieces:?}");
    }
    let with_id = Sse {
        id: Some("7".to_owned()),
        ..a.clone()
    };
    for (body, event) in [
        ("data\n\n", data("")),
        ("data:\ndata:\n\n", data("\n")),
        ("data:  a\n\n", data(" a")),
        ("id: 7\nid: 8\0\ndata: a\n\n", with_id),
        (
            "retry: soon\nretry: 9e3\nretry: \u{661}\ndata: a\n\n",
            a.clone(),
        ),
        ("retry: 3600001\ndata: a\n\n", a.clone()),
        (
            "retry: 0\ndata: a\n\n",
            Sse {
                retry: Some(250),
                ..a.clone()
            },
        ),
        ("data: a\u{2028}\u{85}\n\n", data("a\u{2028}\u{85}")),
    ] {
        assert_eq!(
            events(&[body.as_bytes()]).await,
            [written(event)],
            "{body:?}"
        );
    }
}

#[tokio::test]
async fn an_event_has_a_largest_size_whatever_it_consists_of() {
    let line = "x".repeat(1024 * 1024);
    for piece in [
        line.clone(),
        format!("{line}\n"),
        format!("data: {line}\n"),
        format!(": {line}\r"),
    ] {
        let piece = piece.as_bytes();
        let read = events(&[piece; 9]).await;
        assert_eq!(read, [r#"Err("an event exceeds 8388608 bytes")"#]);
    }
}

/// Each end of a line is looked for once.
#[tokio::test]
async fn a_million_blank_lines_are_read_at_once() {
    for body in [
        "\r".repeat(1_000_000),
        "\n".repeat(1_000_000),
        "\r\n".repeat(500_000),
    ] {
        let begun = clock::instant();
        assert!(events(&[body.as_bytes(), b"data: a\n\n"]).await.len() == 1);
        assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
    }
}
