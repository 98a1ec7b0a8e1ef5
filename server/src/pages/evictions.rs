//! Evictions on pages: those of a job with its attempts, those of a team with their sums.

use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::JobId;
use domain::name::Name;
use web::views::{EvictionRow, EvictionSum, Gainer};

use super::PageError;
use crate::app::evictions::{self, Eviction};
use crate::app::page::PageAsk;
use crate::app::{App, Asker};

/// The last ones that a team's page lists; all of them are read by REST.
const SHOWN_MAX: usize = 10;
/// Months whose sums it shows: this one and what it is compared with.
const MONTHS_SHOWN: usize = 3;

/// A job's evictions, the first one first, each with the number of its attempt.
pub async fn of_job(
    app: &App,
    asker: &Asker,
    id: JobId,
) -> Result<Vec<(i32, EvictionRow)>, PageError> {
    let page = evictions::of_job(app, asker, id, &PageAsk::first()).await?;
    let rows = page.items.into_iter().rev();
    Ok(rows.map(|row| (row.attempt, shown(row))).collect())
}

/// What a team's page tells of its evictions.
pub struct OfTeam {
    /// The last ones.
    pub last: Vec<EvictionRow>,
    /// Whether there were others before these.
    pub more: bool,
    /// Their sums by month and rule.
    pub sums: Vec<EvictionSum>,
}

/// The last evictions of a team, and their sums by month and rule.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<OfTeam, PageError> {
    let page = evictions::of_team(app, asker, team, &PageAsk::first()).await?;
    let mut months: Vec<&str> = page.sums.iter().map(|sum| sum.month.as_str()).collect();
    months.dedup();
    months.truncate(MONTHS_SHOWN);
    let sums = page
        .sums
        .iter()
        .filter(|sum| months.contains(&sum.month.as_str()));
    let sums = sums.filter_map(|sum| {
        let month: Timestamp = format!("{}-01T00:00:00Z", sum.month).parse().ok()?;
        Some(EvictionSum {
            month,
            rule: sum.rule,
            evictions: sum.evictions,
            gpus_milli: sum.gpus.milli(),
            lost_milli_seconds: sum.lost_gpu_seconds.milli(),
        })
    });
    let sums = sums.collect();
    let more = page.next_cursor.is_some() || page.items.len() > SHOWN_MAX;
    let last = page.items.into_iter().take(SHOWN_MAX).map(shown);
    Ok(OfTeam {
        last: last.collect(),
        more,
        sums,
    })
}

fn shown(row: Eviction) -> EvictionRow {
    let milli = MilliGpu::milli;
    EvictionRow {
        at: row.at,
        job: (row.job.to_string(), row.job_name),
        kind: row.kind,
        rule: row.rule,
        gainer: match row.made_room_for {
            None => Gainer::Nobody,
            Some(gainer) => match (gainer.team, gainer.job, gainer.booking) {
                (Some(team), Some(job), _) => Gainer::Job(job.to_string(), team),
                (Some(team), None, Some(name)) => Gainer::Booking(name, team),
                _ => Gainer::Others,
            },
        },
        workers: (row.workers_before.into(), row.workers_after.into()),
        gpus_milli: milli(row.gpus),
        lost_milli_seconds: milli(row.lost_gpu_seconds),
    }
}
