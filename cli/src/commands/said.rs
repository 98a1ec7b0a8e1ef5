//! Words and times of flags, read before anybody is asked: what cannot be meant is wrong words.

use std::str::FromStr;

use domain::name::Name;
use domain::{FieldError, Timestamp};
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error, StrDeserializer};

use super::platform::GROUPS;

/// A word of its kind, as it was said.
pub fn word<T: FromStr<Err = FieldError>>(text: &str) -> Result<String, String> {
    match text.parse::<T>() {
        Ok(_) => Ok(text.to_owned()),
        Err(fault) => Err(fault.remedy),
    }
}

/// The same, or nothing, which takes the key of a file or of a job like it away.
pub fn word_or_none<T: FromStr<Err = FieldError>>(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        text => word::<T>(text),
    }
}

/// Several words of a kind, separated by commas.
pub fn words<T: FromStr<Err = FieldError>>(text: &str) -> Result<String, String> {
    text.split(',')
        .try_for_each(|one| word::<T>(one).map(drop))?;
    Ok(text.to_owned())
}

/// A name.
pub fn name(text: &str) -> Result<String, String> {
    word::<Name>(text)
}

/// The same, or nothing.
pub fn time_or_none(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        text => time(text),
    }
}

/// What usage is grouped by, separated by commas.
pub fn groups(text: &str) -> Result<String, String> {
    let known = |word: &str| GROUPS.iter().any(|(group, _)| *group == word);
    if text.split(',').all(known) {
        return Ok(text.to_owned());
    }
    let all: Vec<&str> = GROUPS.iter().map(|(group, _)| *group).collect();
    Err(format!("one of {}, or several by commas", all.join(" ")))
}

/// A time, as the server reads it.
pub fn time(text: &str) -> Result<String, String> {
    let reader: StrDeserializer<'_, Error> = text.into_deserializer();
    match domain::time::read::<Timestamp, _>(reader) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("a time in RFC 3339, such as 2026-10-01T00:00:00Z".to_owned()),
    }
}
