//! Reads queries, and tells by field what a parser found wrong: where, what it held, and what would be accepted.

use axum::extract::Query;
use axum::http::Uri;
use domain::FieldError;
use domain::spec::{self, WORKERS_MAX};
use serde::de::DeserializeOwned;

use crate::app::AppError;
use crate::app::classes::PRIORITY_MAX;
use crate::app::page::PAGE_ITEMS_MAX;

/// Reads a query; one that is wrong is refused by its field.
pub fn read_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, AppError> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(value)) => Ok(value),
        Err(rejection) => {
            let query = uri.query().unwrap_or("");
            let fault = query_fault(&rejection.body_text(), query);
            if !fault.missing {
                return Err(fault.into());
            }
            let held = format!("{}={NOTHING_ITS_KIND}", fault.field);
            let query = if query.is_empty() {
                held
            } else {
                format!("{query}&{held}")
            };
            let tried = format!("/?{query}").parse().ok();
            let tried = tried.and_then(|uri: Uri| Query::<T>::try_from_uri(&uri).err());
            let tried = tried.map(|rejection| query_fault(&rejection.body_text(), &query));
            Err(takes(fault, tried).into())
        }
    }
}

/// A text that is no number, time, word or name.
const NOTHING_ITS_KIND: &str = "%2F";

/// A fault of the query, from what axum says of it.
fn query_fault(rejection: &str, query: &str) -> FieldError {
    let text = rejection
        .strip_prefix("Failed to deserialize query string: ")
        .unwrap_or(rejection);
    let (path, message) = match text.split_once(": ") {
        Some((path, rest)) if !path.contains(' ') => (path, rest),
        _ => ("", text),
    };
    field_fault(path, message, |field| {
        query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .find_map(|(key, value)| (key == field).then(|| value.to_owned()))
    })
}

/// What is said of a field that is missing where its parser does not say what it takes.
const ANYTHING: &str = "a value";

/// Says of a missing field what it takes: what is refused of `tried`, in which it holds what it cannot.
pub fn takes(missing: FieldError, tried: Option<FieldError>) -> FieldError {
    match tried {
        Some(tried) if tried.field == missing.field && !tried.missing => {
            FieldError::missing(missing.field, tried.remedy)
        }
        _ => missing,
    }
}

/// Turns a parser's message into field, value and remedy.
pub fn field_fault(
    path: &str,
    message: &str,
    value_at: impl Fn(&str) -> Option<String>,
) -> FieldError {
    if let Some(name) = quoted_after(message, "missing field ") {
        return FieldError::missing(below(path, name), ANYTHING);
    }
    if let Some(name) = quoted_after(message, "duplicate field ") {
        return FieldError::new(below(path, name), "a second value", "give it once");
    }
    if let Some(name) = quoted_after(message, "unknown field ") {
        let field = below(path, name);
        let remedy = message.split_once(", expected ").map_or_else(
            || "none: nothing is accepted here".to_owned(),
            |(_, expected)| format!("leave it out; accepted is {}", expected.replace('`', "")),
        );
        let value = value_at(&field).unwrap_or_else(|| "a value".into());
        return FieldError::new(field, value, remedy);
    }
    let value = value_at(path);
    let field = if path.is_empty() { "body" } else { path };
    // Our own types say `field: value is refused: remedy`.
    if let Some((head, remedy)) = message.split_once(" is refused: ") {
        let own = head.split_once(": ").map_or(head, |(_, value)| value);
        // An amount's own bounds are wider than those of a key of a spec.
        let remedy = spec::takes(path).unwrap_or_else(|| remedy.to_owned());
        return FieldError::new(field, value.as_deref().unwrap_or(own), remedy);
    }
    let expected = message
        .split_once(", expected ")
        .map(|(_, expected)| expected);
    let remedy = bounded(path, message, expected)
        .or_else(|| by_kind(message).map(str::to_owned))
        .or_else(|| array_of(expected?, value.as_deref()?))
        .or_else(|| expected.map(plain))
        .unwrap_or_else(|| message.to_owned());
    FieldError::new(field, value.as_deref().unwrap_or("a value"), remedy)
}

/// An array was expected and one value was given: it, as such an array.
fn array_of(expected: &str, value: &str) -> Option<String> {
    let one = !value.starts_with(['[', '{']) && value != "null";
    (one && expected == "a sequence").then(|| format!("an array, such as [{value}]"))
}

/// Whole numbers that are asked for elsewhere than in a spec, with the least and the most.
const BOUNDS: [(&str, i64, i64); 5] = [
    ("limit", 1, PAGE_ITEMS_MAX as i64),
    ("worker", 0, WORKERS_MAX as i64 - 1),
    ("attempt", 1, i32::MAX as i64),
    ("offset", 0, i64::MAX),
    ("priority", -(PRIORITY_MAX as i64), PRIORITY_MAX as i64),
];
/// What parsers say of what is no whole number, or of one that their type does not hold.
const NO_WHOLE_NUMBER: [&str; 4] = [
    "invalid digit found in string",
    "cannot parse integer from empty string",
    "number too large to fit",
    "number too small to fit",
];

