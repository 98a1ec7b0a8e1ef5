//! Budgets: what a team, with all below it, may spend in a period, and what is done as it fills.

mod admit;
pub mod figures;
mod period;

use domain::FieldError;
use domain::Timestamp;
use domain::budget::{BudgetAction, BudgetPeriod, BudgetStop, BudgetUnit, Measure};
use domain::ids::{BudgetId, TeamId};
use domain::money::Currency;
use domain::name::Name;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::{self, Change};
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::Page;
use super::{App, AppError, Asker, change, teams, webhooks};
use crate::store::budgets::{self as rows, Which};
use crate::store::{self, Tx};

pub(super) use admit::admit;
pub use figures::{Figures, Fired, Forecast};
pub use period::Period;

/// Most budgets of a team.
pub(super) const OF_TEAM_MAX: i64 = 20;
/// Most budgets that one list shows: each is reckoned up anew.
const LISTED_MAX: i64 = 200;
/// Most thresholds of a budget.
const THRESHOLDS_MAX: usize = 20;
/// A threshold's bounds, in per cent; above the budget what overran it is told, too.
const PERCENT: std::ops::RangeInclusive<i32> = 1..=1_000;
/// Decimals of an amount; the table's.
const AMOUNT_DECIMALS: u32 = 4;
/// The highest amount.
const AMOUNT_MAX: i64 = 1_000_000_000_000;

/// A budget, with how it stands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// Its team; it covers all below that, too.
    pub team: Name,
    /// Its name.
    pub name: Name,
    /// What it is counted in.
    pub unit: BudgetUnit,
    /// The currency, where that is money; else null.
    pub currency: Option<Currency>,
    /// How much, in units of the currency or in GPU-hours.
    #[schema(value_type = String)]
    pub amount: Decimal,
    /// For what it is given: each month or quarter of UTC anew, or once.
    pub period: BudgetPeriod,
    /// When a grant begins; else null.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starts_at: Option<Timestamp>,
    /// When a grant ends; else null.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ends_at: Option<Timestamp>,
    /// What is done when.
    pub thresholds: Vec<Threshold>,
    /// Whether a job is refused whose least cost passes what is left beside what is used and committed.
    pub hard: bool,
    /// What it stops now.
    pub stopped: BudgetStop,
    /// How it stands in the present period; null before a grant begins and after it has ended.
    pub now: Option<Figures>,
    /// Its version.
    pub version: i64,
}

/// What is done when so much of a budget is used or foretold to be; each fires once in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// What it looks at.
    pub measure: Measure,
    /// At how many per cent of the amount.
    #[schema(minimum = 1, maximum = 1000)]
    pub percent: i32,
    /// What is done. Of a forecast people are told, and nothing is stopped: what is stopped would lower the forecast,
    /// and would go on again.
    pub action: BudgetAction,
}

/// A budget to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBudget {
    /// Its name.
    pub name: Name,
    /// What it is counted in.
    pub unit: BudgetUnit,
    /// The currency of the price book, where that is money.
    #[serde(default)]
    pub currency: Option<Currency>,
    /// How much.
    #[schema(value_type = String, example = "5000")]
    pub amount: Decimal,
    /// For what.
    pub period: BudgetPeriod,
    /// When a grant begins.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starts_at: Option<Timestamp>,
    /// When a grant ends.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ends_at: Option<Timestamp>,
    /// What is done when.
    #[serde(default)]
    pub thresholds: Vec<Threshold>,
    /// Whether what passes it is refused.
    #[serde(default)]
    pub hard: bool,
}

/// What is to be changed of a budget; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetPatch {
    /// How much.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub amount: Option<Decimal>,
    /// What is done when, in place of all that was.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub thresholds: Option<Vec<Threshold>>,
    /// Whether what passes it is refused.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub hard: Option<bool>,
}

/// Lists a team's budgets, by name, each with how it stands.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<Page<Budget>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListBudgets, team).await?;
    let found = rows::all(&mut tx, Which::Team(team.id), OF_TEAM_MAX).await?;
    let page = shown_all(&mut tx, found).await?;
    tx.commit().await?;
    Ok(page)
}

