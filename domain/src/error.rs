//! A wrong value, told so that its sender can mend it.

use serde::Serialize;

/// The longest part of a wrong value that is quoted back, in characters; enough to
/// recognise it, too little to be used as an amplifier.
const QUOTED_CHARS_MAX: usize = 80;

/// One field that was refused: where it is, what it held, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct FieldError {
    /// The field's path, such as `per_worker.gpus`.
    pub field: String,
    /// The value as it was given, shortened and without control characters; empty where none was.
    pub value: String,
    /// What would be accepted instead.
    pub remedy: String,
    /// Whether the field was not there, which must be.
    #[serde(skip)]
    pub missing: bool,
}

impl FieldError {
    /// Builds the error, quoting `value` safely.
    pub fn new(
        field: impl Into<String>,
        value: impl std::fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            value: quote(&value.to_string()),
            remedy: remedy.into(),
            missing: false,
        }
    }

    /// A field that must be there and is not, and what it takes.
    pub fn missing(field: impl Into<String>, takes: impl Into<String>) -> Self {
        Self {
            missing: true,
            ..Self::new(field, "", takes)
        }
    }

    fn sentence(&self) -> String {
        let Self {
            field,
            value,
            remedy,
            missing,
        } = self;
        if *missing {
            format!("{field} is missing: it takes {remedy}")
        } else {
            format!("{field}: {value} is refused: {remedy}")
        }
    }

    /// The same error, seen from the object that holds the field.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.field = format!("{parent}.{}", self.field);
        self
    }
}

/// Shortens a foreign text and replaces its control and direction characters.
pub fn quote(text: &str) -> String {
    let mut quoted: String = text
        .chars()
        .take(QUOTED_CHARS_MAX)
        .map(|c| if printable(c) { c } else { '\u{fffd}' })
        .collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        quoted.push('…');
    }
    quoted
}

/// Whether a character may be shown as it is: no control, and none of those that
/// turn the direction of a text.
pub fn printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_missing_is_told_as_that() {
        let error = FieldError::missing("pool", "a string").under("jobs[3]");
        assert_eq!(
            error.to_string(),
            "jobs[3].pool is missing: it takes a string"
        );
    }

    #[test]
    fn a_quoted_value_is_short_and_has_no_control_characters() {
        let error = FieldError::new(
            "name",
            format!("a\r\nSet-Cookie{}", "x".repeat(300)),
            "a name",
        );
        assert!(!error.value.contains('\r') && !error.value.contains('\n'));
        assert_eq!(error.value.chars().count(), QUOTED_CHARS_MAX + 1);
    }
}
