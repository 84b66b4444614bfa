//! An address that is made from a template. The operator's values (`env`, `runner`, `file`) may be any part
//! of it. All other values stand in one path segment or one query value, percent-encoded.
//!
//! Invariant: whatever a run's values are, scheme, host, port and the number of path segments are those that the
//! template has without them.

use std::fmt::Write as _;

use url::Url;

use super::{Missing, Piece, Reference, Source, Template};

/// Bytes of an address: more than servers read of one.
const MAX_ADDRESS: usize = 8192;
/// How often a value may be encoded, if a proxy on the way decodes it.
const DECODED: usize = 3;

/// Why there is no address. Never holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("is not an address; write one such as `https://mcp.example.org/mcp`")]
    NotAnAddress,
    #[error("has another scheme than http or https")]
    Scheme,
    #[error("holds a user or password; send them in a header")]
    UserInformation,
    #[error("has a fragment, which no server is sent; remove what follows `#`")]
    Fragment,
    #[error("a value of a run may stand in the path or the query only, not in the host")]
    ValueInHost,
    #[error("the value of {0} is empty or would leave its path segment")]
    LeavesItsPlace(String),
    #[error("is longer than {MAX_ADDRESS} bytes with the values of the run")]
    TooLong,
}

/// Whether values of this source are inserted without encoding.
fn is_trusted(source: Source) -> bool {
    matches!(source, Source::Env | Source::Runner | Source::File)
}

impl Template {
    /// The address that this template makes. Values are taken literally, and those of a run are percent-encoded.
    pub fn address<'v>(
        &self,
        value: impl Fn(&Reference) -> Option<&'v str>,
    ) -> Result<Url, AddressError> {
        self.resolve(&value)?;
        let text = |foreign: &dyn Fn(&Reference) -> String| -> String {
            let piece = |piece: &Piece| match piece {
                Piece::Literal(text) => text.clone(),
                Piece::Reference(reference) if is_trusted(reference.source) => {
                    value(reference).unwrap_or_default().to_owned()
                }
                Piece::Reference(reference) => foreign(reference),
                Piece::Base64(_) => String::new(),
            };
            self.pieces.iter().map(piece).collect()
        };
        let shape = checked(text(&|_| "a".to_owned()).trim())?;
        // With other values it must be the same place.
        let other =
            checked(text(&|_| "b9".to_owned()).trim()).map_err(|_| AddressError::ValueInHost)?;
        if !same_location(&shape, &other) {
            return Err(AddressError::ValueInHost);
        }
        if let Some(reference) = self.climbing_reference(&value) {
            return Err(AddressError::LeavesItsPlace(reference.dotted()));
        }
        let real =
            checked(text(&|reference| encoded(value(reference).unwrap_or_default())).trim())?;
        if real.as_str().len() > MAX_ADDRESS {
            return Err(AddressError::TooLong);
        }
        if same_location(&shape, &real) && segments(&shape) == segments(&real) {
            return Ok(real);
        }
        let culprit = self
            .references()
            .find(|reference| !is_trusted(reference.source));
        Err(AddressError::LeavesItsPlace(
            culprit.map(Reference::dotted).unwrap_or_default(),
        ))
    }

    /// The first value of a run that is empty or would leave its path segment, for a server or proxy that
    /// decodes the path before it splits it.
    fn climbing_reference<'t, 'v>(
        &'t self,
        value: impl Fn(&Reference) -> Option<&'v str>,
    ) -> Option<&'t Reference> {
        let mut in_query = false;
        self.pieces.iter().find_map(|piece| match piece {
            Piece::Literal(text) => {
                in_query |= text.contains('?');
                None
            }
            Piece::Reference(reference) if is_trusted(reference.source) => {
                in_query |= value(reference).is_some_and(|text| text.contains('?'));
                None
            }
            Piece::Reference(reference) => {
                let text = value(reference).unwrap_or_default();
                (text.is_empty() || matches!(text, "." | "..") || (!in_query && climbs(text)))
                    .then_some(reference)
            }
            Piece::Base64(_) => None,
        })
    }

    /// Checks an address before there are values: the address with example values. `None` when a value of the
    /// operator is missing.
    pub fn example_address<'v>(
        &self,
        value: impl Fn(&Reference) -> Option<&'v str>,
    ) -> Result<Option<Url>, AddressError> {
        let with = |reference: &Reference| {
            if is_trusted(reference.source) {
                value(reference)
            } else {
                Some("x")
            }
        };
        match self.address(with) {
            Ok(url) => Ok(Some(url)),
            Err(AddressError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn checked(text: &str) -> Result<Url, AddressError> {
    let url = Url::parse(text).map_err(|_| AddressError::NotAnAddress)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(AddressError::Scheme);
    }
    if !url.has_host() {
        return Err(AddressError::NotAnAddress);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(AddressError::UserInformation);
    }
    if url.fragment().is_some() {
        return Err(AddressError::Fragment);
    }
    Ok(url)
}

/// Whether there is a `.` or `..` between slashes of either kind, as it is or encoded.
fn climbs(value: &str) -> bool {
    let mut text = value.to_owned();
    for _ in 0..=DECODED {
        if text
            .split(['/', '\\'])
            .any(|part| matches!(part, "." | ".."))
        {
            return true;
        }
        for (encoded, plain) in [
            ("%2e", "."),
            ("%2E", "."),
            ("%2f", "/"),
            ("%2F", "/"),
            ("%5c", "\\"),
            ("%5C", "\\"),
            ("%25", "%"),
        ] {
            text = text.replace(encoded, plain);
        }
    }
    false
}

fn same_location(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

fn segments(url: &Url) -> (usize, usize) {
    (url.path().split('/').count(), url.query_pairs().count())
}

/// Everything but the unreserved characters of RFC 3986 as `%XX`.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
