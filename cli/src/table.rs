//! Tables for people, JSON for programs.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::Value;

use crate::failure::Failure;

/// A column: its head, and the path of its value in a row.
pub type Column = (&'static str, &'static str);

/// Prints `value` as JSON, indented.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print_line(&serde_json::to_string_pretty(value).map_err(|e| Failure::Refused(e.to_string()))?)
}

/// Prints one line; a reader that went away (`| head`) is no fault.
pub fn print_line(line: &str) -> Result<(), Failure> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints `rows` as a table, or `empty` where there are none. Numbers stand at the right.
pub fn print(rows: &[Value], columns: &[Column], empty: &str) -> Result<(), Failure> {
    if rows.is_empty() {
        return print_line(empty);
    }
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(head, _)| *head));
    for row in rows {
        table.add_row(columns.iter().map(|(_, path)| text(at(row, path))));
    }
    for (index, (_, path)) in columns.iter().enumerate() {
        if rows.iter().any(|row| at(row, path).is_number())
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line(&table.trim_fmt())
}

/// The value at a dotted path.
pub fn at<'a>(row: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(row, |value, key| &value[key])
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

/// An amount with its currency.
pub fn money(value: &Value) -> String {
    match (value["amount"].as_str(), value["currency"].as_str()) {
        (Some(amount), Some(currency)) => format!("{currency} {amount}"),
        _ => "unpriced".into(),
    }
}

/// A foreign text with its control characters replaced.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| {
            if domain::error::printable(c) {
                c
            } else {
                '\u{fffd}'
            }
        })
        .collect()
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
    fn money_without_a_price_is_unpriced() {
        assert_eq!(text(&json!({"amount": null, "currency": null})), "unpriced");
        assert_eq!(
            text(&json!({"amount": "1.2345", "currency": "CNY"})),
            "CNY 1.2345"
        );
    }
}
