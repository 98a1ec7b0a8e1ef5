//! Budgets, what they stop, and which of their thresholds have fired.

use domain::Timestamp;
use domain::budget::{BudgetAction, BudgetPeriod, BudgetStop, BudgetUnit, Measure};
use domain::ids::{BudgetId, TeamId, UserId};
use domain::money::Currency;
use domain::name::Name;
use rust_decimal::Decimal;
use serde_json::Value;

use super::Tx;

/// A row with its team's name.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Its id.
    pub id: BudgetId,
    /// Its team.
    pub team_id: TeamId,
    /// That team's name.
    pub team: Name,
    /// Its name.
    pub name: Name,
    /// What it is counted in.
    pub unit: BudgetUnit,
    /// In which currency, where that is money.
    pub currency: Option<Currency>,
    /// How much.
    pub amount: Decimal,
    /// For what.
    pub period: BudgetPeriod,
    /// When a grant begins.
    pub starts_at: Option<Timestamp>,
    /// When a grant ends.
    pub ends_at: Option<Timestamp>,
    /// Its thresholds.
    pub thresholds: Value,
    /// Whether what passes it is refused.
    pub hard: bool,
    /// What it stops now.
    pub stopped: BudgetStop,
    /// Its version.
    pub version: i64,
}

/// Which budgets.
#[derive(Debug, Clone, Copy)]
pub enum Which<'a> {
    /// All that can be seen.
    All,
    /// A team's own.
    Team(TeamId),
    /// These.
    Ids(&'a [BudgetId]),
}

/// Those that are there, by team and name; at most so many.
pub async fn all(tx: &mut Tx, which: Which<'_>, rows: i64) -> Result<Vec<Budget>, sqlx::Error> {
    let (team, ids) = match which {
        Which::All => (None, None),
        Which::Team(team) => (Some(team), None),
        Which::Ids(ids) => (None, Some(ids)),
    };
    sqlx::query_as!(
        Budget,
        r#"SELECT b.id AS "id: BudgetId", b.team_id AS "team_id: TeamId", t.name AS "team: Name", b.name AS "name: Name",
                  b.unit AS "unit: BudgetUnit", b.currency AS "currency: Currency", b.amount, b.period AS "period: BudgetPeriod",
                  b.starts_at, b.ends_at, b.thresholds, b.hard, b.stopped AS "stopped: BudgetStop", b.version
           FROM budgets AS b
           JOIN teams AS t ON t.id = b.team_id
           WHERE b.removed_at IS NULL AND ($1::uuid IS NULL OR b.team_id = $1) AND ($2::uuid[] IS NULL OR b.id = ANY ($2))
           ORDER BY t.name, b.name
           LIMIT $3"#,
        team as Option<TeamId>,
        ids as Option<&[BudgetId]>,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// One of a team by name.
pub async fn find(
    tx: &mut Tx,
    team: TeamId,
    name: &str,
    rows: i64,
) -> Result<Option<Budget>, sqlx::Error> {
    let all = all(tx, Which::Team(team), rows).await?;
    Ok(all.into_iter().find(|row| row.name.as_str() == name))
}

/// The hard budgets of a team and of those above it, locked until the transaction ends.
pub async fn lock_hard(tx: &mut Tx, team: TeamId) -> Result<Vec<BudgetId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT allotment.lock_hard_budgets($1) AS "id!: BudgetId""#,
        team as TeamId
    )
    .fetch_all(&mut **tx)
    .await
}

/// Locks one that is there; whether it is, and nobody else works on it.
pub async fn try_lock(tx: &mut Tx, id: BudgetId) -> Result<bool, sqlx::Error> {
    let found = sqlx::query!(
        "SELECT id FROM budgets WHERE id = $1 AND removed_at IS NULL FOR UPDATE SKIP LOCKED",
        id as BudgetId,
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(found.is_some())
}

/// Makes one; the row says all but what it stops, which is nothing.
pub async fn insert(tx: &mut Tx, row: &Budget, created_by: UserId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO budgets (id, team_id, name, unit, currency, amount, period, starts_at, ends_at, thresholds, hard, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        row.id as BudgetId,
        row.team_id as TeamId,
        row.name.as_str(),
        row.unit.as_str(),
        row.currency.as_ref().map(Currency::as_str),
        row.amount,
        row.period.as_str(),
        row.starts_at,
        row.ends_at,
        row.thresholds,
        row.hard,
        created_by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes one that still has its version: amount, thresholds, whether it is hard, and a grant's end; whether it had.
pub async fn update(tx: &mut Tx, row: &Budget) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE budgets SET amount = $3, thresholds = $4, hard = $5, ends_at = $6, version = version + 1
         WHERE id = $1 AND version = $2 AND removed_at IS NULL",
        row.id as BudgetId,
        row.version,
        row.amount,
        row.thresholds,
        row.hard,
        row.ends_at,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes one that still has `version`; whether it had. It stops nothing any more.
pub async fn remove(tx: &mut Tx, id: BudgetId, version: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE budgets SET removed_at = allotment.clock(), stopped = 'none', version = version + 1
         WHERE id = $1 AND version = $2 AND removed_at IS NULL",
        id as BudgetId,
        version,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Says what a locked budget stops now.
pub async fn set_stopped(
    tx: &mut Tx,
    id: BudgetId,
    stopped: BudgetStop,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE budgets SET stopped = $2 WHERE id = $1",
        id as BudgetId,
        stopped.as_str(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// That a threshold was passed.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// Of which budget.
    pub budget: BudgetId,
    /// In the period that began then.
    pub period_start: Timestamp,
    /// What it looks at.
    pub measure: Measure,
    /// At how many per cent.
    pub percent: i32,
    /// What it does.
    pub action: BudgetAction,
    /// When.
    pub fired_at: Timestamp,
    /// What was measured then.
    pub measured: Decimal,
    /// Of how much.
    pub amount: Decimal,
}

/// Notes that a threshold fires; false where it did in this period already.
pub async fn fire(tx: &mut Tx, team: TeamId, firing: &Firing) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO budget_firings (budget_id, team_id, period_start, measure, percent, action, fired_at, measured, amount)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT ON CONSTRAINT threshold_fires_once DO NOTHING",
        firing.budget as BudgetId,
        team as TeamId,
        firing.period_start,
        firing.measure.as_str(),
        firing.percent,
        firing.action.as_str(),
        firing.fired_at,
        firing.measured,
        firing.amount,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What of a budget fired in the period that began then, in the order of its thresholds.
pub async fn firings(
    tx: &mut Tx,
    id: BudgetId,
    period_start: Timestamp,
) -> Result<Vec<Firing>, sqlx::Error> {
    sqlx::query_as!(
        Firing,
        r#"SELECT budget_id AS "budget: BudgetId", period_start, measure AS "measure: Measure", percent,
                  action AS "action: BudgetAction", fired_at, measured, amount
           FROM budget_firings
           WHERE budget_id = $1 AND period_start = $2
           ORDER BY measure, percent"#,
        id as BudgetId,
        period_start,
    )
    .fetch_all(&mut **tx)
    .await
}
