//! What is shown of a node, its devices and their slices.

use std::collections::BTreeMap;

use domain::ids::{DeviceId, JobId, NodeId};
use domain::sharing::SharingMode;
use domain::spec::Runner;
use domain::state::{AssignmentPhase, DeviceHealth, NodeIntent, Reachability};
use domain::wall::Wall;
use domain::{MilliCpu, MilliGpu, Timestamp};
use protocol::report::Finding;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::app::{AppError, Asker};
use crate::store::Tx;
use crate::store::devices::{self, DeviceRow, HeldShare, InUse};
use crate::store::events::{DETAIL, EventRow};
use crate::store::nodes::{self, NodeRow};
use crate::store::sampled;

/// What a device did is a mean over so many minutes: single readings swing.
const LOAD_MINUTES: i32 = 5;

/// A machine.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// What people want of it.
    pub intent: NodeIntent,
    /// Why.
    pub intent_reason: String,
    /// Until when running work may stay while it is being emptied; null where there is no such end.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub drain_deadline_at: Option<Timestamp>,
    /// Whether it answers.
    pub reachability: Reachability,
    /// The last time that it did.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_heartbeat_at: Option<Timestamp>,
    /// When it joined.
    #[schema(value_type = String, format = DateTime)]
    pub enrolled_at: Timestamp,
    /// Its agent's version.
    pub agent_version: String,
    /// Its driver's version.
    pub driver_version: String,
    /// Where other workers reach it; for platform roles.
    pub address: Option<String>,
    /// CPU cores.
    pub cpus: MilliCpu,
    /// Memory of the host.
    pub memory_mib: i64,
    /// The sharing modes that its agent can drive.
    pub sharing: Vec<SharingMode>,
    /// Whether its agent lets several teams share a device by MPS where its pool does.
    pub mps_across_teams: bool,
    /// The runners that its agent can drive.
    pub runners: Vec<Runner>,
    /// How CPU and memory limits are enforced: v2, v1 or none.
    pub cgroup: String,
    /// Whether jobs run as their team's own user.
    pub isolated: bool,
    /// Whether checkpoints lie on storage that all nodes share.
    pub checkpoints_shared: bool,
    /// Whether its devices stay cut by MIG as they are: jobs are given the instances that are there.
    pub mig_static: bool,
    /// That its disk is full; null while there is room.
    pub disk_full: Option<DiskFull>,
    /// The walls between jobs that it lacks; each is told in a sentence of `warnings` too.
    pub lacks: Vec<Wall>,
    /// By how many milliseconds its clock is ahead of the servers', or behind where it is negative; null while it is right.
    pub clock_ahead_ms: Option<i64>,
    /// What people should know of it, in sentences.
    pub warnings: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Its devices, by index.
    pub devices: Vec<Device>,
    /// Its version.
    pub version: i64,
}

/// A disk on which no job starts for want of room.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiskFull {
    /// What was free when it was found to be full.
    pub free_mib: i64,
    /// What a job needs to start.
    pub needed_mib: i64,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
}

/// A GPU.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// NVML's UUID.
    pub uuid: String,
    /// Its index on the node.
    pub index: i32,
    /// The model that requests know it by.
    pub model: String,
    /// NVML's name.
    pub product_name: String,
    /// Its memory.
    pub memory_mib: i64,
    /// How it does.
    pub health: DeviceHealth,
    /// Why.
    pub health_reason: String,
    /// The same with the processes that are named in it; for platform roles, null where none is.
    pub health_detail: Option<String>,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub health_at: Timestamp,
    /// What was found of it and keeps it out until a check has passed or a person clears it, by number.
    pub found: Vec<Found>,
    /// Whether a person has cleared what was found, and its node has yet to say so.
    pub cleared: bool,
    /// How its node is about to cut it by a layout: nothing of it is given out until that is done; null where
    /// nothing is to be changed.
    pub layout: Option<LaidOut>,
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// Which group of linked devices it is in.
    pub nvlink: Option<u32>,
    /// The mode in which it is given out now; null where it is free.
    pub mode: Option<SharingMode>,
    /// How much of it is in use, by whomever.
    pub in_use: MilliGpu,
    /// What it did in the last five minutes, in thousandths: multiprocessors at work, where it counts that, else the
    /// time in which a kernel ran; null where nothing is known.
    pub load_permille: Option<i64>,
    /// What is in use, slice by slice; what the asker may know nothing of is one slice
    /// without a holder.
    pub slices: Vec<DeviceSlice>,
}

