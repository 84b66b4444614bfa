//! A table of hosts, addresses and spellings, each with what the gate says.

use std::sync::LazyLock;

use chatelaine::egress::{Egress, is_public, parse_url};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Open,
    Private,
    PlainHttp,
    Scheme,
    UserInfo,
    Unparseable,
}
use Verdict::{Open, PlainHttp, Private, Scheme, Unparseable, UserInfo};

/// With an empty allowlist. Building one reads the machine's root certificates.
static CLOSED: LazyLock<Egress> = LazyLock::new(|| Egress::new(&[]).unwrap());

const URLS: &[(&str, Verdict)] = &[
    // names
    ("https://example.com/", Open),
    ("https://EXAMPLE.com./mcp?x=1#y", Open),
    ("https://localhost.example.com/", Open),
    ("https://notlocalhost/", Open),
    ("https://internal.example.com/", Open),
    ("https://mylocal/", Open),
    ("https://a.local.example.org/", Open),
    ("https://xn--bcher-kva.example/", Open),
    ("https://example.com:8443/", Open),
    ("http://example.com/", PlainHttp),
    ("http://example.com:443/", PlainHttp),
    ("http://8.8.8.8/", PlainHttp),
    ("HTTP://EXAMPLE.COM/", PlainHttp),
    ("https://localhost/", Private),
    ("http://localhost/", Private),
    ("http://LocalHost:8080/", Private),
    ("http://localhost./", Private),
    ("https://a.localhost/", Private),
    ("https://a.b.localhost./", Private),
    ("https://printer.local/", Private),
    ("https://metadata.google.internal/", Private),
    ("https://router.lan/", Private),
    ("https://nas.home/", Private),
    ("https://wiki.corp/", Private),
    ("https://portal.intranet/", Private),
    ("https://db.INTERNAL/", Private),
    ("https://db.internal./", Private),
    ("https://local/", Private),
    ("https://localhost.localdomain/", Private),
    ("https://box.home.arpa/", Private),
    ("https://ⓛocalhost/", Private),
    ("https://ｌｏｃａｌｈｏｓｔ/", Private),
    ("https://local%68ost/", Private),
    // schemes
    ("ftp://example.com/", Scheme),
    ("file:///etc/passwd", Scheme),
    ("gopher://127.0.0.1/", Scheme),
    ("data:text/plain,hi", Scheme),
    ("javascript:alert(1)", Scheme),
    ("ws://example.com/", Scheme),
    ("unix:///run/docker.sock", Scheme),
    // user information
    ("https://user@example.com/", UserInfo),
    ("https://user:pass@example.com/", UserInfo),
    ("https://:pass@example.com/", UserInfo),
    ("https://example.com@127.0.0.1/", Private),
    ("https://example.com:443@localhost/", Private),
    ("https://127.0.0.1@example.com/", UserInfo),
    ("https://example.com\\@127.0.0.1/", Open),
    ("https://127.0.0.1\\@example.com/", Private),
    ("https://127.0.0.1#@example.com/", Private),
    ("https://127.0.0.1?@example.com/", Private),
    // not a URL
    ("", Unparseable),
    ("example.com", Unparseable),
    ("//example.com", Unparseable),
    ("https://", Unparseable),
    ("https://exa mple.com/", Unparseable),
    ("https://1.2.3.4.5/", Unparseable),
    ("https://256.256.256.256/", Unparseable),
    ("https://0x1ffffffff/", Unparseable),
    ("https://[::1/", Unparseable),
    ("https://[::1%25lo]/", Unparseable),
    ("https://[fe80::1%eth0]/", Unparseable),
    ("https://example.com:99999/", Unparseable),
    // spellings of one address
    ("http://127.0.0.1/", Private),
    ("https://127.0.0.1./", Private),
    ("https://127.1/", Private),
    ("https://127.0.1/", Private),
    ("https://2130706433/", Private),
    ("https://0x7f000001/", Private),
    ("https://0x7F.1/", Private),
    ("https://0x7f.0x0.0x0.0x1/", Private),
    ("https://0177.0.0.1/", Private),
    ("https://017700000001/", Private),
    ("https://0177.0.0.0x1/", Private),
    ("https://127.0.0.1:443/", Private),
    ("https://①②⑦.⓪.⓪.①/", Private),
    ("https://１２７.０.０.１/", Private),
    ("https://127。0。0。1/", Private),
    ("https://%31%32%37.0.0.1/", Private),
    ("https:127.0.0.1/", Private),
    ("https:/\\127.0.0.1/", Private),
    ("https:////127.0.0.1/", Private),
    (" https://127.0.0.1/", Private),
    ("https://127.0.0.1\t/", Private),
    ("https://1\n27.0.0.1/", Private),
    ("https://0/", Private),
    ("https://0x0/", Private),
    ("https://134744072/", Open),
    ("https://0x08080808/", Open),
    ("https://010.010.010.010/", Open),
    ("https://012.0.0.1/", Private),
    ("https://3232235777/", Private),
    ("https://0xa9fea9fe/", Private),
    ("https://2852039166/", Private),
    ("https://[0:0:0:0:0:0:0:1]/", Private),
    ("https://[::0001]/", Private),
    ("https://[::127.0.0.1]/", Private),
    ("https://[::FFFF:127.0.0.1]/", Private),
];

