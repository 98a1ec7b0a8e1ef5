//! Tables for people, JSON for programs.

mod fit;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use domain::money::Money;
use domain::{MilliGpu, Timestamp};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::foreign::{escaped, plain, plain_lines};

/// A column: its head, and the path of its value in a row.
pub type Column = (&'static str, &'static str);

/// Prints `value` as JSON, indented. On a terminal what a string orders is escaped.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::Refused(error.to_string()))?;
    print_line(&on_terminal(&text, escaped))
}

/// Prints a line, or several; a reader that went away (`| head`) is no fault.
pub fn print_line(line: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{}", on_terminal(line, plain_lines)) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A text as a terminal may have it; elsewhere it stays as it is.
fn on_terminal(text: &str, made_safe: impl Fn(&str) -> String) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() {
        Cow::Owned(made_safe(text))
    } else {
        Cow::Borrowed(text)
    }
}

/// Prints `rows` as a table, or `empty` where there are none. Numbers stand at the right. On a terminal
/// that is too narrow the columns that matter least go: those at the end.
pub fn print(rows: &[Value], columns: &[Column], empty: &str) -> Result<(), Failure> {
    if rows.is_empty() {
        return print_line(empty);
    }
    let number = |path: &str| rows.iter().any(|row| at(row, path).is_number());
    let cells = fit::Cells {
        heads: columns.iter().map(|(head, _)| *head).collect(),
        rows: rows
            .iter()
            .map(|row| columns.iter().map(|(_, path)| shown(row, path)).collect())
            .collect(),
        numbers: columns.iter().map(|(_, path)| number(path)).collect(),
    };
    print_line(&fit::laid_out(cells, fit::terminal_width()))
}

/// The value at a dotted path.
pub fn at<'a>(row: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(row, |value, key| &value[key])
}

/// The value at a dotted path as people read it; of a moment whole seconds.
pub fn shown(row: &Value, path: &str) -> String {
    let value = at(row, path);
    let moment = ["at", "from", "to"].contains(&path)
        || path.ends_with("_at")
        || path.ends_with("_since")
        || path.ends_with("expected_start");
    match value
        .as_str()
        .filter(|text| moment && text.parse::<Timestamp>().is_ok())
        .and_then(|time| time.split_once('.'))
    {
        Some((seconds, _)) => format!("{}Z", plain(seconds)),
        None => text(value),
    }
}

/// A value as people read it; control characters of others' texts are shown, not obeyed.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => plain(text),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Object(map) if map.contains_key("amount") => money(value),
        other => other.to_string(),
    }
}

/// A number with its noun, whose plural ends in an *s*.
pub fn counted(value: &Value, noun: &str) -> String {
    match value.as_u64() {
        Some(n) => domain::words::counted(n, noun),
        None => format!("{} {noun}s", text(value)),
    }
}

/// An amount of GPUs with its unit.
pub fn gpus(value: &Value) -> String {
    match amount(value) {
        Some(gpus) => domain::words::gpus(gpus),
        None => format!("{} GPUs", text(value)),
    }
}

/// An amount of GPUs, where that is one.
pub fn amount(value: &Value) -> Option<MilliGpu> {
    serde_json::from_value(value.clone()).ok()
}

/// An amount with its currency, as pages write it.
pub fn money(value: &Value) -> String {
    written(value, Money::written)
}

/// The same of a price.
pub fn price(value: &Value) -> String {
    written(value, Money::written_finely)
}

fn written(value: &Value, write: impl Fn(&Money) -> String) -> String {
    match Money::deserialize(value) {
        Ok(money) => write(&money),
        Err(_) => "unpriced".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_foreign_text_moves_no_cursor() {
        assert_eq!(text(&json!("a\u{1b}[2Jb\u{202e}")), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn a_moment_is_shown_in_whole_seconds() {
        let row =
            json!({"created_at": "2026-11-30T13:16:27.082278Z", "name": "a.b", "ended_at": null});
        assert_eq!(shown(&row, "created_at"), "2026-11-30T13:16:27Z");
        assert_eq!(shown(&row, "name"), "a.b");
        assert_eq!(shown(&row, "ended_at"), "–");
        let limit = json!({"key": "limit", "from": "1", "to": "1.5"});
        assert_eq!(shown(&limit, "to"), "1.5");
    }

    #[test]
    fn money_without_a_price_is_unpriced() {
        assert_eq!(text(&json!({"amount": null, "currency": null})), "unpriced");
        assert_eq!(
            text(&json!({"amount": "41.1000", "currency": "CNY"})),
            "¥41.10"
        );
        let small = json!({"amount": "0.0015", "currency": "CNY"});
        assert_eq!(
            (text(&small), price(&small)),
            ("¥0.0015".into(), "¥0.0015".into())
        );
    }
}
