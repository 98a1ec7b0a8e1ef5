//! Whether guarantees that are promised as whole nodes are as formable as they were.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Exact, Facts, PlacedWork};
use crate::world::{NodeState, Placed, Pool, Workload};

pub(super) fn faults(facts: &Facts<'_>) -> Vec<String> {
    let promising = facts.world.pools.iter().filter(|p| p.whole_node_guarantees);
    promising
        .filter_map(|pool| {
            let size = size(facts, pool)?;
            let left = by_age(&facts.remaining);
            let (certain, others) = new(facts, pool);
            // What starts as borrowed comes into the guarantee when other work of its team
            // leaves: it spoils the node then, not who is put beside it.
            let borrowed = [left.clone(), others].concat();
            let before = [by_age(&facts.running), left.clone(), borrowed];
            let before = before.map(|standing| shortage(facts, pool, size, &standing));
            let before = before.into_iter().max().unwrap_or(0);
            let after = shortage(facts, pool, size, &[left, certain].concat());
            (after > before.max(0)).then(|| {
                format!(
                    "{after} whole nodes that are guaranteed in {} can not be formed, {} before",
                    pool.name,
                    before.max(0)
                )
            })
        })
        .collect()
}

/// A workload's workers somewhere.
type Stand<'a, 'w> = &'a (&'w Workload, Vec<Placed>);

/// Work that stands, what began first before the rest.
fn by_age<'a, 'w>(standing: &'a PlacedWork<'w>) -> Vec<Stand<'a, 'w>> {
    let mut all: Vec<_> = standing.iter().collect();
    all.sort_by_key(|(w, _)| (w.started, w.submitted, w.name.as_str()));
    all
}

/// What teams get that are within their guarantees with everything that they have and get,
/// and what starts of the others.
fn new<'a, 'w>(facts: &'a Facts<'w>, pool: &Pool) -> (Vec<Stand<'a, 'w>>, Vec<Stand<'a, 'w>>) {
    let new = || facts.starts.iter().chain(&facts.growth).chain(&facts.kept);
    let held = facts.held(&facts.running.iter().chain(new()).cloned().collect());
    let within = |work: &Workload| {
        let key = (work.team.as_str(), pool.name.as_str());
        held.get(&key).copied().unwrap_or(0) <= facts.guarantees.get(&key).copied().unwrap_or(0)
    };
    let starts = facts.starts.iter().filter(|(w, _)| !within(w));
    (new().filter(|(w, _)| within(w)).collect(), starts.collect())
}

/// Promised nodes that no node is left for.
fn shortage(facts: &Facts<'_>, pool: &Pool, size: u32, standing: &[Stand<'_, '_>]) -> i128 {
    let mut held: BTreeMap<&str, Exact> = BTreeMap::new();
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let fixed_first = [false, true].into_iter().flat_map(|preemptible| {
        let these = move |(w, _): &&Stand<'_, '_>| facts.preemptible(w) == preemptible;
        standing.iter().filter(these)
    });
    for (work, workers) in fixed_first {
        let here: Vec<_> = workers
            .iter()
            .filter(|p| facts.nodes[p.node.as_str()].pool == pool.name && !p.devices.is_empty())
            .collect();
        let so_far = held.entry(work.team.as_str()).or_default();
        *so_far += here.iter().map(|p| facts.amount(work, p)).sum::<Exact>();
        let key = (work.team.as_str(), pool.name.as_str());
        let guaranteed = facts.guarantees.get(&key).copied().unwrap_or(0);
        if *so_far <= guaranteed || !facts.preemptible(work) {
            for place in here {
                owners
                    .entry(place.node.as_str())
                    .or_default()
                    .insert(work.team.as_str());
            }
        }
    }
    let each = Exact::from(size) * 1000 * facts.totals[pool.name.as_str()].scale;
    let whole = facts
        .nodes
        .values()
        .filter(|n| n.pool == pool.name && n.gpus == size && n.failed.is_empty());
    let mut free = 0;
    let mut owned: BTreeMap<&str, i128> = BTreeMap::new();
    for node in whole {
        let owners = owners.get(node.name.as_str());
        match owners
            .map(|teams| teams.iter().collect::<Vec<_>>())
            .as_deref()
        {
            None => free += i128::from(node.state == NodeState::Ready),
            Some([team]) => *owned.entry(team).or_default() += 1,
            Some(_) => {}
        }
    }
    let leaves = facts.teams.values().filter(|team| {
        let parent = |other: &crate::world::Team| other.parent.as_ref() == Some(&team.name);
        !facts.teams.values().any(|other| parent(other))
    });
    let missing: i128 = leaves
        .map(|team| {
            let key = (team.name.as_str(), pool.name.as_str());
            let promised = facts.guarantees.get(&key).copied().unwrap_or(0) / each;
            (promised - owned.get(team.name.as_str()).copied().unwrap_or(0)).max(0)
        })
        .sum();
    missing - free
}

fn size(facts: &Facts<'_>, pool: &Pool) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for node in facts
        .nodes
        .values()
        .filter(|n| n.pool == pool.name && n.gpus > 0)
    {
        *counts.entry(node.gpus).or_default() += 1;
    }
    let most = counts.values().max().copied()?;
    counts
        .into_iter()
        .rev()
        .find(|(_, n)| *n == most)
        .map(|(gpus, _)| gpus)
}
