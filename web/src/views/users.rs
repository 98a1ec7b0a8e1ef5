//! The users of the platform: the list, and the form that adds one.

use askama::Template;
use chrono::{DateTime, Utc};

use crate::messages::{Messages, Phrase};
use crate::shell::{Section, Shell};

use super::Refusal;

/// The list of users.
#[derive(Debug, Clone, Template)]
#[template(path = "users.html")]
pub struct UsersView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The users.
    pub rows: Vec<UserRow>,
    /// The form that adds one, when the reader may.
    pub form: Option<UserForm>,
    /// The address of the next page.
    pub older: Option<String>,
}

/// A user in the list.
#[derive(Debug, Clone)]
pub struct UserRow {
    /// Their name.
    pub name: String,
    /// Their platform role's code.
    pub platform_role: Option<String>,
    /// How they are called; may be empty.
    pub display_name: String,
    /// Whether they may not sign in.
    pub disabled: bool,
    /// When they were added.
    pub created_at: DateTime<Utc>,
    /// Whether the reader may disable or enable them.
    pub changeable: bool,
}

/// The form that adds a user.
#[derive(Debug, Clone, Default)]
pub struct UserForm {
    /// The name that was typed.
    pub name: String,
    /// The platform role's code that was chosen.
    pub role: String,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

impl UserForm {
    fn is_role(&self, role: &str) -> bool {
        self.role == role
    }

    /// The error of the password, or else of all that is not the password.
    fn error(&self, t: &Messages, password: bool) -> Option<Phrase> {
        let wrong = self.error.as_ref()?;
        ((wrong.field == "password") == password).then(|| wrong.say(t))
    }
}

impl UsersView {
    fn roles(&self) -> Vec<&'static str> {
        domain::role::PlatformRole::ALL
            .iter()
            .map(|role| role.as_str())
            .collect()
    }

    fn enabled(&self) -> usize {
        self.rows.iter().filter(|row| !row.disabled).count()
    }
}
