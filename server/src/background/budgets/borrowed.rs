//! Running work that was borrowed gives way where a budget stops what is borrowed.
//!
//! The rule: of each team and pool, work that may be preempted leaves, what started last first, as long as all of it is
//! borrowed. What a team holds of its guarantee is never stopped, and neither is what may not be preempted.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliGpu;
use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::JobId;
use domain::state::{AttemptEnd, JobState};
use engine::statement;
use engine::world::{Stopped, Team, Workload, WorkloadState, World};

use super::super::leaving::stop_live;
use crate::app::{App, AppError, questions};
use crate::lifecycle::{Eviction, LifecycleError, Stop};

/// Stops what is borrowed in teams whose budgets say so.
pub async fn stop(app: &App) -> Result<(), AppError> {
    let world = questions::live(app).await?;
    if world.teams.iter().all(|team| team.stopped == Stopped::None) {
        return Ok(());
    }
    let found = app
        .questions
        .ask("find borrowed work", move || victims(&world))
        .await?;
    for job in found {
        let Ok(job) = job.parse::<JobId>() else {
            continue;
        };
        let stopped = stop_live(app, job, |_, _| {
            Some(Stop {
                evicted: Some(Eviction {
                    kind: EvictionKind::Preemption,
                    rule: EvictionRule::Budget,
                    gainer: None,
                }),
                job_to: Some(JobState::Preempting),
                ..Stop::because(AttemptEnd::Preempted, TOLD.to_owned())
            })
        });
        match stopped.await {
            Ok(()) => {}
            Err(LifecycleError::Database(error)) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(job.id = %job, %error, "borrowed work could not be stopped")
            }
        }
    }
    Ok(())
}

/// What is said of work that gives way.
const TOLD: &str = "a budget of its team stops what is borrowed";

/// The names of the work that is to give way, in the order in which it does.
fn victims(world: &World) -> Vec<String> {
    let stopped = under_stopped(&world.teams);
    let mut borrowed: BTreeMap<(String, String), MilliGpu> =
        statement::statements(world, &BTreeMap::new())
            .into_iter()
            .filter(|line| stopped.contains(line.team.as_str()))
            .map(|line| ((line.team, line.pool), line.borrowed))
            .collect();
    let mut running: Vec<&Workload> = world
        .workloads
        .iter()
        .filter(|work| work.state == WorkloadState::Running && stopped.contains(work.team.as_str()))
        .filter(|work| preemptible(world, work))
        .collect();
    running.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.name.cmp(&b.name)));
    let mut found = Vec::new();
    for work in running {
        let Some(pool) = pool(world, work) else {
            continue;
        };
        let held = held(work);
        let left = borrowed.get_mut(&(work.team.clone(), pool.to_owned()));
        if let Some(left) = left.filter(|left| held > MilliGpu::ZERO && held <= **left) {
            *left = left.saturating_sub(held);
            found.push(work.name.clone());
        }
    }
    found
}

/// The teams in which nothing may be borrowed: by a budget of their own or of a team above.
fn under_stopped(teams: &[Team]) -> BTreeSet<&str> {
    let by_name: BTreeMap<&str, &Team> = teams
        .iter()
        .map(|team| (team.name.as_str(), team))
        .collect();
    let stops = |team: &Team| {
        let mut at = Some(team);
        // The tree is bounded and has no circle.
        while let Some(team) = at {
            if team.stopped != Stopped::None {
                return true;
            }
            at = team
                .parent
                .as_deref()
                .and_then(|parent| by_name.get(parent).copied());
        }
        false
    };
    teams
        .iter()
        .filter(|team| stops(team))
        .map(|team| team.name.as_str())
        .collect()
}

fn preemptible(world: &World, work: &Workload) -> bool {
    let class = || world.classes.iter().find(|class| class.name == work.class);
    work.preemptible
        .unwrap_or_else(|| class().is_some_and(|class| class.preemptible))
}

fn pool<'w>(world: &'w World, work: &Workload) -> Option<&'w str> {
    let node = &work.placed.first()?.node;
    let node = world.nodes.iter().find(|there| there.name == *node)?;
    Some(node.pool.as_str())
}

fn held(work: &Workload) -> MilliGpu {
    work.placed
        .iter()
        .flat_map(|place| &place.devices)
        .map(|device| device.gpus)
        .sum()
}
