//! Statements: what a closed period bills a team, line by line, with the digest of the ledger rows behind it.

use domain::Timestamp;
use domain::money::{Currency, Money};
use domain::name::Name;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::jobs::rust_decimal_number;
use super::{App, AppError, Asker, periods, teams};
use crate::accounting::usage::rounded_seconds;
use crate::store::billing_statements::{Statement, StatementLine};
use crate::store::{self, Tx};

/// Most statements of one list: more teams than an organisation has.
const STATEMENTS_MAX: i64 = 10_000;

/// Statements, of a period or of a team.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BillingStatements {
    /// The statements.
    pub items: Vec<BillingStatement>,
}

/// What a period bills a team.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BillingStatement {
    /// The team; its children have statements of their own.
    pub team: String,
    /// The period.
    #[schema(example = "2026-10")]
    pub period: String,
    /// The total, rounded once; the lines add up to it.
    pub total: Money,
    /// Ledger rows behind it.
    pub entries: i64,
    /// SHA-256 over those rows when the statement was made.
    pub sha256: String,
    /// Whether the rows give the same digest now.
    pub verified: bool,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Its lines; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<BillingLine>,
}

/// A line of a statement.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BillingLine {
    /// `usage`; `correction`: what a closed period should have billed otherwise; `credit`: for lost nodes;
    /// `committed`: capacity that was committed and not used.
    pub kind: String,
    /// The pool.
    pub pool: String,
    /// The sharing mode; null of what was committed.
    pub mode: Option<String>,
    /// `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// GPU-seconds that were held, or were committed and not used.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64)]
    pub gpu_seconds: Decimal,
    /// What it is charged.
    pub amount: Money,
}

/// The statements of a period, by team.
pub async fn of_period(
    app: &App,
    asker: &Asker,
    period: &str,
) -> Result<BillingStatements, AppError> {
    authorise(asker, Action::ListBillingStatements, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let found = periods::find(&mut tx, period).await?;
    let rows =
        store::billing_statements::list(&mut tx, Some(found.id), None, STATEMENTS_MAX).await?;
    tx.commit().await?;
    let items = rows.into_iter().filter_map(|row| shown(row, Vec::new()));
    Ok(BillingStatements {
        items: items.collect(),
    })
}

/// The statements of a team, the latest first.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<BillingStatements, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let action = Action::ListTeamBillingStatements;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let rows =
        store::billing_statements::list(&mut tx, None, Some(team.id), STATEMENTS_MAX).await?;
    tx.commit().await?;
    let items = rows.into_iter().filter_map(|row| shown(row, Vec::new()));
    Ok(BillingStatements {
        items: items.collect(),
    })
}

/// A team's statement of a period, with its lines.
pub async fn get(
    app: &App,
    asker: &Asker,
    team: &Name,
    period: &str,
) -> Result<BillingStatement, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let action = Action::GetTeamBillingStatement;
    let found = teams::find_as(&mut tx, asker, action, team).await?;
    let statement = read(&mut tx, found.id, period).await?;
    tx.commit().await?;
    statement.ok_or_else(|| AppError::not_found("statement", period))
}

async fn read(
    tx: &mut Tx,
    team: domain::ids::TeamId,
    period: &str,
) -> Result<Option<BillingStatement>, AppError> {
    let Ok(period) = periods::find(tx, period).await else {
        return Ok(None);
    };
    let mut rows = store::billing_statements::list(tx, Some(period.id), Some(team), 1).await?;
    let Some(row) = rows.pop() else {
        return Ok(None);
    };
    let lines = store::billing_statements::lines(tx, row.id).await?;
    Ok(shown(row, lines))
}

/// Nothing where it has no currency, which no statement is without.
fn shown(row: Statement, lines: Vec<StatementLine>) -> Option<BillingStatement> {
    let currency: Currency = row.currency?.parse().ok()?;
    let money = |amount: Decimal| Money {
        amount,
        currency: currency.clone(),
    };
    let line = |line: StatementLine| BillingLine {
        gpu_seconds: rounded_seconds(line.gpu_milli_micros + line.unused_milli_micros),
        kind: line.kind,
        pool: line.pool,
        mode: line.mode,
        resource: line.resource,
        amount: money(line.amount),
    };
    Some(BillingStatement {
        team: row.team,
        period: row.period,
        total: money(row.total),
        entries: row.entries,
        verified: row.sha256 == row.sha256_now,
        sha256: row.sha256,
        created_at: row.created_at,
        lines: lines.into_iter().map(line).collect(),
    })
}
