//! Machines and their devices.

use std::collections::BTreeMap;

use domain::MilliCpu;
use domain::sharing::SharingMode;

/// Whether work starts and stays on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// Work starts.
    Ready,
    /// Nothing new starts.
    Cordoned,
    /// Nothing new starts, and what may be preempted leaves.
    Draining,
    /// Nothing new starts until it is well again: its disk is full. Scenario files have it as cordoned.
    Unhealthy,
    /// It does not answer; its devices are no capacity.
    Unreachable,
}

/// An instance of a device in MIG mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigInstance {
    /// Its profile, such as `3g.40gb`.
    pub profile: String,
    /// The memory slice at which it begins; `None` is the lowest free one.
    pub start: Option<u32>,
}

/// What a device will be once its node has cut it by a layout, which it does when nobody has a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Laid {
    /// Whole, and given out as such.
    Whole,
    /// Cut into one instance of each of these profiles, as its driver calls them.
    Into(Vec<String>),
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The pool that it is in.
    pub pool: String,
    /// Whether work starts and stays.
    pub state: NodeState,
    /// How many devices it has.
    pub gpus: u32,
    /// Their model.
    pub gpu_model: Option<String>,
    /// The memory of each, in MiB.
    pub gpu_memory_mib: i64,
    /// Its cores.
    pub cpus: MilliCpu,
    /// Its memory in MiB.
    pub memory_mib: i64,
    /// Sets of devices that are linked with one another.
    pub nvlink: Vec<Vec<u32>>,
    /// Sets of devices on one socket.
    pub numa: Vec<Vec<u32>>,
    /// Devices in MIG mode and their instances, used or idle.
    pub mig: BTreeMap<u32, Vec<MigInstance>>,
    /// Devices that are out.
    pub failed: Vec<u32>,
    /// Labels that selectors and topology name.
    pub labels: BTreeMap<String, String>,
    /// The modes that its agent can drive; `None` is all. Not part of scenario
    /// files: a mode that is not driven is hardware that is not there.
    pub drives: Option<Vec<SharingMode>>,
    /// Whether its agent lets several teams share a device by MPS where its pool does. Not part of
    /// scenario files, likewise.
    pub mps_across_teams: bool,
    /// Whether its agent leaves devices cut as they are: what is there is all that there is, whatever
    /// the pool's mode. Not part of scenario files either.
    pub mig_static: bool,
    /// Devices that its agent is about to cut, or to make whole, by a layout: nothing of them is given out until
    /// that is done. Not part of scenario files either: there it is done.
    pub mig_layout: BTreeMap<u32, Laid>,
}

impl Node {
    /// A ready node of a pool with `gpus` devices of 80 GiB and plenty of cores and memory.
    pub fn new(name: &str, pool: &str, gpus: u32) -> Self {
        Self {
            name: name.to_owned(),
            pool: pool.to_owned(),
            state: NodeState::Ready,
            gpus,
            gpu_model: Some("H100-80GB".to_owned()),
            gpu_memory_mib: 81_559,
            cpus: MilliCpu::whole(64),
            memory_mib: 524_288,
            nvlink: Vec::new(),
            numa: Vec::new(),
            mig: BTreeMap::new(),
            failed: Vec::new(),
            labels: BTreeMap::new(),
            drives: None,
            mps_across_teams: true,
            mig_static: false,
            mig_layout: BTreeMap::new(),
        }
    }

    /// The same with so many cores and MiB of memory.
    #[must_use]
    pub fn host(mut self, cpus: i64, memory_mib: i64) -> Self {
        self.cpus = MilliCpu::whole(cpus);
        self.memory_mib = memory_mib;
        self
    }

    /// The same with a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same in another state.
    #[must_use]
    pub fn state(mut self, state: NodeState) -> Self {
        self.state = state;
        self
    }
}
