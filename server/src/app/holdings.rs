//! What teams hold, borrow and lend now, and how much of their work waits.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::quantity::Weight;
use domain::state::JobState;
use engine::world::Team;

use super::quotas::NewQuota;
use super::{App, AppError, Asker, promises, questions};
use crate::store;

/// What a team has of a pool now, with all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Its own quota as it holds now, that of an open window in place of the kept one; none where
    /// it has none.
    pub quota: Option<NewQuota>,
    /// What it is promised; without a quota of its own, what the teams directly below it are.
    pub promised: MilliGpu,
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

/// What the teams that the asker may see hold, by the engine's own reckoning.
pub async fn holdings(app: &App, asker: &Asker) -> Result<Vec<Holding>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let mut world = questions::live(app).await?;
    // What waits holds nothing: without it a plan starts nothing and its shares are the present ones.
    world.workloads.retain(|work| !work.placed.is_empty());
    let reckoned = move || {
        let plan = engine::plan(&world);
        (world, plan)
    };
    let (world, plan) = app.questions.ask("reckon shares", reckoned).await?;
    let seen = |team: &str| asker.platform_role.is_some() || own.iter().any(|name| name == team);
    let shares = plan.shares.into_iter().filter(|share| seen(&share.team));
    Ok(shares
        .map(|share| Holding {
            quota: quota(&world.teams, &share.team, &share.pool),
            promised: promises::of_team(&world.teams, &share.team, &share.pool),
            team: share.team,
            pool: share.pool,
            used: share.used,
            lent: share.lent,
        })
        .collect())
}

/// A team's own quota in a pool.
fn quota(teams: &[Team], name: &str, pool: &str) -> Option<NewQuota> {
    let team = teams.iter().find(|team| team.name == name)?;
    let quota = team.quotas.get(pool)?;
    Some(NewQuota {
        guaranteed: quota.guaranteed,
        limit: quota.limit,
        lend_limit: quota.lend_limit,
        weight: Weight::from_milli(quota.weight_milli),
        max_per_user: team.max_per_user.get(pool).copied(),
    })
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
