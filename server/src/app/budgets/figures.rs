//! How a budget stands: what was used of it, what is committed, and where its period will end.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use domain::Timestamp;
use domain::budget::{
    BudgetAction, BudgetUnit, Measure, RECENT_SECONDS, forecast_linear, forecast_recent,
};
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::spec::PerWorker;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Period;
use crate::accounting::usage::{self, Sum};
use crate::app::AppError;
use crate::store::budgets::{self as rows, Budget};
use crate::store::committed::{self, InForce};
use crate::store::ledger::{Grouping, Window};
use crate::store::{self, Tx};

/// Kinds of waiting work that are priced; of more than that what is committed is not told exactly.
const KINDS_MAX: i64 = 10_000;
/// Decimals of what is shown of a budget.
const SHOWN_DECIMALS: u32 = 4;
const SECONDS_PER_HOUR: i64 = 3_600;
const MILLI: i64 = 1_000;

/// How a budget stands, in its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Figures {
    /// When its period began.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// What was used in it.
    #[schema(value_type = String)]
    pub used: Decimal,
    /// What running and waiting work will use by its time limits.
    #[schema(value_type = String)]
    pub committed: Decimal,
    /// How many of these jobs have no time limit, and are no part of that.
    pub open_ended_jobs: i64,
    /// The amount less what was used and what is committed; below 0 where that is more.
    #[schema(value_type = String)]
    pub left: Decimal,
    /// GPU-seconds of use that no price covers, and that a budget of money does not hold.
    #[schema(value_type = String)]
    pub unpriced_gpu_seconds: Decimal,
    /// Where the period will end, by each rule.
    pub forecasts: Vec<Forecast>,
    /// Which of its thresholds fired in it.
    pub fired: Vec<Fired>,
}

/// Where a period will end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forecast {
    /// `linear`: what was used, divided by the share of the period that has passed. `last_7_days`: what was used, and
    /// for the rest of the period the rate of the last seven days, or since it began.
    pub rule: String,
    /// How much; null in the first day of a period, of which nothing is foretold.
    #[schema(value_type = Option<String>)]
    pub amount: Option<Decimal>,
}

/// A threshold that fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fired {
    /// What it looks at.
    pub measure: Measure,
    /// At how many per cent.
    pub percent: i32,
    /// What it does.
    pub action: BudgetAction,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What was measured then.
    #[schema(value_type = String)]
    pub measured: Decimal,
}

impl From<rows::Firing> for Fired {
    fn from(row: rows::Firing) -> Self {
        Self {
            measure: row.measure,
            percent: row.percent,
            action: row.action,
            at: row.fired_at,
            measured: row.measured.normalize(),
        }
    }
}

impl Figures {
    /// What a threshold looks at; of forecasts the higher one.
    pub fn measured(&self, measure: Measure) -> Option<Decimal> {
        match measure {
            Measure::Actual => Some(self.used),
            Measure::Forecast => self.forecasts.iter().filter_map(|f| f.amount).max(),
        }
    }
}

/// How a budget stands now, without what fired; none out of its period. The transaction must see all of its team.
pub async fn of(tx: &mut Tx, budget: &Budget) -> Result<Option<Figures>, AppError> {
    let now = store::clock(tx).await?;
    let Some(period) = Period::at(budget, now) else {
        return Ok(None);
    };
    let sum = used(tx, budget, (period.from, now), now).await?;
    let spent = in_unit(budget.unit, &sum);
    let recent_from = (now - TimeDelta::seconds(RECENT_SECONDS)).max(period.from);
    let recent = used(tx, budget, (recent_from, now), now).await?;
    let elapsed = period.elapsed(now);
    let linear = forecast_linear(spent, elapsed);
    let window = (now - recent_from).num_seconds();
    let recent = forecast_recent(spent, in_unit(budget.unit, &recent), window, elapsed);
    let (committed, open_ended_jobs) = committed(tx, budget, now).await?;
    let forecast = |rule: &str, amount: Option<Decimal>| Forecast {
        rule: rule.to_owned(),
        amount: amount.map(shown),
    };
    Ok(Some(Figures {
        from: period.from,
        to: period.to,
        used: shown(spent),
        committed: shown(committed),
        open_ended_jobs,
        left: shown(budget.amount - spent - committed),
        unpriced_gpu_seconds: sum.unpriced_gpu_seconds,
        forecasts: vec![forecast("linear", linear), forecast("last_7_days", recent)],
        fired: Vec::new(),
    }))
}

