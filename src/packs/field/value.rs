//! Reading a field as what it is for: an address, one of some words, a number.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use url::Url;

use super::{
    super::{redact, yaml::Value},
    Field, Plain, nearest, plain_meaning,
};

impl Field<'_> {
    /// Text that a function accepts; its error says what is wrong and may quote what it was given only
    /// when the author wrote it.
    pub(in crate::packs) fn parsed<T>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.non_blank_text()?;
        match parse(&text.value) {
            Ok(value) => Some(value),
            Err(_) if text.from_env => {
                self.error(
                    format!("the value of {} cannot be used here", text.shown),
                    "correct the variable",
                );
                None
            }
            Err(reason) => {
                self.error(reason, "");
                None
            }
        }
    }

    /// The address of a server: http or https, without a user and password in it.
    pub(in crate::packs) fn url(&self) -> Option<Url> {
        self.url_of(["http", "https"])
    }

    /// The same with other schemes.
    pub(in crate::packs) fn url_of(&self, [plain, safe]: [&str; 2]) -> Option<Url> {
        let text = self.non_blank_text()?;
        let scheme = format!("has another scheme than {plain} or {safe}");
        let (message, hint) = match Url::parse(text.value.trim()) {
            Ok(url) if url.scheme() != plain && url.scheme() != safe => (scheme.as_str(), ""),
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                self.mask();
                self.error(
                    "the address holds a user or password",
                    "send them in a header",
                );
                return None;
            }
            Ok(url) if url.has_host() => return Some(url),
            _ => (
                "is not an address",
                "write one such as `https://mcp.example.org/mcp`",
            ),
        };
        let said = match redact::public_part(&text.shown) {
            Some(place) if place.len() < text.shown.len() => format!("{place}?…\" {message}"),
            Some(_) => format!("{} {message}", text.shown),
            None => format!("what stands here {message}"),
        };
        self.error(said, hint);
        None
    }

    /// One of a few words.
    pub(in crate::packs) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(*value);
        }
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let near = if text.from_env {
            None
        } else {
            nearest(&text.value, &names)
        };
        let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
        let many = if names.len() == 1 { "" } else { "one of " };
        self.error(
            format!("unknown value {}", text.shown),
            &format!("{near}write {many}{}", names.join(", ")),
        );
        None
    }

    pub(in crate::packs) fn boolean(&self) -> Option<bool> {
        let wanted = "true or false";
        if let Value::Scalar { text, plain } = &self.node.value {
            if let Plain::Boolean(value) = plain_meaning(text, *plain) {
                return Some(value);
            }
            if text.contains("${") {
                return self.variable(text, wanted, |value| match plain_meaning(value, true) {
                    Plain::Boolean(value) => Some(value),
                    _ => None,
                });
            }
        }
        self.wanted(wanted, "write `true` or `false`, without quotes");
        None
    }

    pub(in crate::packs) fn whole(&self, bounds: &RangeInclusive<u32>) -> Option<u32> {
        self.numeric(bounds, "a whole number")
    }

    pub(in crate::packs) fn number(&self, bounds: &RangeInclusive<f64>) -> Option<f64> {
        self.numeric(bounds, "a number")
    }

    fn numeric<T: FromStr + PartialOrd + Display>(
        &self,
        bounds: &RangeInclusive<T>,
        noun: &str,
    ) -> Option<T> {
        let wanted = format!("{noun} from {} to {}", bounds.start(), bounds.end());
        let fits = |text: &str| {
            text.trim()
                .parse::<T>()
                .ok()
                .filter(|value| bounds.contains(value))
        };
        if let Value::Scalar { text, plain } = &self.node.value {
            if text.contains("${") {
                return self.variable(text, &wanted, fits);
            }
            if matches!(plain_meaning(text, *plain), Plain::Number) {
                let value = fits(text);
                if value.is_none() {
                    self.error(format!("{text} is not {wanted}"), "");
                }
                return value;
            }
        }
        self.wanted(&wanted, "write it in digits, without quotes");
        None
    }

    fn variable<T>(
        &self,
        text: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.resolved(text)?;
        let value = read(&text.value);
        if value.is_none() {
            self.error(
                format!("the value of {} is not {wanted}", text.shown),
                "correct the variable",
            );
        }
        value
    }
}
