//! The policy of a pool: every key as a field, grouped and explained.

use askama::Template;
use domain::quantity::Points;

use crate::messages::{Messages, Phrase};
use crate::shell::{Section, Shell};

use super::{Changes, Effect, PolicySave, PolicyTabs, Refusal};

/// A pool with its policy.
#[derive(Debug, Clone, Template)]
#[template(path = "pool.html")]
pub struct PoolView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The pool's name.
    pub name: String,
    /// What it has and what is guaranteed of it, where that is more; thousandths of a GPU.
    pub overpromised: Option<(i64, i64)>,
    /// Modes that it offers and no node of it can drive, by their codes.
    pub unavailable: Vec<String>,
    /// The version that was read.
    pub version: i64,
    /// Whether the reader may change it.
    pub edits: bool,
    /// The keys, in groups.
    pub groups: Vec<PolicyGroup>,
    /// What is to be sent with the form.
    pub save: PolicySave,
    /// What is wrong with the whole of it.
    pub errors: Vec<Refusal>,
    /// What would come of it, once it was tried.
    pub effect: Option<Effect>,
    /// What was changed.
    pub changes: Changes,
}

/// The form that makes a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolForm {
    /// The name that was typed.
    pub name: String,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

/// Keys that belong together.
#[derive(Debug, Clone)]
pub struct PolicyGroup {
    /// Its code.
    pub code: &'static str,
    /// Its keys.
    pub fields: Vec<PolicyField>,
}

/// One key of a policy.
#[derive(Debug, Clone)]
pub struct PolicyField {
    /// The key, as `preemption.grace_seconds`.
    pub key: &'static str,
    /// How it is filled in.
    pub kind: FieldKind,
    /// Its value; of several that are chosen together, with commas between.
    pub value: String,
    /// What is kept, where that is another value.
    pub was: Option<String>,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

/// How a key is filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldKind {
    /// One of these words.
    Choice(Vec<&'static str>),
    /// Several of these words.
    Several(Vec<&'static str>),
    /// Yes or no.
    Switch,
    /// A number in a unit, which the message file knows by the key; whether it may be left out.
    Number {
        /// Whether nothing is an answer, too.
        optional: bool,
    },
}

impl PolicyField {
    fn choices(&self) -> &[&'static str] {
        match &self.kind {
            FieldKind::Choice(words) | FieldKind::Several(words) => words,
            FieldKind::Switch | FieldKind::Number { .. } => &[],
        }
    }

    fn several(&self) -> bool {
        matches!(self.kind, FieldKind::Several(_))
    }

    fn switch(&self) -> bool {
        self.kind == FieldKind::Switch
    }

    fn optional(&self) -> bool {
        self.kind == FieldKind::Number { optional: true }
    }

    fn on(&self, word: &str) -> bool {
        self.value.split(", ").any(|chosen| chosen == word)
    }

    fn wrong(&self) -> bool {
        self.error.is_some()
    }

    /// What a choice means.
    fn meaning(&self, t: &Messages, word: &str) -> Option<Phrase> {
        let code = format!("{}.{word}", self.key);
        t.knows("policy_choice", &code)
            .then(|| t.word("policy_choice", &code))
    }

    fn word(&self, t: &Messages, word: &str) -> Phrase {
        super::policies::policy_word(t, self.key, word)
    }

    /// The unit of a value, in its number.
    fn unit(&self, t: &Messages, value: &str) -> Option<Phrase> {
        let milli = value.parse::<Points>().map_or(0, Points::milli);
        t.knows("policy_unit", self.key)
            .then(|| t.word_of("policy_unit", self.key, milli))
    }

    /// A value in words, with its unit.
    fn said(&self, t: &Messages, value: &str) -> Phrase {
        if value.is_empty() {
            return t.word("policy_value", if self.switch() { "false" } else { "null" });
        }
        let word = super::policies::policy_word(t, self.key, value);
        match self.unit(t, value) {
            Some(unit) => t
                .say("policies.with_unit")
                .nest("value", word)
                .nest("unit", unit),
            None => word,
        }
    }
}

impl PoolView {
    /// Whether a mode is offered and no node can drive it.
    fn undriven(&self, mode: &str) -> bool {
        self.unavailable.iter().any(|known| known == mode)
    }

    fn unsaved(&self) -> usize {
        let fields = self.groups.iter().flat_map(|group| &group.fields);
        fields.filter(|field| field.was.is_some()).count()
    }

    fn wrong(&self) -> usize {
        let fields = self.groups.iter().flat_map(|group| &group.fields);
        fields.filter(|field| field.wrong()).count()
    }

    /// The word of a key, for the sentence at the top.
    fn choice(&self, key: &str) -> Phrase {
        let fields = self.groups.iter().flat_map(|group| &group.fields);
        let found = fields.into_iter().find(|field| field.key == key);
        found.map_or_else(
            || Phrase::literal(key),
            |field| field.said(&self.shell.t, &field.value),
        )
    }
}
