//! Whether every placement is what was asked, where it may be, and when.

use std::collections::{BTreeMap, BTreeSet};

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;

use super::facts::{Facts, instance_milli};
use crate::plan::Plan;
use crate::world::{
    MigMode, Node, NodeState, Placed, PlacedDevice, PoolState, Workload, WorkloadState,
};

/// Workers on nodes that the world does not have.
pub(super) fn unknown_nodes(facts: &Facts<'_>) -> Vec<String> {
    let missing = [&facts.starts, &facts.growth, &facts.kept, &facts.remaining]
        .into_iter()
        .flatten()
        .flat_map(|(work, workers)| workers.iter().map(move |worker| (work, worker)))
        .filter(|(_, worker)| !facts.nodes.contains_key(worker.node.as_str()))
        .map(|(work, worker)| format!("{} on unknown node {}", work.name, worker.node));
    missing.collect()
}

pub(super) fn faults(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    let movers: BTreeSet<&str> = plan
        .migrations
        .iter()
        .map(|m| m.workload.as_str())
        .collect();
    for (work, workers) in facts.starts.iter().chain(&facts.kept) {
        faults.extend(gang(work, workers.len()));
        faults.extend(due(facts, work));
        faults.extend(workers.iter().flat_map(|w| worker(facts, work, w, false)));
        faults.extend(together(facts, work, workers));
    }
    for (work, workers) in &facts.growth {
        faults.extend(gang(work, work.placed.len() + workers.len()));
        if work.state != WorkloadState::Running {
            faults.push(format!("{} grows and does not run", work.name));
        }
        faults.extend(workers.iter().flat_map(|w| worker(facts, work, w, false)));
        let all: Vec<Placed> = work.placed.iter().chain(workers).cloned().collect();
        faults.extend(together(facts, work, &all));
    }
    for (work, workers) in facts
        .remaining
        .iter()
        .filter(|(w, _)| movers.contains(w.name.as_str()))
    {
        faults.extend(workers.iter().flat_map(|w| worker(facts, work, w, true)));
        faults.extend(together(facts, work, workers));
    }
    faults.extend(apart(facts));
    faults
}

/// Gangs are whole, elastic ones between their least and their most.
fn gang(work: &Workload, workers: usize) -> Option<String> {
    let (least, most) = (
        work.min_workers.unwrap_or(work.workers) as usize,
        work.workers as usize,
    );
    (!(least..=most).contains(&workers)).then(|| {
        format!(
            "{} is placed with {workers} workers, {least} to {most} allowed",
            work.name
        )
    })
}

/// Not before its hour, nor before what it waits for has ended.
fn due(facts: &Facts<'_>, work: &Workload) -> Option<String> {
    if work.not_before.is_some_and(|at| at > facts.world.now) {
        return Some(format!("{} is started before its time", work.name));
    }
    let first = work
        .after
        .iter()
        .find(|name| facts.works.contains_key(name.as_str()));
    first.map(|first| format!("{} is started before {first} has ended", work.name))
}

fn worker(facts: &Facts<'_>, work: &Workload, placed: &Placed, mover: bool) -> Vec<String> {
    let node = facts.nodes[placed.node.as_str()];
    let pool = facts.pools[node.pool.as_str()];
    let mut faults = Vec::new();
    let mut wrong = |what: String| faults.push(format!("{} on {}: {what}", work.name, node.name));
    if node.state != NodeState::Ready {
        wrong("the node is not ready".to_owned());
    }
    if !work.pools.is_empty() && !work.pools.contains(&node.pool) {
        wrong(format!("pool {} is not acceptable", node.pool));
    }
    if !facts.teams[work.team.as_str()]
        .quotas
        .contains_key(&node.pool)
    {
        wrong(format!(
            "team {} has no quota in pool {}",
            work.team, node.pool
        ));
    }
    if pool.state == PoolState::Closed && !mover {
        wrong(format!("pool {} is closed", node.pool));
    }
    if work
        .node
        .as_ref()
        .is_some_and(|pinned| *pinned != node.name)
    {
        wrong("it is pinned to another node".to_owned());
    }
    if work
        .selector
        .iter()
        .any(|(key, value)| node.labels.get(key) != Some(value))
    {
        wrong("its selector is not met".to_owned());
    }
    devices(facts, work, node, placed)
        .into_iter()
        .for_each(&mut wrong);
    faults
}

