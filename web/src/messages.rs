//! The words of the pages, looked up by key in the reader's language.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::sync::OnceLock;

use askama::filters::HtmlSafe;
use domain::words::singular;
use serde_json::Value;

const ENGLISH: &str = include_str!("../messages/en.json");

/// All words in one language; a cheap handle.
#[derive(Debug, Clone, Copy)]
pub struct Messages {
    language: &'static str,
    entries: &'static BTreeMap<String, Entry>,
}

/// One message: a sentence, or one per grammatical number.
#[derive(Debug, Clone)]
enum Entry {
    One(String),
    ByNumber { one: String, other: String },
}

/// A whole number that decides between singular and plural.
pub trait Whole {
    /// The number itself.
    fn whole(&self) -> i64;
}

macro_rules! whole {
    ($($kind:ty),*) => { $(impl Whole for $kind {
        fn whole(&self) -> i64 { i64::try_from(*self).unwrap_or(i64::MAX) }
    })* };
}
whole!(i32, i64, u8, u16, u32, u64, usize);

impl<T: Whole + ?Sized> Whole for &T {
    fn whole(&self) -> i64 {
        (**self).whole()
    }
}

/// The number that decides between singular and plural for an amount in thousandths.
fn number_of(milli: impl Whole) -> i64 {
    if singular(milli.whole()) { 1 } else { 2 }
}

impl Messages {
    /// The English words.
    pub fn english() -> Self {
        static WORDS: OnceLock<Messages> = OnceLock::new();
        *WORDS.get_or_init(|| Self::read("en", ENGLISH))
    }

    /// The words of a language's file, which are kept until the process ends: JSON, by key a text or
    /// one for each grammatical number.
    pub fn read(language: &'static str, file: &str) -> Self {
        Self {
            language,
            entries: Box::leak(Box::new(parse(file))),
        }
    }

    /// The language's tag, for `lang` on the page.
    pub fn language(&self) -> &'static str {
        self.language
    }

    /// The message of a key.
    pub fn say(&self, key: &str) -> Phrase {
        self.find(key, 2).unwrap_or_else(|| Phrase::literal(key))
    }

    /// The message of a key in the number of `n`, which it may name as `{n}`.
    pub fn count(&self, key: &str, n: impl Whole) -> Phrase {
        let n = n.whole();
        self.find(key, n)
            .unwrap_or_else(|| Phrase::literal(key))
            .with("n", crate::format::grouped(n))
    }

    /// The message of a key in the number of an amount of GPUs.
    pub fn say_of(&self, key: &str, milli: impl Whole) -> Phrase {
        self.find(key, number_of(milli))
            .unwrap_or_else(|| Phrase::literal(key))
    }

    /// The word for a code of a family in the number of an amount of GPUs, or of anything else that is
    /// counted in thousandths.
    pub fn word_of(&self, family: &str, code: &str, milli: impl Whole) -> Phrase {
        self.find(&format!("{family}.{code}"), number_of(milli))
            .unwrap_or_else(|| self.word(family, code))
    }

    /// The word for a code of a family (a state, a reason); a code without a word of its own shows itself.
    pub fn word(&self, family: &str, code: &str) -> Phrase {
        self.find(&format!("{family}.{code}"), 2)
            .unwrap_or_else(|| Phrase::literal(&code.replace('_', " ")))
    }

    /// Whether a code of a family has a word of its own.
    pub fn knows(&self, family: &str, code: &str) -> bool {
        self.entries.contains_key(&format!("{family}.{code}"))
    }

    /// Every key, for the tests that compare them with what the pages use.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.entries.keys().map(String::as_str)
    }

    fn find(&self, key: &str, n: i64) -> Option<Phrase> {
        let text = match self.entries.get(key)? {
            Entry::One(text) => text,
            Entry::ByNumber { one, .. } if n == 1 => one,
            Entry::ByNumber { other, .. } => other,
        };
        Some(Phrase {
            text: text.clone(),
            arguments: Vec::new(),
            markup: false,
        })
    }
}

/// A message with its arguments; it shows itself as HTML, with all text escaped.
///
/// `{name}` stands for an argument, `*words*` for emphasis. Arguments are
/// escaped unless they are HTML of our own making ([`Phrase::nest`]), so that a
/// message can never carry a person's markup into a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    text: String,
    arguments: Vec<(&'static str, String)>,
    /// Whether the text is HTML itself, in which nothing is emphasis.
    markup: bool,
}

impl Phrase {
    /// A phrase that says a text as it stands.
    pub fn literal(text: &str) -> Self {
        Self {
            text: "{text}".into(),
            arguments: vec![("text", escape(text))],
            markup: false,
        }
    }