/// The bounds of a whole number, where the parser stumbled over that and its field has any: they
/// are the contract's, not those of the type that it is read as.
fn bounded(path: &str, message: &str, expected: Option<&str>) -> Option<String> {
    let integer = |kind: &str| matches!(kind, "u32" | "i32" | "u64" | "i64");
    if !expected.is_some_and(integer) && !NO_WHOLE_NUMBER.iter().any(|w| message.contains(w)) {
        return None;
    }
    spec::takes(path).or_else(|| {
        let (_, least, most) = BOUNDS.iter().find(|(key, ..)| *key == path)?;
        Some(spec::whole_number(&(*least..=*most)))
    })
}

/// What would be accepted where a parser of times or numbers says only what it stumbled over.
fn by_kind(message: &str) -> Option<&'static str> {
    const TIME: &str = "a time in RFC 3339, such as 2026-10-01T00:00:00Z";
    const WHOLE: &str = "a whole number that is neither too large nor too small";
    const DECIMAL: &str = "a decimal number of at most 28 digits, such as 41.10";
    const KINDS: [(&str, &str); 9] = [
        ("premature end of input", TIME),
        ("input contains invalid characters", TIME),
        ("input is out of range", TIME),
        ("input is not enough", TIME),
        ("trailing input", TIME),
        ("RFC 3339", TIME),
        ("a Decimal type representing", DECIMAL),
        ("Invalid decimal", DECIMAL),
        ("Number exceeds maximum value", DECIMAL),
    ];
    let whole = NO_WHOLE_NUMBER.iter().any(|words| message.contains(words));
    KINDS
        .into_iter()
        .chain(whole.then_some((message, WHOLE)))
        .find_map(|(words, remedy)| message.contains(words).then_some(remedy))
        .or_else(|| {
            (message == "provided string was not `true` or `false`").then_some("true or false")
        })
}

/// What a parser expected, without the names of our types.
fn plain(expected: &str) -> String {
    let expected = expected.replace('`', "");
    match expected.as_str() {
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "i32" => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        "u8" | "u16" | "u64" | "usize" => "a whole number, not negative".into(),
        "i8" | "i16" | "i64" | "isize" => "a whole number of at most 18 digits".into(),
        "a sequence" => "an array".into(),
        "a JSON number" => "a number".into(),
        "a map" => "an object".into(),
        "a boolean" => "true or false".into(),
        other if other.starts_with("struct ") => "an object".into(),
        other => other.to_owned(),
    }
}

fn quoted_after<'a>(message: &'a str, words: &str) -> Option<&'a str> {
    message
        .strip_prefix(words)?
        .strip_prefix('`')?
        .split('`')
        .next()
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() || path == name || path.ends_with(&format!(".{name}")) {
        return if path.is_empty() {
            name.to_owned()
        } else {
            path.to_owned()
        };
    }
    format!("{path}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_query_names_its_parameter() {
        let fault = query_fault(
            "Failed to deserialize query string: colour: unknown field `colour`, expected `limit` or `cursor`",
            "limit=3&colour=red",
        );
        assert_eq!(
            (fault.field.as_str(), fault.value.as_str()),
            ("colour", "red")
        );
        assert!(fault.remedy.contains("limit"), "{}", fault.remedy);
        let fault = query_fault(
            "Failed to deserialize query string: limit: invalid digit found in string",
            "limit=x",
        );
        assert_eq!((fault.field.as_str(), fault.value.as_str()), ("limit", "x"));
        assert!(fault.remedy.contains("a whole number"), "{}", fault.remedy);
    }

    #[test]
    fn a_parameter_that_is_missing_is_told_with_what_it_takes() {
        #[derive(Debug, serde::Deserialize)]
        struct Wanted {
            limit: u32,
            #[serde(default)]
            at: Option<domain::Timestamp>,
        }
        for (uri, said) in [
            (
                "/x",
                "limit is missing: it takes a whole number from 1 to 500",
            ),
            (
                "/x?at=2026-10-01T00:00:00Z",
                "limit is missing: it takes a whole number from 1 to 500",
            ),
        ] {
            match read_query::<Wanted>(&uri.parse().expect("an address")) {
                Err(AppError::Invalid(fault)) => assert_eq!(fault.to_string(), said),
                Err(other) => panic!("{other:?}"),
                Ok(Wanted { limit, at }) => panic!("{limit} {at:?}"),
            }
        }
    }
}
