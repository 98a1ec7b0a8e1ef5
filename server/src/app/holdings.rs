//! How much of teams' work waits, and how much runs.

use std::collections::BTreeMap;

use domain::state::JobState;

use super::{App, AppError, Asker};
use crate::store;

/// Jobs of a team that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LiveJobs {
    /// Those that wait.
    pub waiting: i64,
    /// Those that start, run or leave.
    pub active: i64,
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
