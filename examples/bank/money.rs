//! Money in whole minor units (cents), and as decimal text outside. No floating point anywhere.

use std::fmt;

use rmcp::schemars;
use serde::{Deserialize, Serialize};

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum Currency {
    Eur,
    Usd,
    Gbp,
    Chf,
    Jpy,
}

impl Currency {
    pub const ALL: [Self; 5] = [Self::Eur, Self::Usd, Self::Gbp, Self::Chf, Self::Jpy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Eur => "Euro",
            Self::Usd => "US dollar",
            Self::Gbp => "Pound sterling",
            Self::Chf => "Swiss franc",
            Self::Jpy => "Japanese yen",
        }
    }

    /// Digits after the decimal point.
    pub fn digits(self) -> u32 {
        if self == Self::Jpy { 0 } else { 2 }
    }

    /// Millionths of this currency for one euro. The table is fixed: an answer can be checked.
    fn micros_per_euro(self) -> i128 {
        match self {
            Self::Eur => 1_000_000,
            Self::Usd => 1_085_000,
            Self::Gbp => 852_500,
            Self::Chf => 941_200,
            Self::Jpy => 163_750_000,
        }
    }

    fn minor_units(self) -> i128 {
        10_i128.pow(self.digits())
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_uppercase())
    }
}

/// An amount of one currency, in minor units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Money {
    pub minor: i64,
    pub currency: Currency,
}

impl Money {
    /// Reads a positive amount such as `12.50`; the error says what to write.
    pub fn parse(text: &str, currency: Currency) -> Result<Self, String> {
        let digits = currency.digits();
        let wrong = || {
            let example = if digits == 0 { "1250" } else { "12.50" };
            format!(
                "amount {text:?} is not an amount of {currency}: write digits with at most {digits} decimals, such as {example}"
            )
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let numeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let dangling = text.contains('.') && part.is_empty();
        if whole.is_empty()
            || dangling
            || part.len() > digits as usize
            || !numeric(whole)
            || !numeric(part)
        {
            return Err(wrong());
        }
        let padded = format!("{whole}{part:0<width$}", width = digits as usize);
        let minor: i64 = padded.parse().map_err(|_| wrong())?;
        match minor {
            0 => Err("amount must be above zero".to_owned()),
            minor if minor > 10_000_000_000 => {
                Err("amount is more than this bank moves at once".to_owned())
            }
            minor => Ok(Self { minor, currency }),
        }
    }

    /// The same in another currency, rounded to the nearest minor unit.
    pub fn to(self, currency: Currency) -> Self {
        let over = currency.micros_per_euro() * currency.minor_units();
        let under = self.currency.micros_per_euro() * self.currency.minor_units();
        let minor = (i128::from(self.minor) * over + under / 2).div_euclid(under);
        Self {
            minor: i64::try_from(minor).expect("amounts are bounded"),
            currency,
        }
    }
}

impl fmt::Display for Money {
    /// `12.50`, without the currency.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.currency.digits() as usize;
        let sign = if self.minor < 0 { "-" } else { "" };
        let text = format!("{:0>width$}", self.minor.unsigned_abs(), width = digits + 1);
        let (whole, part) = text.split_at(text.len() - digits);
        write!(
            f,
            "{sign}{whole}{}{part}",
            if digits == 0 { "" } else { "." }
        )
    }
}

/// How much of `to` one of `from` buys, with six decimals.
pub fn rate(from: Currency, to: Currency) -> String {
    let millionths =
        (to.micros_per_euro() * 1_000_000 + from.micros_per_euro() / 2) / from.micros_per_euro();
    format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eur(text: &str) -> Result<i64, String> {
        Money::parse(text, Currency::Eur).map(|money| money.minor)
    }

    #[test]
    fn amounts_are_read_exactly_or_refused_with_advice() {
        assert_eq!(eur("12.50"), Ok(1_250));
        assert_eq!(eur("0.1"), Ok(10));
        assert_eq!(eur("7"), Ok(700));
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "1.234",
            "-1",
            "+1",
            "1e3",
            "1,50",
            " 1",
            "99999999999999999999",
            "NaN",
        ] {
            let error = eur(bad).expect_err(bad);
            assert!(error.contains("such as 12.50"), "{bad}: {error}");
        }
        assert!(eur("0.00").is_err());
        assert!(
            Money::parse("12.5", Currency::Jpy)
                .expect_err("no decimals")
                .contains("such as 1250")
        );
    }

    #[test]
    fn amounts_are_shown_as_they_are_read() {
        for text in ["12.50", "0.05", "1000000.00"] {
            assert_eq!(
                Money::parse(text, Currency::Eur).map(|money| money.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!(
            Money {
                minor: -5,
                currency: Currency::Eur
            }
            .to_string(),
            "-0.05"
        );
        assert_eq!(
            Money {
                minor: 480_000,
                currency: Currency::Jpy
            }
            .to_string(),
            "480000"
        );
    }

    #[test]
    fn exchange_uses_the_fixed_table() {
        assert_eq!(rate(Currency::Eur, Currency::Usd), "1.085000");
        assert_eq!(rate(Currency::Usd, Currency::Eur), "0.921659");
        assert_eq!(rate(Currency::Gbp, Currency::Gbp), "1.000000");
        let yen = Money {
            minor: 10_000,
            currency: Currency::Eur,
        }
        .to(Currency::Jpy);
        assert_eq!(yen.to_string(), "16375");
    }
}