/// Addresses and whether they are public.
const ADDRESSES: &[(&str, bool)] = &[
    // IPv4: both edges of each special range, and its neighbours
    ("0.0.0.0", false),
    ("0.255.255.255", false),
    ("1.0.0.0", true),
    ("1.1.1.1", true),
    ("8.8.8.8", true),
    ("9.255.255.255", true),
    ("10.0.0.0", false),
    ("10.255.255.255", false),
    ("11.0.0.0", true),
    ("100.63.255.255", true),
    ("100.64.0.0", false),
    ("100.127.255.255", false),
    ("100.128.0.0", true),
    ("126.255.255.255", true),
    ("127.0.0.0", false),
    ("127.255.255.255", false),
    ("128.0.0.0", true),
    ("169.253.255.255", true),
    ("169.254.0.0", false),
    ("169.254.169.254", false),
    ("169.254.255.255", false),
    ("169.255.0.0", true),
    ("172.15.255.255", true),
    ("172.16.0.0", false),
    ("172.31.255.255", false),
    ("172.32.0.0", true),
    ("191.255.255.255", true),
    ("192.0.0.0", false),
    ("192.0.0.192", false),
    ("192.0.0.255", false),
    ("192.0.1.0", true),
    ("192.0.2.0", false),
    ("192.0.2.255", false),
    ("192.0.3.0", true),
    ("192.31.196.1", false),
    ("192.52.193.1", false),
    ("192.88.98.255", true),
    ("192.88.99.0", false),
    ("192.88.99.255", false),
    ("192.88.100.0", true),
    ("192.167.255.255", true),
    ("192.168.0.0", false),
    ("192.168.255.255", false),
    ("192.169.0.0", true),
    ("192.175.48.1", false),
    ("198.17.255.255", true),
    ("198.18.0.0", false),
    ("198.19.255.255", false),
    ("198.20.0.0", true),
    ("198.51.99.255", true),
    ("198.51.100.0", false),
    ("198.51.100.255", false),
    ("198.51.101.0", true),
    ("203.0.112.255", true),
    ("203.0.113.0", false),
    ("203.0.113.255", false),
    ("203.0.114.0", true),
    ("223.255.255.255", true),
    ("224.0.0.0", false),
    ("239.255.255.255", false),
    ("240.0.0.0", false),
    ("255.255.255.255", false),
    // IPv6 of its own
    ("::", false),
    ("::1", false),
    ("::2", false),
    ("100::1", false),
    ("1fff:ffff::", false),
    ("2000::1", true),
    ("2001:200::1", true),
    ("2001:4860:4860::8888", true),
    ("2606:4700:4700::1111", true),
    ("2a00:1450::1", true),
    ("3ffe::1", true),
    ("2001:1::1", false),
    ("2001:2::1", false),
    ("2001:10::1", false),
    ("2001:20::1", false),
    ("2001:1ff:ffff::1", false),
    ("2001:db7:ffff::1", true),
    ("2001:db8::1", false),
    ("2001:db8:ffff::1", false),
    ("2001:db9::1", true),
    ("2620:4f:7fff::1", true),
    ("2620:4f:8000::1", false),
    ("2620:4f:8001::1", true),
    ("3fff::1", false),
    ("3fff:fff::1", false),
    ("3fff:1000::1", true),
    ("4000::1", false),
    ("5f00::1", false),
    ("fc00::1", false),
    ("fd12:3456::1", false),
    ("fd00:ec2::254", false),
    ("fe80::1", false),
    ("febf::1", false),
    ("fec0::1", false),
    ("ff02::1", false),
    ("ffff::1", false),
    // IPv4 in IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP
    ("::ffff:127.0.0.1", false),
    ("::ffff:10.0.0.1", false),
    ("::ffff:a9fe:a9fe", false),
    ("::ffff:8.8.8.8", true),
    ("::127.0.0.1", false),
    ("::192.168.1.1", false),
    ("::8.8.8.8", true),
    ("::ffff:0:127.0.0.1", false),
    ("::ffff:0:10.1.2.3", false),
    ("::ffff:0:8.8.8.8", true),
    ("64:ff9b::127.0.0.1", false),
    ("64:ff9b::169.254.169.254", false),
    ("64:ff9b::8.8.8.8", true),
    ("64:ff9b:1::8.8.8.8", false),
    ("64:ff9b:0:1::8.8.8.8", false),
    ("2002:7f00:1::", false),
    ("2002:7f00:1::1", false),
    ("2002:c0a8:101::1", false),
    ("2002:a9fe:a9fe::", false),
    ("2002:808:808::1", true),
    ("2001:0:808:808::f7f7:f7f7", true),
    ("2001:0:808:808::80ff:fffe", false),
    ("2001:0:7f00:1::f7f7:f7f7", false),
    ("2606:4700::5efe:127.0.0.1", false),
    ("2606:4700::200:5efe:10.0.0.1", false),
    ("2606:4700::5efe:8.8.8.8", true),
];

