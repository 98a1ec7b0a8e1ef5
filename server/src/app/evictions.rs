//! Evictions as people read them: what gave way, for whom, by which rule, and what that destroyed.

use chrono::{Datelike as _, Months};
use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::{JobId, TeamId};
use domain::name::Name;
use domain::{MilliGpu, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::Action;
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, jobs, teams};
use crate::store::evictions::{EvictionRow, MonthRow};
use crate::store::{self, Tx, evictions};

/// Months that are summed, with the present one: a year, to compare each with itself.
const MONTHS: u32 = 12;

/// One time that running work gave way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Eviction {
    /// Its number; rises with time.
    pub id: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Whose work it was.
    pub team: String,
    /// The job that gave way.
    pub job: JobId,
    /// That job's name.
    pub job_name: String,
    /// The number of its attempt.
    pub attempt: i32,
    /// The pool.
    pub pool: String,
    /// `preemption`: all of it left; `shrink`: its highest ranks left, and it went on; `move`: all of it
    /// left for a place that was kept for it.
    #[schema(value_type = String)]
    pub kind: EvictionKind,
    /// `reclaim`, `priority`, `share`, `consolidation`, `reservation` or `drain`.
    #[schema(value_type = String)]
    pub rule: EvictionRule,
    /// For whom; null where its node was emptied.
    #[serde(rename = "for")]
    pub made_room_for: Option<Gainer>,
    /// Workers before.
    pub workers_before: i32,
    /// Workers after.
    pub workers_after: i32,
    /// What it gave up.
    pub gpus: MilliGpu,
    /// Whole devices among that.
    pub devices: i32,
    /// Work that was lost: since its last checkpoint, as far as its spec tells, else since it began.
    pub lost_gpu_seconds: MilliGpu,
}

/// For whom work gave way, as far as the reader may know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gainer {
    /// The team; null for another one.
    pub team: Option<String>,
    /// The job that got the room.
    pub job: Option<JobId>,
    /// The booking that began.
    pub booking: Option<String>,
}

/// What a team lost, with all below it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TeamEvictions {
    /// The newest first.
    pub items: Vec<Eviction>,
    /// The cursor of the next page; null on the last.
    pub next_cursor: Option<String>,
    /// All of it in the last twelve months, by month and rule.
    pub sums: Vec<EvictionSum>,
}

/// What was lost in a month by one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvictionSum {
    /// The month in UTC, such as 2026-11.
    pub month: String,
    /// The rule.
    #[schema(value_type = String)]
    pub rule: EvictionRule,
    /// How often.
    pub evictions: i64,
    /// What was given up, all times together.
    pub gpus: MilliGpu,
    /// Work that was lost.
    pub lost_gpu_seconds: MilliGpu,
}

/// The evictions of a job, the newest first.
pub async fn of_job(
    app: &App,
    asker: &Asker,
    id: JobId,
    ask: &PageAsk,
) -> Result<Page<Eviction>, AppError> {
    let before: Option<i64> = ask.after("eviction")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::ListJobEvictions, id).await?;
    let before = before.unwrap_or(i64::MAX);
    let rows = evictions::of_job(&mut tx, job.team_id, id, before, ask.rows_wanted()).await?;
    tx.commit().await?;
    Ok(cut(ask, rows))
}

/// The evictions of a team and all below it, the newest first, with their sums.
pub async fn of_team(
    app: &App,
    asker: &Asker,
    team: &Name,
    ask: &PageAsk,
) -> Result<TeamEvictions, AppError> {
    let before: Option<i64> = ask.after("eviction")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = teams::find_as(&mut tx, asker, Action::ListTeamEvictions, team).await?;
    let below = store::teams::with_children(&mut tx, row.id).await?;
    let before = before.unwrap_or(i64::MAX);
    let rows = evictions::of_teams(&mut tx, &below, before, ask.rows_wanted()).await?;
    let sums = sums(&mut tx, &below).await?;
    tx.commit().await?;
    let Page { items, next_cursor } = cut(ask, rows);
    Ok(TeamEvictions {
        items,
        next_cursor,
        sums,
    })
}

async fn sums(tx: &mut Tx, teams: &[TeamId]) -> Result<Vec<EvictionSum>, AppError> {
    let now = store::clock(tx).await?;
    let rows = evictions::by_month(tx, teams, months_ago(now, MONTHS - 1)).await?;
    Ok(rows.into_iter().map(EvictionSum::from).collect())
}

/// The beginning of the month so many months before that of `now`.
fn months_ago(now: Timestamp, months: u32) -> Timestamp {
    let first = now
        .date_naive()
        .with_day(1)
        .expect("every month has a first day");
    let then = first.checked_sub_months(Months::new(months));
    let then = then.expect("a year ago is no year that cannot be written");
    then.and_time(chrono::NaiveTime::MIN).and_utc()
}

fn cut(ask: &PageAsk, rows: Vec<EvictionRow>) -> Page<Eviction> {
    let all = rows.into_iter().map(Eviction::from).collect();
    page::cut(ask, "eviction", all, |eviction: &Eviction| eviction.id)
}

impl From<EvictionRow> for Eviction {
    fn from(row: EvictionRow) -> Self {
        let gainer = row.has_gainer.then_some(Gainer {
            team: row.for_team,
            job: row.for_job,
            booking: row.for_booking,
        });
        Self {
            id: row.id,
            at: row.at,
            team: row.team,
            job: row.job_id,
            job_name: row.job_name,
            attempt: row.attempt,
            pool: row.pool,
            kind: row.kind,
            rule: row.rule,
            made_room_for: gainer,
            workers_before: row.workers_before,
            workers_after: row.workers_after,
            gpus: MilliGpu::from_milli(row.gpus_milli),
            devices: row.devices,
            lost_gpu_seconds: MilliGpu::from_milli(row.lost_gpu_milli_seconds),
        }
    }
}

impl From<MonthRow> for EvictionSum {
    fn from(row: MonthRow) -> Self {
        Self {
            month: row.month.format("%Y-%m").to_string(),
            rule: row.rule,
            evictions: row.evictions,
            gpus: MilliGpu::from_milli(row.gpus_milli),
            lost_gpu_seconds: MilliGpu::from_milli(row.lost_gpu_milli_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_year_of_months_begins_with_a_first_day() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let now = at("2026-03-31T23:59:59Z");
        assert_eq!(months_ago(now, 0), at("2026-03-01T00:00:00Z"));
        assert_eq!(months_ago(now, 11), at("2025-04-01T00:00:00Z"));
    }
}
