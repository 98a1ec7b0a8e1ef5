//! What the pages of policies have in common: their tabs, and what was changed.

use askama::Template;
use chrono::{DateTime, Utc};

use crate::messages::{Messages, Phrase};
use crate::shell::{Section, Shell};

use super::{Effect, Refusal};

/// The pages of policies, which stand side by side as tabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyTab {
    /// Quotas of all teams.
    Quotas,
    /// The policy of a pool.
    Pool,
    /// Priority classes.
    Classes,
    /// The bookings of a pool.
    Bookings,
    /// The weekly windows of a pool.
    Windows,
    /// What was changed.
    Changes,
}

/// Where a page of policies stands among the others.
#[derive(Debug, Clone)]
pub struct PolicyTabs {
    /// The page.
    pub here: PolicyTab,
    /// The pool that it is about, or that the others begin with; none where there is no pool.
    pub pool: Option<String>,
    /// All pools.
    pub pools: Vec<String>,
}

impl PolicyTabs {
    pub(crate) fn tabs(&self) -> Vec<(&'static str, String, bool)> {
        let of_pool = |rest: &str| Some(format!("/pools/{}{rest}", self.pool.as_ref()?));
        let tabs = [
            ("quotas", PolicyTab::Quotas, Some("/quotas".to_owned())),
            ("pool", PolicyTab::Pool, of_pool("")),
            ("classes", PolicyTab::Classes, Some("/classes".to_owned())),
            ("bookings", PolicyTab::Bookings, of_pool("/bookings")),
            ("windows", PolicyTab::Windows, of_pool("/windows")),
            (
                "changes",
                PolicyTab::Changes,
                Some("/policy-versions".to_owned()),
            ),
        ];
        tabs.into_iter()
            .filter_map(|(code, tab, address)| Some((code, address?, tab == self.here)))
            .collect()
    }

    /// The same page of every pool, where it is about one and there are several.
    pub(crate) fn siblings(&self) -> Vec<(String, String, bool)> {
        let rest = match self.here {
            PolicyTab::Pool => "",
            PolicyTab::Bookings => "/bookings",
            PolicyTab::Windows => "/windows",
            PolicyTab::Quotas | PolicyTab::Classes | PolicyTab::Changes => return Vec::new(),
        };
        if self.pools.len() < 2 {
            return Vec::new();
        }
        let address = |pool: &String| format!("/pools/{pool}{rest}");
        self.pools
            .iter()
            .map(|pool| {
                (
                    pool.clone(),
                    address(pool),
                    self.pool.as_ref() == Some(pool),
                )
            })
            .collect()
    }
}

/// What stands beside a form that is tried before it is saved.
#[derive(Debug, Clone, Default)]
pub struct PolicySave {
    /// Where the form is sent to.
    pub address: String,
    /// Where to go back to without saving.
    pub back: String,
    /// Why, as it was typed.
    pub reason: String,
    /// Makes a second press of the button the same change.
    pub key: String,
}

/// What does not keep a policy from holding, and should be known; thousandths of a GPU.
#[derive(Debug, Clone)]
pub enum PolicyWarning {
    /// More is guaranteed of a pool than it has.
    Overpromised {
        /// The pool.
        pool: String,
        /// The windows that are open then; none while it is always so.
        windows: Vec<String>,
        /// What is guaranteed.
        guaranteed: i64,
        /// What it has.
        capacity: i64,
    },
    /// Two windows are open together and give the same teams other quotas.
    WindowsOverlap {
        /// The two, by name.
        windows: Vec<String>,
        /// The teams.
        teams: Vec<String>,
    },
    /// A window is open and holds in place of what is changed.
    WindowInPlace {
        /// The window.
        window: String,
        /// The teams whose quota is changed.
        teams: Vec<String>,
        /// When it closes.
        until: DateTime<Utc>,
    },
}

impl PolicyWarning {
    pub(crate) fn words(&self, shell: &Shell) -> Phrase {
        let t = &shell.t;
        let list = |names: &[String]| Phrase::list(names.iter().map(|name| Phrase::literal(name)));
        match self {
            Self::Overpromised {
                pool,
                windows,
                guaranteed,
                capacity,
            } => {
                let words = t
                    .say("effect.overpromised")
                    .with("pool", pool)
                    .nest("guaranteed", t.gpus(*guaranteed))
                    .with("capacity", t.amount(*capacity));
                if windows.is_empty() {
                    return words;
                }
                t.count("effect.while_open", windows.len())
                    .nest("windows", list(windows))
                    .nest("warning", words)
            }
            Self::WindowsOverlap { windows, teams } => t
                .count("effect.windows_overlap", teams.len())
                .nest("windows", list(windows))
                .nest("teams", list(teams))
                .with("last", windows.last().map_or("", String::as_str)),
            Self::WindowInPlace {
                window,
                teams,
                until,
            } => t
                .count("effect.window_in_place", teams.len())
                .with("window", window)
                .nest("teams", list(teams))
                .nest("until", shell.moment(until)),
        }
    }
}

