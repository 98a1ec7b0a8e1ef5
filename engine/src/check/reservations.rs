//! Whether every start that the plan keeps has room at its time, whatever the plan starts before it.

use std::collections::{BTreeMap, BTreeSet};

use domain::sharing::SharingMode;

use super::facts::Facts;
use super::time::{Stay, stays};
use crate::plan::{Plan, Reservation};
use crate::world::{Backfill, Node, NodeState, Workload, WorkloadState};

pub(super) fn faults(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    if plan.reservations.is_empty() {
        return Vec::new();
    }
    let stays = stays(facts);
    let mut faults = Vec::new();
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    let starts: BTreeSet<&str> = plan.starts.iter().map(|s| s.workload.as_str()).collect();
    let nominated = plan.nominations.iter().map(|n| n.workload.as_str());
    let settled: BTreeSet<&str> = starts.into_iter().chain(nominated).collect();
    for told in &plan.reservations {
        let work = facts.works[told.workload.as_str()];
        let mut wrong = |what: &str| faults.push(format!("{} reserves {what}", work.name));
        if work.state != WorkloadState::Waiting || settled.contains(work.name.as_str()) {
            wrong("and does not wait for it");
        }
        if told.start <= facts.world.now {
            wrong("a start that is not ahead");
        }
        let nodes: Vec<&Node> = told
            .nodes
            .iter()
            .filter_map(|name| facts.nodes.get(name.as_str()).copied())
            .collect();
        let Some(pool) = nodes.first().map(|n| n.pool.as_str()) else {
            wrong("no node");
            continue;
        };
        if nodes.len() != told.nodes.len() || nodes.iter().any(|n| n.pool != pool) {
            wrong("nodes that are not there or of several pools");
        }
        *kept.entry(pool).or_default() += 1;
        match facts.pools[pool].backfill {
            Backfill::Conservative => {}
            Backfill::Easy if kept[pool] == 1 => {}
            Backfill::Easy => wrong("beside another in a pool where one head does"),
            Backfill::None | Backfill::Strict => wrong("in a pool where nobody does"),
        }
        let room: i64 = nodes
            .iter()
            .map(|n| workers(facts, work, n, told, &stays))
            .sum();
        if room < i64::from(work.min_workers.unwrap_or(work.workers)) {
            wrong("a start at which there is no room for it");
        }
    }
    faults
}

/// How many workers a node could have at the reserved time, as far as counts tell.
fn workers(
    facts: &Facts<'_>,
    work: &Workload,
    node: &Node,
    told: &Reservation,
    stays: &[Stay<'_>],
) -> i64 {
    if node.state != NodeState::Ready {
        return 0;
    }
    let there: Vec<&Stay<'_>> = stays
        .iter()
        .filter(|(_, worker, end)| {
            worker.node == node.name && end.is_none_or(|end| end > told.start)
        })
        .collect();
    let cpus: i64 = there.iter().map(|(w, ..)| w.per_worker.cpus.milli()).sum();
    let memory: i64 = there.iter().map(|(w, ..)| w.per_worker.memory_mib).sum();
    let each = |free: i64, asked: i64| {
        if asked == 0 {
            i64::MAX
        } else {
            free.max(0) / asked
        }
    };
    let host = each(node.cpus.milli() - cpus, work.per_worker.cpus.milli())
        .min(each(node.memory_mib - memory, work.per_worker.memory_mib))
        .min(i64::from(work.workers));
    let asked = work.per_worker.gpus().milli();
    if asked == 0 {
        return host;
    }
    if work.per_worker.mig_profile.is_some() {
        // How instances lie is the business of another check.
        return host;
    }
    let out = |index: &u32| node.failed.contains(index);
    let devices = (0..node.gpus).filter(|index| !out(index));
    let room = |index: u32| -> i64 {
        let here: Vec<_> = there
            .iter()
            .flat_map(|(w, worker, _)| worker.devices.iter().map(move |d| (w, d)))
            .filter(|(_, d)| d.index == index)
            .collect();
        if asked >= 1000 {
            return i64::from(here.is_empty());
        }
        if here
            .iter()
            .any(|(_, d)| matches!(d.mode, SharingMode::Exclusive | SharingMode::Mig))
        {
            return 0;
        }
        let used: i64 = here.iter().map(|(_, d)| d.gpus.milli()).sum();
        let memory: i64 = here.iter().map(|(w, d)| facts.memory(w, node, d)).sum();
        let own = work
            .per_worker
            .gpu_memory_mib
            .unwrap_or(asked * node.gpu_memory_mib / 1000);
        each(1000 - used, asked).min(each(node.gpu_memory_mib - memory, own))
    };
    let units: i64 = devices.map(room).sum();
    host.min(units / (asked / 1000).max(1))
}
