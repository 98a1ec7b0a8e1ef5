//! What a world must not say of its workloads: names that are not there, devices held twice.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliGpu;
use domain::error::quote;
use domain::sharing::SharingMode;
use domain::spec::CLASS_DEFAULT;
use domain::words::counted;

use super::check::{Fault, Names, unknown};
use crate::mig;
use crate::world::{Node, Placed, PlacedDevice, Workload, WorkloadState, World};

/// No workload waits for itself by way of others: none of them could ever start.
pub(super) fn dependencies(world: &World) -> Result<(), Fault> {
    let of_name: BTreeMap<&str, usize> = (world.workloads.iter().enumerate())
        .map(|(index, work)| (work.name.as_str(), index))
        .collect();
    // What is waited for by nobody is taken away, as long as there is such; what is left is in a circle.
    let before = |index: usize| {
        let after = world.workloads[index].after.iter();
        after.filter_map(|name| of_name.get(name.as_str()).copied())
    };
    let mut waited_for = vec![0_usize; world.workloads.len()];
    for index in 0..world.workloads.len() {
        before(index).for_each(|first| waited_for[first] += 1);
    }
    let mut free: Vec<usize> = (0..waited_for.len())
        .filter(|index| waited_for[*index] == 0)
        .collect();
    let mut left = waited_for.len();
    while let Some(index) = free.pop() {
        left -= 1;
        for first in before(index) {
            waited_for[first] -= 1;
            if waited_for[first] == 0 {
                free.push(first);
            }
        }
    }
    if left == 0 {
        return Ok(());
    }
    // Each that is left is waited for by another that is left: from one to the next one comes round.
    let mut waiter = vec![0; waited_for.len()];
    let is_left = |index: &usize| waited_for[*index] > 0;
    for index in (0..waited_for.len()).filter(is_left) {
        before(index).for_each(|first| waiter[first] = index);
    }
    let mut at = (0..waited_for.len()).find(is_left).expect("some are left");
    for _ in 0..waited_for.len() {
        at = waiter[at];
    }
    let mut circle = vec![at];
    while waiter[circle[circle.len() - 1]] != at {
        circle.push(waiter[circle[circle.len() - 1]]);
    }
    let index = circle.iter().copied().min().expect("one at least");
    let what = "it waits for itself by way of others".to_owned();
    Err(Fault::new("workloads", index, &["after"], what))
}

pub(super) fn workload(
    world: &World,
    names: &Names<'_>,
    index: usize,
    work: &Workload,
) -> Result<(), Fault> {
    let at = |keys: &[&str], what: String| Fault::new("workloads", index, keys, what);
    if !names.teams.contains(work.team.as_str()) {
        return Err(unknown("workloads", index, &["team"], "team", &work.team));
    }
    // A file need not list the class that everything has unless it says otherwise.
    if !names.classes.contains(work.class.as_str()) && work.class != CLASS_DEFAULT {
        return Err(unknown(
            "workloads",
            index,
            &["class"],
            "class",
            &work.class,
        ));
    }
    if let Some(pool) = work
        .pools
        .iter()
        .find(|p| !names.pools.contains(p.as_str()))
    {
        return Err(unknown("workloads", index, &["pools"], "pool", pool));
    }
    if let Some(service) = work.service.as_deref() {
        let key = &["service"];
        let Some(team) = names.services.get(service) else {
            return Err(unknown("workloads", index, key, "service", service));
        };
        if *team != work.team {
            let what = format!("service {} is of team {team}", quote(service));
            return Err(at(key, what));
        }
    }
    if let Some(node) = work
        .node
        .as_deref()
        .filter(|n| !names.nodes.contains_key(n))
    {
        return Err(unknown("workloads", index, &["node"], "node", node));
    }
    if work.after.contains(&work.name) {
        return Err(at(&["after"], "it waits for itself".to_owned()));
    }
    if work.workers_least() > work.workers {
        return Err(at(
            &["min_workers"],
            format!("it is above workers, which is {}", work.workers),
        ));
    }
    let gpus = work.per_worker.gpus();
    if work.per_worker.mig_profile.is_some()
        && (gpus < MilliGpu::whole(1) || gpus.milli() % 1000 != 0)
    {
        return Err(at(
            &["per_worker", "gpus"],
            format!("{gpus} instances are refused; it takes 1 to 64"),
        ));
    }
    let holds = matches!(work.state, WorkloadState::Running | WorkloadState::Leaving);
    if !holds {
        if !work.placed.is_empty() {
            return Err(at(
                &["placed"],
                "only running and leaving work is placed".to_owned(),
            ));
        }
        return nominated(names, index, work);
    }
    // A mover in its grace has a place to go to.
    if work.state == WorkloadState::Running && work.nominated.is_some() {
        return Err(at(
            &["nominated"],
            "running work has its place; only waiting and leaving work is nominated".to_owned(),
        ));
    }
    nominated(names, index, work)?;
    let Some(started) = work.started else {
        return Err(at(
            &["started"],
            "is missing; running and leaving work has it".to_owned(),
        ));
    };
    if started > world.now {
        return Err(at(&["started"], "it is after now".to_owned()));
    }
    if work.state == WorkloadState::Leaving && work.leaves_at.is_none() {
        return Err(at(
            &["leaves_at"],
            "is missing; leaving work has it".to_owned(),
        ));
    }
    if work.placed.is_empty() {
        return Err(at(
            &["placed"],
            "is missing; running and leaving work has an entry for each worker".to_owned(),
        ));
    }
    if work.placed.len() > work.workers as usize {
        return Err(at(
            &["placed"],
            format!(
                "{} workers are placed of {}",
                work.placed.len(),
                work.workers
            ),
        ));
    }
    placement(names, index, &["placed"], &work.placed)?;
    // What leaves may be a part of what it was, and asks for nothing any more.
    match work.state {
        WorkloadState::Running => as_asked(index, work),
        _ => Ok(()),
    }
}

