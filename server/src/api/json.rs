//! Faults in what was sent, told by field: where it stands, what it held, and what would be accepted.

use domain::FieldError;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use super::objects::FromObjects;
use crate::app::AppError;
use crate::front::fields::{field_fault, takes};

/// Reads a body: what is not JSON is unreadable (400), what is JSON but wrong is invalid (422).
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, AppError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = format!("byte {} is not UTF-8", e.valid_up_to() + 1);
        AppError::Unreadable(FieldError::new("body", at, "JSON in UTF-8"))
    })?;
    if !text.trim_start().starts_with('{') {
        return Err(match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => AppError::invalid("body", text, "an object"),
            Err(error) => unreadable("body", text, &error),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let fault = match serde_path_to_error::deserialize(FromObjects(&mut deserializer)) {
        Ok(value) => match deserializer.end() {
            Ok(()) => return Ok(value),
            Err(error) => return Err(unreadable("body", text, &error)),
        },
        Err(fault) => fault,
    };
    let path = known(&fault.path().to_string()).to_owned();
    let error = fault.into_inner();
    // The parser stops at the first fault, of JSON or of what was asked for: what it says tells
    // not always which of both it was.
    if let Err(at) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        let field = match error.classify() {
            Category::Data => "body",
            _ if path.is_empty() => "body",
            _ => path.as_str(),
        };
        let error = if field == "body" { &at } else { &error };
        return Err(unreadable(field, text, error));
    }
    let whole = match serde_json::from_str::<Value>(text) {
        Ok(whole) => whole,
        Err(at) if message(&at).contains("escape") || message(&at).contains("surrogate") => {
            return Err(half_a_character(&path, text, &at));
        }
        Err(_) => Value::Null,
    };
    let fault = fault_in(&whole, &path, &error);
    if !fault.missing && knows(&fault.remedy) {
        return Err(AppError::Invalid(fault));
    }
    let tried = wanted::<T>(&whole, &fault.field);
    if fault.missing {
        return Err(AppError::Invalid(takes(fault, tried)));
    }
    Err(AppError::Invalid(match tried {
        Some(tried) => FieldError {
            remedy: tried.remedy,
            ..fault
        },
        None => fault,
    }))
}

/// A path as far as it is one: a parser that stopped before a key says `?` for it, and `.` for none.
fn known(path: &str) -> &str {
    path.trim_end_matches(['.', '?'])
}

/// What parsers say of the value of a choice that is no text: nothing of what may be chosen.
const CHOICE_UNSAID: [&str; 2] = ["expected value", "string or map"];

/// Whether a remedy says what would be accepted.
fn knows(remedy: &str) -> bool {
    !CHOICE_UNSAID.contains(&remedy)
}

/// What a field takes: what its parser says of a value that it cannot be. Of a choice it names what
/// may be chosen only where it gets a text.
fn wanted<T: DeserializeOwned>(whole: &Value, field: &str) -> Option<FieldError> {
    let tried = |value: Value| {
        let mut whole = whole.clone();
        put(&mut whole, field, value)?;
        let wrong = serde_path_to_error::deserialize::<_, T>(FromObjects(&whole)).err()?;
        let path = wrong.path().to_string();
        Some(fault_in(&whole, &path, &wrong.into_inner()))
    };
    let told = |fault: &FieldError| fault.field == field && knows(&fault.remedy);
    let by_null = tried(Value::Null).filter(told);
    by_null.or_else(|| tried(Value::from(NO_CHOICE)).filter(told))
}

/// A text that is no choice anywhere.
const NO_CHOICE: &str = "/";

/// An escape that JSON has and Unicode has no text for.
fn half_a_character(path: &str, text: &str, error: &serde_json::Error) -> AppError {
    let value = word_at(text, error.line(), error.column()).unwrap_or("an escape");
    let field = if path.is_empty() { "body" } else { path };
    AppError::invalid(
        field,
        value,
        format!(
            "text of whole characters, which it is not at line {} column {}: an escape such as \\ud83d stands for half of one and the other half does not follow it",
            error.line(),
            error.column()
        ),
    )
}

fn fault_in(whole: &Value, path: &str, error: &serde_json::Error) -> FieldError {
    field_fault(path, &message(error), |field| {
        look_up(whole, field).map(ToString::to_string)
    })
}

/// Puts a value at a path such as `jobs[3].kind` whose object or list is there.
fn put(whole: &mut Value, path: &str, value: Value) -> Option<()> {
    let mut keys: Vec<&str> = path
        .split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .collect();
    let last = keys.pop()?;
    let pointer: String = keys.iter().map(|key| format!("/{key}")).collect();
    match whole.pointer_mut(&pointer)? {
        Value::Object(object) => {
            object.insert(last.to_owned(), value);
        }
        Value::Array(list) => *list.get_mut(last.parse::<usize>().ok()?)? = value,
        _ => return None,
    }
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
    fn a_choice_that_is_no_text_is_told_what_may_be_chosen() {
        for (key, value, path, choices) in [
            ("kind", "null", "kind", "training"),
            ("kind", "5", "kind", "training"),
            ("runner", "null", "runner", "process"),
            ("on_partition", "true", "on_partition", "stop"),
            ("nvlink", "null", "nvlink", "prefer"),
            (
                "per_worker",
                r#"{"sharing": [null]}"#,
                "per_worker.sharing[0]",
                "time_slice",
            ),
            (
                "retries",
                r#"{"limit": 1, "on": [null]}"#,
                "retries.on[0]",
                "failure",
            ),
        ] {
            let text = format!(r#"{{"name": "a", "command": ["x"], "{key}": {value}}}"#);
            let (field, told, remedy) = fault(&text);
            assert_eq!(field, path, "{text}");
            assert!(value.contains(&told), "{text}: {told}");
            assert!(remedy.contains(choices), "{text}: {remedy}");
            assert!(!remedy.contains("expected"), "{text}: {remedy}");
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Wanted {
            role: domain::role::TeamRole,
        }
        for text in ["{}", r#"{"role": null}"#] {
            let told = match read::<Wanted>(text.as_bytes()) {
                Err(AppError::Invalid(fault)) => fault.to_string(),
                other => panic!("{other:?}"),
            };
            assert!(told.contains("owner") && told.contains("viewer"), "{told}");
        }
    }

    #[test]
    fn what_stands_behind_a_body_and_half_a_character_are_told_as_that() {
        for text in [
            r#"{"name":"a"} {"x":1}"#,
            r#"{"name":"a", "command": ["x"]} {"x":1}"#,
        ] {
            match read::<JobSpec>(text.as_bytes()) {
                Err(AppError::Unreadable(fault)) => assert_eq!(fault.field, "body", "{fault}"),
                other => panic!("{other:?}"),
            }
        }
        let (field, _, remedy) = fault(r#"{"name": "\ud800", "command": ["x"]}"#);
        assert_eq!(field, "name");
        assert!(remedy.contains("half of one"), "{remedy}");
    }

    #[test]
    fn what_is_not_json_is_told_by_what_stands_there() {
        for (text, value) in [
            (r#"{"name": "a", "per_worker": {"gpus":NaN}}"#, "NaN"),
            ("{\n  \"name\": nul}", "nul"),
            ("{\"name\": 'a'}", "'"),
            ("{\"name\": é}", "é"),
            ("{", "the end"),
            (r#"{"per_worker": {"#, "the end"),
        ] {
            match read::<JobSpec>(text.as_bytes()) {
                Err(AppError::Unreadable(error)) => {
                    assert_eq!(error.value, value, "{text}");
                    assert!(!error.field.contains('?'), "{text}: {}", error.field);
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