/// Lists the budgets of all teams that the asker may see, by team and name, each with how it stands.
pub async fn of_all(app: &App, asker: &Asker) -> Result<Page<Budget>, AppError> {
    authorise(asker, Action::ListAllBudgets, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let found = rows::all(&mut tx, Which::All, LISTED_MAX).await?;
    let page = shown_all(&mut tx, found).await?;
    tx.commit().await?;
    Ok(page)
}

/// Makes a budget.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    new: NewBudget,
    reason: &str,
) -> Result<Answer<Budget>, AppError> {
    let action = Action::CreateBudget;
    authorise(asker, action, Target::Platform)?;
    super::reason::check_reason(reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let team = teams::find_as(&mut work.tx, asker, action, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let there = rows::all(tx, Which::Team(team.id), OF_TEAM_MAX)
        .await?
        .len();
    webhooks::too_many(
        "budgets",
        i64::try_from(there).unwrap_or(i64::MAX),
        OF_TEAM_MAX,
    )?;
    let thresholds = checked(new.thresholds)?;
    let row = rows::Budget {
        id: BudgetId::new(),
        team_id: team.id,
        team: team.name.clone(),
        name: new.name,
        unit: new.unit,
        currency: new.currency,
        amount: new.amount,
        period: new.period,
        starts_at: new.starts_at,
        ends_at: new.ends_at,
        thresholds: json!(thresholds),
        hard: new.hard,
        stopped: BudgetStop::None,
        version: 1,
    };
    check(tx, &row).await?;
    rows::insert(tx, &row, asker.user_id)
        .await
        .map_err(|error| AppError::name_taken(error, "budget_name_taken", "budget", &row.name))?;
    let budget = shown(tx, row).await?;
    record(tx, asker, (action, reason), team.id, (None, Some(&budget))).await?;
    work.finish(app, Answer::created(budget, 1)).await
}

/// Changes a budget; what it stops follows at the next look at it.
pub async fn update(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
    version: i64,
    patch: BudgetPatch,
    reason: &str,
) -> Result<Budget, AppError> {
    let action = Action::UpdateBudget;
    authorise(asker, action, Target::Platform)?;
    super::reason::check_reason(reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let before = find(&mut tx, team.id, name).await?;
    let mut row = before.clone();
    row.amount = patch.amount.unwrap_or(row.amount);
    row.hard = patch.hard.unwrap_or(row.hard);
    if let Some(thresholds) = patch.thresholds {
        row.thresholds = json!(checked(thresholds)?);
    }
    check(&mut tx, &row).await?;
    if change::leaves((version, before.version), &before, &row)? {
        let budget = shown(&mut tx, before).await?;
        tx.commit().await?;
        return Ok(budget);
    }
    if !rows::update(&mut tx, &row).await? {
        let present = find(&mut tx, team.id, name).await?.version;
        let given = version.to_string();
        return Err(AppError::Stale { given, present });
    }
    row.version += 1;
    let before = shown(&mut tx, before).await?;
    let after = shown(&mut tx, row).await?;
    record(
        &mut tx,
        asker,
        (action, reason),
        team.id,
        (Some(&before), Some(&after)),
    )
    .await?;
    tx.commit().await?;
    app.wake.all();
    Ok(after)
}

/// Removes a budget; what it stopped goes on.
pub async fn delete(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
    version: i64,
    reason: &str,
) -> Result<(), AppError> {
    let action = Action::DeleteBudget;
    authorise(asker, action, Target::Platform)?;
    super::reason::check_reason(reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let before = find(&mut tx, team.id, name).await?;
    if !rows::remove(&mut tx, before.id, version).await? {
        let (given, present) = (version.to_string(), before.version);
        return Err(AppError::Stale { given, present });
    }
    let before = shown(&mut tx, before).await?;
    record(
        &mut tx,
        asker,
        (action, reason),
        team.id,
        (Some(&before), None),
    )
    .await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

async fn record(
    tx: &mut Tx,
    asker: &Asker,
    (action, reason): (Action, &str),
    team: TeamId,
    (before, after): (Option<&Budget>, Option<&Budget>),
) -> Result<(), AppError> {
    let named = before
        .or(after)
        .map(|b| format!("budget/{}/{}", b.team, b.name));
    // How it stands is no part of what was changed.
    let kept = |budget: Option<&Budget>| {
        budget.map(|budget| {
            json!(Budget {
                now: None,
                ..budget.clone()
            })
        })
    };
    let change = Change {
        team_id: Some(team),
        reason,
        before: kept(before),
        after: kept(after),
        ..Change::of(action, named.unwrap_or_default())
    };
    audit::record(tx, asker, change).await
}

async fn find(tx: &mut Tx, team: TeamId, name: &Name) -> Result<rows::Budget, AppError> {
    rows::find(tx, team, name.as_str(), OF_TEAM_MAX)
        .await?
        .ok_or_else(|| AppError::not_found("budget", name))
}

/// Thresholds in their order, where they can be.
fn checked(mut thresholds: Vec<Threshold>) -> Result<Vec<Threshold>, AppError> {
    if thresholds.len() > THRESHOLDS_MAX {
        let remedy = format!("at most {THRESHOLDS_MAX} of them");
        return Err(AppError::invalid("thresholds", thresholds.len(), remedy));
    }
    thresholds.sort_unstable();
    for (at, threshold) in thresholds.iter().enumerate() {
        let field = |name: &str| format!("thresholds[{at}].{name}");
        if !PERCENT.contains(&threshold.percent) {
            let remedy = format!("{} to {}", PERCENT.start(), PERCENT.end());
            return Err(AppError::invalid(
                &field("percent"),
                threshold.percent,
                remedy,
            ));
        }
        if threshold.measure == Measure::Forecast && threshold.action != BudgetAction::Notify {
            let remedy = "notify: only what was used stops anything";
            return Err(AppError::invalid(
                &field("action"),
                threshold.action,
                remedy,
            ));
        }
    }
    let same = |pair: &[Threshold]| {
        (pair[0].measure, pair[0].percent) == (pair[1].measure, pair[1].percent)
    };
    if let Some(pair) = thresholds.windows(2).find(|pair| same(pair)) {
        let remedy = "one threshold at so many per cent of a measure";
        return Err(AppError::invalid("thresholds", pair[0].percent, remedy));
    }
    Ok(thresholds)
}

/// Checks what no type can.
async fn check(tx: &mut Tx, row: &rows::Budget) -> Result<(), AppError> {
    let amount = row.amount.normalize();
    let fits = amount > Decimal::ZERO
        && amount.scale() <= AMOUNT_DECIMALS
        && amount <= Decimal::from(AMOUNT_MAX);
    if !fits {
        let remedy =
            format!("more than 0, at most {AMOUNT_MAX}, with at most {AMOUNT_DECIMALS} decimals");
        return Err(AppError::invalid("amount", row.amount, remedy));
    }
    match (row.unit, &row.currency) {
        (BudgetUnit::Money, None) => {
            return Err(AppError::Invalid(FieldError::missing(
                "currency",
                "that of the price book",
            )));
        }
        (BudgetUnit::GpuHours, Some(currency)) => {
            return Err(AppError::invalid(
                "currency",
                currency,
                "nothing, where unit is gpu_hours",
            ));
        }
        (BudgetUnit::Money, Some(currency)) => {
            let own = store::prices::claim_currency(tx, currency.as_str()).await?;
            if own != currency.as_str() {
                let remedy = format!("{own}, as in the price book");
                return Err(AppError::invalid("currency", currency, remedy));
            }
        }
        (BudgetUnit::GpuHours, None) => {}
    }
    let shown = |at: Option<Timestamp>| at.map(domain::time::format).unwrap_or_default();
    match (row.period, row.starts_at, row.ends_at) {
        (BudgetPeriod::Grant, Some(from), Some(to)) if from < to => Ok(()),
        (BudgetPeriod::Grant, Some(from), to) => Err(AppError::invalid(
            "ends_at",
            shown(to),
            format!(
                "a time after starts_at, which is {}",
                domain::time::format(from)
            ),
        )),
        (BudgetPeriod::Grant, None, _) => Err(AppError::Invalid(FieldError::missing(
            "starts_at",
            "when the grant begins",
        ))),
        (_, None, None) => Ok(()),
        (_, from, to) => {
            let (field, value) = if from.is_some() {
                ("starts_at", from)
            } else {
                ("ends_at", to)
            };
            Err(AppError::invalid(
                field,
                shown(value),
                "nothing, where period is not grant",
            ))
        }
    }
}

async fn shown_all(tx: &mut Tx, found: Vec<rows::Budget>) -> Result<Page<Budget>, AppError> {
    let mut items = Vec::with_capacity(found.len());
    for row in found {
        items.push(shown(tx, row).await?);
    }
    Ok(Page {
        items,
        next_cursor: None,
    })
}

async fn shown(tx: &mut Tx, row: rows::Budget) -> Result<Budget, AppError> {
    let now = figures::of(tx, &row).await?;
    let now = match now {
        Some(mut figures) => {
            figures.fired = rows::firings(tx, row.id, figures.from)
                .await?
                .into_iter()
                .map(Fired::from)
                .collect();
            Some(figures)
        }
        None => None,
    };
    Ok(Budget {
        thresholds: thresholds(&row)?,
        now,
        team: row.team,
        name: row.name,
        unit: row.unit,
        currency: row.currency,
        amount: row.amount.normalize(),
        period: row.period,
        starts_at: row.starts_at,
        ends_at: row.ends_at,
        hard: row.hard,
        stopped: row.stopped,
        version: row.version,
    })
}

/// A row's thresholds.
pub fn thresholds(row: &rows::Budget) -> Result<Vec<Threshold>, AppError> {
    serde_json::from_value(row.thresholds.clone()).map_err(|e| {
        AppError::Internal(anyhow::Error::new(e).context("read a budget's thresholds"))
    })
}
