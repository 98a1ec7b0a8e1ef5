//! Money: exact decimals with a currency, and the one rounding function.

use rust_decimal::{Decimal, RoundingStrategy};
use serde::{Deserialize, Serialize};

use crate::FieldError;
use crate::quantity::{MINUS, grouped};

/// Decimals of an amount as it is billed.
pub const BILLED_DECIMALS: u32 = 2;
/// Decimals of a running cost as it is shown before it is billed.
pub const SHOWN_DECIMALS: u32 = 4;

/// An ISO 4217 currency code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[cfg_attr(
    feature = "openapi",
    derive(utoipa::ToSchema),
    schema(value_type = String, min_length = 3, max_length = 3, pattern = "^[A-Z]{3}$")
)]
#[serde(transparent)]
pub struct Currency(String);

impl Currency {
    /// The code as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands before an amount: its sign, or its code where it has none of its own.
    fn sign(&self) -> String {
        match self.as_str() {
            "CNY" => "¥".into(),
            "EUR" => "€".into(),
            "USD" => "$".into(),
            "GBP" => "£".into(),
            other => format!("{other}\u{a0}"),
        }
    }
}

impl std::fmt::Display for Currency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for Currency {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() == 3 && text.bytes().all(|b| b.is_ascii_uppercase()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(FieldError::new(
                "currency",
                text,
                "three capital letters of ISO 4217, such as CNY",
            ))
        }
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// An amount in a currency; the amount travels as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Money {
    /// The amount, a decimal as text.
    #[serde(with = "plain")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "41.10"))]
    pub amount: Decimal,
    /// The currency.
    pub currency: Currency,
}

impl Money {
    /// The amount as people read it: to the cent, and to four decimals where it is less than one.
    pub fn written(&self) -> String {
        let most = if self.less_than_a_cent() {
            SHOWN_DECIMALS
        } else {
            BILLED_DECIMALS
        };
        self.to_decimals(most, BILLED_DECIMALS)
    }

    /// A price: with as many decimals as it has, at most four.
    pub fn written_finely(&self) -> String {
        self.to_decimals(SHOWN_DECIMALS, BILLED_DECIMALS)
    }

    /// An amount in a column of which one is less than a cent: all have four decimals.
    pub fn written_evenly(&self) -> String {
        self.to_decimals(SHOWN_DECIMALS, SHOWN_DECIMALS)
    }

    /// Whether it is something, and less than a cent.
    pub fn less_than_a_cent(&self) -> bool {
        !self.amount.is_zero() && self.amount.abs() < Decimal::new(1, BILLED_DECIMALS)
    }

    /// With the currency's sign, and no zeros after so many decimals.
    fn to_decimals(&self, most: u32, least: u32) -> String {
        let mut rounded = round(self.amount, most).normalize();
        if rounded.scale() < least {
            rounded.rescale(least);
        }
        let digits = rounded.abs().to_string();
        let (whole, decimals) = digits.split_once('.').unwrap_or((&digits, ""));
        let whole = whole
            .parse::<i64>()
            .map_or_else(|_| whole.to_owned(), grouped);
        let sign = if rounded.is_sign_negative() && !rounded.is_zero() {
            MINUS
        } else {
            ""
        };
        format!("{sign}{}{whole}.{decimals}", self.currency.sign())
    }
}

/// Amounts as they travel: digits, a point and digits, and nothing else that a reader of decimals
/// would take (signs, exponents, underscores), so that one amount has one writing.
mod plain {
    use rust_decimal::Decimal;
    pub use rust_decimal::serde::str::serialize;
    use serde::de::{Deserialize, Deserializer, Error};

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Decimal, D::Error> {
        let text = String::deserialize(from)?;
        read(&text).ok_or_else(|| {
            D::Error::custom(format_args!(
                "{text:?} is not an amount; use digits, and a point before decimals, such as \"41.10\""
            ))
        })
    }

