//! Usage as people read it: who held how much of what, what it costs, and where capacity went.

use std::collections::BTreeMap;

use domain::FieldError;
use domain::Timestamp;
use domain::ids::JobId;
use domain::money::Money;
use domain::name::Name;
use rust_decimal::Decimal;
use serde::Serialize;
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::jobs::rust_decimal_number;
use super::lists::read_list;
use super::{App, AppError, Asker, pools, teams};
pub use crate::accounting::usage::month_start;

use crate::accounting::capacity::{self, Shown};
use crate::accounting::usage::{self, LINES_MAX, Report, ReportLine, Sum};
use crate::store::ledger::{Grouping, Window};
use crate::store::{self, Tx};

/// Longest window of a report by hour: a quarter.
const HOURLY_DAYS_MAX: i64 = 92;
/// Longest window of any report: ten years and their leap days.
const DAYS_MAX: i64 = 3_653;

/// What is asked of a report.
#[derive(Debug, Clone, Default)]
pub struct UsageAsk {
    /// From then on; absent: from the beginning of this month, in UTC.
    pub from: Option<Timestamp>,
    /// Up to before then; absent: until now.
    pub to: Option<Timestamp>,
    /// By what it groups.
    pub by: Grouping,
}

/// A report of usage.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Usage {
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// The lines; they add up to the total.
    pub items: Vec<UsageItem>,
    /// All lines together.
    pub total: UsageTotal,
}

/// One line of a report.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageItem {
    /// What it is of: one entry for each key of `group_by`.
    pub group: BTreeMap<&'static str, String>,
    /// The job's name, where it is grouped by job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    /// How much.
    #[serde(flatten)]
    pub total: UsageTotal,
}

/// An amount of use.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UsageTotal {
    /// GPU-seconds that were held, with at most three decimals.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64)]
    pub gpu_seconds: Decimal,
    /// Of these those that no price covers.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64)]
    pub unpriced_gpu_seconds: Decimal,
    /// What the rest costs; null where no price covers any.
    pub cost: Option<Money>,
}

/// The words of `group_by`.
const GROUP_KEYS: [&str; 7] = ["team", "user", "job", "pool", "mode", "day", "hour"];

/// Reads words of `group_by`, separated by commas; none is one sum.
pub fn parse_grouping(words: Option<&str>) -> Result<Grouping, AppError> {
    let key = |word: &str| {
        let known = GROUP_KEYS.into_iter().find(|key| *key == word);
        known.ok_or_else(|| {
            let remedy = "team, user, job, pool, mode, day or hour, several separated by commas";
            FieldError::new("group_by", word, remedy)
        })
    };
    let keys = read_list("group_by", words, key)?;
    let by = |key| keys.contains(&key);
    Ok(Grouping {
        team: by("team"),
        user: by("user"),
        job: by("job"),
        pool: by("pool"),
        mode: by("mode"),
        day: by("day"),
        hour: by("hour"),
    })
}

/// Reports what a team, with all below it, has used.
pub async fn of_team(
    app: &App,
    asker: &Asker,
    team: &Name,
    ask: &UsageAsk,
) -> Result<Usage, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::GetTeamUsage, team).await?;
    let mut window = window(&mut tx, ask).await?;
    window.team = Some(team.id);
    let usage = read(&mut tx, &window, ask.by).await?;
    tx.commit().await?;
    Ok(usage)
}

