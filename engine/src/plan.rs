//! What a cycle decided, complete and without choices left, in the words of the contract.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::time::format;
use domain::{MilliGpu, Timestamp};
use serde::{Serialize, Serializer};

use crate::world::{Placed, PlacedDevice};

/// The decisions of one cycle; each list is in the order of decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The time that the cycle was told.
    #[serde(serialize_with = "time")]
    pub now: Timestamp,
    /// Work that runs now.
    pub starts: Vec<Start>,
    /// Running elastic work that grows.
    pub resizes: Vec<Resize>,
    /// Work that loses its devices, or some of them.
    pub preemptions: Vec<Preemption>,
    /// Running work that moves.
    pub migrations: Vec<Migration>,
    /// Waiting work whose room is kept while victims leave.
    pub nominations: Vec<Nomination>,
    /// Devices whose instances or mode change.
    pub slice_changes: Vec<SliceChange>,
    /// Starts in the future that backfill keeps.
    pub reservations: Vec<Reservation>,
    /// Why everything that waits does.
    pub waiting: Vec<Waiting>,
    /// What every team has of every pool after the plan.
    pub shares: Vec<Share>,
}

/// One worker's node and devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerPlace {
    /// The node.
    pub node: String,
    /// Its devices, by index.
    pub devices: Vec<DevicePlace>,
}

/// A device, or the part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlace {
    /// The device's index on its node.
    pub index: u32,
    /// The mode in which it is given out.
    pub mode: domain::sharing::SharingMode,
    /// The profile of a MIG instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
    /// Where the MIG instance begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// The part of the device.
    pub gpus: MilliGpu,
    /// The memory of a fraction, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
}

impl From<&Placed> for WorkerPlace {
    fn from(placed: &Placed) -> Self {
        let mut devices: Vec<DevicePlace> = placed.devices.iter().map(DevicePlace::from).collect();
        devices.sort_by_key(|d| (d.index, d.start));
        Self {
            node: placed.node.clone(),
            devices,
        }
    }
}

impl From<&PlacedDevice> for DevicePlace {
    fn from(device: &PlacedDevice) -> Self {
        Self {
            index: device.index,
            mode: device.mode,
            mig: device.mig.clone(),
            start: device.start,
            gpus: device.gpus,
            memory_mib: device.memory_mib,
        }
    }
}

impl From<&WorkerPlace> for Placed {
    fn from(place: &WorkerPlace) -> Self {
        let devices = place.devices.iter().map(|d| PlacedDevice {
            index: d.index,
            mode: d.mode,
            gpus: d.gpus,
            memory_mib: d.memory_mib,
            mig: d.mig.clone(),
            start: d.start,
        });
        Self {
            node: place.node.clone(),
            devices: devices.collect(),
        }
    }
}

/// A workload that runs now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Start {
    /// The workload.
    pub workload: String,
    /// With how many workers.
    pub workers: u32,
    /// Where, one entry for each worker in order of rank.
    pub placement: Vec<WorkerPlace>,
}

/// A running workload that grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resize {
    /// The workload.
    pub workload: String,
    /// Its workers now.
    pub from: u32,
    /// Its workers then.
    pub to: u32,
    /// Where the added ones are.
    pub placement: Vec<WorkerPlace>,
}

/// By which rule a workload gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A team takes its guarantee back.
    Reclaim,
    /// Work of higher priority of the same team.
    Priority,
    /// Another borrower has less.
    Share,
    /// It is shrunk, and goes on with fewer workers.
    Shrink,
    /// It moves to make room.
    Consolidation,
    /// Booked capacity begins.
    Reservation,
    /// Its node is emptied.
    Drain,
}

impl Reason {
    /// Its word, in plans and wherever it is kept.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::Priority => "priority",
            Self::Share => "share",
            Self::Shrink => "shrink",
            Self::Consolidation => "consolidation",
            Self::Reservation => "reservation",
            Self::Drain => "drain",
        }
    }
}

/// A workload that loses its devices, or its highest ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Preemption {
    /// The victim.
    pub workload: String,
    /// Who gains.
    #[serde(rename = "for")]
    pub gainer: Option<String>,
    /// By which rule.
    pub reason: Reason,
    /// The work that is thrown away.
    pub lost_gpu_seconds: i64,
    /// The workers that stay.
    pub to_workers: u32,
    /// The ranks that go.
    pub released: Vec<u32>,
}

/// A running workload that moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// The mover.
    pub workload: String,
    /// For whom it makes room.
    #[serde(rename = "for")]
    pub gainer: Option<String>,
    /// Where it goes.
    pub placement: Vec<WorkerPlace>,
}

/// Room that is kept for a workload while victims leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nomination {
    /// Who will start.
    pub workload: String,
    /// Where.
    pub placement: Vec<WorkerPlace>,
    /// Who has to leave first.
    pub waits_for: Vec<String>,
}

/// An instance of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Instance {
    /// Its profile.
    pub profile: String,
    /// Where it begins.
    pub start: u32,
}

/// A device whose instances or mode change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SliceChange {
    /// The node.
    pub node: String,
    /// The device.
    pub index: u32,
    /// Instances that are made.
    pub create: Vec<Instance>,
    /// Idle instances that are unmade.
    pub destroy: Vec<Instance>,
    /// The mode to which the device is switched.
    pub mode: Option<domain::sharing::SharingMode>,
}

/// A start in the future.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reservation {
    /// Who will start.
    pub workload: String,
    /// When.
    #[serde(serialize_with = "time")]
    pub start: Timestamp,
    /// On which nodes.
    pub nodes: Vec<String>,
}

