//! What a page's address may hold after its question mark: all else is refused by name, as by REST.

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use web::messages::{Messages, Phrase};

use super::fault::PageError;
use super::visit::decode;
use crate::app::{App, AppError};

/// The parameters that the pages of a route know.
#[derive(Debug, Clone, Copy)]
pub struct Known(pub &'static [&'static str]);

/// The proof that an address holds nothing that its page does not know.
#[derive(Debug)]
pub struct Checked;

impl FromRequestParts<App> for Checked {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, PageError> {
        let Extension(Known(known)) = Extension::from_request_parts(parts, app)
            .await
            .unwrap_or(Extension(Known(&[])));
        check(parts.uri.query().unwrap_or(""), known)?;
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
