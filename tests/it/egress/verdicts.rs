//! A table of hosts, addresses and spellings (`vectors.txt`), each with what the gate says.

use std::sync::LazyLock;

use egress::{Egress, NameSource, Request, is_public, parse_url};
use proptest::prelude::*;

use crate::support::origin::refusal;

/// With an empty allowlist. Building one reads the machine's root certificates.
static CLOSED: LazyLock<Egress> = LazyLock::new(|| Egress::new(&[]).unwrap());

/// `verdict "text"` a line; see there.
const VECTORS: &str = include_str!("vectors.txt");

/// The vectors with one of these verdicts.
fn vectors(of: &[&str]) -> Vec<(&'static str, String)> {
    let lines = VECTORS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &'static str| {
        let (verdict, text) = line.split_once(' ').unwrap();
        (verdict, serde_json::from_str(text).unwrap())
    };
    lines
        .map(read)
        .filter(|(verdict, _)| of.contains(verdict))
        .collect()
}

const URLS: [&str; 6] = [
    "open",
    "private",
    "plain-http",
    "scheme",
    "user-info",
    "unparseable",
];
const ADDRESSES: [&str; 2] = ["public", "special"];

/// What the gate says of a URL, in the sentences of the document.
fn verdict(url: &str) -> &'static str {
    let Err(error) = parse_url(url).and_then(|url| CLOSED.check_url(&url)) else {
        return "open";
    };
    assert!(error.is_rejected() && !error.sent);
    let text = error.to_string();
    let why = text.strip_prefix("egress rejected: ").unwrap();
    let sentences = [
        (
            "private/loopback/internal host \"",
            "\" not in egress allowlist",
            "private",
        ),
        (
            "plain http to non-loopback host \"",
            "\" (use https or allowlist it)",
            "plain-http",
        ),
        ("scheme \"", "\" not allowed (http/https only)", "scheme"),
        (
            "URL with user information for host \"",
            "\" (send credentials in a header)",
            "user-info",
        ),
        ("unparseable URL \"", "\"", "unparseable"),
    ];
    let fits = sentences
        .iter()
        .find(|(start, end, _)| why.starts_with(start) && why.ends_with(end));
    fits.unwrap_or_else(|| panic!("no known sentence: {text}"))
        .2
}

#[test]
fn every_url_of_the_table_gets_its_verdict() {
    let wrong: Vec<_> = vectors(&URLS)
        .into_iter()
        .map(|(expected, url)| (verdict(&url), expected, url))
        .filter(|(found, expected, _)| expected != found)
        .collect();
    assert!(wrong.is_empty(), "(found, expected, URL): {wrong:#?}");
    assert!(
        vectors(&URLS).len() + vectors(&ADDRESSES).len() >= 240,
        "none was lost"
    );
}

#[test]
fn every_address_of_the_table_is_judged_alike_by_resolver_and_gate() {
    for (expected, text) in vectors(&ADDRESSES) {
        let (address, public) = (
            text.parse::<std::net::IpAddr>().unwrap(),
            expected == "public",
        );
        assert_eq!(is_public(address), public, "{text}");
        let url = if address.is_ipv6() {
            format!("https://[{text}]/")
        } else {
            format!("https://{text}/")
        };
        assert_eq!(
            verdict(&url),
            if public { "open" } else { "private" },
            "{url}"
        );
    }
}

/// With a resolver and a dialer that note every attempt.
#[tokio::test]
async fn nothing_that_the_table_refuses_is_looked_up_or_dialled() {
    let names = NameSource::table([]);
    let egress = Egress::with_names(&[], &names).unwrap();
    for (verdict, url) in vectors(&URLS[1..]) {
        let Ok(parsed) = parse_url(&url) else {
            continue;
        };
        let sent = refusal(&egress, Request::get(parsed.clone())).await;
        assert!(sent.is_rejected() && !sent.sent, "{verdict} {url}: {sent}");
        let opened = egress
            .open_web_socket(Request::get(parsed), "mcp")
            .await
            .err()
            .unwrap();
        assert!(
            opened.is_rejected() && !opened.sent || url.starts_with("wss:"),
            "{verdict} {url}: {opened}"
        );
    }
    for (_, text) in vectors(&["special"]) {
        let host = if text.contains(':') {
            format!("[{text}]")
        } else {
            text
        };
        for scheme in ["http", "https"] {
            let error = refusal(
                &egress,
                Request::get(parse_url(&format!("{scheme}://{host}/")).unwrap()),
            )
            .await;
            assert!(error.is_rejected() && !error.sent, "{host}: {error}");
        }
    }
    let wss = vectors(&["scheme"])
        .iter()
        .filter(|(_, url)| url.starts_with("wss:"))
        .count();
    assert_eq!(
        (names.lookups(), names.dials()),
        (wss, wss),
        "a WebSocket with TLS to a public name is no sin"
    );
}

/// The dialer asks the resolver first, and stops there.
#[tokio::test]
async fn a_name_with_a_special_address_is_looked_up_and_not_dialled() {
    for (_, text) in vectors(&["special"]) {
        let address: std::net::IpAddr = text.parse().unwrap();
        for addresses in [vec![address], vec!["8.8.8.8".parse().unwrap(), address]] {
            let egress =
                Egress::with_names(&[], &NameSource::table([("rebound.example", addresses)]))
                    .unwrap();
            let error = refusal(
                &egress,
                Request::get(parse_url("https://rebound.example/").unwrap()),
            )
            .await;
            let said = format!(
                "egress rejected: \"rebound.example\" resolves to a private address ({address})"
            );
            assert_eq!(error.to_string(), said);
            assert!(error.is_rejected() && !error.sent);
        }
    }
}

