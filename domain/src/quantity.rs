//! GPU and CPU amounts as whole numbers of thousandths; never floats.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// Thousandths in one.
pub const MILLI: i64 = 1000;
/// Most devices of one node, and so of one worker, which lies on one node.
pub const DEVICES_PER_NODE_MAX: u32 = 64;
/// The largest amount accepted anywhere, in whole GPUs or CPUs: far above any
/// fleet, and far below what sums and products of 64-bit integers can bear.
pub const AMOUNT_MAX: i64 = 10_000_000;

/// The highest weight, in whole units; with it, products of weights and amounts stay in 64 bits.
pub const WEIGHT_MAX: i64 = 1_000_000;

/// The sign of what is less than nothing, as people read it.
pub const MINUS: &str = "\u{2212}";
/// Digits between two separators in a long number.
const GROUP: usize = 3;

/// A whole number as people read it, with a comma at every third digit.
pub fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(GROUP) {
            out.push(',');
        }
        out.push(digit);
    }
    if n < 0 { format!("{MINUS}{out}") } else { out }
}

macro_rules! milli {
    ($(#[$meta:meta])* $name:ident, $field:literal, $most:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        pub struct $name(i64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

            /// An amount of whole units.
            pub const fn whole(units: i64) -> Self {
                Self(units * MILLI)
            }

            /// An amount of thousandths.
            pub const fn from_milli(milli: i64) -> Self {
                Self(milli)
            }

            /// The amount in thousandths.
            pub const fn milli(self) -> i64 {
                self.0
            }

            /// What remains after `other` is taken away, never below zero.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self((self.0 - other.0).max(0))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&format_milli(self.0))
            }
        }

        impl std::str::FromStr for $name {
            type Err = FieldError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_milli(text, $most)
                    .map(Self)
                    .ok_or_else(|| FieldError::new($field, text, amount_up_to($most)))
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if self.0 % MILLI == 0 {
                    return serializer.serialize_i64(self.0 / MILLI);
                }
                format_milli(self.0)
                    .parse::<serde_json::Number>()
                    .map_err(serde::ser::Error::custom)?
                    .serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // The number's shortest decimal text is parsed, so that no arithmetic is
                // ever done on the binary fraction that a parser may have read it into.
                let number = serde_json::Number::deserialize(deserializer)?;
                number.to_string().parse().map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::Number)
                    .minimum(Some(0))
                    .maximum(Some($most as isize))
                    .description(Some("An amount with at most three decimals"))
                    .into()
            }
        }
        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Add::add)
            }
        }
    };
}

milli!(
    /// A GPU amount, in thousandths of a device.
    MilliGpu, "gpus", AMOUNT_MAX
);
milli!(
    /// A CPU amount, in thousandths of a core.
    MilliCpu, "cpus", AMOUNT_MAX
);
milli!(
    /// A claim on spare capacity relative to others', in thousandths.
    Weight, "weight", WEIGHT_MAX
);
milli!(
    /// Points of priority, in thousandths.
    Points, "points", AMOUNT_MAX
);

/// The words for an amount of at most so many whole units.
fn amount_up_to(most: i64) -> String {
    format!(
        "a number from 0 to {} with at most three decimals",
        grouped(most)
    )
}

/// Writes thousandths for people: at most three decimals, no trailing zeros.
fn format_milli(milli: i64) -> String {
    let sign = if milli < 0 { "-" } else { "" };
    let (whole, rest) = (milli.unsigned_abs() / 1000, milli.unsigned_abs() % 1000);
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    let decimals = format!("{rest:03}");
    format!("{sign}{whole}.{}", decimals.trim_end_matches('0'))
}

/// Reads a plain decimal of at most three decimals; nothing negative, no exponent.
fn parse_milli(text: &str, most: i64) -> Option<i64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 3 || whole.len() > 12 {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    if whole > most {
        return None;
    }
    let rest: i64 = format!("{decimals:0<3}").parse().ok()?;
    let milli = whole * MILLI + rest;
    (milli <= most * MILLI).then_some(milli)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_at_most_three_decimals_and_are_exact() {
        for (text, milli) in [
            ("0", 0),
            ("0.5", 500),
            ("8", 8000),
            ("0.125", 125),
            ("0.1250", 125),
            ("2.0", 2000),
        ] {
            assert_eq!(
                serde_json::from_str::<MilliGpu>(text)
                    .map(MilliGpu::milli)
                    .ok(),
                Some(milli),
                "{text}"
            );
        }
        for text in [
            "-1",
            "0.0001",
            "1e308",
            "1000000000000",
            "\"8\"",
            "null",
            "NaN",
            "0.1234",
        ] {
            assert!(serde_json::from_str::<MilliGpu>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_weight_has_one_bound_and_one_message() {
        assert!("1000000".parse::<Weight>().is_ok());
        for above in ["1000000.001", "1000001", "10000001"] {
            let refused = above.parse::<Weight>().expect_err("too high");
            let remedy = "a number from 0 to 1,000,000 with at most three decimals";
            assert_eq!(refused.remedy, remedy, "{above}");
        }
    }

    #[test]
    fn amounts_are_written_without_trailing_zeros() {
        for milli in [0, 125, 500, 1000, 271_250] {
            let text = serde_json::to_string(&MilliGpu::from_milli(milli)).expect("a number");
            assert_eq!(
                serde_json::from_str::<MilliGpu>(&text)
                    .expect("read back")
                    .milli(),
                milli
            );
        }
        assert_eq!(MilliGpu::from_milli(271_250).to_string(), "271.25");
        assert_eq!(
            serde_json::to_string(&MilliGpu::from_milli(125)).expect("a number"),
            "0.125"
        );
    }
}
