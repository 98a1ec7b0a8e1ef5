//! YAML by the core schema of its version 1.2, with the line of each scalar that is no text.

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// A scalar that stands without quotes and is no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Where it is, such as `command[1]` or `env.CI`.
    pub path: String,
    /// Its line, from 1.
    pub line: usize,
    /// What stands in the file.
    pub text: String,
}

/// What a text holds.
#[derive(Debug, Clone)]
struct Node {
    value: Value,
    /// Its marks, with paths from itself on.
    marks: Vec<Mark>,
}

/// A list or map that is still being read.
enum Open {
    List(usize, Vec<Value>, Vec<Mark>),
    Map(usize, Map<String, Value>, Vec<Mark>, Option<String>),
}

/// Reads the one document of a text that is known to be YAML within the bounds of who checked that;
/// `None` where it is not.
pub fn read(text: &str) -> Option<(Value, Vec<Mark>)> {
    let mut open: Vec<Open> = Vec::new();
    let mut anchors: Vec<(usize, Node)> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.ok()?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (scalar(&text, plain, span.start.line()), anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                open.push(Open::List(anchor, Vec::new(), Vec::new()));
                continue;
            }
            Event::MappingStart(_, anchor, _) => {
                open.push(Open::Map(anchor, Map::new(), Vec::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop()? {
                Open::List(anchor, items, marks) => {
                    let value = Value::Array(items);
                    (Node { value, marks }, anchor)
                }
                Open::Map(anchor, entries, marks, _) => {
                    let value = Value::Object(entries);
                    (Node { value, marks }, anchor)
                }
            },
            Event::Alias(id) => {
                let known = anchors.iter().rev().find(|(anchor, _)| *anchor == id)?;
                (known.1.clone(), 0)
            }
            _ => continue,
        };
        if anchor != 0 {
            anchors.push((anchor, node.clone()));
        }
        match open.last_mut() {
            None => root = Some(node),
            Some(Open::List(_, items, marks)) => {
                let at = format!("[{}]", items.len());
                marks.extend(node.marks.into_iter().map(|mark| mark.below(&at)));
                items.push(node.value);
            }
            Some(Open::Map(_, entries, marks, key)) => match key.take() {
                None => *key = Some(as_key(node)?),
                Some(named) => {
                    marks.extend(node.marks.into_iter().map(|mark| mark.below(&named)));
                    entries.insert(named, node.value);
                }
            },
        }
    }
    root.map(|node| (node.value, node.marks))
}

impl Mark {
    fn below(self, key: &str) -> Self {
        let path = match self.path.as_str() {
            "" => key.to_owned(),
            rest if rest.starts_with('[') => format!("{key}{rest}"),
            rest => format!("{key}.{rest}"),
        };
        Self { path, ..self }
    }

    /// What it was taken for.
    pub fn kind(&self) -> &'static str {
        match resolve(&self.text) {
            Value::Bool(_) => "true or false",
            _ => "a number",
        }
    }
}

/// A key is the text that stands there, whatever it would be as a value.
fn as_key(node: Node) -> Option<String> {
    match (node.marks.into_iter().next(), node.value) {
        (Some(mark), Value::Number(_) | Value::Bool(_)) => Some(mark.text),
        (_, Value::String(text)) => Some(text),
        (_, Value::Null) => Some("null".to_owned()),
        _ => None,
    }
}

fn scalar(text: &str, plain: bool, line: usize) -> Node {
    let value = match plain {
        true => resolve(text),
        false => Value::from(text),
    };
    let marks = match value {
        Value::Bool(_) | Value::Number(_) => vec![Mark {
            path: String::new(),
            line,
            text: text.to_owned(),
        }],
        _ => Vec::new(),
    };
    Node { value, marks }
}

/// What a scalar without quotes stands for: numbers that JSON does not have are texts.
fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let based = |prefix: &str, radix| {
        let digits = text.strip_prefix(prefix)?;
        let signed = digits.starts_with(['+', '-']);
        u64::from_str_radix(digits, radix).ok().filter(|_| !signed)
    };
    if let Some(number) = based("0o", 8).or_else(|| based("0x", 16)) {
        return Value::from(number);
    }
    decimal(text).map_or_else(|| Value::from(text), Value::Number)
}

/// A decimal number as JSON writes it: YAML allows a plus, zeros in front and no digit on one side
/// of the point.
fn decimal(text: &str) -> Option<Number> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (rest, None),
    };
    let (whole, part) = match mantissa.split_once('.') {
        Some((whole, part)) => (whole, Some(part)),
        None => (mantissa, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let part = part.unwrap_or("");
    if !digits(whole) || !digits(part) || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let mut written = format!("{sign}{whole}");
    if !part.is_empty() {
        written = format!("{written}.{part}");
    }
    if let Some(exponent) = exponent {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if unsigned.is_empty() || !digits(unsigned) {
            return None;
        }
        written = format!("{written}e{exponent}");
    }
    written.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_yaml_1_1_are_texts_and_numbers_are_as_the_core_schema_has_them() {
        let text = "name: y\nenv: {C: no, D: off, E: Yes}\non: [on, n]\nnumbers: [1, +2, -3.5, 1e3, .5, 010, 0x1F, 0o17, 1_000, 1:30, .inf]\nwords: [true, False, null, ~, \"true\", '5']\n5: x\n";
        let (value, marks) = read(text).expect("it is YAML");
        assert_eq!(
            value,
            json!({
                "name": "y", "env": {"C": "no", "D": "off", "E": "Yes"}, "on": ["on", "n"],
                "numbers": [1, 2, -3.5, 1e3, 0.5, 10, 31, 15, "1_000", "1:30", ".inf"],
                "words": [true, false, null, null, "true", "5"], "5": "x",
            })
        );
        let mark = marks.iter().find(|mark| mark.text == "1e3");
        assert_eq!(
            mark.map(|mark| (mark.path.as_str(), mark.line, mark.kind())),
            Some(("numbers[3]", 4, "a number"))
        );
    }

    #[test]
    fn an_alias_stands_for_what_it_names() {
        let (value, marks) = read("a: &x {n: 1}\nb: [*x]\n").expect("it is YAML");
        assert_eq!(value, json!({"a": {"n": 1}, "b": [{"n": 1}]}));
        let paths: Vec<&str> = marks.iter().map(|mark| mark.path.as_str()).collect();
        assert_eq!(paths, ["a.n", "b[0].n"]);
    }
}
