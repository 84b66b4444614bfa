//! Decimal numbers of any length, as they are compared and written in one way; and as people write and read them.

use std::{cmp::Ordering, fmt::Write as _};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Exponents beyond this are not compared.
const MAX_EXPONENT: i64 = 1_000_000_000_000;
/// Zeros that are written so that a number needs no exponent.
const MAX_ZEROS: i64 = 100;
/// Zeros between the point and the first digit of a fraction without an exponent, as in RFC 8785.
const MAX_LEADING_ZEROS: i64 = 5;

/// The number `0.DIGITS` times ten to the power of `point`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// Without zeros at either end; empty for zero.
    digits: String,
    point: i64,
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.canonical())
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("no decimal number"))
    }
}

impl Decimal {
    /// Reads a number of JSON. `None` when its exponent has too many digits.
    pub(super) fn parse(number: &str) -> Option<Self> {
        let (is_negative, number) = match number.strip_prefix('-') {
            Some(number) => (true, number),
            None => (false, number),
        };
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let significant = all.trim_start_matches('0');
        if significant.is_empty() {
            let (digits, point) = (String::new(), 0);
            return Some(Self {
                is_negative: false,
                digits,
                point,
            });
        }
        let exponent = exponent.parse::<i64>().ok()?;
        if exponent.abs() > MAX_EXPONENT {
            return None;
        }
        let leading = i64::try_from(all.len() - significant.len()).ok()?;
        Some(Self {
            is_negative,
            digits: significant.trim_end_matches('0').to_owned(),
            point: i64::try_from(whole.len()).ok()? - leading + exponent,
        })
    }

    fn len(&self) -> i64 {
        i64::try_from(self.digits.len()).unwrap_or(i64::MAX)
    }

    /// Whether it has at most so many digits before the point, and behind it.
    pub fn has_digits_within(&self, most: i64) -> bool {
        self.point <= most && self.len() - self.point <= most
    }

    /// The whole part, and the fraction in units of 10⁻³⁰, of a number that is not below zero and has at most 30 digits
    /// on each side of the point.
    pub(super) fn split(&self) -> (u128, u128) {
        let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or_default());
        let digits = format!(
            "{}{}{}",
            zeros(-self.point),
            self.digits,
            zeros(self.point - self.len())
        );
        let (whole, fraction) = digits.split_at(usize::try_from(self.point).unwrap_or_default());
        (
            whole.parse().unwrap_or_default(),
            format!("{fraction:0<30}").parse().unwrap_or_default(),
        )
    }

    pub fn is_integer(&self) -> bool {
        self.digits.is_empty() || self.point >= self.len()
    }

    /// Whether the number is an integer times `unit`.
    pub fn is_multiple_of(&self, unit: &Self) -> bool {
        if self.digits.is_empty() {
            return true;
        }
        let steps = (self.point - self.len()) - (unit.point - unit.len());
        // Neither ends with a zero, so that a unit with a greater power of ten has a multiple that does.
        let (false, Ok(divisor)) = (steps < 0, unit.digits.parse::<u128>()) else {
            return false;
        };
        if divisor == 0 || divisor > u128::MAX / 16 {
            return self.digits == unit.digits;
        }
        // More zeros than a divisor of 128 bits has factors change nothing.
        let zeros = std::iter::repeat_n(0, usize::try_from(steps.min(128)).unwrap_or_default());
        let digits = self.digits.bytes().map(|digit| u128::from(digit - b'0'));
        digits
            .chain(zeros)
            .fold(0, |rest, digit| (rest * 10 + digit) % divisor)
            == 0
    }

    /// The one spelling of the number: RFC 8785, but no digit is lost, and an integer has an exponent only where it would
    /// take more than a hundred zeros to do without. A reader that knows integers would take `1e+23` for a double.
    pub fn canonical(&self) -> String {
        let mut text = if self.is_negative { "-" } else { "" }.to_owned();
        let (digits, len, point) = (self.digits.as_str(), self.len(), self.point);
        let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or_default());
        if digits.is_empty() {
            text.push('0');
        } else if point >= len && point - len <= MAX_ZEROS {
            text.push_str(digits);
            text.push_str(&zeros(point - len));
        } else if point > 0 && point < len {
            let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or_default());
            let _ = write!(text, "{whole}.{fraction}");
        } else if point <= 0 && -point <= MAX_LEADING_ZEROS {
            let _ = write!(text, "0.{}{digits}", zeros(-point));
        } else {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            let _ = write!(text, "{first}{dot}{rest}e{:+}", point - 1);
        }
        text
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let size = (self.point, &self.digits).cmp(&(other.point, &other.digits));
        sign(self).cmp(&sign(other)).then(match sign(self) {
            0 => Ordering::Equal,
            1 => size,
            _ => size.reverse(),
        })
    }
}

/// Why a text is no number that a person can have meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    NotANumber,
    /// People of one country read more than a thousand, others a little more than one.
    Ambiguous,
}

/// What separates groups of digits and is never the sign of a fraction.
fn is_group_separator(c: char) -> bool {
    c == ' ' || is_number_space(c) || matches!(c, '\'' | '’')
}

/// Blanks that French and others write within a number, so that no line breaks there.
pub fn is_number_space(c: char) -> bool {
    matches!(c, '\u{a0}' | '\u{2007}' | '\u{2009}' | '\u{202f}')
}

fn is_currency_sign(c: char) -> bool {
    matches!(c, '$' | '¢' | '£' | '¤' | '¥' | '\u{20a0}'..='\u{20cf}')
}