fn verdict(url: &str) -> Verdict {
    let Err(error) = parse_url(url).and_then(|url| CLOSED.check_url(&url)) else { return Open };
    assert!(error.is_rejected() && !error.sent);
    let text = error.to_string();
    let why = text.strip_prefix("egress rejected: ").unwrap();
    let sentences = [
        ("private/loopback/internal host \"", "\" not in egress allowlist", Private),
        ("plain http to non-loopback host \"", "\" (use https or allowlist it)", PlainHttp),
        ("scheme \"", "\" not allowed (http/https only)", Scheme),
        ("URL with user information for host \"", "\" (send credentials in a header)", UserInfo),
        ("unparseable URL \"", "\"", Unparseable),
    ];
    let fits = sentences.iter().find(|(start, end, _)| why.starts_with(start) && why.ends_with(end));
    fits.unwrap_or_else(|| panic!("no known sentence: {text}")).2
}

#[test]
fn every_url_of_the_table_gets_its_verdict() {
    let wrong: Vec<_> = URLS
        .iter()
        .map(|(url, expected)| (url, expected, verdict(url)))
        .filter(|(_, expected, found)| *expected != found)
        .collect();
    assert!(wrong.is_empty(), "(URL, expected, found): {wrong:#?}");
}

#[test]
fn every_address_of_the_table_is_judged_alike_by_resolver_and_gate() {
    for (text, public) in ADDRESSES {
        let address: std::net::IpAddr = text.parse().unwrap();
        assert_eq!(is_public(address), *public, "{text}");
        let url = if address.is_ipv6() { format!("https://[{text}]/") } else { format!("https://{text}/") };
        assert_eq!(verdict(&url), if *public { Open } else { Private }, "{url}");
    }
    assert!(URLS.len() + ADDRESSES.len() >= 150);
}

#[test]
fn sentences_name_the_host_without_its_trailing_dot() {
    let said = |url: &str| CLOSED.check_url(&parse_url(url).unwrap()).unwrap_err().to_string();
    let private =
        |host: &str| format!("egress rejected: private/loopback/internal host \"{host}\" not in egress allowlist");
    assert_eq!(said("http://Db.Internal.:80/"), private("db.internal"));
    assert_eq!(said("http://0x7f.1/"), private("127.0.0.1"));
    assert_eq!(said("http://[0::1]/"), private("[::1]"));
    assert_eq!(said("ftp://example.com/"), "egress rejected: scheme \"ftp\" not allowed (http/https only)");
    assert_eq!(
        said("http://example.com/"),
        "egress rejected: plain http to non-loopback host \"example.com\" (use https or allowlist it)"
    );
    assert_eq!(parse_url("nonsense").unwrap_err().to_string(), "egress rejected: unparseable URL \"nonsense\"");
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
        assert_eq!(egress.check_url(&parse_url(url).unwrap()).is_ok(), *open, "{entry} {url}");
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
        assert_eq!(error, format!("egress allowlist entry {entry:?} is neither `host` nor `host:port`"));
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
