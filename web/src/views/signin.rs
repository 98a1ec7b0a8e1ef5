//! The page on which people sign in.

use askama::Template;

use crate::messages::Phrase;
use crate::shell::Shell;

/// The sign-in form.
#[derive(Debug, Clone, Template)]
#[template(path = "signin.html")]
pub struct SigninView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The token that the form carries back, in a cookie too: there is no session yet.
    pub csrf: String,
    /// Where to go after signing in: a path of this site.
    pub next: String,
    /// The name that was typed before.
    pub username: String,
    /// Why the last try was refused.
    pub refused: Option<Phrase>,
}
