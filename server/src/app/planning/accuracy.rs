//! How far expected starts were out: measured, and told beside the next one.

use chrono::TimeDelta;
use engine::plan::{Code, Waiting};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::{App, AppError};
use crate::store;
use crate::store::expected_starts::{self, AccuracyRow};

/// Starts of so many days are looked at: long enough for some of every weekday, and short enough
/// that what a policy was before counts no more.
const DAYS: i64 = 14;

/// How far what jobs were told of their start was out in one pool, over all teams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accuracy {
    /// The pool.
    pub pool: String,
    /// Over how many days up to now.
    pub days: i64,
    /// Jobs that had been told an expected start and got their place in these days.
    pub cases: i64,
    /// By how many seconds half of the first estimates were out at the most.
    pub median_error_seconds: i64,
    /// First estimates that were out by ten minutes at the most.
    pub within_ten_minutes: i64,
    /// Waits that lasted from half to double of what was first told.
    pub within_double: i64,
    /// The same of what was told last before the start.
    pub last: LastEstimates,
}

/// How far the last estimates before a start were out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastEstimates {
    /// Jobs that had an estimate until they got their place.
    pub cases: i64,
    /// By how many seconds half of them were out at the most; null without a case.
    pub median_error_seconds: Option<i64>,
    /// Those that were out by ten minutes at the most.
    pub within_ten_minutes: i64,
}

impl From<AccuracyRow> for Accuracy {
    fn from(row: AccuracyRow) -> Self {
        Self {
            pool: row.pool,
            days: DAYS,
            cases: row.cases,
            median_error_seconds: row.first_median_seconds,
            within_ten_minutes: row.first_near,
            within_double: row.first_within_double,
            last: LastEstimates {
                cases: row.last_cases,
                median_error_seconds: row.last_median_seconds,
                within_ten_minutes: row.last_near,
            },
        }
    }
}

/// How far expected starts in a pool were out of late; nothing where none is known. It is a sum
/// over all teams, and tells nothing of one.
pub(crate) async fn of_pool(app: &App, pool: &str) -> Result<Option<Accuracy>, AppError> {
    let mut tx = app.db.begin_system().await?;
    let since = store::clock(&mut tx).await? - TimeDelta::days(DAYS);
    let found = expected_starts::accuracy(&mut tx, pool, since).await?;
    tx.commit().await?;
    Ok(found.map(Accuracy::from))
}

/// What stands beside a verdict that tells an expected start.
pub(super) async fn beside(app: &App, waiting: &Waiting) -> Result<Option<Accuracy>, AppError> {
    let estimate = waiting
        .expected_start
        .filter(|_| waiting.code != Code::NotYet);
    match (&waiting.pool, estimate) {
        (Some(pool), Some(_)) => of_pool(app, pool).await,
        _ => Ok(None),
    }
}