/// Running work has the workers and the devices that it asks for.
fn as_asked(index: usize, work: &Workload) -> Result<(), Fault> {
    let (placed, least) = (work.placed.len() as u64, u64::from(work.workers_least()));
    if placed < least {
        let key = work.min_workers.map_or("workers", |_| "min_workers");
        let what = format!(
            "it runs with {}, fewer than {key}, which is {least}; place each, or lower {key}",
            counted(placed, "worker")
        );
        return Err(Fault::new("workloads", index, &["placed"], what));
    }
    let each = work.devices_each();
    let kind = match work.per_worker.mig_profile {
        Some(_) => "instance",
        None => "device",
    };
    for (rank, worker) in work.placed.iter().enumerate() {
        let has = worker.devices.len();
        if has != each {
            let what = format!(
                "the worker has {}, and per_worker asks for {each} ({} gpus); list as many as it asks for, or change per_worker.gpus",
                counted(has as u64, kind),
                work.per_worker.gpus()
            );
            let keys = ["placed", &rank.to_string(), "devices"];
            return Err(Fault::new("workloads", index, &keys, what));
        }
    }
    Ok(())
}

fn nominated(names: &Names<'_>, index: usize, work: &Workload) -> Result<(), Fault> {
    let Some(kept) = &work.nominated else {
        return Ok(());
    };
    if kept.placement.is_empty() || kept.placement.len() > work.workers as usize {
        let what = format!(
            "{} workers are placed of {}",
            kept.placement.len(),
            work.workers
        );
        return Err(Fault::new(
            "workloads",
            index,
            &["nominated", "placement"],
            what,
        ));
    }
    placement(names, index, &["nominated", "placement"], &kept.placement)
}