fn devices(facts: &Facts<'_>, work: &Workload, node: &Node, placed: &Placed) -> Vec<String> {
    let asked = &work.per_worker;
    let pool = facts.pools[node.pool.as_str()];
    let mut faults = Vec::new();
    let given: i64 = placed.devices.iter().map(|d| d.gpus.milli()).sum();
    let amount = asked.gpus().milli();
    let pieces = if amount >= 1000 {
        amount / 1000
    } else {
        amount.min(1)
    };
    if asked.mig_profile.is_none() && (given != amount || placed.devices.len() as i64 != pieces) {
        faults.push(format!(
            "asked {amount} milli, got {given} on {} devices",
            placed.devices.len()
        ));
    }
    let indices: BTreeSet<u32> = placed.devices.iter().map(|d| d.index).collect();
    if asked.mig_profile.is_none() && indices.len() != placed.devices.len() {
        faults.push("a device twice in one worker".to_owned());
    }
    if let Some(profile) = &asked.mig_profile {
        let count = asked.gpus().milli() / 1000;
        if placed.devices.len() as i64 != count {
            let got = placed.devices.len();
            faults.push(format!("asked {count} of {profile}, got {got}"));
        }
        let counted = |d: &PlacedDevice| instance_milli(node, d) == Some(d.gpus.milli().into());
        if !placed.devices.iter().all(counted) {
            faults.push("an instance does not count as its slices".to_owned());
        }
    }
    for device in &placed.devices {
        if device.index >= node.gpus || node.failed.contains(&device.index) {
            faults.push(format!("device {} is not there or out", device.index));
        }
        if node.mig_layout.contains_key(&device.index) {
            faults.push(format!("device {} is about to be cut", device.index));
        }
        let driven = node
            .drives
            .as_ref()
            .is_none_or(|modes| modes.contains(&device.mode));
        let accepted = match asked.mig_profile {
            Some(_) => device.mode == SharingMode::Mig && pool.mig_mode != MigMode::Never,
            None => asked.sharing.contains(&device.mode),
        };
        if !accepted || !pool.sharing.contains(&device.mode) || !driven {
            faults.push(format!(
                "mode {} is not accepted, not offered or not driven",
                device.mode
            ));
        }
        if asked.mig_profile != device.mig {
            faults.push("not the instance that was asked".to_owned());
        }
    }
    if placed.devices.is_empty() {
        return faults;
    }
    if asked.gpu_model.is_some() && asked.gpu_model != node.gpu_model {
        faults.push("another device model than asked".to_owned());
    }
    if asked
        .gpu_memory_mib
        .is_some_and(|least| node.gpu_memory_mib < least)
    {
        faults.push("less device memory than asked".to_owned());
    }
    let linked = node
        .nvlink
        .iter()
        .any(|clique| indices.iter().all(|i| clique.contains(i)));
    // Instances have no links: the rule is one of whole devices.
    let several = asked.mig_profile.is_none() && placed.devices.len() > 1;
    if work.nvlink == NvlinkRule::Require && several && !linked {
        faults.push("its devices are not linked".to_owned());
    }
    faults
}

/// All workers in one pool, and in one domain where that is required.
fn together(facts: &Facts<'_>, work: &Workload, workers: &[Placed]) -> Vec<String> {
    let node = |w: &Placed| facts.nodes[w.node.as_str()];
    let mut faults = Vec::new();
    let pools: BTreeSet<&str> = workers.iter().map(|w| node(w).pool.as_str()).collect();
    if pools.len() > 1 {
        faults.push(format!("{} is in several pools", work.name));
    }
    if let Some(label) = &work.topology.require {
        let values: BTreeSet<Option<&String>> =
            workers.iter().map(|w| node(w).labels.get(label)).collect();
        if values.len() > 1 || values.contains(&None) {
            faults.push(format!("{} requires one {label}", work.name));
        }
    }
    faults
}

/// Replicas of a service on different values of their label.
fn apart(facts: &Facts<'_>) -> Vec<String> {
    let mut taken: BTreeMap<(&str, &str, Option<&String>), usize> = BTreeMap::new();
    let later = facts.later();
    let keyed = |work: &'_ Workload| work.service.clone().zip(work.anti_affinity.clone());
    for (work, workers) in &later {
        let (Some(service), Some(label)) = (&work.service, &work.anti_affinity) else {
            continue;
        };
        for worker in workers {
            let value = facts.nodes[worker.node.as_str()].labels.get(label);
            *taken.entry((service, label, value)).or_default() += 1;
        }
    }
    let mut faults = Vec::new();
    for (work, workers) in &facts.starts {
        let Some((service, label)) = keyed(work) else {
            continue;
        };
        for worker in workers {
            let value = facts.nodes[worker.node.as_str()].labels.get(&label);
            if taken
                .get(&(service.as_str(), label.as_str(), value))
                .is_some_and(|count| *count > 1)
            {
                faults.push(format!(
                    "{}: another replica of {service} has the same {label}",
                    work.name
                ));
            }
        }
    }
    faults
}
