//! The gate for URLs: with no allowlist, what it lets through is https, to a name or to a public address, and carries
//! no user information.
#![no_main]

use std::sync::LazyLock;

use egress::{Egress, is_public, parse_url};
use libfuzzer_sys::fuzz_target;
use url::Host;

static CLOSED: LazyLock<Egress> = LazyLock::new(|| Egress::new(&[]).expect("an empty list"));

fuzz_target!(|text: &str| {
    let Ok(url) = parse_url(text) else { return };
    if CLOSED.check_url(&url).is_err() {
        return;
    }
    assert_eq!(url.scheme(), "https");
    assert!(url.username().is_empty() && url.password().is_none());
    match url.host().expect("it has one") {
        Host::Ipv4(address) => assert!(is_public(address.into()), "{url}"),
        Host::Ipv6(address) => assert!(is_public(address.into()), "{url}"),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            assert!(name != "localhost" && !name.ends_with(".localhost") && !name.ends_with(".internal"), "{url}");
            assert!(name.parse::<std::net::IpAddr>().is_err(), "{url}");
        }
    }
});
