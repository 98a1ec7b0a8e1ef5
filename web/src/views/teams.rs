//! The teams that the reader may see, as a tree, and the form that makes one.

use askama::Template;

use crate::format::Cost;
use crate::parts::Team;
use crate::shell::{Section, Shell};

use super::Refusal;

/// The list of teams.
#[derive(Debug, Clone, Template)]
#[template(path = "teams.html")]
pub struct TeamsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The teams, each after its parent.
    pub rows: Vec<TeamRow>,
    /// The form that makes a team, when the reader may.
    pub form: Option<TeamForm>,
}

/// A team in the list.
#[derive(Debug, Clone)]
pub struct TeamRow {
    /// The team.
    pub team: Team,
    /// How deep it stands in the tree, from 0.
    pub depth: usize,
    /// What the reader may know of it; `None` for a team above the reader's own, known by name.
    pub figures: Option<TeamFigures>,
}

/// A team's figures, with all below it.
#[derive(Debug, Clone)]
pub struct TeamFigures {
    /// What it is promised in all pools, in thousandths.
    pub guaranteed_milli: i64,
    /// What of that holds now, with what is booked: less where a pool has less than it promised.
    pub holds_milli: i64,
    /// What it holds.
    pub used_milli: i64,
    /// Jobs that wait.
    pub waiting: i64,
    /// What it spent this month.
    pub spent: Cost,
}

impl TeamFigures {
    /// Whether another guarantee holds now than was given.
    fn differs(&self) -> bool {
        self.holds_milli != self.guaranteed_milli
    }
}

/// The form that makes a team.
#[derive(Debug, Clone, Default)]
pub struct TeamForm {
    /// The name that was typed.
    pub name: String,
    /// The parent that was chosen.
    pub parent: String,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

impl TeamForm {
    fn is_parent(&self, name: &str) -> bool {
        self.parent == name
    }
}

/// Levels that are indented; deeper ones look like the last.
const INDENTED_LEVELS: usize = 2;

impl TeamsView {
    /// The figures of the topmost teams that are open: those of teams below are within them.
    fn topmost(&self) -> Vec<&TeamFigures> {
        let mut within: Option<usize> = None;
        let mut topmost = Vec::new();
        for row in &self.rows {
            if within.is_some_and(|depth| row.depth > depth) {
                continue;
            }
            within = row.figures.as_ref().map(|_| row.depth);
            topmost.extend(&row.figures);
        }
        topmost
    }

    fn held(&self) -> i64 {
        self.topmost().iter().map(|team| team.used_milli).sum()
    }

    fn guaranteed(&self) -> i64 {
        self.topmost()
            .iter()
            .map(|team| team.guaranteed_milli)
            .sum()
    }

    fn waiting(&self) -> i64 {
        self.topmost().iter().map(|team| team.waiting).sum()
    }

    /// Teams whose figures the reader may know.
    fn open(&self) -> usize {
        self.rows.iter().filter(|row| row.figures.is_some()).count()
    }
}

impl TeamRow {
    fn level(&self) -> usize {
        self.depth.min(INDENTED_LEVELS)
    }
}
