//! What a plan's starts and growth need to be changed on devices: instances made and unmade, modes switched.
//!
//! An instance is made for the work that is on it, in the same plan. Idle ones stay as long
//! as they are in nobody's way. Nominations change nothing until they are starts.

use std::collections::BTreeMap;

use domain::sharing::SharingMode;

use crate::index::{Index, bit};
use crate::mig::{self, Slice};
use crate::plan::{Instance, Plan, SliceChange, Start, WorkerPlace};
use crate::world::World;

/// What comes on one device.
#[derive(Default)]
struct Coming {
    slices: Vec<Slice>,
    /// Work in another mode than MIG.
    whole: bool,
}

/// The changes, in the order in which the plan first comes to each device.
pub(super) fn of(index: &Index<'_>, plan: &Plan) -> Vec<SliceChange> {
    let starts = plan.starts.iter().flat_map(|start| &start.placement);
    let growth = plan.resizes.iter().flat_map(|resize| &resize.placement);
    of_workers(index, starts.chain(growth))
}

/// What one start needs to be changed in a world, were nothing else to come.
pub(crate) fn slice_changes(world: &World, start: &Start) -> Vec<SliceChange> {
    of_workers(&Index::of(world), start.placement.iter())
}

fn of_workers<'p>(
    index: &Index<'_>,
    workers: impl Iterator<Item = &'p WorkerPlace>,
) -> Vec<SliceChange> {
    let mut order: Vec<(usize, u32)> = Vec::new();
    let mut coming: BTreeMap<(usize, u32), Coming> = BTreeMap::new();
    for worker in workers {
        let found = index
            .nodes
            .binary_search_by(|node| node.row.name.as_str().cmp(&worker.node));
        let Ok(node) = found else { continue };
        let machine = &index.nodes[node];
        for device in &worker.devices {
            let cut = device.mode == SharingMode::Mig;
            if !cut && machine.mig & bit(device.index) == 0 {
                continue;
            }
            let here = coming.entry((node, device.index)).or_insert_with(|| {
                order.push((node, device.index));
                Coming::default()
            });
            let model = machine.row.gpu_model.as_deref().unwrap_or("");
            let profile = device.mig.as_deref().and_then(|p| mig::profile(model, p));
            here.slices
                .extend(profile.zip(device.start).map(|(p, start)| p.at(start)));
            here.whole |= !cut;
        }
    }
    let changes = order
        .into_iter()
        .map(|key| change(index, key, &coming[&key]));
    changes.flatten().collect()
}

fn change(index: &Index<'_>, (node, device): (usize, u32), coming: &Coming) -> Option<SliceChange> {
    let machine = &index.nodes[node];
    let there = machine.instances(device);
    let in_way = |slice: &&Slice| {
        let stays = coming.slices.contains(slice);
        coming.whole || !stays && !coming.slices.iter().all(|new| new.beside(**slice))
    };
    let destroy = there.iter().filter(in_way).map(told);
    let create = coming.slices.iter().filter(|new| !there.contains(new));
    let mode = match (coming.whole, machine.mig & bit(device) != 0) {
        (true, _) => Some(SharingMode::Exclusive),
        (false, false) => Some(SharingMode::Mig),
        (false, true) => None,
    };
    let mut change = SliceChange {
        node: machine.row.name.clone(),
        index: device,
        create: create.map(told).collect(),
        destroy: destroy.collect(),
        mode,
    };
    change.create.sort_by_key(|instance| instance.start);
    change.destroy.sort_by_key(|instance| instance.start);
    let nothing = change.create.is_empty() && change.destroy.is_empty() && mode.is_none();
    (!nothing).then_some(change)
}

fn told(slice: &Slice) -> Instance {
    Instance {
        profile: slice.profile.name.clone(),
        start: slice.start,
    }
}
