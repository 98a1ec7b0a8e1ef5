//! Faults in what was sent, told by field: where it stands, what it held, and what would be accepted.

use domain::FieldError;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use crate::app::AppError;
use crate::front::fields::{field_fault, takes};

/// Reads a body: what is not JSON is unreadable (400), what is JSON but wrong is invalid (422).
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, AppError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = format!("byte {} is not UTF-8", e.valid_up_to() + 1);
        AppError::Unreadable(FieldError::new("body", at, "JSON in UTF-8"))
    })?;
    if !text.trim_start().starts_with('{') {
        // Arrays would be taken for objects whose fields come in order.
        return Err(match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => AppError::invalid("body", text, "an object"),
            Err(error) => unreadable("body", text, &error),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let fault = match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(value) => match deserializer.end() {
            Ok(()) => return Ok(value),
            Err(error) => return Err(unreadable("body", text, &error)),
        },
        Err(fault) => fault,
    };
    let path = fault.path().to_string();
    let path = if path == "." { String::new() } else { path };
    let error = fault.into_inner();
    if error.classify() != Category::Data {
        let field = if path.is_empty() { "body" } else { &path };
        // Where a word is asked for, a value of another kind is told as if it were no JSON.
        return Err(match serde_json::from_str::<Value>(text) {
            Ok(whole) => AppError::Invalid(no_word::<T>(whole, field)),
            Err(_) => unreadable(field, text, &error),
        });
    }
    let mut whole = serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    let fault = fault_in(&whole, &path, &error);
    if !fault.missing {
        return Err(AppError::Invalid(fault));
    }
    // What its parser says of a value that it cannot be is what it takes.
    let tried = put_null(&mut whole, &fault.field).and_then(|()| {
        let wrong = serde_path_to_error::deserialize::<_, T>(&whole).err()?;
        let path = wrong.path().to_string();
        Some(fault_in(&whole, &path, &wrong.into_inner()))
    });
    Err(AppError::Invalid(takes(fault, tried)))
}

/// A value that is no word where one is asked for. Which there are its parser says of a word that
/// is none of them.
fn no_word<T: DeserializeOwned>(mut whole: Value, field: &str) -> FieldError {
    const NO_WORD: &str = "/";
    let pointer: String = field
        .split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{part}"))
        .collect();
    let held = whole
        .pointer_mut(&pointer)
        .map(|held| std::mem::replace(held, NO_WORD.into()));
    let value = held.map_or_else(|| "a value".to_owned(), |held| held.to_string());
    let tried = serde_path_to_error::deserialize::<_, T>(&whole).err();
    let tried = tried.map(|wrong| {
        let path = wrong.path().to_string();
        fault_in(&whole, &path, &wrong.into_inner())
    });
    let tried = tried.filter(|tried| tried.field == field && !tried.missing);
    let remedy = tried.map_or_else(|| "a string".to_owned(), |tried| tried.remedy);
    FieldError::new(field, value, remedy)
}

fn fault_in(whole: &Value, path: &str, error: &serde_json::Error) -> FieldError {
    field_fault(path, &message(error), |field| {
        look_up(whole, field).map(ToString::to_string)
    })
}

/// Puts null at a path whose object is there.
fn put_null(whole: &mut Value, path: &str) -> Option<()> {
    let (above, key) = path.rsplit_once('.').unwrap_or(("", path));
    let pointer: String = above
        .split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{part}"))
        .collect();
    let object = whole.pointer_mut(&pointer)?.as_object_mut()?;
    object.insert(key.to_owned(), Value::Null);
    Some(())
}

fn unreadable(field: &str, text: &str, error: &serde_json::Error) -> AppError {
    let place = format!("line {} column {}", error.line(), error.column());
    let remedy = format!("JSON, which it is not from {place} on: {}", message(error));
    let value = match error.classify() {
        Category::Eof => None,
        _ => word_at(text, error.line(), error.column()),
    };
    AppError::Unreadable(FieldError::new(field, value.unwrap_or("the end"), remedy))
}

