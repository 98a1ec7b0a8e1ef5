//! What surrounds every page: who reads it, where it stands, and how it looks.

use chrono::{DateTime, Utc};

use crate::assets;
use crate::messages::{Messages, Phrase};

/// The theme that the reader chose, kept in a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    /// Follow the reader's system.
    #[default]
    System,
    /// Always light.
    Light,
    /// Always dark.
    Dark,
}

impl Theme {
    /// The theme that a cookie's value names; anything else follows the system.
    pub fn from_cookie(value: &str) -> Self {
        match value {
            "light" => Self::Light,
            "dark" => Self::Dark,
            _ => Self::System,
        }
    }

    /// The value of `data-theme`, and of the cookie; empty when the system decides.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::System => "",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// What the toggle asks for next.
    pub fn other(self) -> &'static str {
        match self {
            Self::System | Self::Light => "dark",
            Self::Dark => "light",
        }
    }
}

/// The entry of the navigation that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The fleet and its nodes.
    Fleet,
    /// Jobs, and one job.
    Jobs,
    /// What waits, in order.
    Queue,
    /// The form to submit one.
    Submit,
    /// Teams, and one team.
    Teams,
    /// Quotas and the other policies.
    Policies,
    /// The price book, billing periods and what they bill.
    Billing,
    /// The users of the platform.
    Users,
    /// None, as for an error.
    Nowhere,
}

/// The person who is signed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// Their user name.
    pub name: String,
    /// Their platform role's code, when they have one.
    pub platform_role: Option<String>,
    /// Whether the users' page is theirs to see.
    pub sees_users: bool,
    /// Whether they may submit a job for some team.
    pub submits: bool,
    /// The token that each of their forms carries.
    pub csrf: String,
}

/// How a message to the reader weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Something was done.
    Ok,
    /// Something is worth knowing.
    Info,
    /// Something needs a look.
    Warn,
    /// Something was refused, or is broken.
    Bad,
}

impl Tone {
    /// The class that colours it.
    pub fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// A message at the top of a page: what this reader's last act did, or why it was refused.
#[derive(Debug, Clone)]
pub struct Notice {
    /// How it weighs.
    pub tone: Tone,
    /// What it says.
    pub text: Phrase,
}

/// What every page needs beside its own content.
#[derive(Debug, Clone)]
pub struct Shell {
    /// The words, in the reader's language.
    pub t: Messages,
    /// The theme that the reader chose.
    pub theme: Theme,
    /// Who reads; nobody on the sign-in page.
    pub reader: Option<Reader>,
    /// Where the page stands in the navigation.
    pub section: Section,
    /// The page's own address with its query: the theme's toggle and live updates come back to it.
    pub here: String,
    /// The database's time when the page was made.
    pub now: DateTime<Utc>,
    /// A message for this view only.
    pub notice: Option<Notice>,
    /// The product's version, for the foot of the navigation.
    pub version: String,
}

impl Shell {
    /// The address of an asset.
    pub fn asset(&self, name: &str) -> String {
        assets::address(name)
    }

    /// The CSRF token of the reader; empty for nobody.
    pub fn csrf(&self) -> &str {
        self.reader
            .as_ref()
            .map_or("", |reader| reader.csrf.as_str())
    }

    /// Whether a section is the one that the page stands in.
    pub fn at(&self, section: Section) -> bool {
        self.section == section
    }

    /// A moment as this page writes it.
    pub fn moment(&self, at: &DateTime<Utc>) -> Phrase {
        self.t.moment(at, &self.now)
    }

    /// How long ago a moment was when the page was made.
    pub fn ago(&self, at: &DateTime<Utc>) -> Phrase {
        self.t.ago(at, &self.now)
    }
}
