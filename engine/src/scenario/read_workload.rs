//! The reader of workloads.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use domain::spec::{NvlinkRule, PerWorker, RESTART_SECONDS_DEFAULT, Topology, WorkloadKind};

use super::amounts::{COUNT_MAX, DEVICES_MAX, MEMORY_MIB_MAX, SECONDS_MAX, WORKERS_MAX};
use super::fields::{Field, Read};
use super::read_pool::modes;
use crate::world::{Nominated, Placed, PlacedDevice, Workload, WorkloadState};

/// Most entries of `pools`, `after` and `selector`.
const ENTRIES_MAX: usize = 1_000;
/// Most workers as an index of a list.
const PLACED_MAX: usize = WORKERS_MAX as usize;

pub(super) fn workload(field: Field<'_>) -> Read<Workload> {
    let fields = field.fields()?;
    let seconds = |f: Field<'_>| f.integer(1, SECONDS_MAX);
    let texts = |f: Field<'_>| f.list(ENTRIES_MAX, Field::text);
    let workload = Workload {
        name: fields.require("name")?.text()?,
        team: fields.require("team")?.text()?,
        user: fields.optional("user", Field::text)?,
        kind: fields.or("kind", WorkloadKind::Batch, Field::parsed)?,
        class: fields.require("class")?.text()?,
        submitted: fields.require("submitted")?.time()?,
        not_before: fields.optional("not_before", Field::time)?,
        after: fields.or("after", Vec::new(), texts)?,
        pools: fields.or("pools", Vec::new(), texts)?,
        workers: fields.or("workers", 1, |f| f.count(1, WORKERS_MAX))?,
        min_workers: fields.optional("min_workers", |f| f.count(1, WORKERS_MAX))?,
        per_worker: fields.or("per_worker", PerWorker::default(), per_worker)?,
        selector: fields.or("selector", Default::default(), |f| {
            f.map(ENTRIES_MAX, Field::text)
        })?,
        topology: fields.or("topology", Topology::default(), topology)?,
        nvlink: fields.or("nvlink", NvlinkRule::Prefer, Field::parsed)?,
        anti_affinity: fields.optional("anti_affinity", Field::text)?,
        node: fields.optional("node", Field::text)?,
        time_limit_seconds: fields.optional("time_limit_seconds", seconds)?,
        predicted_seconds: fields.optional("predicted_seconds", seconds)?,
        preemptible: fields.optional("preemptible", Field::flag)?,
        checkpoint_seconds: fields.optional("checkpoint_seconds", seconds)?,
        restart_seconds: fields.or("restart_seconds", RESTART_SECONDS_DEFAULT, |f| {
            f.integer(0, SECONDS_MAX)
        })?,
        service: fields.optional("service", Field::text)?,
        state: fields.or("state", WorkloadState::Waiting, |f| {
            f.word(&[
                ("waiting", WorkloadState::Waiting),
                ("running", WorkloadState::Running),
                ("leaving", WorkloadState::Leaving),
                ("suspended", WorkloadState::Suspended),
            ])
        })?,
        started: fields.optional("started", Field::time)?,
        leaves_at: fields.optional("leaves_at", Field::time)?,
        preemptions_today: fields.or("preemptions_today", 0, |f| f.count(0, COUNT_MAX))?,
        nominated: fields.optional("nominated", nominated)?,
        placed: fields.or("placed", Vec::new(), |f| f.list(PLACED_MAX, placed))?,
    };
    fields.finish()?;
    Ok(workload)
}

fn per_worker(field: Field<'_>) -> Read<PerWorker> {
    let fields = field.fields()?;
    let defaults = PerWorker::default();
    let memory = |f: Field<'_>| f.integer(0, MEMORY_MIB_MAX);
    let read = PerWorker {
        gpus: fields.optional("gpus", worker_gpus)?,
        gpu_model: fields.optional("gpu_model", Field::text)?,
        gpu_memory_mib: fields.optional("gpu_memory_mib", memory)?,
        mig_profile: fields.optional("mig_profile", Field::text)?,
        sharing: fields.or("sharing", defaults.sharing, modes)?,
        cpus: fields.or("cpus", defaults.cpus, Field::cpus)?,
        memory_mib: fields.or("memory_mib", 0, memory)?,
    };
    fields.finish()?;
    Ok(read)
}

/// Whole devices up to the contract's bound, or a fraction under 1.
fn worker_gpus(field: Field<'_>) -> Read<MilliGpu> {
    let refused = field.clone();
    let gpus = MilliGpu::from_milli(field.milli(DEVICES_MAX)?);
    if gpus > MilliGpu::whole(1) && gpus.milli() % 1000 != 0 {
        return Err(refused.refuse("whole devices, or a fraction under 1"));
    }
    Ok(gpus)
}

fn topology(field: Field<'_>) -> Read<Topology> {
    let fields = field.fields()?;
    let topology = Topology {
        require: fields.optional("require", Field::text)?,
        prefer: fields.optional("prefer", Field::text)?,
    };
    fields.finish()?;
    Ok(topology)
}

fn nominated(field: Field<'_>) -> Read<Nominated> {
    let fields = field.fields()?;
    let nominated = Nominated {
        placement: fields.require("placement")?.list(PLACED_MAX, placed)?,
        until: fields.require("until")?.time()?,
    };
    fields.finish()?;
    Ok(nominated)
}

fn placed(field: Field<'_>) -> Read<Placed> {
    let fields = field.fields()?;
    let placed = Placed {
        node: fields.require("node")?.text()?,
        devices: fields.or("devices", Vec::new(), |f| {
            f.list(DEVICES_MAX as usize, device)
        })?,
    };
    fields.finish()?;
    Ok(placed)
}

fn device(field: Field<'_>) -> Read<PlacedDevice> {
    let refused = field.clone();
    let fields = field.fields()?;
    let mig = fields.optional("mig", Field::text)?;
    let implied = if mig.is_some() {
        SharingMode::Mig
    } else {
        SharingMode::Exclusive
    };
    let device = PlacedDevice {
        index: fields.require("index")?.count(0, DEVICES_MAX - 1)?,
        mode: fields.or("mode", implied, Field::parsed)?,
        gpus: fields.or("gpus", MilliGpu::whole(1), |f| {
            f.milli(1).map(MilliGpu::from_milli)
        })?,
        memory_mib: fields.optional("memory_mib", |f| f.integer(0, MEMORY_MIB_MAX))?,
        mig,
        start: fields.optional("start", |f| f.count(0, DEVICES_MAX))?,
    };
    fields.finish()?;
    if device.mig.is_some() != (device.mode == SharingMode::Mig) {
        return Err(refused.refuse("a profile in mig with mode mig, and with no other mode"));
    }
    Ok(device)
}
