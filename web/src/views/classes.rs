//! The priority classes: a table to edit, and the form that makes one.

use askama::Template;

use crate::shell::{Section, Shell};

use super::{Changes, Effect, PolicyTabs, Refusal};

/// The priority classes.
#[derive(Debug, Clone, Template)]
#[template(path = "classes.html")]
pub struct ClassesView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The classes, in the order in which their work is looked at.
    pub rows: Vec<ClassRow>,
    /// Whether the reader may change them.
    pub edits: bool,
    /// The form that makes one.
    pub form: ClassForm,
    /// What is wrong with a change of the table.
    pub error: Option<Refusal>,
    /// What would come of a change of the table, once it was tried.
    pub effect: Option<Effect>,
    /// What was changed.
    pub changes: Changes,
}

/// A class in the table.
#[derive(Debug, Clone)]
pub struct ClassRow {
    /// Its name.
    pub name: String,
    /// Its priority, as it is kept or was typed.
    pub priority: String,
    /// Whether its work may be preempted.
    pub preemptible: bool,
    /// Whether work that names no class has this one.
    pub default: bool,
    /// Its version.
    pub version: i64,
    /// Why it is changed, as it was typed.
    pub reason: String,
    /// What is wrong with its priority.
    pub error: Option<Refusal>,
}

/// The form that makes a class.
#[derive(Debug, Clone, Default)]
pub struct ClassForm {
    /// The name that was typed.
    pub name: String,
    /// The priority that was typed.
    pub priority: String,
    /// Whether its work may be preempted.
    pub preemptible: bool,
    /// Why it is made, as it was typed.
    pub reason: String,
    /// What is wrong, each with its field.
    pub errors: Vec<Refusal>,
}

impl ClassRow {
    fn wrong(&self) -> bool {
        self.error.is_some()
    }

    /// The name of a part of its row, for references within the page.
    fn part(&self, what: &str) -> String {
        format!("{what}-{}", self.name)
    }
}

impl ClassForm {
    /// The error of a field, where it is that one's.
    fn error(&self, field: &str) -> Option<&Refusal> {
        self.errors.iter().find(|error| error.field == field)
    }

    fn wrong(&self, field: &str) -> bool {
        self.error(field).is_some()
    }
}

impl ClassesView {
    fn preemptible(&self) -> usize {
        self.rows.iter().filter(|row| row.preemptible).count()
    }
}
