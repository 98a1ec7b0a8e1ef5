//! Reading a map key by key: what is there, what must be there, and what must not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::str::FromStr;

use domain::error::{printable, quote};
use domain::time::YEARS;
use domain::{MilliCpu, MilliGpu, Timestamp};

use super::ScenarioError;
use super::amounts::{CPUS_MAX, TEXT_CHARS_MAX};
use super::tree::{Node, Value};

/// A map that is being read, with its path.
pub(super) struct Fields<'a> {
    node: &'a Node,
    path: String,
    known: RefCell<Vec<&'static str>>,
}

/// A value with its path: what a reader turns into a number, a text or a list.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub node: &'a Node,
    pub path: String,
}

pub(super) type Read<T> = Result<T, ScenarioError>;

impl<'a> Fields<'a> {
    /// Begins to read the root of a file.
    pub fn root(node: &'a Node) -> Read<Self> {
        Field {
            node,
            path: String::new(),
        }
        .fields()
    }

    /// The value of a key; nothing where it is absent or null.
    pub fn get(&self, key: &'static str) -> Option<Field<'a>> {
        self.known.borrow_mut().push(key);
        let (_, node) = self.node.get(key)?;
        (!node.null()).then(|| Field {
            node,
            path: join(&self.path, key),
        })
    }

    /// The value of a key that must be there.
    pub fn require(&self, key: &'static str) -> Read<Field<'a>> {
        self.get(key).ok_or_else(|| ScenarioError {
            line: self
                .node
                .get(key)
                .map_or(self.node.line, |(key, _)| key.line),
            key: join(&self.path, key),
            what: "is missing; it is required".to_owned(),
        })
    }

    /// The value of a key, read, or a default.
    pub fn or<T>(
        &self,
        key: &'static str,
        default: T,
        read: impl Fn(Field<'a>) -> Read<T>,
    ) -> Read<T> {
        self.get(key).map_or(Ok(default), read)
    }

    /// The value of a key, read, or nothing.
    pub fn optional<T>(
        &self,
        key: &'static str,
        read: impl Fn(Field<'a>) -> Read<T>,
    ) -> Read<Option<T>> {
        self.get(key).map(read).transpose()
    }

    /// Ends the reading: refuses the first key that nobody asked for.
    pub fn finish(self) -> Read<()> {
        let known = self.known.into_inner();
        let Value::Map(entries) = &self.node.value else {
            return Ok(());
        };
        match entries
            .iter()
            .find(|(key, _)| !known.contains(&key.text.as_str()))
        {
            None => Ok(()),
            Some((key, _)) => Err(ScenarioError {
                line: key.line,
                key: join(&self.path, &quote(&key.text)),
                what: format!("is no known key; known here are {}", known.join(", ")),
            }),
        }
    }
}

impl<'a> Field<'a> {
    /// Refuses the value.
    pub fn refuse(&self, remedy: impl std::fmt::Display) -> ScenarioError {
        let shown = match &self.node.value {
            Value::Scalar { text, .. } => quote(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        };
        ScenarioError {
            line: self.node.line,
            key: if self.path.is_empty() {
                "file".to_owned()
            } else {
                self.path.clone()
            },
            what: format!("{shown} is refused; it takes {remedy}"),
        }
    }

    /// As a map.
    pub fn fields(self) -> Read<Fields<'a>> {
        match &self.node.value {
            Value::Map(_) => Ok(Fields {
                node: self.node,
                path: self.path,
                known: RefCell::default(),
            }),
            _ => Err(self.refuse("a map")),
        }
    }

    /// As a list of at most `most` values.
    pub fn list<T>(self, most: usize, read: impl Fn(Field<'a>) -> Read<T>) -> Read<Vec<T>> {
        let Value::List(items) = &self.node.value else {
            return Err(self.refuse("a list"));
        };
        if items.len() > most {
            return Err(self.refuse(format!("at most {most} entries; it has {}", items.len())));
        }
        let entry = |(index, node)| {
            read(Field {
                node,
                path: format!("{}[{index}]", self.path),
            })
        };
        items.iter().enumerate().map(entry).collect()
    }

    /// As a map from names that the file chooses.
    pub fn map<T>(
        self,
        most: usize,
        read: impl Fn(Field<'a>) -> Read<T>,
    ) -> Read<BTreeMap<String, T>> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.refuse("a map"));
        };
        if entries.len() > most {
            return Err(self.refuse(format!("at most {most} entries; it has {}", entries.len())));
        }
        let mut read_all = BTreeMap::new();
        for (key, node) in entries {
            let path = join(&self.path, &quote(&key.text));
            if !well_formed(&key.text) {
                return Err(ScenarioError {
                    line: key.line,
                    key: path,
                    what: TEXT_REMEDY.to_owned(),
                });
            }
            read_all.insert(key.text.clone(), read(Field { node, path })?);
        }
        Ok(read_all)
    }

    fn scalar(&self, remedy: &str) -> Read<&'a str> {
        match &self.node.value {
            Value::Scalar { text, .. } if !self.node.null() => Ok(text),
            _ => Err(self.refuse(remedy)),
        }
    }

    fn plain(&self, remedy: &str) -> Read<&'a str> {
        match &self.node.value {
            Value::Scalar { text, plain: true } => Ok(text),
            _ => Err(self.refuse(remedy)),
        }
    }

    /// As a short printable text.
    pub fn text(self) -> Read<String> {
        let text = self.scalar(TEXT_REMEDY)?;
        if well_formed(text) {
            Ok(text.to_owned())
        } else {
            Err(self.refuse(TEXT_REMEDY))
        }
    }

    /// As true or false.
    pub fn flag(self) -> Read<bool> {
        match self.plain("true or false")? {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            _ => Err(self.refuse("true or false")),
        }
    }

    /// As a whole number in a range.
    pub fn integer(self, least: i64, most: i64) -> Read<i64> {
        let remedy = format!("a whole number from {least} to {most}");
        let text = self.plain(&remedy)?;
        // A whole number may be written as 8.0: some writers of JSON do so.
        let text = text.split_once('.').map_or(text, |(whole, rest)| {
            if !rest.is_empty() && rest.bytes().all(|b| b == b'0') {
                whole
            } else {
                text
            }
        });
        text.parse()
            .ok()
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| self.refuse(&remedy))
    }

