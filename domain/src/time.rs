//! Points in time, as UTC; who calls is told `now`, nobody here reads a clock.

/// A point in time, in UTC, to the microsecond that PostgreSQL keeps.
pub type Timestamp = chrono::DateTime<chrono::Utc>;

/// Writes a time as RFC 3339 in UTC, with no more decimals than it has.
pub fn format(time: Timestamp) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}
