//! A YAML or JSON text as a tree that remembers its lines, bounded in size and depth.

use granit_parser::{Event, Options, Parser, ScalarStyle};

use super::ScenarioError;

/// The longest text that is read, in bytes: far above a fleet of 10,000 devices, and
/// small enough to hold in memory as a tree.
const TEXT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The most nodes of a tree: a million workloads of twenty keys.
const NODES_MAX: usize = 20_000_000;
/// The most nodes that come of aliases: what stops a small file from growing without end.
const ALIASED_MAX: usize = 100_000;
/// The most keys of one map; a team has a row for each pool, and nothing has more.
const KEYS_MAX: usize = 4_096;
/// The deepest nesting; the contract needs 8.
const DEPTH_MAX: usize = 32;

/// A value and the line on which it begins.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

/// What a node holds.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// A scalar's text, and whether it stood without quotes.
    Scalar { text: String, plain: bool },
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file; no key is there twice.
    Map(Vec<(Key, Node)>),
}

/// A key and its line.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub text: String,
    pub line: usize,
}

impl Node {
    /// Whether it stands for nothing.
    pub fn null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The value of a key, when it is a map that has it.
    pub fn get(&self, key: &str) -> Option<(&Key, &Node)> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|(k, _)| k.text == key)
                .map(|(k, v)| (k, v)),
            Value::Scalar { .. } | Value::List(_) => None,
        }
    }

    /// The value at a place, when it is a list that has it.
    pub fn item(&self, index: usize) -> Option<&Node> {
        match &self.value {
            Value::List(items) => items.get(index),
            Value::Scalar { .. } | Value::Map(_) => None,
        }
    }
}

/// A container that is still being read.
enum Open {
    List {
        line: usize,
        anchor: usize,
        items: Vec<Node>,
    },
    Map {
        line: usize,
        anchor: usize,
        entries: Vec<(Key, Node)>,
        key: Option<Key>,
    },
}

/// Builds the tree from the parser's events.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchors: Vec<(usize, Node, usize)>,
    nodes: usize,
    aliased: usize,
}

/// Reads the one document of a text.
pub(super) fn read(text: &str) -> Result<Node, ScenarioError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(refuse(
            1,
            format!("{} bytes, at most {TEXT_BYTES_MAX} are read", text.len()),
        ));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = DEPTH_MAX;
    options.block_nesting_limit = DEPTH_MAX;
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            refuse(
                error.marker().line(),
                format!("not well-formed YAML or JSON: {}", error.info()),
            )
        })?;
        builder.take(event, span.start.line())?;
    }
    builder.root.ok_or_else(|| {
        refuse(
            1,
            "an empty file is no scenario; it needs at least the key now".to_owned(),
        )
    })
}

impl Builder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), ScenarioError> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => Err(refuse(
                line,
                "a second document; a file holds one scenario".to_owned(),
            )),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let node = Node {
                    line,
                    value: Value::Scalar {
                        text: text.into_owned(),
                        plain,
                    },
                };
                self.close(node, anchor, 1)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open.push(Open::List {
                    line,
                    anchor,
                    items: Vec::new(),
                });
                self.deep(line)
            }
            Event::MappingStart(_, anchor, _) => {
                self.open.push(Open::Map {
                    line,
                    anchor,
                    entries: Vec::new(),
                    key: None,
                });
                self.deep(line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List {
                    line,
                    anchor,
                    items,
                }) => self.close(
                    Node {
                        line,
                        value: Value::List(items),
                    },
                    anchor,
                    1,
                ),
                Some(Open::Map {
                    line,
                    anchor,
                    entries,
                    ..
                }) => self.close(
                    Node {
                        line,
                        value: Value::Map(entries),
                    },
                    anchor,
                    1,
                ),
                None => Err(refuse(line, "an end without a beginning".to_owned())),
            },
            Event::Alias(id) => {
                let known = self.anchors.iter().rev().find(|(anchor, ..)| *anchor == id);
                let Some((_, node, size)) = known else {
                    return Err(refuse(
                        line,
                        "an alias inside the value that it names".to_owned(),
                    ));
                };
                self.aliased += size;
                if self.aliased > ALIASED_MAX {
                    return Err(refuse(
                        line,
                        format!("aliases that stand for more than {ALIASED_MAX} values"),
                    ));
                }
                let (mut node, size) = (node.clone(), *size);
                node.line = line;
                self.close(node, 0, size)
            }
            _ => Ok(()),
        }
    }

    fn deep(&self, line: usize) -> Result<(), ScenarioError> {
        if self.open.len() > DEPTH_MAX {
            return Err(refuse(
                line,
                format!("nested deeper than {DEPTH_MAX} levels"),
            ));
        }
        Ok(())
    }

    /// Puts a finished node where it belongs.
    fn close(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), ScenarioError> {
        self.nodes += size;
        if self.nodes > NODES_MAX {
            return Err(refuse(node.line, format!("more than {NODES_MAX} values")));
        }
        if anchor != 0 {
            self.anchors.push((anchor, node.clone(), count(&node)));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                Some(named) => entries.push((named, node)),
                None => {
                    let Value::Scalar { text, .. } = node.value else {
                        return Err(refuse(
                            node.line,
                            "a key that is not a plain text".to_owned(),
                        ));
                    };
                    if entries.len() >= KEYS_MAX {
                        return Err(refuse(
                            node.line,
                            format!("a map of more than {KEYS_MAX} keys"),
                        ));
                    }
                    if entries.iter().any(|(k, _)| k.text == text) {
                        return Err(ScenarioError {
                            line: node.line,
                            key: domain::error::quote(&text),
                            what: "the key is there twice; keep one".to_owned(),
                        });
                    }
                    *key = Some(Key {
                        text,
                        line: node.line,
                    });
                }
            },
        }
        Ok(())
    }
}

/// How many nodes a tree has.
fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar { .. } => 0,
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(|(_, value)| 1 + count(value)).sum(),
    }
}

fn refuse(line: usize, what: String) -> ScenarioError {
    ScenarioError {
        line: line.max(1),
        key: "file".to_owned(),
        what,
    }
}