/// Reads a number that a person wrote: with its separators of groups, with a comma or a point before its fraction, with
/// the sign of a currency beside it. The digits come back with a point, and the fraction as it was written. One lone
/// separator before three digits is read by nobody: `1,234` and `1.234` are more than a thousand to some people and a
/// little more than one to others.
///
/// Every text of a person that becomes a number is read here, whatever the door through which it comes.
pub fn read_written(text: &str) -> Result<String, Unreadable> {
    let (is_negative, number) = split_sign(text);
    let (whole, fraction) = split_fraction(number)?;
    let groups: Vec<&str> = whole
        .split(|c: char| matches!(c, '.' | ',') || is_group_separator(c))
        .collect();
    let mut separators = whole.chars().filter(|c| !c.is_ascii_digit());
    let first = separators.next();
    let are_equal = separators.all(|c| Some(c) == first);
    let is_group = |group: &&str| group.len() == 3;
    let is_first = (1..=3).contains(&groups[0].len()) && !groups[0].starts_with('0');
    let are_groups = groups.len() == 1 || is_first && are_equal && groups[1..].iter().all(is_group);
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let digits = groups.concat();
    let is_number = (is_digits(&digits) || digits.is_empty() && fraction.is_some())
        && fraction.is_none_or(is_digits)
        && are_groups;
    if !is_number {
        return Err(Unreadable::NotANumber);
    }
    let sign = if is_negative { "-" } else { "" };
    let digits = if digits.is_empty() { "0" } else { &digits };
    Ok(match fraction {
        Some(fraction) => format!("{sign}{digits}.{fraction}"),
        None => format!("{sign}{digits}"),
    })
}

/// Whether a number is below zero, and the rest of it without the sign of a currency.
fn split_sign(text: &str) -> (bool, &str) {
    let is_beside = |c: char| is_currency_sign(c) || c.is_whitespace();
    let text = text.trim_matches(is_beside);
    let (is_negative, number) = match text.strip_prefix(['-', '−']) {
        Some(number) => (true, number),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    (is_negative, number.trim_matches(is_beside))
}

/// The whole part of a number, and its fraction behind the last separator, if there is one.
fn split_fraction(number: &str) -> Result<(&str, Option<&str>), Unreadable> {
    let Some(at) = number.rfind(['.', ',']) else {
        return Ok((number, None));
    };
    let (whole, rest) = (&number[..at], &number[at + 1..]);
    let sign = &number[at..=at];
    let has_other = whole.contains(|c: char| !c.is_ascii_digit());
    if whole.contains(sign) {
        // The last one of several separates a group.
        return Ok((number, None));
    }
    let is_group = !has_other && (1..=3).contains(&whole.len()) && !whole.starts_with('0');
    if is_group && rest.len() == 3 && rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Unreadable::Ambiguous);
    }
    Ok((whole, Some(rest)))
}

/// The two readings of a number that nobody reads alike, with a point: `1234` and `1.234`, or, where a blank may as well
/// end it, `1234.50` and `1`.
pub fn two_readings(text: &str) -> Option<[String; 2]> {
    match (read_written(text), text.trim().split_once(' ')) {
        (Ok(whole), Some((first, _))) if first.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some([whole, first.to_owned()])
        }
        (Err(Unreadable::Ambiguous), _) => {
            let (is_negative, number) = split_sign(text);
            let (whole, fraction) = number.split_once(['.', ','])?;
            let sign = if is_negative { "-" } else { "" };
            Some([
                format!("{sign}{whole}{fraction}"),
                format!("{sign}{whole}.{fraction}"),
            ])
        }
        _ => None,
    }
}

/// Languages that write a comma before a fraction, and what separates their groups.
const POINT_GROUPS: [&str; 13] = [
    "es", "de", "it", "pt", "nl", "da", "id", "tr", "el", "hr", "sl", "ro", "ca",
];
const SPACE_GROUPS: [&str; 12] = [
    "fr", "pl", "cs", "sk", "ru", "uk", "bg", "sv", "nb", "no", "fi", "hu",
];
/// Countries whose Spanish has a point before a fraction.
const SPANISH_WITH_POINT: [&str; 11] = [
    "MX", "US", "PR", "GT", "HN", "NI", "PA", "PE", "SV", "DO", "419",
];

/// What separates groups of digits in this locale, and what stands before a fraction.
fn separators(locale: Option<&str>) -> (&'static str, char) {
    let mut parts = locale.unwrap_or_default().split(['-', '_']);
    let language = parts.next().unwrap_or_default().to_ascii_lowercase();
    let has_point = language == "es"
        && parts.any(|part| SPANISH_WITH_POINT.contains(&part.to_ascii_uppercase().as_str()));
    match language.as_str() {
        _ if has_point => (",", '.'),
        language if POINT_GROUPS.contains(&language) => (".", ','),
        language if SPACE_GROUPS.contains(&language) => ("\u{202f}", ','),
        _ => (",", '.'),
    }
}

/// A number in plain digits, ungrouped, with the sign of this locale before its fraction.
pub fn write_ungrouped_for(locale: Option<&str>, digits: &str) -> String {
    let (_, point) = separators(locale);
    digits.replace('.', &point.to_string())
}

/// A number in plain digits as readers of this locale write it: `1,234.50`, `1.234,50`. `None` for what is no such number.
pub fn write_for(locale: Option<&str>, digits: &str) -> Option<String> {
    let (sign, number) = match digits.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", digits),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !fraction.is_none_or(is_digits) {
        return None;
    }
    let (group, point) = separators(locale);
    let mut text = sign.to_owned();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push_str(group);
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push(point);
        text.push_str(fraction);
    }
    Some(text)
}
