//! Decimal numbers of any length, as they are compared and written in one way.

use std::{cmp::Ordering, fmt::Write as _};

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
