//! What a page's address may hold after its question mark: all else is refused by name, as by REST.

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use web::messages::{Messages, Phrase};

use super::fault::PageError;
use super::visit::decode;
use crate::app::{App, AppError};

/// The parameters that the pages of a route know.
#[derive(Debug, Clone, Default)]
pub struct Known(Vec<&'static str>);

impl Known {
    /// Those that handlers read, and those that the script of pages reads.
    pub fn of(read: &[&[&'static str]], besides: &[&'static str]) -> Self {
        Self([&read.concat(), besides].concat())
    }
}

/// The parameters of a query: the names of its fields, as its reader knows them.
pub fn parameters<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names = Names(&[]);
    // It ends with an error always: names are all that is asked for.
    let _ = T::deserialize(&mut names);
    names.0
}

/// Reads nothing, and keeps the names of the fields that were to be read.
struct Names(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("nothing is read"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The proof that an address holds nothing that its page does not know.
#[derive(Debug)]
pub struct Checked;

impl FromRequestParts<App> for Checked {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, PageError> {
        let Extension(Known(known)) = Extension::from_request_parts(parts, app)
            .await
            .unwrap_or(Extension(Known::default()));
        check(parts.uri.query().unwrap_or(""), &known)?;
        Ok(Self)
    }
}

fn check(query: &str, known: &[&str]) -> Result<(), PageError> {
    let mut seen: Vec<String> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or(pair);
        let name = decode(name.as_bytes())?;
        if !known.contains(&name.as_str()) {
            return Err(refused(unknown(&name, known), &name));
        }
        if seen.contains(&name) {
            let words = Messages::english().say("refusal.twice").with("name", &name);
            return Err(refused(words, &name));
        }
        seen.push(name);
    }
    Ok(())
}

fn unknown(name: &str, known: &[&str]) -> Phrase {
    let t = Messages::english();
    let words = if known.is_empty() {
        t.say("refusal.unknown_any")
    } else {
        t.say("refusal.unknown").with("known", known.join(", "))
    };
    words.with("name", domain::error::quote(name))
}

fn refused(words: Phrase, name: &str) -> PageError {
    PageError::from(AppError::invalid(name, "a value", "leave it out")).told(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_a_page_are_the_fields_that_its_handler_reads() {
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        struct Read {
            team: String,
            #[serde(default)]
            cursor: Option<String>,
        }
        assert_eq!(parameters::<Read>(), ["team", "cursor"]);
    }

    #[test]
    fn each_known_parameter_may_be_there_once() {
        let known = ["team", "user"];
        assert!(check("", &known).is_ok());
        assert!(check("team=a&user=b", &known).is_ok());
        // A browser may encode any letter.
        assert!(check("te%61m=a", &known).is_ok());
        for refused in [
            "team=a&team=b",
            "team=a&te%61m=b",
            "colour",
            "Team=a",
            "%FF=a",
        ] {
            assert!(check(refused, &known).is_err(), "{refused}");
        }
    }
}
