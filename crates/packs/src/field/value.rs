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
    pub(crate) fn parsed<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
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
    pub(crate) fn url(&self) -> Option<Url> {
        self.url_of(["http", "https"])
    }

    /// The same with other schemes.
    pub(crate) fn url_of(&self, [plain, safe]: [&str; 2]) -> Option<Url> {
        let text = self.non_blank_text()?;
        let problem = match checked_url(text.value.trim(), [plain, safe]) {
            Ok(url) => return Some(url),
            Err(problem) => problem,
        };
        let message = problem.message();
        let hint = match problem {
            UrlProblem::Scheme { .. } => "",
            UrlProblem::NoAddress => "write one such as `https://mcp.example.org/mcp`",
            UrlProblem::User => {
                self.mask();
                self.error(
                    "the address holds a user or password",
                    "send them in a header",
                );
                return None;
            }
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
    pub(crate) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
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

    pub(crate) fn boolean(&self) -> Option<bool> {
        self.read_boolean(|value| match plain_meaning(value, true) {
            Plain::Boolean(value) => Some(value),
            _ => None,
        })
    }

    /// The same, also as text, as published packs write it: `"true"`, `yes`, `"0"`.
    pub(crate) fn boolean_or_word(&self) -> Option<bool> {
        if let Some(word) = self.raw().filter(|text| !text.contains("${"))
            && let Some(value) = boolean_word(word)
        {
            return Some(value);
        }
        self.read_boolean(boolean_word)
    }

    /// `of_variable` reads the value of a variable.
    fn read_boolean(&self, of_variable: impl FnOnce(&str) -> Option<bool>) -> Option<bool> {
        let wanted = "true or false";
        if let Value::Scalar { text, plain } = &self.node.value {
            if let Plain::Boolean(value) = plain_meaning(text, *plain) {
                return Some(value);
            }
            if text.contains("${") {
                return self.variable(text, wanted, of_variable);
            }
        }
        self.wanted(wanted, "write `true` or `false`, without quotes");
        None
    }

    pub(crate) fn whole(&self, bounds: &RangeInclusive<u32>) -> Option<u32> {
        self.numeric(bounds, "a whole number", false)
    }

    pub(crate) fn number(&self, bounds: &RangeInclusive<f64>) -> Option<f64> {
        self.numeric(bounds, "a number", false)
    }

    /// The same, also as text, as published packs write it: `"20"`.
    pub(crate) fn whole_or_text(&self, bounds: &RangeInclusive<u32>) -> Option<u32> {
        self.numeric(bounds, "a whole number", true)
    }

    pub(crate) fn number_or_text(&self, bounds: &RangeInclusive<f64>) -> Option<f64> {
        self.numeric(bounds, "a number", true)
    }

    fn numeric<T: FromStr + PartialOrd + Display>(
        &self,
        bounds: &RangeInclusive<T>,
        noun: &str,
        takes_text: bool,
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
            let digits = text.trim();
            let is_number = match plain_meaning(text, *plain) {
                Plain::Number => true,
                Plain::Text => takes_text && digits.parse::<f64>().is_ok(),
                Plain::Nothing | Plain::Boolean(_) => false,
            };
            if is_number {
                let value = fits(digits);
                if value.is_none() {
                    self.error(format!("{digits} is not {wanted}"), "");
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

/// What published packs write for true and false.
pub(crate) fn boolean_word(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Some(true),
        "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Why text is not the address of a server.
pub(crate) enum UrlProblem<'w> {
    Scheme { wanted: [&'w str; 2] },
    User,
    NoAddress,
}

impl UrlProblem<'_> {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Scheme {
                wanted: [plain, safe],
            } => format!("has another scheme than {plain} or {safe}"),
            Self::User => "holds a user or password".to_owned(),
            Self::NoAddress => "is not an address".to_owned(),
        }
    }
}

/// The address of a server, without a user and password in it.
pub(crate) fn checked_url<'w>(text: &str, wanted: [&'w str; 2]) -> Result<Url, UrlProblem<'w>> {
    match Url::parse(text) {
        Ok(url) if !wanted.contains(&url.scheme()) => Err(UrlProblem::Scheme { wanted }),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Err(UrlProblem::User),
        Ok(url) if url.has_host() => Ok(url),
        _ => Err(UrlProblem::NoAddress),
    }
}
