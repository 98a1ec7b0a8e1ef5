//! Fewer MIG instances, or those of another profile, that would start a workload now.

use std::collections::BTreeMap;

use serde_json::json;

use super::change;
use super::trial::Trial;
use crate::cycle::Cycle;
use crate::index::Amount;
use crate::ledger::Sight;
use crate::mig::{self, Engines, Profile};
use crate::place::{self, Unfit, host_free, instances_free};
use crate::plan::Remedy;
use crate::world::Charge;

/// The most instances under what is asked for.
pub(super) fn fewer(trial: &mut Trial<'_, '_, '_>, count: u32) -> Option<Remedy> {
    let asked = asked(trial);
    let fewer = (1..count).rev().find(|&n| starts(trial, asked, n))?;
    Some(change("per_worker.gpus", json!(fewer)))
}

/// The nearest other profile: no smaller if there is one.
pub(super) fn other(trial: &mut Trial<'_, '_, '_>, count: u32) -> Option<Remedy> {
    let mut others = others(trial.cycle, trial.pool, asked(trial)).into_iter();
    let other = others.find(|name| starts(trial, name, count))?;
    Some(change("per_worker.mig_profile", json!(other)))
}

fn asked<'w>(trial: &Trial<'_, '_, 'w>) -> &'w str {
    let row = trial.facts().row;
    row.per_worker.mig_profile.as_deref().unwrap_or("")
}

/// The other profiles of a pool's models, the nearest to the one that is asked for first.
fn others(cycle: &Cycle<'_, '_>, pool: usize, asked: &str) -> Vec<String> {
    let wanted = size(asked);
    let models = cycle.index.pools[pool].nodes.iter();
    let profiles = models
        .filter_map(|&node| cycle.index.nodes[node].model)
        .map(|model| (model.id, model))
        .collect::<BTreeMap<_, _>>();
    let mut names: Vec<(_, String)> = profiles
        .values()
        .flat_map(|model| model.profiles.values())
        .filter(|profile| profile.engines == Engines::Plain && profile.name != asked)
        .map(|profile| {
            let (compute, gb) = size(&profile.name);
            let away = (gb.abs_diff(wanted.1), compute.abs_diff(wanted.0));
            ((gb < wanted.1, away), profile.name.clone())
        })
        .collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|(_, name)| name).collect()
}

/// Compute slices and GB as a name such as `3g.40gb` has them; 0 for what cannot be read.
fn size(name: &str) -> (u32, u32) {
    let digits = |text: &str| {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text[..end].parse().unwrap_or(0)
    };
    let (compute, memory) = name.split_once('.').unwrap_or((name, ""));
    (digits(compute), digits(memory))
}

/// Whether it would start with so many instances of a profile for each worker: by counting,
/// which is exact for one profile where no label is demanded, and nothing asks where it is.
fn starts(trial: &mut Trial<'_, '_, '_>, name: &str, count: u32) -> bool {
    let (cycle, work, pool) = (&*trial.cycle, trial.work, trial.pool);
    let index = cycle.index;
    let facts = &index.works[work];
    let policy = index.pools[pool].row;
    let demands = facts.row.topology.require.is_some()
        || facts.row.anti_affinity.is_some()
        || policy.whole_node_guarantees;
    if demands || policy.charge == Charge::Dominant || !trial.unbound(trial.end()) {
        return false;
    }
    let profile = |node: usize| {
        let model = index.nodes[node].row.gpu_model.as_deref()?;
        mig::profile(model, name)
    };
    let nodes = index.pools[pool].nodes.iter().copied().filter(|&node| {
        matches!(
            place::fit(index, work, node, false),
            Ok(()) | Err(Unfit::Profile)
        )
    });
    let workers = i64::from(facts.row.workers_least());
    let mut most: i64 = 0;
    let mut room: i64 = 0;
    for (node, profile) in nodes.filter_map(|node| Some((node, profile(node)?))) {
        let (cpus, memory) = host_free(&cycle.ledger, node, Sight::Start);
        let by = |free: i64, each: i64| (free.max(0)).checked_div(each).unwrap_or(i64::MAX);
        let free =
            instances_free(&cycle.ledger, node, profile, Sight::Start, u32::MAX) / count.max(1);
        let here = i64::from(free)
            .min(by(cpus, facts.cpus))
            .min(by(memory, facts.memory));
        if here > 0 {
            most = most.max(Profile::milli(profile));
        }
        room += here;
    }
    let amount = Amount::from(most * i64::from(count) * workers) * index.pools[pool].unit;
    room >= workers && trial.allows(amount)
}