    /// Nothing where it is not written plainly, or has too many digits.
    pub(super) fn read(text: &str) -> Option<Decimal> {
        let size = text.strip_prefix('-').unwrap_or(text);
        let (whole, decimals) = size.split_once('.').unwrap_or((size, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let amount: Decimal = (digits(whole) && digits(decimals))
            .then(|| text.parse().ok())
            .flatten()?;
        (size == text || !amount.is_zero()).then_some(amount)
    }
}

/// Rounds half away from zero, as PostgreSQL's `round(numeric)` does, and keeps the scale.
pub fn round(amount: Decimal, decimals: u32) -> Decimal {
    let mut rounded =
        amount.round_dp_with_strategy(decimals, RoundingStrategy::MidpointAwayFromZero);
    rounded.rescale(decimals);
    rounded
}

/// Rounds the lines of a bill so that they add up to their rounded total: each is cut
/// toward zero, and the units left over go to the largest remainders, earlier lines first.
pub fn round_lines(lines: &[Decimal], decimals: u32) -> Vec<Decimal> {
    let unit = Decimal::new(1, decimals);
    let total = round(lines.iter().sum(), decimals);
    let mut rounded: Vec<Decimal> = lines
        .iter()
        .map(|line| line.round_dp_with_strategy(decimals, RoundingStrategy::ToZero))
        .collect();
    let mut rest = total - rounded.iter().sum::<Decimal>();
    let step = if rest.is_sign_negative() { -unit } else { unit };
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|&a, &b| {
        let remainder = |i: usize| (lines[i] - rounded[i]) * step;
        remainder(b).cmp(&remainder(a)).then(a.cmp(&b))
    });
    for index in order {
        if rest.is_zero() {
            break;
        }
        rounded[index] += step;
        rest -= step;
    }
    for line in &mut rounded {
        line.rescale(decimals);
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_has_one_writing() {
        for text in ["0", "41.10", "-0.5", "1000000"] {
            assert_eq!(plain::read(text), text.parse().ok(), "{text}");
        }
        for text in [
            "", "-", "+5", ".5", "5.", "1_000", "1e1", "-0", "-0.00", "1.2.3", " 1", "NaN",
        ] {
            assert_eq!(plain::read(text), None, "{text:?}");
        }
        let refused = serde_json::from_str::<Money>(r#"{"amount": "1e1", "currency": "CNY"}"#);
        assert!(refused.is_err_and(|e| e.to_string().contains("such as \"41.10\"")));
    }

    #[test]
    fn money_is_written_to_the_cent_and_finer_only_where_that_is_nothing() {
        let money = |amount: &str, currency: &str| Money {
            amount: dec(amount),
            currency: currency.parse().expect("a currency"),
        };
        for (amount, written, finely) in [
            ("0", "¥0.00", "¥0.00"),
            ("41.1000", "¥41.10", "¥41.10"),
            ("1284.505", "¥1,284.51", "¥1,284.505"),
            ("-6.275", "\u{2212}¥6.28", "\u{2212}¥6.275"),
            ("1.2345", "¥1.23", "¥1.2345"),
            ("0.0012", "¥0.0012", "¥0.0012"),
            ("0.0050", "¥0.005", "¥0.005"),
            ("0.01", "¥0.01", "¥0.01"),
            ("0.00001", "¥0.00", "¥0.00"),
            ("-0.00001", "¥0.00", "¥0.00"),
        ] {
            let money = money(amount, "CNY");
            assert_eq!(money.written(), written, "{amount}");
            assert_eq!(money.written_finely(), finely, "{amount}");
        }
        assert_eq!(money("8.2", "JPY").written(), "JPY\u{a0}8.20");
        assert_eq!(money("8.2", "EUR").written(), "€8.20");
    }

    fn dec(text: &str) -> Decimal {
        text.parse().expect("a decimal")
    }

    #[test]
    fn rounding_is_half_away_from_zero() {
        for (value, decimals, expected) in [
            ("2.5", 0, "3"),
            ("0.125", 2, "0.13"),
            ("-0.125", 2, "-0.13"),
            ("1", 2, "1.00"),
        ] {
            assert_eq!(round(dec(value), decimals).to_string(), expected);
        }
    }

    #[test]
    fn lines_add_up_to_the_total() {
        let third = dec("100") / dec("3");
        let lines = round_lines(&[third, third, third], 2);
        assert_eq!(
            lines.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["33.34", "33.33", "33.33"]
        );
        let parts = [3, 2, 2].map(|p| dec("100.01") * Decimal::from(p) / dec("7"));
        assert_eq!(
            round_lines(&parts, 2)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["42.86", "28.58", "28.57"]
        );
        let negative = round_lines(&[-third, -third, -third], 2);
        assert_eq!(
            negative.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["-33.34", "-33.33", "-33.33"]
        );
    }
}