/// How a layout will have a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaidOut {
    /// Whether it will be cut; else it will be whole.
    pub mig: bool,
    /// The profile of each instance that it will have.
    pub profiles: Vec<String>,
}

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// Rises with each of its node.
    pub number: i64,
    /// What the device is for it.
    pub health: DeviceHealth,
    /// In words.
    pub reason: String,
}

/// A part of a device that is in use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeviceSlice {
    /// How much of the device.
    pub gpus: MilliGpu,
    /// The mode in which it is given out.
    pub mode: SharingMode,
    /// Who holds it; null where the asker may not know.
    pub holder: Option<Holder>,
}

/// Who holds a slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// The team.
    pub team: String,
    /// Who submitted the job.
    pub user: String,
    /// The job.
    pub job: JobId,
    /// The job's name.
    pub job_name: String,
    /// Which worker of it.
    pub worker: i32,
    /// Where that worker stands.
    pub phase: AssignmentPhase,
    /// Memory of the device that it may use.
    pub memory_mib: i64,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
}

/// Something that happened to a node or one of its devices.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// Its number; rises with time.
    pub id: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// `node` or `device`.
    pub subject: String,
    /// Which one.
    pub subject_id: String,
    /// The state before.
    pub from: Option<String>,
    /// The state after.
    pub to: String,
    /// Who did it.
    pub actor: String,
    /// Why, as a stable word or in words.
    pub reason: String,
    /// What else is worth knowing.
    pub data: Value,
}

/// An event as the asker may see it: what names processes is for platform roles.
pub(super) fn event(asker: &Asker, row: EventRow) -> NodeEvent {
    let mut data = row.data;
    if asker.platform_role.is_none()
        && let Some(data) = data.as_object_mut()
    {
        data.remove(DETAIL);
    }
    NodeEvent {
        id: row.id,
        at: row.at,
        subject: row.subject,
        subject_id: row.subject_id,
        from: row.from_state,
        to: row.to_state,
        actor: row.actor_name,
        reason: row.reason,
        data,
    }
}

/// Shows nodes with their devices and slices, as far as the transaction may see who holds them.
pub(super) async fn show(
    tx: &mut Tx,
    asker: &Asker,
    rows: Vec<NodeRow>,
) -> Result<Vec<Node>, AppError> {
    let ids: Vec<NodeId> = rows.iter().map(|row| row.id).collect();
    let mut by_node: BTreeMap<NodeId, Vec<DeviceRow>> = BTreeMap::new();
    for device in devices::of_nodes(tx, &ids).await? {
        by_node.entry(device.node_id).or_default().push(device);
    }
    let mut held: BTreeMap<DeviceId, Vec<HeldShare>> = BTreeMap::new();
    for share in devices::held(tx, &ids).await? {
        held.entry(share.device_id).or_default().push(share);
    }
    let used: BTreeMap<DeviceId, InUse> = devices::in_use(tx)
        .await?
        .into_iter()
        .map(|in_use| (in_use.device_id, in_use))
        .collect();
    let all: Vec<DeviceId> = by_node.values().flatten().map(|device| device.id).collect();
    let loads: BTreeMap<DeviceId, i64> = sampled::recent(tx, &all, LOAD_MINUTES)
        .await?
        .into_iter()
        .collect();
    let mut wiring = nodes::wiring(tx, &ids).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let (nvlink, numa) = wiring.remove(&row.id).unwrap_or_default();
            let devices = by_node
                .remove(&row.id)
                .unwrap_or_default()
                .into_iter()
                .map(|device| {
                    let shares = held.remove(&device.id).unwrap_or_default();
                    let used = used.get(&device.id);
                    let groups = (
                        group_of(&numa, device.index),
                        group_of(&nvlink, device.index),
                    );
                    let load = loads.get(&device.id).copied();
                    show_device(asker, device, shares, (used, load), groups)
                })
                .collect();
            show_node(asker, row, devices)
        })
        .collect())
}

