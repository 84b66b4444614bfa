//! The cookies of one session. A balancer that keeps a client at one replica does it by a cookie (RFC 6265): without it
//! the requests of a session land at replicas that do not know the session.
//!
//! Invariants: a jar belongs to one connection, and so to one credential; its cookies come from the server's own origin
//! and go nowhere else; it holds a bounded number of bounded cookies, and ends with its session.

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

use crate::interceptor::locked;
use domain::clock::{self, Clock};

/// Cookies of one session; one more replaces the oldest.
const MOST: usize = 16;
/// Bytes of one cookie, name, value and path together.
const LARGEST: usize = 4096;
/// A cookie that is said to last longer lasts so long; no session does.
const LONGEST_LIFE: Duration = Duration::from_secs(400 * 86_400);

/// Empty and closed until a session begins.
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
    /// A session begins. Revisions without sessions have no use for cookies: what their servers set would tie the
    /// requests of several users together.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Keeps what an answer from `url`, an address of the server's own origin, sets.
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
            let mut cookies = locked(&self.cookies);
            cookies.retain(|known| known.name != cookie.name || known.path != cookie.path);
            if cookie.is_over() {
                continue;
            }
            if cookies.len() == MOST {
                cookies.remove(0);
            }
            cookies.push(cookie);
        }
    }

    /// Puts the cookies for `url` on a request, behind those that the pack has written.
    pub(super) fn add_to(&self, url: &Url, headers: &mut HeaderMap) {
        let mut cookies = locked(&self.cookies);
        cookies.retain(|cookie| !cookie.is_over());
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
    /// One `Set-Cookie`; `None` when it is not for this origin or cannot be sent back.
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
        if cookie.name.len() + cookie.value.len() + cookie.path.len() > LARGEST {
            return None;
        }
        cookie.ends_at = max_age.or(expires).map(|seconds| {
            let life = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            clock::instant() + life.min(LONGEST_LIFE)
        });
        Some(cookie)
    }

    fn is_over(&self) -> bool {
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

/// The path of a cookie that names none: up to the last slash of the address that set it.
fn default_path(url: &Url) -> String {
    match url.path().rfind('/') {
        None | Some(0) => "/".to_owned(),
        Some(end) => url.path()[..end].to_owned(),
    }
}

/// Whether a host is in the domain that it names. The cookie is for this very host all the same.
fn is_domain_of(url: &Url, domain: &str) -> bool {
    let domain = domain.trim_start_matches('.').to_ascii_lowercase();
    match url.host() {
        Some(Host::Domain(host)) => host
            .strip_suffix(domain.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
        Some(host) => domain.is_empty() || host.to_string() == domain,
        None => false,
    }
}

/// Seconds from now to a date, in the form of HTTP or the older one with dashes.
fn seconds_until(date: &str) -> Option<i64> {
    let date = OffsetDateTime::parse(&date.replace('-', " "), &Rfc2822).ok()?;
    Some((date - Clock::System.now()).whole_seconds())
}
