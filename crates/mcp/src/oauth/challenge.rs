//! Parses the bearer challenge in `WWW-Authenticate` (RFC 9110, section 11.6.1): the address of the metadata of the
//! protected resource (RFC 9728) and the scopes that a request needs (RFC 6750).

use http::{HeaderMap, header};
use url::Url;

/// A bearer challenge, with which a server answers 401 or 403.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    pub resource_metadata: Option<Url>,
    pub scope: Option<String>,
    /// The error code, such as `insufficient_scope` or `invalid_token`.
    pub error: Option<String>,
}

impl Challenge {
    /// The bearer challenge in the headers of a response, if there is one.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::WWW_AUTHENTICATE).iter();
        values
            .filter_map(|value| value.to_str().ok())
            .find_map(Self::parse)
    }

    /// The bearer challenge in the value of one header, if there is one.
    pub fn parse(value: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut is_bearer = false;
        let mut rest = value;
        while let Some((name, after)) = next_token(rest) {
            let Some(text) = after.trim_start().strip_prefix('=') else {
                is_bearer = name.eq_ignore_ascii_case("bearer");
                if is_bearer {
                    found.get_or_insert_default();
                }
                rest = after;
                continue;
            };
            let (parameter, after) = parameter_value(text.trim_start());
            if let Some(challenge) = found.as_mut().filter(|_| is_bearer) {
                challenge.set(name, parameter);
            }
            rest = after;
        }
        found
    }

    fn set(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => self.resource_metadata = Url::parse(&value).ok(),
            "scope" if !value.trim().is_empty() => self.scope = Some(value),
            "error" => self.error = Some(value),
            _ => {}
        }
    }

    /// The scopes that the request lacks, if it was refused for that reason.
    pub fn missing_scope(&self) -> Option<&str> {
        let is_scope = self.error.as_deref() == Some("insufficient_scope");
        self.scope.as_deref().filter(|_| is_scope)
    }
}

/// The next token and the text after it. Commas and blanks separate tokens.
fn next_token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', '\t', ',', '=']);
    let end = text.find([' ', '\t', ',', '=']).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// A quoted or bare value, and the text after it.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            char => value.push(char),
        }
    }
    (value, "")
}