/// Why a workload waits; the order is that of the contract, the first that holds is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A person stopped it.
    Suspended,
    /// Its time has not come.
    NotYet,
    /// Something that it waits for has not ended well.
    Dependency,
    /// Nothing starts in its pools.
    PoolClosed,
    /// No registered nodes could ever hold it.
    NeverFits,
    /// Its team has no row for its pools.
    NoQuota,
    /// There is no such model, or no node that drives the mode.
    NoSuchHardware,
    /// Its team's limit, or what is lent, or what one user may hold.
    OverLimit,
    /// The limit of a team above its own.
    AncestorOverLimit,
    /// It may not be preempted, and so may not borrow.
    NonPreemptibleOverGuarantee,
    /// A budget stopped it.
    OverBudget,
    /// Its victims have not left.
    WaitingForVictims,
    /// It would fit but for its domain, links or affinity.
    Topology,
    /// The free amounts would do, no placement does.
    Fragmented,
    /// Only a rule of policy keeps it from making room.
    PreemptionNotAllowed,
    /// There is too little.
    InsufficientCapacity,
    /// What is free is kept for another.
    HeldForReservation,
    /// What is free goes to those before it.
    BehindInOrder,
}

impl Code {
    /// The word of the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "suspended",
            Self::NotYet => "not_yet",
            Self::Dependency => "dependency",
            Self::PoolClosed => "pool_closed",
            Self::NeverFits => "never_fits",
            Self::NoQuota => "no_quota",
            Self::NoSuchHardware => "no_such_hardware",
            Self::OverLimit => "over_limit",
            Self::AncestorOverLimit => "ancestor_over_limit",
            Self::NonPreemptibleOverGuarantee => "non_preemptible_over_guarantee",
            Self::OverBudget => "over_budget",
            Self::WaitingForVictims => "waiting_for_victims",
            Self::Topology => "topology",
            Self::Fragmented => "fragmented",
            Self::PreemptionNotAllowed => "preemption_not_allowed",
            Self::InsufficientCapacity => "insufficient_capacity",
            Self::HeldForReservation => "held_for_reservation",
            Self::BehindInOrder => "behind_in_order",
        }
    }
}

/// Why one workload waits, and what would help. Equal work is told the same: its texts and counts are shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The workload.
    pub workload: String,
    /// The pool that this is said of: of those that it accepts the one that brings it nearest to a start.
    #[serde(serialize_with = "optional_shared")]
    pub pool: Option<Arc<str>>,
    /// The binding cause.
    pub code: Code,
    /// What binds: a team, a pool, a node label.
    #[serde(serialize_with = "shared")]
    pub scope: Arc<str>,
    /// One sentence for people.
    #[serde(serialize_with = "shared")]
    pub message: Arc<str>,
    /// GPUs that it needs: of work whose size may change at the least.
    pub need: MilliGpu,
    /// GPUs that work whose size may change takes at the most; nothing of any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need_max: Option<MilliGpu>,
    /// GPUs that there are for it where it binds.
    pub have: MilliGpu,
    /// Nodes by the first reason for which they do not do.
    #[serde(serialize_with = "shared")]
    pub counts: Arc<BTreeMap<String, u64>>,
    /// Its place among those that wait in its pool, from 1.
    pub rank: Option<u64>,
    /// When it would start by the ends that are known.
    #[serde(serialize_with = "optional_time")]
    pub expected_start: Option<Timestamp>,
    /// What has come about by then that it waits for; nothing where no start is estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_once: Option<Once>,
    /// Changes that would start it now.
    pub remedies: Vec<Remedy>,
}

/// What lets work start at the moment at which it is expected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Once {
    /// Enough of what runs has ended.
    Ended,
    /// Those have left who make room for it.
    VictimsLeft,
    /// It has waited for as long as it must before it may displace others.
    DelayOver,
    /// Those have run for long enough who are protected until then.
    ProtectionOver,
    /// A booking has begun.
    BookingBegins,
    /// A booking has ended that room is kept for.
    BookingEnds,
    /// Other quotas hold.
    QuotasChange,
}

/// A change to a workload, and what it would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// New values by key, such as `per_worker.gpus`.
    pub change: BTreeMap<String, serde_json::Value>,
    /// What would happen.
    pub effect: &'static str,
}

/// What a team has of a pool after the plan, in charged amounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Its guarantee, as shrunk to what is there.
    pub guaranteed: MilliGpu,
    /// What it holds, with all below it.
    pub used: MilliGpu,
    /// What of that is above its guarantee.
    pub borrowed: MilliGpu,
    /// What others use of its guarantee.
    pub lent: MilliGpu,
    /// What it would have if everybody took what is theirs, limited by demand.
    pub fair_share: MilliGpu,
}

impl Plan {
    /// Whether it changes anything.
    pub fn idle(&self) -> bool {
        self.starts.is_empty()
            && self.resizes.is_empty()
            && self.preemptions.is_empty()
            && self.migrations.is_empty()
            && self.slice_changes.is_empty()
    }

    /// The verdict on a workload, if it waits.
    pub fn waiting_for(&self, name: &str) -> Option<&Waiting> {
        self.waiting.iter().find(|w| w.workload == name)
    }

    /// The start of a workload, if it starts.
    pub fn start_of(&self, name: &str) -> Option<&Start> {
        self.starts.iter().find(|s| s.workload == name)
    }

    /// The nomination of a workload, if it has one.
    pub fn nomination_of(&self, name: &str) -> Option<&Nomination> {
        self.nominations.iter().find(|n| n.workload == name)
    }
}

fn time<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*at))
}

fn optional_time<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, serializer),
        None => serializer.serialize_none(),
    }
}

fn shared<T: Serialize + ?Sized, S: Serializer>(
    value: &Arc<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().serialize(serializer)
}

fn optional_shared<S: Serializer>(
    value: &Option<Arc<str>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_deref().serialize(serializer)
}