/// What was changed, newest first.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// The changes.
    pub rows: Vec<ChangeRow>,
    /// Where to come back to after one was gone back to.
    pub back: String,
    /// Where there are more.
    pub all: Option<String>,
    /// Whether the reader sees every change; else only those of its own teams.
    pub all_seen: bool,
}

/// One change of a policy.
#[derive(Debug, Clone)]
pub struct ChangeRow {
    /// Its number.
    pub id: i64,
    /// The version that the object has had since.
    pub version: i64,
    /// When it was made.
    pub at: DateTime<Utc>,
    /// What was changed, as `quota`.
    pub noun: String,
    /// Its name, as `vision/h100`.
    pub name: String,
    /// Who made it; empty for what was there before anybody changed it.
    pub actor: String,
    /// Why, where that was said.
    pub reason: String,
    /// The version that was gone back to, where one was.
    pub went_back_to: Option<i64>,
    /// What it was: `made`, `changed`, `removed` or `first`.
    pub kind: &'static str,
    /// The keys that it changed.
    pub keys: Vec<ChangedKey>,
    /// Whether the object is as it was after this change.
    pub present: bool,
    /// The version that the object has now, where the reader may go back to this one: `0` for one
    /// that was removed.
    pub restores: Option<i64>,
}

/// A key of an object, before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedKey {
    /// The key, as `preemption.grace_seconds`.
    pub key: String,
    /// The team whose it is, in an object that has it for several.
    pub team: Option<String>,
    /// Its value before; none where it was not there.
    pub before: Option<String>,
    /// Its value after, likewise.
    pub after: Option<String>,
}

impl ChangeRow {
    pub(crate) fn object(&self, t: &Messages) -> Phrase {
        t.word("policy_noun", &self.noun).with("name", &self.name)
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.noun, self.name)
    }
}

impl ChangedKey {
    pub(crate) fn words(&self, t: &Messages) -> Phrase {
        let value = |value: &Option<String>| {
            policy_word(t, &self.key, value.as_deref().unwrap_or(NO_VALUE))
        };
        let key = match &self.team {
            Some(team) => t
                .say("changes.of_team")
                .with("team", team)
                .nest("key", t.word("policy_key", &self.key)),
            None => t.word("policy_key", &self.key),
        };
        let phrase = if self.before.is_none() {
            t.say("changes.set")
        } else {
            t.say("changes.from_to").nest("before", value(&self.before))
        };
        phrase.nest("key", key).nest("after", value(&self.after))
    }
}

/// How a value that is not there is written.
const NO_VALUE: &str = "null";

/// A value of a key by its word there or anywhere, else as it is; of several each. A number of a
/// quota that is not there is told as the form tells it.
pub fn policy_word(t: &Messages, key: &str, value: &str) -> Phrase {
    if value == NO_VALUE && t.knows("quota_empty", key) {
        return t.word("quota_empty", key);
    }
    if value.contains(", ") {
        return Phrase::list(value.split(", ").map(|one| policy_word(t, key, one)));
    }
    let own = format!("{key}.{value}");
    if t.knows("policy_word", &own) {
        return t.word("policy_word", &own);
    }
    if t.knows("policy_value", value) {
        t.word("policy_value", value)
    } else {
        Phrase::literal(value)
    }
}

/// The page of what was changed.
#[derive(Debug, Clone, Template)]
#[template(path = "policy_versions.html")]
pub struct ChangesView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The object that they are of, as `quota/vision/h100`; none for all.
    pub object: Option<String>,
    /// The change whose going back to was tried.
    pub tried: Option<GoingBack>,
    /// Why that would be refused.
    pub error: Option<Refusal>,
    /// What would come of it.
    pub effect: Option<Effect>,
    /// The changes.
    pub changes: Changes,
}

/// Going back to how an object was after a change.
#[derive(Debug, Clone)]
pub struct GoingBack {
    /// The number of the change.
    pub id: i64,
    /// What it is of, as `quota`.
    pub noun: String,
    /// Its name, as `vision/h100`.
    pub name: String,
    /// The version that it would be as in.
    pub restores: i64,
    /// The version that the object has now; `0` for one that was removed.
    pub version: i64,
    /// What is to be sent with the form.
    pub save: PolicySave,
}

impl GoingBack {
    fn object(&self, t: &Messages) -> Phrase {
        t.word("policy_noun", &self.noun).with("name", &self.name)
    }
}
