//! What stands where at a later moment, as the checker sees it.

use chrono::TimeDelta;
use domain::Timestamp;

use super::facts::Facts;
use crate::world::{Placed, Workload};

/// One worker and the moment at which it leaves its devices; `None` is never.
pub(super) type Stay<'w> = (&'w Workload, Placed, Option<Timestamp>);

fn plus(at: Timestamp, seconds: i64) -> Option<Timestamp> {
    at.checked_add_signed(TimeDelta::try_seconds(seconds)?)
}

fn length(work: &Workload) -> Option<i64> {
    work.predicted_seconds.or(work.time_limit_seconds)
}

/// When a running workload ends: by the first of prediction and limit that is still ahead;
/// one that has outrun both may end at any moment.
fn end_of_running(facts: &Facts<'_>, work: &Workload) -> Option<Timestamp> {
    length(work)?;
    let started = work.started?;
    let known = [work.predicted_seconds, work.time_limit_seconds];
    let mut ends = known.iter().flatten().filter_map(|s| plus(started, *s));
    ends.find(|end| *end > facts.world.now)
        .or(Some(facts.world.now))
}

/// All that stands from now on, victims and movers in their grace included.
pub(super) fn stays<'w>(facts: &Facts<'w>) -> Vec<Stay<'w>> {
    let now = facts.world.now;
    let grace = |worker: &Placed| {
        let pool = facts
            .nodes
            .get(worker.node.as_str())
            .map(|n| n.pool.as_str());
        let seconds = pool.map_or(0, |p| facts.pools[p].preemption.grace_seconds);
        plus(now, seconds).unwrap_or(now)
    };
    let mut stays: Vec<Stay<'w>> = Vec::new();
    for (work, workers) in &facts.running {
        let stay = facts.remaining.iter().find(|(w, _)| w.name == work.name);
        // Workers that share a device look alike: each that stays is one of them.
        let mut left: Vec<&Placed> = stay.iter().flat_map(|(_, left)| left).collect();
        for worker in workers {
            let stands = left.iter().position(|stays| *stays == worker);
            let stands = stands.map(|at| left.swap_remove(at)).is_some();
            let end = if stands {
                end_of_running(facts, work)
            } else {
                Some(grace(worker))
            };
            stays.push((work, worker.clone(), end));
        }
    }
    for (work, workers) in &facts.remaining {
        // A mover begins anew where it goes.
        for worker in workers.iter().filter(|w| !work.placed.contains(w)) {
            let end = length(work).and_then(|s| plus(grace(worker), s));
            stays.push((work, worker.clone(), end));
        }
    }
    for (work, workers) in &facts.leaving {
        let workers = workers.iter().cloned();
        stays.extend(workers.map(|w| (*work, w, work.leaves_at)));
    }
    for (work, workers) in &facts.starts {
        let end = length(work).and_then(|s| plus(now, s));
        stays.extend(workers.iter().cloned().map(|w| (*work, w, end)));
    }
    for (work, workers) in &facts.growth {
        let end = end_of_running(facts, work);
        stays.extend(workers.iter().cloned().map(|w| (*work, w, end)));
    }
    for (work, workers) in &facts.kept {
        for worker in workers {
            let end = length(work).and_then(|s| plus(grace(worker), s));
            stays.push((work, worker.clone(), end));
        }
    }
    stays
}