    /// Several phrases as one, with commas between.
    pub fn list(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<String> = parts.into_iter().map(|part| part.to_string()).collect();
        Self::markup("{parts}").nest("parts", crate::draw::Html(parts.join(", ")))
    }

    /// HTML of our own making with places for arguments; only this crate's sources may write it.
    pub(crate) fn markup(html: &'static str) -> Self {
        Self {
            text: html.into(),
            arguments: Vec::new(),
            markup: true,
        }
    }

    /// The phrase where there is no HTML: without markup and emphasis.
    pub fn plain(&self) -> String {
        let html = self.to_string();
        let mut out = String::with_capacity(html.len());
        let mut rest = html.as_str();
        // What is shown escapes all text: a bracket that is left begins a tag of ours.
        while let Some(at) = rest.find('<') {
            out.push_str(&rest[..at]);
            rest = rest[at..].find('>').map_or("", |end| &rest[at + end + 1..]);
        }
        out.push_str(rest);
        // The ampersand last, so that what was text stays text.
        [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#39;", "'"),
            ("&amp;", "&"),
        ]
        .into_iter()
        .fold(out, |text, (escaped, character)| {
            text.replace(escaped, character)
        })
    }

    /// The phrase with an argument filled in, escaped.
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.arguments.push((name, escape(&value.to_string())));
        self
    }

    /// The phrase with an argument filled in that is HTML already.
    pub fn nest(mut self, name: &'static str, value: impl HtmlSafe) -> Self {
        self.arguments.push((name, value.to_string()));
        self
    }
}

impl Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |text: &str| {
            if self.markup {
                text.to_owned()
            } else {
                escape(text)
            }
        };
        let mut strong = false;
        let mut rest = self.text.as_str();
        while let Some(at) = rest.find(|c| c == '{' || (c == '*' && !self.markup)) {
            f.write_str(&plain(&rest[..at]))?;
            if rest.as_bytes()[at] == b'*' {
                f.write_str(if strong { "</b>" } else { "<b>" })?;
                strong = !strong;
                rest = &rest[at + 1..];
                continue;
            }
            let end = rest[at..]
                .find('}')
                .map_or(rest.len(), |length| at + length);
            let name = &rest[at + 1..end];
            match self.arguments.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => f.write_str(value)?,
                None => f.write_str(&plain(&rest[at..(end + 1).min(rest.len())]))?,
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        f.write_str(&plain(rest))?;
        if strong {
            f.write_str("</b>")?;
        }
        Ok(())
    }
}

// Everything that `Display` writes is escaped there or was HTML of ours.
impl HtmlSafe for Phrase {}

/// A text with the five characters that mean something to HTML replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out
                .write_char(other)
                .expect("writing to a string cannot fail"),
        }
    }
    out
}

fn parse(text: &str) -> BTreeMap<String, Entry> {
    let file: BTreeMap<String, Value> =
        serde_json::from_str(text).expect("the tests parse each message file");
    file.into_iter()
        .map(|(key, value)| (key, entry(value)))
        .collect()
}

fn entry(value: Value) -> Entry {
    match value {
        Value::String(text) => Entry::One(text),
        Value::Object(forms) => {
            let form = |name: &str| {
                forms
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            Entry::ByNumber {
                one: form("one"),
                other: form("other"),
            }
        }
        other => Entry::One(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_escaped_and_cannot_name_other_arguments() {
        let phrase = Phrase {
            text: "*{a}* & {b}".into(),
            arguments: Vec::new(),
            markup: false,
        };
        let said = phrase
            .with("a", "<script>{b}*x*")
            .with("b", "\"q\"")
            .to_string();
        assert_eq!(said, "<b>&lt;script&gt;{b}*x*</b> &amp; &quot;q&quot;");
    }

    #[test]
    fn a_plain_phrase_has_the_same_words_without_markup() {
        let phrase = Phrase {
            text: "*{a}* & {b}".into(),
            arguments: Vec::new(),
            markup: false,
        };
        let said = phrase.with("a", "<script> &lt; \"q\"").with("b", "it's");
        assert_eq!(said.plain(), "<script> &lt; \"q\" & it's");
    }

    #[test]
    fn a_code_without_a_word_shows_itself() {
        assert_eq!(
            Messages::english().word("state", "half_<done>").to_string(),
            "half &lt;done&gt;"
        );
    }

    #[test]
    fn singular_and_plural_follow_the_number() {
        let t = Messages::english();
        assert_eq!(t.count("count.jobs", 1).to_string(), "1 job");
        assert_eq!(t.count("count.jobs", 1240_u64).to_string(), "1,240 jobs");
    }
}
