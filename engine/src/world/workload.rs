//! Work as the planner sees it: a job, or one replica of a service.

use std::collections::BTreeMap;

use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use domain::spec::{
    CLASS_DEFAULT, NvlinkRule, PerWorker, RESTART_SECONDS_DEFAULT, Topology, WorkloadKind,
};
use domain::{MilliGpu, Timestamp};

/// Where a workload stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadState {
    /// It has no devices.
    Waiting,
    /// It holds what `placed` says.
    Running,
    /// A victim or mover in its grace: it still holds its devices.
    Leaving,
    /// A person stopped it for a while.
    Suspended,
}

/// One worker as placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The node.
    pub node: String,
    /// Its devices or slices, by index.
    pub devices: Vec<PlacedDevice>,
}

/// A device, or the part of one, that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacedDevice {
    /// The device's index on its node.
    pub index: u32,
    /// The mode in which it is given out.
    pub mode: SharingMode,
    /// The part of it, in thousandths.
    pub gpus: MilliGpu,
    /// The memory of a fraction, in MiB.
    pub memory_mib: Option<i64>,
    /// The profile of a MIG instance.
    pub mig: Option<String>,
    /// Where the MIG instance begins.
    pub start: Option<u32>,
}

impl PlacedDevice {
    /// A whole device.
    pub fn whole(index: u32) -> Self {
        Self {
            index,
            mode: SharingMode::Exclusive,
            gpus: MilliGpu::whole(1),
            memory_mib: None,
            mig: None,
            start: None,
        }
    }

    /// A fraction of a device.
    pub fn fraction(index: u32, mode: SharingMode, gpus: MilliGpu, memory_mib: i64) -> Self {
        Self {
            index,
            mode,
            gpus,
            memory_mib: Some(memory_mib),
            mig: None,
            start: None,
        }
    }
}

/// Room that an earlier plan keeps for a waiting workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nominated {
    /// One entry for each worker.
    pub placement: Vec<Placed>,
    /// When the room is given up.
    pub until: Timestamp,
}

/// A job, or one replica of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its name; the server's are ids.
    pub name: String,
    /// The team that it belongs to.
    pub team: String,
    /// Who submitted it.
    pub user: Option<String>,
    /// What it is for.
    pub kind: WorkloadKind,
    /// Its priority class.
    pub class: String,
    /// When it was submitted; a requeue keeps it.
    pub submitted: Timestamp,
    /// Not started before.
    pub not_before: Option<Timestamp>,
    /// What must have ended well; what is not in the world has.
    pub after: Vec<String>,
    /// Acceptable pools, best first; empty is all.
    pub pools: Vec<String>,
    /// Workers, all or none.
    pub workers: u32,
    /// Elastic work: the least workers.
    pub min_workers: Option<u32>,
    /// What each worker needs.
    pub per_worker: PerWorker,
    /// Labels that the node must have.
    pub selector: BTreeMap<String, String>,
    /// Where its workers should lie.
    pub topology: Topology,
    /// Whether a worker's devices must be linked.
    pub nvlink: NvlinkRule,
    /// A label whose values the replicas of a service do not share.
    pub anti_affinity: Option<String>,
    /// Pinned placement.
    pub node: Option<String>,
    /// The longest run, in seconds.
    pub time_limit_seconds: Option<i64>,
    /// The expected run, in seconds.
    pub predicted_seconds: Option<i64>,
    /// Overrides the class.
    pub preemptible: Option<bool>,
    /// It checkpoints each so many seconds from its start.
    pub checkpoint_seconds: Option<i64>,
    /// What a restart costs, in seconds.
    pub restart_seconds: i64,
    /// For a replica: its service.
    pub service: Option<String>,
    /// Where it stands.
    pub state: WorkloadState,
    /// When it started.
    pub started: Option<Timestamp>,
    /// For leaving work: when it is gone.
    pub leaves_at: Option<Timestamp>,
    /// Preemptions that it suffered in the last 24 hours.
    pub preemptions_today: u32,
    /// Room that an earlier plan keeps for it.
    pub nominated: Option<Nominated>,
    /// For running and leaving work: one entry for each worker, in order of rank.
    pub placed: Vec<Placed>,
}

impl Workload {
    /// A waiting job of one worker that needs whole devices and one core each.
    pub fn waiting(name: &str, team: &str, gpus: i64, submitted: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            team: team.to_owned(),
            user: None,
            kind: WorkloadKind::Batch,
            class: CLASS_DEFAULT.to_owned(),
            submitted,
            not_before: None,
            after: Vec::new(),
            pools: Vec::new(),
            workers: 1,
            min_workers: None,
            per_worker: PerWorker {
                gpus: Some(MilliGpu::whole(gpus)),
                ..PerWorker::default()
            },
            selector: BTreeMap::new(),
            topology: Topology::default(),
            nvlink: NvlinkRule::Prefer,
            anti_affinity: None,
            node: None,
            time_limit_seconds: None,
            predicted_seconds: None,
            preemptible: None,
            checkpoint_seconds: None,
            restart_seconds: RESTART_SECONDS_DEFAULT,
            service: None,
            state: WorkloadState::Waiting,
            started: None,
            leaves_at: None,
            preemptions_today: 0,
            nominated: None,
            placed: Vec::new(),
        }
    }

    /// The same, running since `started` on whole devices of one node.
    #[must_use]
    pub fn running_on(mut self, node: &str, devices: &[u32], started: Timestamp) -> Self {
        self.state = WorkloadState::Running;
        self.started = Some(started);
        self.placed = vec![Placed {
            node: node.to_owned(),
            devices: devices
                .iter()
                .map(|&index| PlacedDevice::whole(index))
                .collect(),
        }];
        self
    }

    /// The same in another class.
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        self.class = class.to_owned();
        self
    }

    /// The same with so many workers.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// The same, asking for a fraction of a device in one mode.
    #[must_use]
    pub fn fraction(mut self, mode: SharingMode, gpus: MilliGpu, memory_mib: Option<i64>) -> Self {
        self.per_worker.gpus = Some(gpus);
        self.per_worker.gpu_memory_mib = memory_mib;
        self.per_worker.sharing = vec![mode];
        self
    }

    /// The least workers with which it runs.
    pub fn workers_least(&self) -> u32 {
        self.min_workers.unwrap_or(self.workers)
    }

    /// How many devices, or instances of them, each of its workers has: a part is of one.
    pub fn devices_each(&self) -> usize {
        let milli = self.per_worker.gpus().milli();
        let whole = usize::try_from(milli / MILLI).unwrap_or(0);
        if milli > 0 { whole.max(1) } else { 0 }
    }

    /// How long a run is expected to take: the prediction, else the limit.
    pub fn length_seconds(&self) -> Option<i64> {
        self.predicted_seconds.or(self.time_limit_seconds)
    }
}
