//! Whether the MIG layouts that a plan leads to can exist, whether each instance has one holder, and whether nothing is changed needlessly.

use std::collections::{BTreeMap, BTreeSet};

use domain::sharing::SharingMode;

use super::facts::{Facts, PlacedWork};
use super::profiles::shape;
use crate::plan::{Instance, Plan, SliceChange};
use crate::world::{MigMode, Node, PlacedDevice, Workload};

/// A device of a node, by name.
type Device<'w> = (&'w str, u32);
/// Profiles with their starts.
type Layout = Vec<(String, u32)>;
type Layouts<'w> = BTreeMap<Device<'w>, Layout>;

pub(super) fn faults(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let before = layouts(facts);
    let mut faults = Vec::new();
    let after = changed(facts, plan, &before, &mut faults);
    faults.extend(now(facts, &after));
    faults.extend(later(facts, &before));
    faults.extend(needless(facts, plan));
    faults
}

/// The layouts of the world; an instance without a start lies at the lowest that is free.
fn layouts<'w>(facts: &Facts<'w>) -> Layouts<'w> {
    let mut all = Layouts::new();
    for node in facts.nodes.values() {
        for (&device, instances) in &node.mig {
            let mut layout = Layout::new();
            for instance in instances {
                let starts = shape(node, &instance.profile).map_or(&[][..], |p| &p.starts);
                let lowest = starts.iter().copied().find(|&start| {
                    let mut trial = layout.clone();
                    trial.push((instance.profile.clone(), start));
                    possible(node, &trial).is_ok()
                });
                let start = instance.start.or(lowest).unwrap_or(0);
                layout.push((instance.profile.clone(), start));
            }
            all.insert((node.name.as_str(), device), layout);
        }
    }
    all
}

/// Whether instances can be on one device together: allowed starts, no slice twice, the
/// extra engines once.
fn possible(node: &Node, layout: &[(String, u32)]) -> Result<(), String> {
    let mut slices = BTreeSet::new();
    let (mut extra, mut all, mut some) = (0, 0, 0);
    for (name, start) in layout {
        let Some(shape) = shape(node, name) else {
            return Err(format!("has no profile {name}"));
        };
        if !shape.starts.contains(start) {
            return Err(format!("cannot have {name} at {start}"));
        }
        if !(*start..start + shape.size).all(|slice| slices.insert(slice)) {
            return Err(format!("has {name} at {start} over another instance"));
        }
        extra += u32::from(shape.extra);
        all += u32::from(shape.alone);
        some += u32::from(shape.engines);
    }
    if extra > 1 || all > 0 && some > 1 {
        return Err("gives its engines twice".to_owned());
    }
    Ok(())
}

/// The layouts after the plan's changes, and what is wrong with the changes.
fn changed<'w>(
    facts: &Facts<'w>,
    plan: &Plan,
    before: &Layouts<'w>,
    faults: &mut Vec<String>,
) -> Layouts<'w> {
    let mut after = before.clone();
    let busy = busy(facts);
    let mut seen = BTreeSet::new();
    for change in &plan.slice_changes {
        let mut wrong = |what: String| {
            faults.push(format!(
                "slices of {}/{}: {what}",
                change.node, change.index
            ));
        };
        let Some(node) = facts.nodes.get(change.node.as_str()) else {
            wrong("there is no such node".to_owned());
            continue;
        };
        let key = (node.name.as_str(), change.index);
        if !seen.insert(key) {
            wrong("are told twice".to_owned());
        }
        if change.index >= node.gpus || node.failed.contains(&change.index) {
            wrong("the device is not there or out".to_owned());
        }
        let driven = node
            .drives
            .as_ref()
            .is_none_or(|modes| modes.contains(&SharingMode::Mig));
        let dynamic = facts.pools[node.pool.as_str()].mig_mode == MigMode::Dynamic;
        if !dynamic || !driven || node.mig_static {
            wrong("the pool or the agent does not change them".to_owned());
        }
        let held = busy.get(&key).map_or(&[][..], Vec::as_slice);
        apply(change, key, held, &mut after)
            .into_iter()
            .for_each(&mut wrong);
        if let Some(layout) = after.get(&key)
            && let Err(what) = possible(node, layout)
        {
            wrong(what);
        }
    }
    after
}

fn apply<'w>(
    change: &SliceChange,
    key: Device<'w>,
    held: &[&PlacedDevice],
    after: &mut Layouts<'w>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let same =
        |i: &Instance, (name, start): &(String, u32)| i.profile == *name && i.start == *start;
    let there = after.contains_key(&key);
    match change.mode {
        Some(SharingMode::Mig) if there => faults.push("the device is in MIG mode".to_owned()),
        None | Some(SharingMode::Exclusive) if !there => {
            faults.push("the device is not in MIG mode".to_owned());
        }
        None | Some(SharingMode::Mig | SharingMode::Exclusive) => {}
        Some(mode) => faults.push(format!("no device is switched to {mode}")),
    }
    if change.mode.is_some() && !held.is_empty() {
        faults.push("the mode changes under work".to_owned());
    }
    let mut layout = after.get(&key).cloned().unwrap_or_default();
    for gone in &change.destroy {
        let used = held
            .iter()
            .any(|d| d.mig.as_ref() == Some(&gone.profile) && d.start == Some(gone.start));
        match layout.iter().position(|have| same(gone, have)) {
            Some(at) if !used => drop(layout.remove(at)),
            _ => faults.push(format!(
                "{} is destroyed and used or not there",
                gone.profile
            )),
        }
    }
    layout.extend(change.create.iter().map(|i| (i.profile.clone(), i.start)));
    if change.mode == Some(SharingMode::Exclusive) {
        if !layout.is_empty() {
            faults.push("the device leaves MIG mode with instances on it".to_owned());
        }
        after.remove(&key);
    } else {
        after.insert(key, layout);
    }
    faults
}

