//! Rows to the engine's words: names of pools, nodes, teams and classes are theirs, workloads and
//! users are known by their ids.

mod teams;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::ids::JobId;
use domain::quantity::DEVICES_PER_NODE_MAX;
use domain::sharing::SharingMode;
use domain::spec::{CLASS_DEFAULT, JobSpec};
use domain::state::{AttemptState, DeviceHealth, JobState, NodeIntent, Reachability};
use domain::{MilliCpu, MilliGpu, Timestamp};
use engine::world::{
    Booking, Class, Node, NodeState, Nominated, Past, Placed, PlacedDevice, Pool, PoolPolicy,
    PoolState, QuotasAhead, Workload, WorkloadState, World,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::arrays;
use super::capable::{self, Roots};
use super::gang;
use super::slices;
use super::windows;
use super::world::{JobRecord, Memory, NodeRecord, Records};
use crate::app::bookings;
use crate::store;
use crate::store::past::Gone;
use crate::store::windows::Window;
use crate::store::world::{NodeRow, PoolRow};

pub use teams::{set_quota, take_quota, teams};

/// A limit on preemptions counts those of so many seconds.
const PREEMPTION_DAY: Duration = Duration::from_secs(24 * 3600);

/// The fleet and the rules, without any work.
pub fn fleet(records: &Records, now: Timestamp) -> World {
    let open = windows::open_at(&records.windows, now);
    let mut world = World::empty(now);
    world.pools = records.pools.iter().map(pool).collect();
    world.classes = records
        .classes
        .iter()
        .map(|c| Class::new(&c.name, i64::from(c.priority), c.preemptible))
        .collect();
    world.teams = teams((&records.teams, &records.quotas), &open);
    world.bookings = records.bookings.iter().map(booking).collect();
    let held = slices::held(records);
    world.nodes = records
        .nodes
        .values()
        .map(|record| node(record, &held))
        .collect();
    let roots = capable::roots(&world.nodes);
    roots.spread(&mut world.nodes);
    world
}

/// Everything, as the planner may know it at `now`. A job whose spec cannot be read is in it only
/// with what it holds.
pub fn world(records: &Records, now: Timestamp, memory: &Memory) -> World {
    let mut world = fleet(records, now);
    for team in &mut world.teams {
        team.preemptions_this_hour = memory
            .evictions
            .iter()
            .filter(|e| e.team == team.name)
            .map(|e| (e.pool.clone(), u32::try_from(e.count).unwrap_or(u32::MAX)))
            .collect();
        team.past_use = memory
            .past_use
            .iter()
            .filter_map(|(pool, used)| {
                let used = used.iter().find(|used| used.team == team.name)?;
                Some((pool.clone(), used.gpu_milli_seconds.max(0)))
            })
            .collect();
    }
    world.ahead = ahead(records, now);
    let roots = capable::roots(&world.nodes);
    let past = |gone| past(gone, &roots);
    world.history = memory.gone.iter().filter_map(past).collect();
    let held_back = arrays::held_back(records, now);
    world.workloads = records
        .jobs
        .values()
        .filter_map(|job| Some((job, workload(records, job, &roots, now)?)))
        .map(|(job, mut work)| {
            // The engine knows no array: an element that may not start yet follows one that may.
            let before = held_back.get(&job.row.id);
            work.after.extend(before.map(JobId::to_string));
            (job, work)
        })
        .flat_map(|(job, work)| {
            let mut all = gang::leaving(records, job, &work, now);
            all.push(work);
            all
        })
        .collect();
    world
}

/// How far ahead quotas of weekly windows are told: a week has every opening once.
const AHEAD: chrono::TimeDelta = chrono::TimeDelta::days(7);
/// Most changes of quotas that are told ahead: a start behind so many is no estimate.
const AHEAD_MAX: usize = 4;

/// The quotas that windows bring by opening and closing, the first first.
fn ahead(records: &Records, now: Timestamp) -> Vec<QuotasAhead> {
    let all = &records.windows;
    if all.is_empty() {
        return Vec::new();
    }
    let steps = windows::timeline(all, now, now + AHEAD);
    let later = steps.into_iter().filter(|(from, _)| *from > now);
    let told = later.take(AHEAD_MAX).map(|(from, open)| {
        let open: Vec<&Window> = open.into_iter().map(|index| &all[index]).collect();
        QuotasAhead {
            from,
            teams: teams((&records.teams, &records.quotas), &open),
        }
    });
    told.collect()
}

fn pool(row: &PoolRow) -> Pool {
    Pool {
        name: row.name.clone(),
        policy: policy(row),
    }
}

/// A pool's policy as it is kept. One that cannot be read closes its pool, which harms less than
/// a guess.
pub fn policy(row: &PoolRow) -> PoolPolicy {
    let read: Result<PoolPolicy, _> = serde_json::from_value(row.policy.clone());
    let read = read.map_err(|error| error.to_string());
    let kept = read.and_then(|policy| match policy.check() {
        Ok(()) => Ok(policy),
        Err(error) => Err(error.to_string()),
    });
    kept.unwrap_or_else(|error| {
        tracing::error!(
            pool.name = row.name,
            error,
            "pool policy cannot be read, the pool counts as closed"
        );
        PoolPolicy {
            state: PoolState::Closed,
            ..PoolPolicy::default()
        }
    })
}

fn booking(row: &store::bookings::Booking) -> Booking {
    Booking {
        name: bookings::world_name(&row.pool, &row.name),
        team: row.team.to_string(),
        pool: row.pool.to_string(),
        gpus: MilliGpu::from_milli(row.gpus_milli),
        from: row.starts_at,
        to: row.ends_at,
    }
}

/// A node has one model in the engine's eyes: that of its first device that is well. Devices
/// of another model, gaps and devices that are not well count as failed.
fn node(record: &NodeRecord, held: &slices::Held<'_>) -> Node {
    let row = &record.row;
    let devices = || record.devices.range(..DEVICES_PER_NODE_MAX);
    let well = || devices().filter(|(_, d)| d.health == DeviceHealth::Healthy);
    let first = well()
        .next()
        .or_else(|| devices().next())
        .map(|(_, device)| device);
    let same = |index: u32| {
        record.devices.get(&index).is_some_and(|d| {
            d.health == DeviceHealth::Healthy && Some(&d.model) == first.map(|f| &f.model)
        })
    };
    let gpus = devices().next_back().map_or(0, |(index, _)| index + 1);
    let memory = well()
        .filter(|(index, _)| same(**index))
        .map(|(_, d)| d.memory_mib)
        .min();
    let mut labels = texts(&row.labels);
    labels.extend(capable::labels(&row.runners, &row.work_roots));
    Node {
        name: row.name.clone(),
        pool: row.pool.clone(),
        state: node_state(row),
        gpus,
        gpu_model: first.map(|d| d.model.clone()),
        gpu_memory_mib: memory.or(first.map(|d| d.memory_mib)).unwrap_or(0),
        cpus: MilliCpu::from_milli(row.cpus_milli),
        memory_mib: row.memory_mib,
        nvlink: cliques(&row.nvlink, gpus),
        numa: cliques(&row.numa, gpus),
        mig: slices::of_node(record, held),
        failed: (0..gpus).filter(|index| !same(*index)).collect(),
        labels,
        drives: Some(
            row.sharing
                .iter()
                .filter_map(|mode| mode.parse().ok())
                .collect(),
        ),
        mps_across_teams: row.mps_across_teams,
        mig_static: row.mig_static,
        mig_layout: slices::laid(record),
    }
}

fn node_state(row: &NodeRow) -> NodeState {
    match (row.reachability, row.intent) {
        (Reachability::Unreachable | Reachability::Lost, _) => NodeState::Unreachable,
        (Reachability::Ready, NodeIntent::Open) if row.disk_full => NodeState::Unhealthy,
        (Reachability::Ready, NodeIntent::Open) => NodeState::Ready,
        // By a deadline nothing leaves before it, and all that is left then: no plan chooses what.
        (Reachability::Ready, NodeIntent::Draining) if row.drain_deadline_at.is_none() => {
            NodeState::Draining
        }
        (
            Reachability::Ready,
            NodeIntent::Cordoned | NodeIntent::Draining | NodeIntent::Retired,
        ) => NodeState::Cordoned,
    }
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// Sets of device indices; what is not there or is named twice is left out.
fn cliques(value: &Value, gpus: u32) -> Vec<Vec<u32>> {
    let sets: Vec<Vec<u32>> = serde_json::from_value(value.clone()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    sets.into_iter()
        .map(|set| {
            set.into_iter()
                .filter(|i| *i < gpus && seen.insert(*i))
                .collect::<Vec<_>>()
        })
        .filter(|set| !set.is_empty())
        .collect()
}

/// A workload of a spec that waits since `submitted`.
pub fn waiting(
    name: String,
    team: &str,
    user: String,
    spec: &JobSpec,
    roots: &Roots,
    submitted: Timestamp,
) -> Workload {
    Workload {
        name,
        team: team.to_owned(),
        user: Some(user),
        kind: spec.kind.into(),
        class: spec.class.to_string(),
        submitted,
        not_before: spec.not_before,
        after: spec.after.clone(),
        pools: spec.pools.iter().map(ToString::to_string).collect(),
        workers: spec.workers,
        min_workers: spec.min_workers,
        per_worker: spec.per_worker.clone(),
        selector: capable::selector(spec, roots),
        topology: spec.topology.clone(),
        nvlink: spec.nvlink,
        anti_affinity: spec.anti_affinity.clone(),
        node: spec.node.as_ref().map(ToString::to_string),
        time_limit_seconds: spec.time_limit_seconds,
        predicted_seconds: spec.predicted_seconds,
        preemptible: spec.preemptible,
        checkpoint_seconds: spec.checkpoint_seconds,
        restart_seconds: spec.restart_seconds,
        service: None,
        state: WorkloadState::Waiting,
        started: None,
        leaves_at: None,
        preemptions_today: 0,
        nominated: None,
        placed: Vec::new(),
    }
}

/// Work that is gone as the engine remembers it; what cannot be read is forgotten.
fn past(gone: &Gone, roots: &Roots) -> Option<Past> {
    let spec: JobSpec = serde_json::from_value(gone.spec.clone()).ok()?;
    Some(Past {
        pool: gone.pool.clone(),
        selector: capable::selector(&spec, roots),
        per_worker: spec.per_worker,
        workers: gone.workers,
    })
}

fn workload(records: &Records, job: &JobRecord, roots: &Roots, now: Timestamp) -> Option<Workload> {
    let row = &job.row;
    let spec = match &job.spec {
        Ok(spec) => spec,
        Err(_) if job.workers.is_empty() => return None,
        Err(_) => &holder(records),
    };
    let mut work = waiting(
        row.id.to_string(),
        &row.team,
        row.user_id.to_string(),
        spec,
        roots,
        row.created_at,
    );
    work.not_before = row.not_before;
    work.after = match arrays::followed(records, &work.after) {
        None if job.workers.is_empty() => return None,
        after => after.unwrap_or_default(),
    };
    let day = now - PREEMPTION_DAY;
    let recent = job.evictions.iter().filter(|at| **at > day).count();
    work.preemptions_today = u32::try_from(recent).unwrap_or(u32::MAX);
    work.pools
        .retain(|pool| records.pools.iter().any(|p| p.name == *pool));
    let known = |name: &String| records.nodes.values().any(|n| n.row.name == *name);
    let kept = || {
        let kept = row.nominated.as_ref().and_then(read_nomination)?;
        kept.placement
            .iter()
            .all(|p| known(&p.node))
            .then_some(kept)
    };
    match job.attempt.filter(|_| !job.workers.is_empty()) {
        None => {
            work.state = match row.state {
                JobState::Queued => WorkloadState::Waiting,
                JobState::Suspended => WorkloadState::Suspended,
                // Its last worker has left and its end is being recorded: it holds nothing.
                _ => return None,
            };
            if row.state == JobState::Queued {
                work.nominated = kept();
            }
        }
        Some(attempt) => {
            let leaving = gang::members(job).next().is_none()
                || attempt.state == AttemptState::Stopping
                || matches!(
                    row.state,
                    JobState::Preempting | JobState::Cancelling | JobState::Suspended
                );
            work.started = Some(attempt.started_at.unwrap_or(attempt.created_at).min(now));
            work.placed = gang::places(records, job);
            (work.workers, work.min_workers) = gang::sizes(spec, &attempt, work.placed.len(), now);
            work.node = work.node.filter(known);
            work.state = if leaving {
                WorkloadState::Leaving
            } else {
                WorkloadState::Running
            };
            if leaving {
                // Who moves has a place to go to.
                if row.state == JobState::Preempting {
                    work.nominated = kept();
                }
                let asked = attempt.stop_asked_at.unwrap_or(now);
                let grace = chrono::TimeDelta::milliseconds(attempt.grace_ms);
                // One that is late still holds its devices; it is expected at any moment.
                work.leaves_at = Some((asked + grace).max(now + chrono::TimeDelta::seconds(1)));
            }
        }
    }
    Some(work)
}

/// What stands for a spec that cannot be read while its job still holds devices: without it they
/// would count as free, and be planned with again and again in vain. It is never chosen to give
/// way, since it is ended anyhow.
fn holder(records: &Records) -> JobSpec {
    let class = records
        .classes
        .first()
        .map_or(CLASS_DEFAULT, |class| &class.name);
    serde_json::from_value(json!({
        "name": "unreadable", "command": ["-"], "class": class, "preemptible": false,
    }))
    .expect("a spec of names alone can be read, and a class has a name")
}

/// Room that is kept for a job, as stored with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredNomination {
    placement: Vec<StoredPlace>,
    until: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredPlace {
    node: String,
    devices: Vec<StoredDevice>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredDevice {
    index: u32,
    mode: SharingMode,
    gpus: MilliGpu,
    memory_mib: Option<i64>,
    #[serde(default)]
    mig: Option<String>,
    #[serde(default)]
    start: Option<u32>,
}

/// A nomination as it is stored with its job.
pub fn write_nomination(placement: &[engine::plan::WorkerPlace], until: Timestamp) -> Value {
    let device = |d: &engine::plan::DevicePlace| StoredDevice {
        index: d.index,
        mode: d.mode,
        gpus: d.gpus,
        memory_mib: d.memory_mib,
        mig: d.mig.clone(),
        start: d.start,
    };
    let place = |p: &engine::plan::WorkerPlace| StoredPlace {
        node: p.node.clone(),
        devices: p.devices.iter().map(device).collect(),
    };
    let stored = StoredNomination {
        placement: placement.iter().map(place).collect(),
        until,
    };
    serde_json::to_value(stored).expect("texts, numbers and lists are always JSON")
}

/// A stored nomination; one that cannot be read is none, and its room is free again.
fn read_nomination(value: &Value) -> Option<Nominated> {
    let stored: StoredNomination = serde_json::from_value(value.clone()).ok()?;
    let device = |d: StoredDevice| PlacedDevice {
        index: d.index,
        mode: d.mode,
        gpus: d.gpus,
        memory_mib: d.memory_mib,
        mig: d.mig,
        start: d.start,
    };
    let place = |p: StoredPlace| Placed {
        node: p.node,
        devices: p.devices.into_iter().map(device).collect(),
    };
    Some(Nominated {
        placement: stored.placement.into_iter().map(place).collect(),
        until: stored.until,
    })
}

/// The job that a workload's name stands for.
pub fn job_id(workload: &str) -> Option<JobId> {
    workload.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nomination_is_read_as_it_was_written_with_its_slice() {
        let slice = engine::plan::DevicePlace {
            index: 3,
            mode: SharingMode::Mig,
            mig: Some("3g.40gb".to_owned()),
            start: Some(4),
            gpus: MilliGpu::from_milli(500),
            memory_mib: None,
        };
        let whole = engine::plan::DevicePlace::from(&PlacedDevice::whole(1));
        let place = engine::plan::WorkerPlace {
            node: "n1".to_owned(),
            devices: vec![whole, slice],
        };
        let until = Timestamp::UNIX_EPOCH;
        let written = write_nomination(std::slice::from_ref(&place), until);
        let read = read_nomination(&written).expect("it is one");
        let again: Vec<_> = read
            .placement
            .iter()
            .map(engine::plan::WorkerPlace::from)
            .collect();
        assert_eq!((again, read.until), (vec![place], until));
    }
}
