//! Whether what is booked can be had when it begins, whatever the plan starts before.

use super::facts::Facts;
use super::time::stays;
use crate::world::{NodeState, Placed};

pub(super) fn faults(facts: &Facts<'_>) -> Vec<String> {
    let ahead = facts
        .world
        .bookings
        .iter()
        .filter(|b| b.from > facts.world.now);
    let ahead: Vec<_> = ahead.collect();
    if ahead.is_empty() {
        return Vec::new();
    }
    let stays = stays(facts);
    let mut faults = Vec::new();
    for booking in ahead {
        let in_pool = |worker: &Placed| {
            let node = facts.nodes.get(worker.node.as_str());
            node.is_some_and(|n| n.pool == booking.pool)
        };
        let gpus = |worker: &Placed| -> i64 { worker.devices.iter().map(|d| d.gpus.milli()).sum() };
        // What stays beyond the beginning, but for the booked team's own, which may be part
        // of what is booked.
        let own = |work: &crate::world::Workload| {
            let team = facts.works[work.name.as_str()].team.as_str();
            facts.path(team).contains(&booking.team.as_str())
        };
        let fixed = stays.iter().filter(|(work, worker, end)| {
            in_pool(worker)
                && !facts.preemptible(work)
                && !own(work)
                && end.is_none_or(|end| end > booking.from)
        });
        let stay: i64 = fixed.map(|(_, worker, _)| gpus(worker)).sum();
        let added = [&facts.starts, &facts.growth].into_iter().flatten();
        let new = added.flat_map(|(work, workers)| workers.iter().map(move |w| (work, w)));
        let new = new.filter(|(work, worker)| {
            in_pool(worker) && !facts.preemptible(work) && gpus(worker) > 0
        });
        let late = new.filter(|(work, _)| {
            let length = work.predicted_seconds.or(work.time_limit_seconds);
            let begun = work.started.unwrap_or(facts.world.now);
            length.is_none_or(|s| (booking.from - begun).num_seconds() < s)
        });
        let late: Vec<&str> = late.map(|(work, _)| work.name.as_str()).collect();
        let nodes = facts
            .world
            .nodes
            .iter()
            .filter(|n| n.pool == booking.pool && n.state != NodeState::Unreachable);
        let devices: i64 = nodes
            .map(|n| i64::from(n.gpus) - n.failed.len() as i64)
            .sum();
        if !late.is_empty() && devices * 1000 - stay < booking.gpus.milli() {
            faults.push(format!(
                "{} may not be preempted and starts on what booking {} will need",
                late.join(", "),
                booking.name
            ));
        }
    }
    faults
}
