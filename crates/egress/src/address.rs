//! Tells public IP addresses from others. Not public are all ranges of the IANA special-purpose address registries
//! (RFC 6890), multicast, reserved space, and IPv6 outside of global unicast. An IPv6 address that embeds an IPv4 address
//! is public if the IPv4 address is, since a gateway may deliver packets there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ranges of IPv4 that are not public: first address and prefix length.
const SPECIAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::UNSPECIFIED, 8),           // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local, cloud metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // IETF protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 31, 196, 0), 24), // AS112
    (Ipv4Addr::new(192, 52, 193, 0), 24), // AMT
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relay anycast
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(192, 175, 48, 0), 24), // AS112
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarking
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),     // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),     // reserved, broadcast
];

/// Ranges inside global unicast (`2000::/3`) that are not public. Outside of global unicast no address is public.
const SPECIAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // IETF protocol assignments, ORCHID, benchmarking
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48), // AS112
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Whether this address belongs to a host on the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !SPECIAL_V4
        .iter()
        .any(|(net, prefix)| (bits ^ net.to_bits()) >> (32 - prefix) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded = embedded_v4(address);
    if !embedded.is_empty() {
        return embedded.into_iter().all(is_public_v4);
    }
    let bits = address.to_bits();
    bits >> 125 == 0b001
        && !SPECIAL_V6
            .iter()
            .any(|(net, prefix)| (bits ^ net.to_bits()) >> (128 - prefix) == 0)
        && isatap_v4(address).is_none_or(is_public_v4)
}

/// The IPv4 addresses that are embedded in an IPv6 address; empty when there are none.
fn embedded_v4(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let words = address.segments();
    let v4 = |at: usize| Ipv4Addr::from_bits(u32::from(words[at]) << 16 | u32::from(words[at + 1]));
    match words {
        // mapped ::ffff:a.b.c.d, compatible ::a.b.c.d (with :: and ::1), translated ::ffff:0:a.b.c.d, and
        // NAT64 64:ff9b::a.b.c.d (RFC 6052). 64:ff9b:1::/48 (RFC 8215) is outside of global unicast.
        [0, 0, 0, 0, 0, 0xffff | 0, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![v4(6)],
        // 6to4 2002:a.b:c.d::
        [0x2002, ..] => vec![v4(1)],
        // Teredo 2001:0:<server>:…:<client, inverted>
        [0x2001, 0, ..] => vec![v4(2), Ipv4Addr::from_bits(!v4(6).to_bits())],
        _ => Vec::new(),
    }
}

/// The IPv4 address in an ISATAP interface id (`…:0:5efe:a.b.c.d`, RFC 5214), under any prefix.
fn isatap_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., e, f, g, h] = address.segments();
    (matches!(e, 0 | 0x200) && f == 0x5efe)
        .then(|| Ipv4Addr::from_bits(u32::from(g) << 16 | u32::from(h)))
}
