//! Whether devices and hosts bear what stands on them, now and once victims have left.

use std::collections::{BTreeMap, BTreeSet};

use domain::sharing::SharingMode;

use super::facts::{Facts, PlacedWork};
use crate::plan::Plan;
use crate::world::{Placed, PlacedDevice, Workload};

pub(super) fn faults(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let starts = facts.starts.iter().chain(&facts.growth);
    let starts: Vec<_> = starts.flat_map(|(_, workers)| workers).collect();
    let kept = facts.kept.iter().flat_map(|(_, workers)| workers);
    let moved = facts.remaining.iter().flat_map(|(work, workers)| {
        workers
            .iter()
            .filter(|worker| !work.placed.contains(worker))
    });
    let later: Vec<_> = starts.iter().copied().chain(kept).chain(moved).collect();
    let mut faults = view(facts, &facts.now(), &starts, "now");
    let when = "once victims have left";
    faults.extend(view(facts, &facts.later(), &later, when));
    faults.extend(moved_off(facts, plan));
    faults
}

/// Faults of what moves off nodes that are emptied: nothing else stands where it goes.
fn moved_off(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let movers = plan.migrations.iter().filter(|m| m.gainer.is_none());
    let movers: BTreeSet<&str> = movers.map(|m| m.workload.as_str()).collect();
    let moves = |(work, _): &&(&Workload, Vec<Placed>)| movers.contains(work.name.as_str());
    let there: PlacedWork<'_> = facts.remaining.iter().filter(moves).cloned().collect();
    let now = facts.now();
    let mut standing: PlacedWork<'_> = now.iter().filter(|work| !moves(work)).cloned().collect();
    let new: Vec<&Placed> = there.iter().flat_map(|(_, workers)| workers).collect();
    standing.extend(there.iter().cloned());
    view(facts, &standing, &new, "once it has moved")
}

/// Faults at a moment at which the plan has added some workers.
fn view(facts: &Facts<'_>, standing: &PlacedWork<'_>, new: &[&Placed], when: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut hosts: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    let mut users: BTreeMap<(&str, u32), Vec<(&Workload, &PlacedDevice)>> = BTreeMap::new();
    for (work, workers) in standing {
        for worker in workers {
            let Some(node) = facts.nodes.get(worker.node.as_str()) else {
                continue;
            };
            let host = hosts.entry(node.name.as_str()).or_default();
            host.0 += work.per_worker.cpus.milli();
            host.1 += work.per_worker.memory_mib;
            for device in &worker.devices {
                users
                    .entry((node.name.as_str(), device.index))
                    .or_default()
                    .push((work, device));
            }
        }
    }
    // What the world itself overbooks, as when a pool's policy was narrowed under running
    // work, is not the plan's fault; what the plan adds there is, at the moment at which it does.
    let (nodes, devices) = added(facts, new);
    for (name, (cpus, memory)) in hosts.into_iter().filter(|(name, _)| nodes.contains(name)) {
        let node = facts.nodes[name];
        if cpus > node.cpus.milli() {
            faults.push(format!(
                "{when}: {name} gives {cpus} milli-cores of {}",
                node.cpus.milli()
            ));
        }
        if memory > node.memory_mib {
            faults.push(format!(
                "{when}: {name} gives {memory} MiB of {}",
                node.memory_mib
            ));
        }
    }
    let users = users.into_iter().filter(|(at, _)| devices.contains(at));
    for ((name, index), users) in users {
        faults.extend(
            device(facts, name, index, &users).map(|what| format!("{when}: {name}/{index} {what}")),
        );
    }
    faults
}

/// The nodes and devices on which the plan puts something that was not there.
fn added<'w>(facts: &Facts<'w>, new: &[&Placed]) -> (BTreeSet<&'w str>, BTreeSet<(&'w str, u32)>) {
    let (mut nodes, mut devices) = (BTreeSet::new(), BTreeSet::new());
    for worker in new {
        let Some(node) = facts.nodes.get(worker.node.as_str()) else {
            continue;
        };
        nodes.insert(node.name.as_str());
        devices.extend(worker.devices.iter().map(|d| (node.name.as_str(), d.index)));
    }
    (nodes, devices)
}

fn device(
    facts: &Facts<'_>,
    name: &str,
    index: u32,
    users: &[(&Workload, &PlacedDevice)],
) -> Option<String> {
    let node = facts.nodes[name];
    let pool = facts.pools[node.pool.as_str()];
    let names = || {
        users
            .iter()
            .map(|(w, _)| w.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let modes: BTreeSet<SharingMode> = users.iter().map(|(_, d)| d.mode).collect();
    if index >= node.gpus {
        return Some(format!("is not there ({})", names()));
    }
    if modes.len() > 1 {
        return Some(format!("is in several modes ({})", names()));
    }
    if modes.contains(&SharingMode::Exclusive) && users.len() > 1 {
        return Some(format!("is exclusive and shared ({})", names()));
    }
    if modes.contains(&SharingMode::Exclusive) || modes.contains(&SharingMode::Mig) {
        return None;
    }
    if users.iter().map(|(_, d)| d.gpus.milli()).sum::<i64>() > 1000 {
        return Some(format!("gives more than itself ({})", names()));
    }
    if users
        .iter()
        .map(|(w, d)| facts.memory(w, node, d))
        .sum::<i64>()
        > node.gpu_memory_mib
    {
        return Some(format!("gives more than its memory ({})", names()));
    }
    if modes.contains(&SharingMode::TimeSlice) && users.len() > pool.time_slices as usize {
        return Some(format!(
            "has {} sharers of {} ({})",
            users.len(),
            pool.time_slices,
            names()
        ));
    }
    let sizes: BTreeSet<i64> = users
        .iter()
        .map(|(w, d)| facts.memory(w, node, d))
        .collect();
    if modes.contains(&SharingMode::Vgpu) && sizes.len() > 1 {
        return Some(format!("has vgpu parts of several sizes ({})", names()));
    }
    let teams: BTreeSet<&str> = users.iter().map(|(w, _)| w.team.as_str()).collect();
    let allowed = pool.mps_across_teams && node.mps_across_teams;
    let across = modes.contains(&SharingMode::Mps) && teams.len() > 1 && !allowed;
    across.then(|| format!("is shared by MPS across teams ({})", names()))
}