/// What stands at a place, counted from 1: a whole word of letters and digits, or one character.
fn word_at(text: &str, line: usize, column: usize) -> Option<&str> {
    let line = text.lines().nth(line.checked_sub(1)?)?;
    // Parsers count bytes, and may stop within a character.
    let mut at = column.saturating_sub(1).min(line.len());
    while !line.is_char_boundary(at) {
        at -= 1;
    }
    let begin = line[..at].trim_end_matches(char::is_alphanumeric).len();
    let rest = &line[begin..];
    let word = rest.len() - rest.trim_start_matches(char::is_alphanumeric).len();
    let one = rest.chars().next()?.len_utf8();
    Some(&rest[..word.max(one)])
}

/// What the parser said, without its place.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// The value at a path such as `jobs[3].per_worker.gpus`.
fn look_up<'a>(whole: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = whole;
    for part in path.split('.').filter(|p| !p.is_empty()) {
        let (key, indices) = part.split_once('[').map_or((part, ""), |(k, i)| (k, i));
        if !key.is_empty() {
            value = value.get(key)?;
        }
        for index in indices.split(['[', ']']).filter(|i| !i.is_empty()) {
            value = value.get(index.parse::<usize>().ok()?)?;
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::spec::JobSpec;

    fn fault(text: &str) -> (String, String, String) {
        match read::<JobSpec>(text.as_bytes()) {
            Err(AppError::Invalid(e)) => (e.field, e.value, e.remedy),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wrong_value_is_named_by_path_value_and_remedy() {
        let (field, value, remedy) =
            fault(r#"{"name": "a", "command": ["true"], "per_worker": {"gpus": 0.0001}}"#);
        assert_eq!(
            (field.as_str(), value.as_str()),
            ("per_worker.gpus", "0.0001")
        );
        assert!(remedy.contains("three decimals"), "{remedy}");
        let (field, value, remedy) = fault(r#"{"name": "a", "command": "true"}"#);
        assert_eq!(
            (field.as_str(), value.as_str(), remedy.as_str()),
            ("command", "\"true\"", "an array, such as [\"true\"]")
        );
        let (_, value, remedy) =
            fault(r#"{"name": "a", "command": ["true"], "per_worker": {"gpus": -1}}"#);
        assert_eq!(value, "-1");
        assert!(
            remedy.starts_with("a whole number from 0 to 64"),
            "{remedy}"
        );
    }

    #[test]
    fn a_number_out_of_bounds_is_told_those_of_its_key_however_it_is_written() {
        for (key, least, most) in [
            ("workers", 1, 1024),
            ("min_workers", 1, 1024),
            ("per_worker.memory_mib", 0, 67_108_864),
            ("per_worker.gpu_memory_mib", 0, 67_108_864),
            ("time_limit_seconds", 1, 316_224_000),
            ("predicted_seconds", 1, 316_224_000),
            ("checkpoint_seconds", 1, 316_224_000),
            ("restart_seconds", 0, 316_224_000),
            ("retries.limit", 0, 100),
        ] {
            for wrong in [
                "-1",
                "5000000000",
                "1.5",
                "1e30",
                "\"3\"",
                "100000000000000000000",
            ] {
                let mut keys = key.rsplit('.');
                let last = keys.next().expect("a key");
                let value = keys.fold(format!("\"{last}\": {wrong}"), |inner, outer| {
                    format!("\"{outer}\": {{{inner}}}")
                });
                let text = format!(r#"{{"name": "a", "command": ["x"], {value}}}"#);
                let refused = match read::<JobSpec>(text.as_bytes()) {
                    Err(AppError::Invalid(refused)) => refused,
                    Ok(spec) => spec.check().expect_err(&text),
                    other => panic!("{text}: {other:?}"),
                };
                assert_eq!(
                    (refused.field.as_str(), refused.remedy),
                    (key, format!("a whole number from {least} to {most}")),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn unknown_missing_and_repeated_fields_are_named() {
        let (field, value, remedy) =
            fault(r#"{"name": "a", "command": [], "per_worker": {"gpu": 1}}"#);
        assert_eq!((field.as_str(), value.as_str()), ("per_worker.gpu", "1"));
        assert!(remedy.contains("gpus"), "{remedy}");
        for (text, said) in [
            (r#"{"name": "a"}"#, "command is missing: it takes an array"),
            (
                r#"{"command": ["true"]}"#,
                "name is missing: it takes a string",
            ),
        ] {
            match read::<JobSpec>(text.as_bytes()) {
                Err(AppError::Invalid(fault)) => assert_eq!(fault.to_string(), said),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(fault(r#"{"name": "a", "name": "b"}"#).0, "name");
    }

    #[test]
    fn what_is_not_json_is_told_by_what_stands_there() {
        for (text, value) in [
            (r#"{"name": "a", "per_worker": {"gpus":NaN}}"#, "NaN"),
            ("{\n  \"name\": nul}", "nul"),
            ("{\"name\": 'a'}", "'"),
            ("{\"name\": é}", "é"),
            ("{", "the end"),
        ] {
            match read::<JobSpec>(text.as_bytes()) {
                Err(AppError::Unreadable(error)) => {
                    assert_eq!(error.value, value, "{text}");
                    assert!(error.remedy.contains("line "), "{}", error.remedy);
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_value_that_is_no_word_is_told_the_words_that_there_are() {
        for (value, told) in [("null", "null"), ("5", "5"), ("[]", "[]")] {
            let text = format!(r#"{{"name": "a", "command": ["true"], "kind": {value}}}"#);
            let (field, value, remedy) = fault(&text);
            assert_eq!((field.as_str(), value.as_str()), ("kind", told));
            assert!(remedy.contains("interactive"), "{remedy}");
        }
    }

    #[test]
    fn what_is_not_json_is_unreadable_with_its_place() {
        for text in [
            &b"{\"name\": NaN}"[..],
            b"{",
            b"\xff",
            b"{} x",
            b"{\"name\":\"\x01\"}",
        ] {
            match read::<JobSpec>(text) {
                Err(AppError::Unreadable(e)) => assert!(!e.value.is_empty()),
                // Deep trees and such are judged as data where they are JSON.
                other => assert!(matches!(other, Err(AppError::Invalid(_))), "{other:?}"),
            }
        }
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read::<Value>(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_time_a_number_and_an_amount_are_asked_for_in_words_of_ours() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Wanted {
            #[serde(default)]
            at: Option<domain::Timestamp>,
            #[serde(default)]
            amount: Option<rust_decimal::Decimal>,
            #[serde(default)]
            count: Option<u32>,
            #[serde(default)]
            seconds: Option<i64>,
        }
        let remedy = |text: &str| match read::<Wanted>(text.as_bytes()) {
            Err(AppError::Invalid(e)) => e.remedy,
            other => panic!("{text}: {other:?}"),
        };
        for at in [
            "\"tomorrow\"",
            "\"\"",
            "\"2026-13-01T00:00:00Z\"",
            "\"2026-10-01\"",
            "5",
        ] {
            let text = format!("{{\"at\": {at}}}");
            assert!(remedy(&text).starts_with("a time in RFC 3339"), "{text}");
        }
        for amount in ["\"x\"", "\"\"", "\"1,5\"", "[]", "true"] {
            let text = format!("{{\"amount\": {amount}}}");
            assert!(remedy(&text).starts_with("a decimal number"), "{text}");
        }
        assert_eq!(
            remedy("{\"count\": 5000000000}"),
            "a whole number from 0 to 4294967295"
        );
        assert!(remedy("{\"seconds\": 1e30}").starts_with("a whole number"));
        assert!(remedy("{\"seconds\": 100000000000000000000}").starts_with("a whole number"));
    }
}
