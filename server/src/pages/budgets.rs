//! The budgets that the asker may see.

use axum::extract::State;
use axum::response::Response;
use domain::money::Money;
use rust_decimal::Decimal;
use web::shell::Section;
use web::views::{BudgetRow, BudgetsView};

use super::visit::Visit;
use super::{PageError, page};
use crate::app::App;
use crate::app::budgets::{self, Budget};

/// Shows the budgets.
pub async fn list_budgets(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    let found = budgets::of_all(&app, &visit.asker).await?;
    page(&BudgetsView {
        shell: visit.shell(&app, Section::Teams).await?,
        rows: found.items.into_iter().map(row).collect(),
    })
}

fn row(budget: Budget) -> BudgetRow {
    let written = |amount: Decimal| match &budget.currency {
        Some(currency) => Money {
            amount,
            currency: currency.clone(),
        }
        .written(),
        None => format!("{} GPU·h", domain::money::round(amount, 2).normalize()),
    };
    let now = budget.now.as_ref();
    let forecast = |rule: &str| {
        let found = now?.forecasts.iter().find(|forecast| forecast.rule == rule);
        found?.amount.map(written)
    };
    BudgetRow {
        period: budget.period.as_str(),
        amount: written(budget.amount),
        used: now.map(|now| written(now.used)),
        committed: now.map(|now| written(now.committed)),
        left: now.map(|now| written(now.left)),
        linear: forecast("linear"),
        recent: forecast("last_7_days"),
        stopped: budget.stopped.as_str(),
        hard: budget.hard,
        team: budget.team.to_string(),
        name: budget.name.to_string(),
    }
}
