//! The quotas of all teams in all pools, as one table to edit.

use askama::Template;
use chrono::{DateTime, Utc};

use crate::messages::Phrase;
use crate::parts::Team;
use crate::shell::{Section, Shell};

use super::{Changes, Effect, PolicySave, PolicyTabs, PoolForm, Refusal};

/// The quotas.
#[derive(Debug, Clone, Template)]
#[template(path = "quotas.html")]
pub struct QuotasView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The quotas, by pool.
    pub pools: Vec<QuotaPool>,
    /// Whether the reader may change them.
    pub edits: bool,
    /// How many rows differ from what is kept.
    pub unsaved: usize,
    /// What is to be sent with the form.
    pub save: PolicySave,
    /// What is wrong with the whole of it.
    pub errors: Vec<Refusal>,
    /// What would come of it, once it was tried.
    pub effect: Option<Effect>,
    /// What was changed.
    pub changes: Changes,
    /// The form that makes a pool, for who may.
    pub add: Option<PoolForm>,
}

/// The quotas of one pool; thousandths of a GPU.
#[derive(Debug, Clone)]
pub struct QuotaPool {
    /// Its name.
    pub name: String,
    /// What is guaranteed in all and what the pool has, for who may see all.
    pub sum: Option<(i64, i64)>,
    /// A row for each team.
    pub lines: Vec<QuotaLine>,
}

/// A team's quota in a pool.
#[derive(Debug, Clone)]
pub struct QuotaLine {
    /// The team.
    pub team: Team,
    /// How deep it stands in the tree, from 0.
    pub depth: usize,
    /// Whether the reader may know of it; of a team above its own only the name.
    pub known: bool,
    /// The numbers, in the order of [`QUOTA_KEYS`].
    pub cells: Vec<QuotaCell>,
    /// The row as it was read, for what was changed since.
    pub read: String,
    /// What it holds now, with all below it.
    pub held: Option<i64>,
    /// What an open window brings in its place.
    pub in_place: Option<QuotaInPlace>,
}

/// What an open window brings in the place of a team's quota.
#[derive(Debug, Clone)]
pub struct QuotaInPlace {
    /// The window.
    pub window: String,
    /// When it closes.
    pub until: DateTime<Utc>,
    /// The numbers that hold, in the order of [`QUOTA_KEYS`]; empty for none.
    pub values: [String; 5],
}

impl QuotaInPlace {
    /// What holds, and until when.
    fn words(&self, shell: &Shell) -> Phrase {
        let t = &shell.t;
        let values = QUOTA_KEYS.iter().zip(&self.values).map(|(key, value)| {
            let value = match value.as_str() {
                "" => t.word("quota_empty", key),
                value => Phrase::literal(value),
            };
            t.say("changes.set")
                .nest("key", t.word("policy_key", key))
                .nest("after", value)
        });
        t.say("quotas.in_place")
            .with("window", &self.window)
            .nest("until", shell.moment(&self.until))
            .nest("values", Phrase::list(values))
    }
}

/// The numbers of a quota, in the order of their columns.
pub const QUOTA_KEYS: [&str; 5] = [
    "guaranteed",
    "limit",
    "lend_limit",
    "weight",
    "max_per_user",
];

/// One number of a quota.
#[derive(Debug, Clone)]
pub struct QuotaCell {
    /// Which one.
    pub key: &'static str,
    /// Its field in the form.
    pub field: String,
    /// What was typed; empty for none.
    pub value: String,
    /// What is kept, where that is another one.
    pub was: Option<String>,
    /// What holds where nothing is typed, where that is a number.
    pub instead: Option<String>,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

/// Levels that are indented; deeper ones look like the last.
const INDENTED_LEVELS: usize = 2;

impl QuotaLine {
    fn level(&self) -> usize {
        self.depth.min(INDENTED_LEVELS)
    }

    fn changed(&self) -> bool {
        self.cells.iter().any(|cell| cell.was.is_some())
    }
}

impl QuotaCell {
    pub(crate) fn wrong(&self) -> bool {
        self.error.is_some()
    }

    /// What an empty field means.
    pub(crate) fn placeholder(&self, shell: &Shell) -> Phrase {
        match &self.instead {
            Some(number) => Phrase::literal(number),
            None => shell.t.word("quota_empty", self.key),
        }
    }

    pub(crate) fn was_words(&self, shell: &Shell, was: &str) -> Phrase {
        if was.is_empty() {
            let t = &shell.t;
            return t
                .say("quotas.was")
                .nest("value", t.word("quota_empty", self.key));
        }
        shell.t.say("quotas.was").with("value", was)
    }
}

impl QuotaPool {
    fn over(&self) -> bool {
        self.sum.is_some_and(|(guaranteed, has)| guaranteed > has)
    }

    fn held(&self) -> i64 {
        let roots = self.lines.iter().filter(|line| line.depth == 0);
        roots.filter_map(|line| line.held).sum()
    }
}

impl QuotasView {
    fn keys(&self) -> [&'static str; 5] {
        QUOTA_KEYS
    }

    fn guaranteed(&self) -> i64 {
        let sums = self.pools.iter().filter_map(|pool| pool.sum);
        sums.map(|(guaranteed, _)| guaranteed).sum()
    }

    fn capacity(&self) -> i64 {
        let sums = self.pools.iter().filter_map(|pool| pool.sum);
        sums.map(|(_, capacity)| capacity).sum()
    }

    fn wrong(&self) -> usize {
        let lines = self.pools.iter().flat_map(|pool| &pool.lines);
        let cells = lines.flat_map(|line| &line.cells);
        cells.filter(|cell| cell.wrong()).count()
    }
}
