//! Budgets are looked at: thresholds that were passed fire, and what a budget stops is stopped or goes on.

mod borrowed;

use domain::budget::{BudgetStop, Measure};
use domain::ids::BudgetId;
use domain::notice::NoticeKind;
use rust_decimal::Decimal;
use serde_json::json;

use crate::app::budgets::{self, Figures, Threshold, figures};
use crate::app::{App, AppError};
use crate::store::budgets::{self as rows, Budget, Firing, Which};
use crate::store::outbox::{self, Notice};
use crate::store::{self, Tx, audit};

/// Most budgets of an organisation; a thousand teams with a few each.
const BUDGETS_MAX: i64 = 10_000;

/// Looks at every budget, each in a transaction of its own, and lets borrowed work give way where one says so.
pub async fn watch(app: &App) -> Result<(), AppError> {
    let mut tx = app.db.begin_system().await?;
    let all = rows::all(&mut tx, Which::All, BUDGETS_MAX).await?;
    tx.commit().await?;
    let mut outcome = Ok(());
    for budget in &all {
        if let Err(error) = look(app, budget.id).await {
            tracing::warn!(budget.id = %budget.id, %error, "a budget could not be looked at");
            outcome = Err(error);
        }
    }
    outcome?;
    borrowed::stop(app).await
}

async fn look(app: &App, id: BudgetId) -> Result<(), AppError> {
    let mut tx = app.db.begin_system().await?;
    if !rows::try_lock(&mut tx, id).await? {
        return Ok(());
    }
    let Some(budget) = rows::all(&mut tx, Which::Ids(&[id]), 1).await?.pop() else {
        return Ok(());
    };
    let figures = figures::of(&mut tx, &budget).await?;
    let mut stopped = BudgetStop::None;
    if let Some(figures) = &figures {
        for threshold in budgets::thresholds(&budget)? {
            let Some(measured) = passed(&budget, figures, threshold) else {
                continue;
            };
            stopped = stopped.max(threshold.action.stops());
            fire(&mut tx, &budget, figures, threshold, measured).await?;
        }
    }
    let changes = stopped != budget.stopped;
    if changes {
        rows::set_stopped(&mut tx, id, stopped).await?;
        let object = format!("budget/{}/{}", budget.team, budget.name);
        let reason = format!("it stopped {}, and stops {stopped}", budget.stopped);
        audit::insert_of_system(&mut tx, "stop_by_budget", &object, &reason).await?;
    }
    tx.commit().await?;
    if changes {
        tracing::info!(budget.id = %id, %stopped, "a budget stops other work than before");
        app.wake.all();
    }
    Ok(())
}

/// What a threshold looks at, where it was passed.
fn passed(budget: &Budget, figures: &Figures, threshold: Threshold) -> Option<Decimal> {
    let measured = figures.measured(threshold.measure)?;
    let hundredths = measured.checked_mul(Decimal::ONE_HUNDRED)?;
    (hundredths >= budget.amount * Decimal::from(threshold.percent)).then_some(measured)
}

/// Fires a threshold, where it did not in this period.
async fn fire(
    tx: &mut Tx,
    budget: &Budget,
    figures: &Figures,
    threshold: Threshold,
    measured: Decimal,
) -> Result<(), AppError> {
    let Threshold {
        measure,
        percent,
        action,
    } = threshold;
    let firing = Firing {
        budget: budget.id,
        period_start: figures.from,
        measure,
        percent,
        action,
        fired_at: store::clock(tx).await?,
        measured,
        amount: budget.amount,
    };
    if !rows::fire(tx, budget.team_id, &firing).await? {
        return Ok(());
    }
    let what = match measure {
        Measure::Actual => "used",
        Measure::Forecast => "foretold",
    };
    let payload = json!({
        "team": budget.team,
        "budget": budget.name,
        "measure": measure,
        "percent": percent,
        "action": action,
        "measured": measured.normalize(),
        "amount": budget.amount.normalize(),
        "unit": budget.currency.as_ref().map_or("GPU-hours", |currency| currency.as_str()),
        "period_start": domain::time::format(figures.from),
        "period_end": domain::time::format(figures.to),
        "forecasts": figures.forecasts,
    });
    let notice = Notice {
        kind: NoticeKind::BudgetThreshold,
        team: Some(budget.team_id),
        key: &format!(
            "budget/{}/{}/{measure}/{percent}",
            budget.id,
            domain::time::format(figures.from)
        ),
        about: &format!("budget/{}", budget.id),
        payload: &payload,
    };
    outbox::tell(tx, &notice).await?;
    let object = format!("budget/{}/{}", budget.team, budget.name);
    let reason = format!("{percent} % of it are {what}: {action}");
    audit::insert_of_system(tx, "fire_budget_threshold", &object, &reason).await?;
    Ok(())
}
