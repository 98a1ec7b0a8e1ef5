//! What people type into the form, as values.

use std::str::FromStr;

use chrono::NaiveDateTime;
use domain::{FieldError, Timestamp};
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;

/// MiB in a GiB.
pub(super) const MIB_PER_GIB: i64 = 1024;
/// Seconds in a minute.
pub(super) const SECONDS_PER_MINUTE: i64 = 60;

/// How browsers write a time: with seconds where there are some.
pub(super) const MOMENTS: [&str; 2] = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"];

/// The error of a value that does not know where it stands.
pub(super) fn within(field: &str, error: FieldError) -> FieldError {
    FieldError {
        field: field.into(),
        ..error
    }
}

pub(super) fn read<T: FromStr>(
    text: &str,
    field: &str,
    remedy: &str,
) -> Result<Option<T>, FieldError> {
    match text.trim() {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| FieldError::new(field, text, remedy)),
    }
}

/// A time of UTC as browsers send it, or as people write it.
pub(super) fn moment(text: &str, field: &str) -> Result<Option<Timestamp>, FieldError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let sent = MOMENTS
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok());
    sent.map(|at| at.and_utc())
        .or_else(|| text.parse().ok())
        .map(Some)
        .ok_or_else(|| FieldError::new(field, text, "a time such as 2026-12-01T08:00, or nothing"))
}

pub(in crate::pages) fn minutes(text: &str, field: &str) -> Result<Option<i64>, FieldError> {
    scaled(
        text,
        field,
        SECONDS_PER_MINUTE,
        "a number of minutes above 0, or nothing",
    )
}

pub(super) fn gibibytes(text: &str, field: &str) -> Result<Option<i64>, FieldError> {
    scaled(
        text,
        field,
        MIB_PER_GIB,
        "a number of GiB from 0, or nothing",
    )
}

/// A decimal number times a unit, as the whole number nearest to it.
fn scaled(text: &str, field: &str, unit: i64, remedy: &str) -> Result<Option<i64>, FieldError> {
    let Some(number) = read::<Decimal>(text, field, remedy)? else {
        return Ok(None);
    };
    let whole = number
        .checked_mul(Decimal::from(unit))
        .and_then(|n| n.round().to_i64());
    match whole.filter(|_| !number.is_sign_negative()) {
        Some(whole) => Ok(Some(whole)),
        None => Err(FieldError::new(field, text, remedy)),
    }
}

pub(super) fn plain(number: Decimal) -> String {
    number.round_dp(3).normalize().to_string()
}
