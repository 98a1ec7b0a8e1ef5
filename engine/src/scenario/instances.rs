//! MIG instances of a world: which one each holder has, and starts and amounts that a file leaves out.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::error::quote;
use domain::sharing::SharingMode;

use super::check::{Fault, Names};
use crate::mig::{self, Profile, Slice};
use crate::world::{Node, PlacedDevice, World};

/// A device of a placement: workload, worker and device by their place in the file.
type At = (usize, usize, usize);

/// Which instance every holder has. A holder that does not say where its instance begins
/// has the first of its profile that nobody else has.
fn held(world: &World, names: &Names<'_>) -> Result<BTreeMap<At, Slice>, Fault> {
    let mut idle: BTreeMap<(&str, u32), Vec<Slice>> = BTreeMap::new();
    for node in &world.nodes {
        for (&device, instances) in &node.mig {
            let model = node.gpu_model.as_deref().unwrap_or("");
            let laid = mig::lay_out(model, instances).unwrap_or_default();
            idle.insert((node.name.as_str(), device), laid);
        }
    }
    let mut found = BTreeMap::new();
    // Those that say where they are come first.
    for said in [true, false] {
        for (at, node, device) in holders(world, names) {
            let key = (node.name.as_str(), device.index);
            let fault = |what: &str| {
                let what = format!("device {} of {} {what}", device.index, node.name);
                let (rank, place) = (at.1.to_string(), at.2.to_string());
                Fault::new(
                    "workloads",
                    at.0,
                    &["placed", &rank, "devices", &place],
                    what,
                )
            };
            let Some(profile) = &device.mig else {
                if idle.contains_key(&key) {
                    let what = format!("is in MIG mode, and held in mode {}", device.mode);
                    return Err(fault(&what));
                }
                continue;
            };
            if device.start.is_some() != said {
                continue;
            }
            let Some(instances) = idle.get_mut(&key) else {
                return Err(fault("is not in MIG mode"));
            };
            let wanted = |slice: &Slice| {
                slice.profile.name == *profile && device.start.is_none_or(|s| s == slice.start)
            };
            let Some(which) = instances.iter().position(wanted) else {
                let start = device.start.map_or(String::new(), |s| format!("@{s}"));
                let what = format!(
                    "has no mig instance {}{start} that nobody else holds",
                    quote(profile)
                );
                return Err(fault(&what));
            };
            found.insert(at, instances.remove(which));
        }
    }
    Ok(found)
}

fn holders<'w>(
    world: &'w World,
    names: &Names<'w>,
) -> impl Iterator<Item = (At, &'w Node, &'w PlacedDevice)> {
    let works = world.workloads.iter().enumerate();
    let workers = works.flat_map(|(w, work)| {
        let placed = work.placed.iter().enumerate();
        placed.map(move |(rank, worker)| (w, rank, worker))
    });
    workers.flat_map(|(w, rank, worker)| {
        let node = names.nodes[worker.node.as_str()];
        let devices = worker.devices.iter().enumerate();
        devices.map(move |(place, device)| ((w, rank, place), node, device))
    })
}

/// Whether every instance that is held is there, and has one holder.
pub(super) fn check(world: &World, names: &Names<'_>) -> Result<(), Fault> {
    held(world, names).map(|_| ())
}

/// Writes into a checked world what a file may leave out.
pub(super) fn settle(world: &mut World) {
    let found = held(world, &Names::of(world)).unwrap_or_default();
    for ((work, rank, place), slice) in found {
        let device = &mut world.workloads[work].placed[rank].devices[place];
        device.start = Some(slice.start);
        device.gpus = MilliGpu::from_milli(slice.profile.milli());
    }
    let models: BTreeMap<String, String> = world
        .nodes
        .iter()
        .filter_map(|node| Some((node.name.clone(), node.gpu_model.clone()?)))
        .collect();
    let kept = world
        .workloads
        .iter_mut()
        .filter_map(|w| w.nominated.as_mut());
    for worker in kept.flat_map(|kept| &mut kept.placement) {
        let model = models.get(&worker.node).map_or("", String::as_str);
        let devices = worker.devices.iter_mut();
        for device in devices.filter(|d| d.mode == SharingMode::Mig) {
            let name = device.mig.as_deref().unwrap_or("");
            if let Some(profile) = mig::profile(model, name) {
                device.start = device.start.or(profile.starts.first().copied());
                device.gpus = MilliGpu::from_milli(Profile::milli(profile));
            }
        }
    }
    for node in &mut world.nodes {
        let model = node.gpu_model.as_deref().unwrap_or("");
        for instances in node.mig.values_mut() {
            let laid = mig::lay_out(model, instances).unwrap_or_default();
            for (instance, slice) in instances.iter_mut().zip(laid) {
                instance.start = Some(slice.start);
            }
            instances.sort_by_key(|instance| instance.start);
        }
    }
}
