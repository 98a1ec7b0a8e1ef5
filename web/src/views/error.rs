//! The page that says what went wrong and where to go.

use askama::Template;

use crate::messages::Phrase;
use crate::shell::{Section, Shell};

/// A refusal or a fault.
#[derive(Debug, Clone, Template)]
#[template(path = "error.html")]
pub struct ErrorView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The HTTP status.
    pub status: u16,
    /// What was refused and why, where that says more than the status.
    pub detail: Option<Phrase>,
    /// An id to quote when asking for help.
    pub request_id: Option<String>,
    /// Where the reader came from, when it is of this site.
    pub back: Option<String>,
}

impl ErrorView {
    fn title(&self) -> Phrase {
        self.say("title")
    }

    fn advice(&self) -> Phrase {
        self.say("advice")
    }

    /// The words of this status; those of its class when it has none of its own.
    fn say(&self, what: &str) -> Phrase {
        let class = if self.status >= 500 { "500" } else { "400" };
        let own = self.status.to_string();
        let code = if self.shell.t.knows("error_title", &own) {
            own.as_str()
        } else {
            class
        };
        match what {
            "title" => self.shell.t.word("error_title", code),
            _ => self.shell.t.word("error_advice", code),
        }
    }
}
