//! How a command ends other than well, and the exit status that tells it.

use serde::Deserialize;

/// Exit status of what was refused or failed.
pub const REFUSED: u8 = 1;
/// HTTP's status of what the asker's role does not allow.
const FORBIDDEN: u16 = 403;
/// Exit status of wrong words on the command line.
pub const WRONG_WORDS: u8 = 2;

/// Why a command did not do what it was asked to do.
#[derive(Debug)]
pub enum Failure {
    /// What was said does not make sense, by itself and whoever is asked: words, and files that they
    /// name. Exit status 2.
    Words(String),
    /// It was refused, or failed: exit status 1.
    Refused(String),
    /// The server was away; the same may work in a moment. Exit status 1.
    Away(String),
    /// The command that was run ended so; it has said itself what there is to say.
    Ended(u8),
}

impl Failure {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Words(_) => WRONG_WORDS,
            Self::Refused(_) | Self::Away(_) => REFUSED,
            Self::Ended(status) => *status,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Words(text) | Self::Refused(text) | Self::Away(text) => f.write_str(text),
            Self::Ended(status) => write!(f, "the command ended with status {status}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Refused(format!("{error:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

/// The parts of a problem+json document that people read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: String,
    field: Option<String>,
    remedy: Option<String>,
    errors: Vec<Fault>,
}

/// A value that was refused, among several.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fault {
    field: String,
    value: String,
    remedy: String,
}

/// Turns a refusal of the server into words: what, where, and what to do.
pub fn from_problem(status: u16, body: &str) -> Failure {
    let problem = serde_json::from_str::<Problem>(body).unwrap_or_default();
    if !problem.errors.is_empty() {
        let line = |fault: &Fault| {
            let Fault {
                field,
                value,
                remedy,
            } = fault;
            format!("{field}: {value} is refused: {remedy}")
        };
        let lines: Vec<String> = problem.errors.iter().map(line).collect();
        return Failure::Refused(lines.join("\n"));
    }
    let what = if problem.detail.is_empty() {
        problem.title
    } else {
        problem.detail
    };
    let mut text = if what.is_empty() {
        format!("the server answered {status}")
    } else {
        what
    };
    // What nobody of that role may do is at fault in no field of what was said.
    let field = problem.field.filter(|_| status != FORBIDDEN);
    if let Some(field) = field.filter(|field| !text.contains(field.as_str())) {
        text = format!("{field}: {text}");
    }
    if let Some(remedy) = problem
        .remedy
        .filter(|remedy| !text.contains(remedy.as_str()))
    {
        text = format!("{text}; use {remedy}");
    }
    // 502 to 504: a server or the database behind it restarts.
    if (502..=504).contains(&status) {
        return Failure::Away(text);
    }
    Failure::Refused(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_field_and_remedy_once() {
        let failure = from_problem(
            422,
            r#"{"title": "Invalid value", "detail": "-1 is refused", "field": "per_worker.gpus", "remedy": "0 to 64"}"#,
        );
        assert_eq!(
            failure.to_string(),
            "per_worker.gpus: -1 is refused; use 0 to 64"
        );
        assert_eq!(failure.status(), REFUSED);
    }

    #[test]
    fn what_a_role_does_not_allow_is_told_once() {
        let body = r#"{"detail": "you may not make a pool: that needs the platform role admin",
            "field": "operation", "value": "create_pool", "remedy": "the platform role admin"}"#;
        assert_eq!(
            from_problem(403, body).to_string(),
            "you may not make a pool: that needs the platform role admin"
        );
    }

    #[test]
    fn of_several_refused_values_each_has_a_line() {
        let failure = from_problem(
            422,
            r#"{"detail": "workers: 0 is refused", "field": "workers", "remedy": "1 to 1024",
                "errors": [{"field": "workers", "value": "0", "remedy": "1 to 1024"},
                           {"field": "class", "value": "gold", "remedy": "one that is there"}]}"#,
        );
        assert_eq!(
            failure.to_string(),
            "workers: 0 is refused: 1 to 1024\nclass: gold is refused: one that is there"
        );
    }

    #[test]
    fn an_answer_that_is_no_problem_is_told_by_its_status() {
        assert_eq!(
            from_problem(502, "<html>").to_string(),
            "the server answered 502"
        );
    }
}