/// What stands on each device this moment, by what runs and what leaves.
fn busy<'f>(facts: &'f Facts<'_>) -> BTreeMap<(&'f str, u32), Vec<&'f PlacedDevice>> {
    let mut busy: BTreeMap<(&str, u32), Vec<&PlacedDevice>> = BTreeMap::new();
    for (_, workers) in facts.running.iter().chain(&facts.leaving) {
        for worker in workers {
            for device in &worker.devices {
                busy.entry((worker.node.as_str(), device.index))
                    .or_default()
                    .push(device);
            }
        }
    }
    busy
}

/// Each device with all that stand on it.
fn by_device<'f>(
    facts: &Facts<'f>,
    standing: &'f PlacedWork<'_>,
) -> BTreeMap<Device<'f>, Vec<(&'f Workload, &'f PlacedDevice)>> {
    let mut all: BTreeMap<Device<'_>, Vec<(&Workload, &PlacedDevice)>> = BTreeMap::new();
    for (work, workers) in standing {
        for worker in workers {
            let Some(node) = facts.nodes.get(worker.node.as_str()) else {
                continue;
            };
            for device in &worker.devices {
                all.entry((node.name.as_str(), device.index))
                    .or_default()
                    .push((work, device));
            }
        }
    }
    all
}

/// After the changes every holder has an instance of its own, and no other work is on a
/// device in MIG mode.
fn now(facts: &Facts<'_>, after: &Layouts<'_>) -> Vec<String> {
    let standing = facts.now();
    let mut faults = Vec::new();
    for ((node, index), users) in by_device(facts, &standing) {
        let mut left = after.get(&(node, index)).cloned();
        for (work, device) in users {
            let wrong = match (&device.mig, left.as_mut()) {
                (None, None) => None,
                (None, Some(_)) => Some("which is in MIG mode".to_owned()),
                (Some(name), None) => Some(format!("as {name}, which is not in MIG mode")),
                (Some(name), Some(layout)) => {
                    let own = |(n, s): &(String, u32)| n == name && device.start == Some(*s);
                    match layout.iter().position(own) {
                        Some(at) => {
                            layout.remove(at);
                            None
                        }
                        None => Some(format!("where no {name} at {:?} is free", device.start)),
                    }
                }
            };
            faults.extend(wrong.map(|what| format!("{} on {node}/{index}, {what}", work.name)));
        }
    }
    faults
}

/// Once victims have left, the instances of each device can be there together; where
/// nothing is cut anew they are those that the world has.
fn later(facts: &Facts<'_>, before: &Layouts<'_>) -> Vec<String> {
    let standing = facts.later();
    let mut faults = Vec::new();
    for ((name, index), users) in by_device(facts, &standing) {
        let node = facts.nodes[name];
        let dynamic =
            facts.pools[node.pool.as_str()].mig_mode == MigMode::Dynamic && !node.mig_static;
        let wanted: Layout = users
            .iter()
            .filter_map(|(_, d)| Some((d.mig.clone()?, d.start?)))
            .collect();
        if let Err(what) = possible(node, &wanted) {
            faults.push(format!("once victims have left: {name}/{index} {what}"));
        }
        let there = before.get(&(name, index));
        let given = wanted
            .iter()
            .all(|have| there.is_some_and(|all| all.contains(have)));
        let other = wanted.len() < users.len() && there.is_some();
        if !dynamic && (!given || other) {
            faults.push(format!(
                "once victims have left: {name}/{index} is cut or switched in a pool that does not"
            ));
        }
    }
    faults
}

/// What is made is for somebody, and what is unmade was in the way.
fn needless(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let coming: PlacedWork<'_> = facts.starts.iter().chain(&facts.growth).cloned().collect();
    let coming = by_device(facts, &coming);
    let mut faults = Vec::new();
    for change in &plan.slice_changes {
        let Some(node) = facts.nodes.get(change.node.as_str()) else {
            continue;
        };
        let users = coming
            .get(&(node.name.as_str(), change.index))
            .map_or(&[][..], Vec::as_slice);
        let new: Layout = users
            .iter()
            .filter_map(|(_, d)| Some((d.mig.clone()?, d.start?)))
            .collect();
        let idle = change
            .create
            .iter()
            .any(|i| !new.contains(&(i.profile.clone(), i.start)));
        let spare = change.destroy.iter().any(|i| {
            let mut both = new.clone();
            both.push((i.profile.clone(), i.start));
            change.mode != Some(SharingMode::Exclusive) && possible(node, &both).is_ok()
        });
        if idle || spare || users.is_empty() {
            faults.push(format!(
                "slices of {}/{}: are changed for nobody",
                change.node, change.index
            ));
        }
    }
    faults
}
