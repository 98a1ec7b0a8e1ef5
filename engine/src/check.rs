//! The independent checker: what no plan may do, told from the world and the plan alone.
//!
//! It shares no code with what decides: it has its own tree, its own amounts and its own
//! arithmetic, and is slow and plain where they are quick. A server refuses to commit a
//! plan in which it finds anything.

mod bookings;
mod facts;
mod mig;
mod placement;
mod profiles;
mod quota;
mod reservations;
mod space;
mod time;
mod victims;
mod whole;

use std::collections::BTreeSet;

use crate::plan::Plan;
use crate::world::{WorkloadState, World};
use facts::Facts;

/// Everything that is wrong with a plan, in words; empty when nothing is.
pub fn violations(world: &World, plan: &Plan) -> Vec<String> {
    let facts = Facts::of(world, plan);
    let mut faults = unknown(&facts, plan);
    if !faults.is_empty() {
        return faults;
    }
    // Nothing else can be judged of work on a node that is not there.
    faults.extend(placement::unknown_nodes(&facts));
    if !faults.is_empty() {
        return faults;
    }
    faults.extend(told_once(&facts, plan));
    faults.extend(placement::faults(&facts, plan));
    faults.extend(space::faults(&facts, plan));
    faults.extend(mig::faults(&facts, plan));
    faults.extend(quota::faults(&facts, plan));
    faults.extend(victims::faults(&facts, plan));
    faults.extend(whole::faults(&facts));
    faults.extend(reservations::faults(&facts, plan));
    faults.extend(bookings::faults(&facts));
    faults
}

/// Workloads that the world does not have.
fn unknown(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let named = plan
        .starts
        .iter()
        .map(|s| &s.workload)
        .chain(plan.resizes.iter().map(|r| &r.workload))
        .chain(plan.preemptions.iter().map(|p| &p.workload))
        .chain(plan.migrations.iter().map(|m| &m.workload))
        .chain(plan.nominations.iter().map(|n| &n.workload))
        .chain(plan.reservations.iter().map(|r| &r.workload))
        .chain(plan.waiting.iter().map(|w| &w.workload));
    named
        .filter(|name| !facts.works.contains_key(name.as_str()))
        .map(|name| format!("{name} is in the plan and not in the world"))
        .collect()
}

/// Nothing is both started and waiting, and everything that waits is spoken of, once.
fn told_once(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    let mut once = |list: &str, names: Vec<&str>| {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                faults.push(format!("{name} is twice in {list}"));
            }
        }
    };
    once(
        "starts",
        plan.starts.iter().map(|s| s.workload.as_str()).collect(),
    );
    once(
        "resizes",
        plan.resizes.iter().map(|r| r.workload.as_str()).collect(),
    );
    once(
        "nominations",
        plan.nominations
            .iter()
            .map(|n| n.workload.as_str())
            .collect(),
    );
    once(
        "migrations",
        plan.migrations
            .iter()
            .map(|m| m.workload.as_str())
            .collect(),
    );
    once(
        "preemptions",
        plan.preemptions
            .iter()
            .map(|p| p.workload.as_str())
            .collect(),
    );
    once(
        "waiting",
        plan.waiting.iter().map(|w| w.workload.as_str()).collect(),
    );
    let starts: BTreeSet<&str> = plan.starts.iter().map(|s| s.workload.as_str()).collect();
    let waits: BTreeSet<&str> = plan.waiting.iter().map(|w| w.workload.as_str()).collect();
    for nomination in &plan.nominations {
        if starts.contains(nomination.workload.as_str()) {
            faults.push(format!(
                "{} is started and nominated at once",
                nomination.workload
            ));
        }
    }
    for (name, work) in &facts.works {
        let waiting = matches!(
            work.state,
            WorkloadState::Waiting | WorkloadState::Suspended
        );
        match (starts.contains(name), waits.contains(name)) {
            (true, true) => faults.push(format!("{name} is started and waiting at once")),
            (false, false) if waiting => {
                faults.push(format!("{name} waits and the plan does not say why"))
            }
            (_, true) if !waiting => {
                faults.push(format!("{name} does not wait and the plan says why"))
            }
            (true, _) if work.state != WorkloadState::Waiting => {
                faults.push(format!("{name} is started and does not wait"));
            }
            _ => {}
        }
    }
    faults
}

#[cfg(test)]
mod tests;
