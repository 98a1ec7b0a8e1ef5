//! Points in time, as UTC; who calls is told `now`, nobody here reads a clock.

use chrono::Datelike as _;
use serde::{Deserialize, Deserializer, de};

use crate::FieldError;

/// A point in time, in UTC, to the microsecond that PostgreSQL keeps.
pub type Timestamp = chrono::DateTime<chrono::Utc>;

/// Writes a time as RFC 3339 in UTC, with no more decimals than it has.
pub fn format(time: Timestamp) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

/// The years that a time may lie in that somebody gives: differences between them fit in microseconds.
pub const YEARS: std::ops::RangeInclusive<i32> = 1970..=2200;

/// Reads a time that somebody gave, or none, with `deserialize_with`: one of [`YEARS`].
pub fn read<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Into<Option<Timestamp>> + Copy,
    D: Deserializer<'de>,
{
    const REMEDY: &str =
        "a time in RFC 3339 of the years 1970 to 2200, in UTC, such as 2026-10-01T00:00:00Z";
    let time = T::deserialize(deserializer)?;
    match time.into() {
        Some(given) if !YEARS.contains(&given.year()) => {
            Err(de::Error::custom(FieldError::new("time", given, REMEDY)))
        }
        _ => Ok(time),
    }
}
