//! The workers of a running job as the engine sees them: those that it goes on with, and those that it gave up.

use chrono::TimeDelta;
use domain::sharing::SharingMode;
use domain::spec::JobSpec;
use domain::state::AttemptState;
use domain::{MilliGpu, Timestamp};
use engine::world::{Placed, PlacedDevice, Workload, WorkloadState};

use super::slices;
use super::world::{JobRecord, Records};
use crate::store::world::{LiveAssignment, LiveAttempt, LiveShare};

/// A worker with what it holds.
type Worker = (LiveAssignment, Vec<LiveShare>);

/// The workers of a job that hold their places and that it goes on with, by rank.
pub fn members(job: &JobRecord) -> impl Iterator<Item = &Worker> {
    let workers = job.workers.iter();
    workers.filter(|(worker, _)| worker.phase.live() && worker.dismissed_at.is_none())
}

/// With how many workers a running job may go on, and with how few. What has ended early has given
/// its place back and the rest runs on; a gang changes its size only while all of it runs.
pub fn sizes(
    spec: &JobSpec,
    attempt: &LiveAttempt,
    placed: usize,
    now: Timestamp,
) -> (u32, Option<u32>) {
    let placed = u32::try_from(placed).unwrap_or(u32::MAX);
    let runs = attempt.state == AttemptState::Running;
    let Some(least) = spec.min_workers.filter(|_| runs) else {
        return (placed, None);
    };
    let grows = attempt.grows && attempt.grow_after.is_none_or(|at| at <= now);
    let most = if grows { spec.workers } else { placed };
    (most.max(placed), Some(least.min(placed)))
}

/// Where a running job is: by its members, else by what has yet to leave.
pub fn places(records: &Records, job: &JobRecord) -> Vec<Placed> {
    let alone = members(job).next().is_none();
    let workers = job.workers.iter();
    let held = workers
        .filter(|(worker, _)| worker.phase.live() && (alone || worker.dismissed_at.is_none()));
    held.filter_map(|worker| placed(records, worker)).collect()
}

/// Workers that a job goes on without and that have yet to leave: each is work of its own that
/// holds its devices and counts nowhere else.
pub fn leaving(
    records: &Records,
    job: &JobRecord,
    work: &Workload,
    now: Timestamp,
) -> Vec<Workload> {
    if members(job).next().is_none() {
        return Vec::new();
    }
    let grace_ms = job.attempt.map_or(0, |attempt| attempt.grace_ms);
    let gone = job.workers.iter().filter_map(|held| {
        let (worker, _) = held;
        let since = worker.dismissed_at.filter(|_| worker.phase.live())?;
        let grace = TimeDelta::milliseconds(worker.grace_ms.unwrap_or(grace_ms));
        Some(Workload {
            name: format!("{}.released-{}", work.name, worker.worker),
            workers: 1,
            min_workers: None,
            after: Vec::new(),
            nominated: None,
            state: WorkloadState::Leaving,
            // One that is late still holds its devices; it is expected at any moment.
            leaves_at: Some((since + grace).max(now + TimeDelta::seconds(1))),
            placed: vec![placed(records, held)?],
            ..work.clone()
        })
    });
    gone.collect()
}

/// Where a worker is, and what it holds there.
fn placed(records: &Records, (worker, shares): &Worker) -> Option<Placed> {
    let node = records.nodes.get(&worker.node_id)?;
    let devices = shares.iter().filter_map(|share| {
        let index = u32::try_from(share.index).ok()?;
        // A share of a device that another one has replaced takes nothing that is there.
        node.devices
            .get(&index)
            .filter(|d| d.id == share.device_id)?;
        let gpus = MilliGpu::from_milli(i64::from(share.gpus_milli));
        Some(match share.mode {
            SharingMode::Exclusive => PlacedDevice::whole(index),
            SharingMode::Mig => slices::placed(index, gpus, share),
            mode => PlacedDevice::fraction(index, mode, gpus, share.memory_mib),
        })
    });
    Some(Placed {
        node: node.row.name.clone(),
        devices: devices.collect(),
    })
}
