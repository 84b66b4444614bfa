//! The cookies of one session (RFC 6265). Load balancers use them to send all requests of a client to the same replica;
//! without them, requests would reach replicas that do not know the session.
//!
//! Invariants: a jar belongs to one connection, and so to one credential. Its cookies come from the server's own origin and
//! are sent nowhere else. Their number and size are limited.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderValue, header};
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use url::{Host, Url};

use crate::lock;
use domain::clock::{self, Clock};

/// The most cookies of one session. A new one replaces the oldest.
const MAX_COOKIES: usize = 16;
/// The most bytes of one cookie: name, value and path together.
const MAX_COOKIE_BYTES: usize = 4096;
/// Longer lives of cookies are shortened to this.
const LONGEST_LIFE: Duration = Duration::from_secs(400 * 86_400);

/// The cookies of one connection. It keeps none until a session begins.
#[derive(Default)]
pub(super) struct Jar {
    is_open: AtomicBool,
    cookies: Mutex<Vec<Cookie>>,
}

struct Cookie {
    name: String,
    value: String,
    path: String,
    is_secure: bool,
    ends_at: Option<Instant>,
}

impl Jar {
    /// Starts to keep cookies, because a session begins. Without sessions none are kept: the cookie of one user's request
    /// would be sent with the requests of others.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Keeps the cookies in a response from `url`, which has the server's own origin.
    pub(super) fn keep(&self, url: &Url, headers: &HeaderMap) {
        if !self.is_open.load(Ordering::SeqCst) {
            return;
        }
        for value in headers.get_all(header::SET_COOKIE) {
            let Some(cookie) = value
                .to_str()
                .ok()
                .and_then(|text| Cookie::parse(url, text))
            else {
                continue;
            };
            let mut cookies = lock(&self.cookies);
            cookies.retain(|known| known.name != cookie.name || known.path != cookie.path);
            if cookie.is_expired() {
                continue;
            }
            if cookies.len() == MAX_COOKIES {
                cookies.remove(0);
            }
            cookies.push(cookie);
        }
    }

    /// Adds the cookies for `url` to the headers of a request, after those of the pack.
    pub(super) fn add_to(&self, url: &Url, headers: &mut HeaderMap) {
        let mut cookies = lock(&self.cookies);
        cookies.retain(|cookie| !cookie.is_expired());
        let pairs: Vec<String> = cookies
            .iter()
            .filter(|cookie| cookie.is_for(url))
            .map(|cookie| format!("{}={}", cookie.name, cookie.value))
            .collect();
        drop(cookies);
        if pairs.is_empty() {
            return;
        }
        let own = headers.get(header::COOKIE);
        let own = own.and_then(|value| value.to_str().ok());
        let all = own.into_iter().map(str::to_owned).chain(pairs);
        let all = all.collect::<Vec<_>>().join("; ");
        if let Ok(mut value) = HeaderValue::from_str(&all) {
            value.set_sensitive(true);
            headers.insert(header::COOKIE, value);
        }
    }
}

impl Cookie {
    /// Parses a `Set-Cookie` header; `None` when the cookie is for another origin or cannot be sent back.
    fn parse(url: &Url, text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (name, value) = parts.next()?.split_once('=')?;
        let (name, value) = (name.trim_end(), value.trim_start());
        let is_sendable = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if name.is_empty() || name.contains(' ') || !is_sendable(name) || !is_sendable(value) {
            return None;
        }
        let mut cookie = Self {
            name: name.to_owned(),
            value: value.to_owned(),
            path: default_path(url),
            is_secure: false,
            ends_at: None,
        };
        let (mut max_age, mut expires) = (None, None);
        for part in parts {
            let (attribute, value) = part.split_once('=').unwrap_or((part, ""));
            let (attribute, value) = (attribute.trim(), value.trim());
            match attribute.to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => value.clone_into(&mut cookie.path),
                "domain" if !is_domain_of(url, value) => return None,
                "secure" => cookie.is_secure = true,
                "max-age" => max_age = value.parse::<i64>().ok().or(max_age),
                "expires" => expires = seconds_until(value).or(expires),
                _ => {}
            }
        }
        let must_be_secure = cookie.is_secure || name.to_ascii_lowercase().starts_with("__secure-");
        if must_be_secure && (url.scheme() != "https" || !cookie.is_secure) {
            return None;
        }
        if cookie.name.len() + cookie.value.len() + cookie.path.len() > MAX_COOKIE_BYTES {
            return None;
        }
        cookie.ends_at = max_age.or(expires).map(|seconds| {
            let life = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            clock::instant() + life.min(LONGEST_LIFE)
        });
        Some(cookie)
    }

    fn is_expired(&self) -> bool {
        self.ends_at.is_some_and(|end| end <= clock::instant())
    }

    fn is_for(&self, url: &Url) -> bool {
        let rest = url.path().strip_prefix(self.path.as_str());
        let fits = rest.is_some_and(|rest| {
            rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/')
        });
        fits && (!self.is_secure || url.scheme() == "https")
    }
}

/// The path of a cookie without a path attribute: that of `url` up to its last slash (RFC 6265, section 5.1.4).
fn default_path(url: &Url) -> String {
    match url.path().rfind('/') {
        None | Some(0) => "/".to_owned(),
        Some(end) => url.path()[..end].to_owned(),
    }
}

/// Whether the host of `url` belongs to `domain`. An empty domain means the host itself (RFC 6265, section 5.3, step 6). The
/// cookie is sent to this host only, whatever its domain.
fn is_domain_of(url: &Url, domain: &str) -> bool {
    let domain = domain.trim_start_matches('.').to_ascii_lowercase();
    if domain.is_empty() {
        return true;
    }
    match url.host() {
        Some(Host::Domain(host)) => host
            .strip_suffix(domain.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
        Some(host) => host.to_string() == domain,
        None => false,
    }
}

/// The seconds from now until a date, in the format of HTTP or the older one with dashes.
fn seconds_until(date: &str) -> Option<i64> {
    let date = OffsetDateTime::parse(&date.replace('-', " "), &Rfc2822).ok()?;
    Some((date - Clock::System.now()).whole_seconds())
}
