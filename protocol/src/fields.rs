//! Single fields of what nodes say: how each kind is checked, whatever message it stands in.

use std::collections::BTreeSet;
use std::str::FromStr;

use domain::error::printable;

use crate::Malformed;

/// Longest free text that is kept of a node, in characters; a sentence or two.
pub const TEXT_CHARS_MAX: usize = 512;
/// Largest amount of memory, in MiB, or of CPU, in thousandths, that is believed.
const AMOUNT_MAX: i64 = 1 << 40;

/// A device's UUID as NVML writes them.
pub(crate) fn uuid(uuid: String) -> Result<String, Malformed> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if uuid.is_empty() || uuid.len() > 96 || !uuid.bytes().all(plain) {
        return Err(Malformed::invalid("device.uuid", uuid));
    }
    Ok(uuid)
}

pub(crate) fn bounded(field: &'static str, count: usize, max: usize) -> Result<(), Malformed> {
    if count > max {
        return Err(Malformed::invalid(
            field,
            format!("{count} entries, at most {max}"),
        ));
    }
    Ok(())
}

pub(crate) fn amount(field: &'static str, value: i64) -> Result<i64, Malformed> {
    if (0..=AMOUNT_MAX).contains(&value) {
        Ok(value)
    } else {
        Err(Malformed::invalid(field, value))
    }
}

pub(crate) fn count(field: &'static str, value: u64) -> Result<i64, Malformed> {
    i64::try_from(value).map_err(|_| Malformed::invalid(field, value))
}

pub(crate) fn parsed<T: FromStr>(field: &'static str, value: &str) -> Result<T, Malformed> {
    if value.is_empty() {
        return Err(Malformed::Missing(field));
    }
    value
        .parse()
        .ok()
        .ok_or_else(|| Malformed::invalid(field, value))
}

pub(crate) fn known<T: FromStr + Ord>(words: &[String]) -> Vec<T> {
    let known: BTreeSet<T> = words.iter().filter_map(|word| word.parse().ok()).collect();
    known.into_iter().collect()
}

/// Whether a text is short and printable as it is.
pub fn kept_whole(text: &str) -> bool {
    text.chars().count() <= TEXT_CHARS_MAX && text.chars().all(printable)
}

/// A foreign text as it is kept: short, without control or direction characters.
pub(crate) fn text(text: String) -> String {
    text.chars()
        .map(|c| if printable(c) { c } else { '\u{fffd}' })
        .take(TEXT_CHARS_MAX)
        .collect()
}