    /// As a whole number in a range that starts at 0 or more.
    pub fn count(self, least: i64, most: i64) -> Read<u32> {
        let refused = self.clone();
        let number = self.integer(least, most)?;
        u32::try_from(number)
            .map_err(|_| refused.refuse(format!("a whole number from {least} to {most}")))
    }

    /// As thousandths of a number with at most three decimals.
    pub fn milli(self, most: i64) -> Read<i64> {
        let remedy = format!("a number from 0 to {most} with at most three decimals");
        let text = self.plain(&remedy)?;
        let amount = MilliGpu::from_str(text).map_err(|_| self.refuse(&remedy))?;
        if amount > MilliGpu::whole(most) {
            Err(self.refuse(&remedy))
        } else {
            Ok(amount.milli())
        }
    }

    /// As a GPU amount.
    pub fn gpus(self) -> Read<MilliGpu> {
        self.milli(domain::quantity::AMOUNT_MAX)
            .map(MilliGpu::from_milli)
    }

    /// As a CPU amount.
    pub fn cpus(self) -> Read<MilliCpu> {
        self.milli(CPUS_MAX).map(MilliCpu::from_milli)
    }

    /// As one of the words of an enum.
    pub fn word<T: Copy>(self, words: &[(&str, T)]) -> Read<T> {
        let remedy = || {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("one of {}", all.join(", "))
        };
        let text = self.scalar(&remedy())?;
        words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| self.refuse(remedy()))
    }

    /// As one of the words of an enum of the domain.
    pub fn parsed<T: FromStr<Err = domain::FieldError>>(self) -> Read<T> {
        let text = self.scalar("a word")?;
        text.parse()
            .map_err(|error: domain::FieldError| self.refuse(error.remedy))
    }

    /// As a time.
    pub fn time(self) -> Read<Timestamp> {
        const REMEDY: &str = "a time as RFC 3339, such as 2026-01-05T12:00:00Z";
        use chrono::Datelike;
        let text = self.scalar(REMEDY)?;
        let time = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| self.refuse(REMEDY))?;
        let time = time.with_timezone(&chrono::Utc);
        if YEARS.contains(&time.year()) {
            Ok(time)
        } else {
            Err(self.refuse("a year from 1970 to 2200"))
        }
    }
}

const TEXT_REMEDY: &str = "1 to 253 printable characters";

fn well_formed(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= TEXT_CHARS_MAX && text.chars().all(printable)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
