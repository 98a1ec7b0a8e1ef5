//! Money for who runs the platform and for owners: the price book, periods, statements, reconciled days.

use askama::Template;
use chrono::{DateTime, Utc};
use domain::money::Money;

use crate::shell::{Section, Shell};

use super::Refusal;

/// The versions of the price book.
#[derive(Debug, Clone, Template)]
#[template(path = "price_books.html")]
pub struct PriceBooksView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The versions, the latest first.
    pub books: Vec<PriceBookRow>,
    /// What one of them would have charged, where that was asked.
    pub preview: Option<PricePreview>,
    /// Whether the reader may draft and decide.
    pub edits: bool,
    /// The pools that a line may be of.
    pub pools: Vec<String>,
    /// The form that drafts a line.
    pub form: PriceForm,
    /// The address of the next page.
    pub older: Option<String>,
}

/// A version in the list.
#[derive(Debug, Clone)]
pub struct PriceBookRow {
    /// Its number.
    pub number: i64,
    /// Its state's code.
    pub state: String,
    /// Why it was drafted.
    pub reason: String,
    /// Who drafted it.
    pub created_by: String,
    /// From when on its lines are to hold.
    pub effective_from: DateTime<Utc>,
    /// Its prices.
    pub prices: Vec<PriceRow>,
    /// Its factors.
    pub factors: Vec<FactorRow>,
}

/// A price in a version.
#[derive(Debug, Clone)]
pub struct PriceRow {
    /// The pool.
    pub pool: String,
    /// What it is of: `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// The sharing mode's code, of a GPU.
    pub mode: Option<String>,
    /// The profile of an instance.
    pub profile: Option<String>,
    /// What is charged for an hour.
    pub per_hour: Money,
    /// The list's price.
    pub list: Money,
    /// What it is worth once reserved capacity is spread over it.
    pub effective: Money,
}

/// A factor in a version.
#[derive(Debug, Clone)]
pub struct FactorRow {
    /// The pool.
    pub pool: String,
    /// For what: its code.
    pub kind: String,
    /// By what.
    pub factor: String,
    /// Of a weekly one: its name, days' codes, beginning, end and time zone.
    pub window: Option<(String, Vec<String>, String, String, String)>,
}

/// What a version would have charged.
#[derive(Debug, Clone)]
pub struct PricePreview {
    /// The version.
    pub number: i64,
    /// From then on.
    pub from: DateTime<Utc>,
    /// Up to before then.
    pub to: DateTime<Utc>,
    /// Team, pool, what is charged, and what would have been.
    pub rows: Vec<(String, String, Money, Money)>,
    /// The totals.
    pub total: Option<(Money, Money)>,
}

/// The form that drafts a version with one price.
#[derive(Debug, Clone, Default)]
pub struct PriceForm {
    /// The pool that was chosen.
    pub pool: String,
    /// The mode's code that was chosen.
    pub mode: String,
    /// The amount that was typed.
    pub amount: String,
    /// The currency that was typed.
    pub currency: String,
    /// From when on, as it was typed.
    pub from: String,
    /// Why, as it was typed.
    pub reason: String,
    /// What is wrong.
    pub error: Option<Refusal>,
}

impl PriceForm {
    fn is_pool(&self, pool: &str) -> bool {
        self.pool == pool
    }

    fn is_mode(&self, mode: &str) -> bool {
        self.mode == mode
    }
}

impl PriceBooksView {
    fn modes(&self) -> Vec<&'static str> {
        let modes = domain::sharing::SharingMode::ALL.iter();
        modes.map(|mode| mode.as_str()).collect()
    }
}

/// The billing periods and the days that were reconciled.
#[derive(Debug, Clone, Template)]
#[template(path = "billing.html")]
pub struct BillingView {
    /// What surrounds the page.
    pub shell: Shell,
    /// On whose clocks months and days begin.
    pub time_zone: String,
    /// The currency's code; none before the first price.
    pub currency: Option<String>,
    /// Minutes before the loss of a node that are credited.
    pub credit_minutes: i32,
    /// The periods, the latest first.
    pub periods: Vec<PeriodRow>,
    /// The days, the latest first.
    pub days: Vec<DayRow>,
    /// Whether the reader may close and issue periods.
    pub edits: bool,
    /// Why a period could not be closed or issued.
    pub error: Option<Refusal>,
}

/// A period in the list.
#[derive(Debug, Clone)]
pub struct PeriodRow {
    /// Its name, the month.
    pub name: String,
    /// Its state's code.
    pub state: String,
    /// From then on.
    pub from: DateTime<Utc>,
    /// Up to before then.
    pub to: DateTime<Utc>,
}

impl PeriodRow {
    /// Whether it can be closed.
    fn closable(&self, now: &DateTime<Utc>) -> bool {
        self.state == "open" && self.to <= *now
    }
}

/// A day that was reconciled.
#[derive(Debug, Clone)]
pub struct DayRow {
    /// Its date.
    pub day: String,
    /// Devices that were there.
    pub devices: i32,
    /// Of these those whose time does not add up.
    pub off: i32,
}

/// Statements: of a period by team, or of a team by period.
#[derive(Debug, Clone, Template)]
#[template(path = "statements.html")]
pub struct StatementsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The period, or the team.
    pub of: String,
    /// Whether they are those of a team.
    pub of_team: bool,
    /// The statements.
    pub rows: Vec<StatementRow>,
}

/// A statement in the list.
#[derive(Debug, Clone)]
pub struct StatementRow {
    /// The team.
    pub team: String,
    /// The period.
    pub period: String,
    /// The total.
    pub total: Money,
    /// Whether its rows give the same digest now.
    pub verified: bool,
}

/// A team's statement.
#[derive(Debug, Clone, Template)]
#[template(path = "statement.html")]
pub struct StatementView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The team.
    pub team: String,
    /// The period.
    pub period: String,
    /// Its lines.
    pub lines: Vec<StatementLine>,
    /// The total.
    pub total: Money,
    /// Ledger rows behind it.
    pub entries: i64,
    /// Their digest.
    pub sha256: String,
    /// Whether they give the same digest now.
    pub verified: bool,
}

/// A line of a statement.
#[derive(Debug, Clone)]
pub struct StatementLine {
    /// Its kind's code.
    pub kind: String,
    /// The pool.
    pub pool: String,
    /// The sharing mode's code.
    pub mode: Option<String>,
    /// What it is of: `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// Thousandths of GPU-seconds.
    pub gpu_milli_seconds: i64,
    /// What it is charged.
    pub amount: Money,
}

/// What became of the time of each device on a day.
#[derive(Debug, Clone, Template)]
#[template(path = "reconciliation.html")]
pub struct ReconciliationView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The day.
    pub day: String,
    /// The devices, those that are off first.
    pub rows: Vec<ReconciledRow>,
    /// The address of the next page.
    pub older: Option<String>,
}

/// A device's day.
#[derive(Debug, Clone)]
pub struct ReconciledRow {
    /// Its node.
    pub node: String,
    /// Its place there.
    pub index: i32,
    /// Microseconds: there, held, idle, down.
    pub micros: [i64; 4],
    /// What is off.
    pub difference: i64,
}