/// Reports what all teams have used that the asker may see.
pub async fn of_all(app: &App, asker: &Asker, ask: &UsageAsk) -> Result<Usage, AppError> {
    authorise(asker, Action::GetUsage, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let window = window(&mut tx, ask).await?;
    let usage = read(&mut tx, &window, ask.by).await?;
    tx.commit().await?;
    Ok(usage)
}

async fn window(tx: &mut Tx, ask: &UsageAsk) -> Result<Window, AppError> {
    let now = store::clock(tx).await?;
    let to = ask.to.unwrap_or(now);
    let from = ask.from.unwrap_or_else(|| usage::month_start(to.min(now)));
    let shown = |time| domain::time::format(time);
    // What was not sent is not at fault.
    let by_default = ask.from.is_none();
    if from >= to {
        if ask.to.is_none() && !by_default {
            let remedy = format!("a time before now, which is {}", shown(to));
            return Err(AppError::invalid("from", shown(from), remedy));
        }
        return Err(AppError::invalid(
            "to",
            shown(to),
            format!("a time after from, which is {}", shown(from)),
        ));
    }
    let (days_max, what) = if ask.by.hour {
        (HOURLY_DAYS_MAX, " by hour")
    } else {
        (DAYS_MAX, "")
    };
    if to - from > chrono::TimeDelta::days(days_max) {
        if by_default {
            let remedy = format!(
                "at most {days_max} days after from{what}, which is {} where it is not given",
                shown(from)
            );
            return Err(AppError::invalid("to", shown(to), remedy));
        }
        return Err(AppError::invalid(
            "from",
            shown(from),
            format!("at most {days_max} days before to{what}"),
        ));
    }
    Ok(Window {
        from,
        to,
        team: None,
        now,
    })
}

async fn read(tx: &mut Tx, window: &Window, by: Grouping) -> Result<Usage, AppError> {
    let Report { lines, total, cut } = usage::report(tx, window, by).await?;
    if cut {
        return Err(AppError::invalid(
            "group_by",
            "more lines than one report may have",
            format!("a grouping or window with at most {LINES_MAX} lines"),
        ));
    }
    let mut total = UsageTotal::from(total);
    if lines.is_empty() {
        total.cost = nothing(tx).await?;
    }
    Ok(Usage {
        from: window.from,
        to: window.to,
        items: lines.into_iter().map(|line| item(line, by)).collect(),
        total,
    })
}

/// No money, in the currency that prices are in; nothing where there are no prices.
pub(in crate::app) async fn nothing(tx: &mut Tx) -> Result<Option<Money>, AppError> {
    let currency = store::prices::currency(tx).await?;
    let currency = currency.and_then(|code| code.parse().ok());
    Ok(currency.map(|currency| Money {
        amount: domain::money::round(Decimal::ZERO, domain::money::SHOWN_DECIMALS),
        currency,
    }))
}

impl From<Sum> for UsageTotal {
    fn from(sum: Sum) -> Self {
        Self {
            gpu_seconds: sum.gpu_seconds,
            unpriced_gpu_seconds: sum.unpriced_gpu_seconds,
            cost: sum.cost,
        }
    }
}

fn item(line: ReportLine, by: Grouping) -> UsageItem {
    let of = line.of;
    let mut group = BTreeMap::new();
    let mut put = |asked: bool, key, value: Option<String>| {
        if asked {
            group.insert(key, value.unwrap_or_default());
        }
    };
    put(by.team, "team", of.team);
    put(by.user, "user", of.user);
    put(by.job, "job", of.job.as_ref().map(JobId::to_string));
    put(by.pool, "pool", of.pool);
    put(by.mode, "mode", of.mode);
    put(
        by.day,
        "day",
        of.bucket.map(|at| at.date_naive().to_string()),
    );
    put(by.hour, "hour", of.bucket.map(domain::time::format));
    UsageItem {
        group,
        job_name: of.job_name,
        total: line.sum.into(),
    }
}

/// Where a pool's capacity went: allocated, idle and unavailable add up to it, in GPU-seconds and
/// with `price_difference` also in money.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CapacityUsage {
    /// The pool.
    pub pool: Name,
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// Held by teams: charged and reserved.
    pub allocated: CapacityPart,
    /// Of that granted and not yet acknowledged by its node, or held since that was last heard of.
    pub reserved: CapacityPart,
    /// There, whole, and held by nobody.
    pub idle: CapacityPart,
    /// Failed, cordoned or unreachable, with what was held on nodes that are lost or do not answer.
    pub unavailable: CapacityPart,
    /// What the capacity is worth at the price of whole devices, less the value of its parts: of what
    /// is held in modes that cost more or less than a whole device, or that no price covers.
    pub price_difference: Option<Money>,
    /// GPU-seconds of what was allocated in a mode that no price covers.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64)]
    pub unpriced_gpu_seconds: Decimal,
    /// All that was there.
    pub capacity: CapacityPart,
}

/// A part of a pool's capacity.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CapacityPart {
    /// GPU-seconds.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64)]
    pub gpu_seconds: Decimal,
    /// Its value, of what was allocated at the price of its mode, else at that of whole devices;
    /// null where no price covers the window.
    pub value: Option<Money>,
}

/// Reports where a pool's capacity went.
pub async fn of_capacity(
    app: &App,
    asker: &Asker,
    pool: &Name,
    ask: &UsageAsk,
) -> Result<CapacityUsage, AppError> {
    authorise(asker, Action::GetCapacityUsage, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let found = pools::find(&mut tx, pool).await?;
    let mut window = window(&mut tx, ask).await?;
    window.to = window.to.min(window.now).max(window.from);
    let balance = capacity::balance(&mut tx, found.id, window.from, window.to).await?;
    tx.commit().await?;
    if !balance.difference().is_zero() {
        tracing::error!(
            pool = %pool, difference = %balance.difference(),
            "the parts of a pool's capacity do not add up to it"
        );
    }
    let shown = balance.shown();
    Ok(CapacityUsage {
        pool: pool.clone(),
        from: window.from,
        to: window.to,
        allocated: shown.allocated.into(),
        reserved: shown.reserved.into(),
        idle: shown.idle.into(),
        unavailable: shown.unavailable.into(),
        price_difference: shown.price_difference,
        unpriced_gpu_seconds: shown.unpriced_gpu_seconds,
        capacity: shown.capacity.into(),
    })
}

impl From<Shown> for CapacityPart {
    fn from(shown: Shown) -> Self {
        Self {
            gpu_seconds: shown.gpu_seconds.normalize(),
            value: shown.value,
        }
    }
}