fn shown(amount: Decimal) -> Decimal {
    domain::money::round(amount, SHOWN_DECIMALS).normalize()
}

async fn used(
    tx: &mut Tx,
    budget: &Budget,
    (from, to): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<Sum, AppError> {
    if from >= to {
        return Ok(Sum::nothing());
    }
    let window = Window {
        from,
        to,
        team: Some(budget.team_id),
        now,
    };
    Ok(usage::report(tx, &window, Grouping::default()).await?.total)
}

fn in_unit(unit: BudgetUnit, sum: &Sum) -> Decimal {
    match unit {
        BudgetUnit::Money => sum
            .cost
            .as_ref()
            .map(|cost| cost.amount)
            .unwrap_or_default(),
        BudgetUnit::GpuHours => sum.gpu_seconds / Decimal::from(SECONDS_PER_HOUR),
    }
}

/// What running and waiting work of a budget's team will use by its time limits, and how many jobs have none.
pub(super) async fn committed(
    tx: &mut Tx,
    budget: &Budget,
    now: Timestamp,
) -> Result<(Decimal, i64), AppError> {
    let teams = store::teams::with_children(tx, budget.team_id).await?;
    let (running, mut open_ended) = committed::running(tx, &teams, now).await?;
    let mut total: Decimal = running
        .iter()
        .map(|held| worth(budget.unit, held.gpu_milli_seconds, held.per_gpu_hour))
        .sum();
    let prices = Prices::load(tx, now).await?;
    for kind in committed::waiting(tx, &teams, KINDS_MAX).await? {
        let asked: Asked = serde_json::from_value(kind.asked).unwrap_or_default();
        match asked.cost(budget.unit, asked.workers.unwrap_or(1), &prices) {
            Some(cost) => total += cost * Decimal::from(kind.jobs),
            None => open_ended += kind.jobs,
        }
    }
    Ok((total, open_ended))
}

fn worth(unit: BudgetUnit, gpu_milli_seconds: Decimal, per_gpu_hour: Option<Decimal>) -> Decimal {
    let hours = gpu_milli_seconds / Decimal::from(MILLI * SECONDS_PER_HOUR);
    match unit {
        BudgetUnit::GpuHours => hours,
        BudgetUnit::Money => hours * per_gpu_hour.unwrap_or_default(),
    }
}

/// What a job asks for, as far as it costs something.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    pub(super) per_worker: PerWorker,
    #[serde(default)]
    pub(super) pools: Vec<Name>,
    #[serde(default)]
    pub(super) workers: Option<u32>,
    #[serde(default)]
    pub(super) time_limit_seconds: Option<i64>,
}

impl Asked {
    /// What so many workers will use until the limit, in the cheapest pool and mode that it takes; none where there is
    /// no limit to go by.
    pub(super) fn cost(&self, unit: BudgetUnit, workers: u32, prices: &Prices) -> Option<Decimal> {
        let gpus_milli = self.per_worker.gpus().milli();
        if gpus_milli == 0 {
            return Some(Decimal::ZERO);
        }
        let seconds = self.time_limit_seconds?;
        let held = Decimal::from(gpus_milli) * Decimal::from(workers) * Decimal::from(seconds);
        Some(worth(unit, held, prices.least(&self.pools, &self.modes())))
    }

    fn modes(&self) -> Vec<SharingMode> {
        match self.per_worker.mig_profile {
            Some(_) => vec![SharingMode::Mig],
            None => self.per_worker.sharing.clone(),
        }
    }
}

/// The prices that are in force, by pool.
pub(super) struct Prices(BTreeMap<String, Vec<InForce>>);

impl Prices {
    pub(super) async fn load(tx: &mut Tx, now: Timestamp) -> Result<Self, sqlx::Error> {
        let mut by_pool: BTreeMap<String, Vec<InForce>> = BTreeMap::new();
        for price in committed::prices(tx, now).await? {
            by_pool.entry(price.pool.clone()).or_default().push(price);
        }
        Ok(Self(by_pool))
    }

    /// The lowest of these pools and modes; all pools where none is named.
    fn least(&self, pools: &[Name], modes: &[SharingMode]) -> Option<Decimal> {
        let wanted = |pool: &str| pools.is_empty() || pools.iter().any(|p| p.as_str() == pool);
        let found = self
            .0
            .iter()
            .filter(|(pool, _)| wanted(pool))
            .flat_map(|(_, prices)| prices);
        found
            .filter(|price| modes.contains(&price.mode))
            .map(|price| price.per_gpu_hour)
            .min()
    }
}
