//! The budgets that somebody may see, each with how it stands.

use askama::Template;

use crate::shell::{Section, Shell};

/// The budgets.
#[derive(Debug, Clone, Template)]
#[template(path = "budgets.html")]
pub struct BudgetsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The budgets, by team and name.
    pub rows: Vec<BudgetRow>,
}

/// A budget, its amounts written with their unit.
#[derive(Debug, Clone)]
pub struct BudgetRow {
    /// Its team.
    pub team: String,
    /// Its name.
    pub name: String,
    /// `month`, `quarter` or `grant`.
    pub period: &'static str,
    /// How much.
    pub amount: String,
    /// What was used; absent out of its period, as are those below.
    pub used: Option<String>,
    /// What is committed.
    pub committed: Option<String>,
    /// What is left.
    pub left: Option<String>,
    /// Where its period ends as the whole of it went.
    pub linear: Option<String>,
    /// Where it ends as the last seven days went.
    pub recent: Option<String>,
    /// What it stops: `none`, `borrowing` or `all`.
    pub stopped: &'static str,
    /// Whether what passes it is refused.
    pub hard: bool,
}