#[test]
fn sentences_name_the_host_without_its_trailing_dot() {
    let said = |url: &str| {
        CLOSED
            .check_url(&parse_url(url).unwrap())
            .unwrap_err()
            .to_string()
    };
    let private = |host: &str| {
        format!(
            "egress rejected: private/loopback/internal host \"{host}\" not in egress allowlist"
        )
    };
    assert_eq!(said("http://Db.Internal.:80/"), private("db.internal"));
    assert_eq!(said("http://0x7f.1/"), private("127.0.0.1"));
    assert_eq!(said("http://[0::1]/"), private("[::1]"));
    assert_eq!(
        said("ftp://example.com/"),
        "egress rejected: scheme \"ftp\" not allowed (http/https only)"
    );
    assert_eq!(
        said("http://example.com/"),
        "egress rejected: plain http to non-loopback host \"example.com\" (use https or allowlist it)"
    );
    assert_eq!(
        parse_url("nonsense").unwrap_err().to_string(),
        "egress rejected: unparseable URL \"nonsense\""
    );
}

/// Allowlist, URL, whether it is open.
const ALLOWED: &[(&str, &str, bool)] = &[
    ("localhost", "http://localhost/", true),
    ("localhost", "https://LOCALHOST.:1234/", true),
    ("localhost", "http://127.0.0.1/", false),
    ("localhost", "http://a.localhost/", false),
    ("127.0.0.1", "http://127.0.0.1:8080/", true),
    ("127.0.0.1", "http://2130706433:8080/", true),
    ("127.0.0.1", "http://127.0.0.2/", false),
    ("127.0.0.1", "http://[::ffff:127.0.0.1]/", false),
    ("0x7f.1", "http://127.0.0.1/", true),
    ("db.internal:5432", "http://db.internal:5432/", true),
    ("db.internal:5432", "https://db.internal:5432/", true),
    ("db.internal:5432", "https://db.internal/", false),
    ("db.internal:5432", "http://db.internal:5433/", false),
    ("Db.Internal.", "http://db.internal/", true),
    ("db.internal", "http://sub.db.internal/", false),
    ("tools.example:80", "http://tools.example/", true),
    ("tools.example:443", "https://tools.example/", true),
    ("tools.example:443", "http://tools.example/", false),
    ("::1", "http://[::1]:99/", true),
    ("[::1]", "http://[::1]/", true),
    ("[::1]:99", "http://[::1]:99/", true),
    ("[::1]:99", "http://[::1]:98/", false),
    ("bücher.example", "http://xn--bcher-kva.example/", true),
    ("localhost", "ftp://localhost/", false),
    ("localhost", "http://user@localhost/", false),
];

#[test]
fn an_allowlist_entry_opens_its_host_and_nothing_else() {
    for (entry, url, open) in ALLOWED {
        let egress = Egress::new(&[(*entry).to_owned()]).unwrap();
        assert_eq!(
            egress.check_url(&parse_url(url).unwrap()).is_ok(),
            *open,
            "{entry} {url}"
        );
    }
}

#[test]
fn an_entry_that_is_no_host_is_refused_by_name() {
    for entry in [
        "",
        "http://db.internal",
        "db.internal:",
        "db.internal:0",
        "db.internal:x",
        "*.internal",
        "a b",
        "[::1",
        "u@h",
        "h:70000",
    ] {
        let error = Egress::new(&["ok.example".to_owned(), entry.to_owned()])
            .err()
            .unwrap_or_else(|| panic!("{entry:?} must fail"));
        assert_eq!(
            error,
            format!("egress allowlist entry {entry:?} is neither `host` nor `host:port`")
        );
    }
}

proptest! {
    #[test]
    fn an_address_is_judged_alike_in_every_form_that_carries_it(bits: u32) {
        let [a, b, c, d] = bits.to_be_bytes();
        let v4 = std::net::Ipv4Addr::from_bits(bits);
        let public = is_public(v4.into());
        let (high, low) = (bits >> 16, bits & 0xffff);
        for text in [
            format!("::ffff:{v4}"),
            format!("::{v4}"),
            format!("::ffff:0:{v4}"),
            format!("64:ff9b::{v4}"),
            format!("2002:{high:x}:{low:x}::1"),
            format!("2001:0:808:808::{:x}:{:x}", high ^ 0xffff, low ^ 0xffff),
            format!("2606:4700::5efe:{v4}"),
        ] {
            prop_assert_eq!(is_public(text.parse().unwrap()), public, "{}", text);
        }
        for url in [format!("https://{bits}/"), format!("https://{bits:#x}/"), format!("https://{a}.{}/", bits & 0xff_ffff), format!("https://{a:#o}.{b}.{c}.{d}/").replace("0o", "0")] {
            prop_assert_eq!(CLOSED.check_url(&parse_url(&url).unwrap()).is_ok(), public, "{}", url);
        }
    }
}
