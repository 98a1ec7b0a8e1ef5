//! Where teams stand now: what each holds, borrows and lends, and how much of its work waits.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::state::JobState;

use super::{App, AppError, Asker, planner};
use crate::store;

/// What a team has of a pool now, with all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Its guarantee, as shrunk to what is there.
    pub guaranteed: MilliGpu,
    /// What it holds.
    pub used: MilliGpu,
    /// What others use of its guarantee.
    pub lent: MilliGpu,
}

/// Jobs of a team that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LiveJobs {
    /// Those that wait.
    pub waiting: i64,
    /// Those that start, run or leave.
    pub active: i64,
}

/// Where the teams that the asker may see stand, by the engine's own reckoning.
pub async fn standings(app: &App, asker: &Asker) -> Result<Vec<Standing>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let mut world = planner::live(app).await?;
    // What waits holds nothing: without it a plan starts nothing and its shares are the present ones.
    world.workloads.retain(|work| !work.placed.is_empty());
    let plan = tokio::task::spawn_blocking(move || engine::plan(&world))
        .await
        .map_err(|error| AppError::Internal(anyhow::Error::new(error).context("reckon shares")))?;
    let seen = |team: &str| asker.platform_role.is_some() || own.iter().any(|name| name == team);
    let shares = plan.shares.into_iter().filter(|share| seen(&share.team));
    Ok(shares
        .map(|share| Standing {
            team: share.team,
            pool: share.pool,
            guaranteed: share.guaranteed,
            used: share.used,
            lent: share.lent,
        })
        .collect())
}

/// The jobs that have not ended, by team, of the teams that the asker may see.
pub async fn live_jobs(app: &App, asker: &Asker) -> Result<BTreeMap<String, LiveJobs>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let counts = store::jobs::count_live(&mut tx).await?;
    tx.commit().await?;
    let mut teams: BTreeMap<String, LiveJobs> = BTreeMap::new();
    for count in counts {
        let team = teams.entry(count.team).or_default();
        match count.state {
            JobState::Queued | JobState::Suspended => team.waiting += count.jobs,
            _ => team.active += count.jobs,
        }
    }
    Ok(teams)
}