fn show_node(asker: &Asker, row: NodeRow, devices: Vec<Device>) -> Node {
    Node {
        id: row.id,
        name: row.name,
        pool: row.pool,
        intent: row.intent,
        intent_reason: row.intent_reason,
        drain_deadline_at: row.drain_deadline_at,
        reachability: row.reachability,
        last_heartbeat_at: row.last_heartbeat_at,
        enrolled_at: row.enrolled_at,
        agent_version: row.agent_version,
        driver_version: row.driver_version,
        address: asker.platform_role.map(|_| row.address),
        cpus: MilliCpu::from_milli(row.cpus_milli),
        memory_mib: row.memory_mib,
        sharing: row.sharing,
        mps_across_teams: row.mps_across_teams,
        runners: row.runners,
        cgroup: row.cgroup,
        isolated: row.isolated,
        checkpoints_shared: row.checkpoints_shared,
        mig_static: row.mig_static,
        disk_full: row
            .disk_free_mib
            .zip(row.disk_needed_mib)
            .map(|(free_mib, needed_mib)| DiskFull {
                free_mib,
                needed_mib,
                since: row.disk_at,
            }),
        lacks: row.lacks,
        clock_ahead_ms: row.clock_ahead_ms,
        warnings: row.warnings,
        labels: labels(&row.labels),
        devices,
        version: row.version,
    }
}

fn show_finding(finding: Finding) -> Found {
    Found {
        number: finding.number,
        health: finding.health,
        reason: finding.reason,
    }
}

fn show_device(
    asker: &Asker,
    device: DeviceRow,
    shares: Vec<HeldShare>,
    (used, load): (Option<&InUse>, Option<i64>),
    (numa, nvlink): (Option<u32>, Option<u32>),
) -> Device {
    let in_use = used.map_or(0, |used| used.gpus_milli);
    let seen: i64 = shares.iter().map(|share| i64::from(share.gpus_milli)).sum();
    let mut slices: Vec<DeviceSlice> = shares.into_iter().map(show_slice).collect();
    // The rest belongs to others: one neutral slice, so that not even their number is told.
    if let Some(used) = used
        && in_use > seen
    {
        slices.push(DeviceSlice {
            gpus: MilliGpu::from_milli(in_use - seen),
            mode: used.mode,
            holder: None,
        });
    }
    Device {
        uuid: device.uuid,
        index: device.index,
        model: device.model,
        product_name: device.product_name,
        memory_mib: device.memory_mib,
        health: device.health,
        health_reason: device.health_reason,
        health_detail: Some(device.health_detail)
            .filter(|detail| asker.platform_role.is_some() && !detail.is_empty()),
        health_at: device.health_at,
        found: device.findings.0.into_iter().map(show_finding).collect(),
        cleared: device
            .finding
            .is_some_and(|finding| finding <= device.cleared),
        layout: device.layout.map(|layout| LaidOut {
            mig: layout.0.mig,
            profiles: layout.0.profiles,
        }),
        numa,
        nvlink,
        mode: used.map(|used| used.mode),
        in_use: MilliGpu::from_milli(in_use),
        load_permille: load,
        slices,
    }
}

fn show_slice(share: HeldShare) -> DeviceSlice {
    DeviceSlice {
        gpus: MilliGpu::from_milli(share.gpus_milli.into()),
        mode: share.mode,
        holder: Some(Holder {
            team: share.team,
            user: share.user,
            job: share.job_id,
            job_name: share.job,
            worker: share.worker,
            phase: share.phase,
            memory_mib: share.memory_mib,
            since: share.since,
        }),
    }
}

/// The place of the group that holds a device's index, among the groups.
fn group_of(groups: &[Vec<i32>], index: i32) -> Option<u32> {
    (0..)
        .zip(groups)
        .find_map(|(at, group)| group.contains(&index).then_some(at))
}

pub(super) fn labels(kept: &Value) -> BTreeMap<String, String> {
    let object = kept.as_object().into_iter().flatten();
    object
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