/// Nodes and devices that are there, each once in a worker, all in one pool.
fn placement(
    names: &Names<'_>,
    index: usize,
    keys: &[&str],
    placed: &[Placed],
) -> Result<(), Fault> {
    let mut pools = BTreeSet::new();
    for (rank, worker) in placed.iter().enumerate() {
        let rank = rank.to_string();
        let at = |more: &[&str], what: String| {
            let path: Vec<&str> = keys
                .iter()
                .copied()
                .chain([rank.as_str()])
                .chain(more.iter().copied())
                .collect();
            Fault::new("workloads", index, &path, what)
        };
        let Some(node) = names.nodes.get(worker.node.as_str()) else {
            return Err(at(
                &["node"],
                format!("there is no node {}", quote(&worker.node)),
            ));
        };
        pools.insert(node.pool.as_str());
        if pools.len() > 1 {
            return Err(at(
                &["node"],
                "it is in another pool than the workers before it".to_owned(),
            ));
        }
        let mut seen = BTreeSet::new();
        for (place, device) in worker.devices.iter().enumerate() {
            let place = place.to_string();
            if device.index >= node.gpus {
                let what = format!(
                    "device {} is not there: {} has gpus: {}",
                    device.index, node.name, node.gpus
                );
                return Err(at(&["devices", &place, "index"], what));
            }
            if !seen.insert((device.index, device.start, device.mig.clone()))
                && device.mig.is_none()
            {
                return Err(at(
                    &["devices", &place, "index"],
                    format!("device {} is there twice", device.index),
                ));
            }
            part(node, device).map_err(|what| at(&["devices", &place], what))?;
        }
    }
    Ok(())
}

/// Whether a part of a device can be what it says.
fn part(node: &Node, device: &PlacedDevice) -> Result<(), String> {
    let model = node.gpu_model.as_deref().unwrap_or("");
    match (&device.mig, device.mode) {
        (Some(profile), _) => match mig::profile(model, profile) {
            None => Err(format!(
                "there is no mig profile {} on a {}",
                quote(profile),
                quote(model)
            )),
            Some(shape) if device.start.is_some_and(|s| !shape.starts.contains(&s)) => Err(
                format!("a mig instance {} cannot begin there", quote(profile)),
            ),
            Some(_) => Ok(()),
        },
        (None, SharingMode::Exclusive) if device.gpus != MilliGpu::whole(1) => Err(format!(
            "gpus: {} of a device in mode exclusive; it is given whole",
            device.gpus
        )),
        (None, _) if device.gpus == MilliGpu::ZERO => Err("gpus: 0 of a device".to_owned()),
        (None, _) if device.memory_mib.is_some_and(|m| m > node.gpu_memory_mib) => Err(format!(
            "memory_mib is above the device's {}",
            node.gpu_memory_mib
        )),
        (None, _) => Ok(()),
    }
}

/// No device is held in two ways, or for more than there is.
pub(super) fn held(world: &World, names: &Names<'_>) -> Result<(), Fault> {
    #[derive(Default)]
    struct Use {
        exclusive: bool,
        modes: BTreeSet<SharingMode>,
        milli: i64,
        memory_mib: i64,
        sizes: BTreeSet<i64>,
    }
    let mut uses: BTreeMap<(&str, u32), Use> = BTreeMap::new();
    for (index, work) in world.workloads.iter().enumerate() {
        for (rank, worker) in work.placed.iter().enumerate() {
            let node = names.nodes[worker.node.as_str()];
            for device in &worker.devices {
                let seen = uses
                    .entry((worker.node.as_str(), device.index))
                    .or_default();
                let fault = |what: &str| {
                    let what = format!("device {} of {} {what}", device.index, worker.node);
                    Err(Fault::new(
                        "workloads",
                        index,
                        &["placed", &rank.to_string(), "devices"],
                        what,
                    ))
                };
                let first = seen.modes.is_empty();
                seen.modes.insert(device.mode);
                if seen.exclusive || (device.mode == SharingMode::Exclusive && !first) {
                    return fault("is held exclusively and by another holder too");
                }
                if seen.modes.len() > 1 {
                    return fault("is in two modes at once");
                }
                seen.exclusive = device.mode == SharingMode::Exclusive;
                if device.mig.is_none() && !seen.exclusive {
                    seen.milli += device.gpus.milli();
                    let share = node.gpu_memory_mib * device.gpus.milli() / 1000;
                    let memory = device
                        .memory_mib
                        .or(work.per_worker.gpu_memory_mib)
                        .unwrap_or(share);
                    seen.memory_mib += memory;
                    seen.sizes.insert(memory);
                    if device.mode == SharingMode::Vgpu && seen.sizes.len() > 1 {
                        return fault("has vgpu parts of two sizes; all have that of the first");
                    }
                    if seen.milli > 1000 {
                        return fault("is held for more than one device");
                    }
                    if seen.memory_mib > node.gpu_memory_mib {
                        return fault("is held for more than its memory");
                    }
                }
            }
        }
    }
    Ok(())
}
