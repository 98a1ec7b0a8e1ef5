//! The node: what it was told to hold, and one task per assignment that makes it so.

mod admission;
mod claims;
mod clear;
pub mod containers;
pub mod devices;
mod disk;
mod environment;
mod gate;
mod launch;
pub mod layout;
mod memory;
mod probe;
mod reconcile;
mod rights;
mod sampling;
mod sweep;
pub mod walls;
mod wipe;
mod workdir;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ids::{AssignmentId, TeamId};
use domain::state::AssignmentPhase;
use protocol::wire;
use tokio::sync::watch;

use crate::config::Config;
use crate::exporter::Board;
use crate::folders::Folders;
use crate::gpus::Snapshot;
use crate::gpus::cut::{Cutter, Rules};
use crate::gpus::health::Health;
use crate::gpus::layout::{Layout, words_on_absent};
use crate::gpus::permission;
use crate::journal::{Journal, State};
use crate::lease::Lease;
use crate::mps::{self, Mps};
use crate::supervise::cgroup::Cgroups;
use crate::telemetry::buffer::Buffer;

pub use containers::watch as watch_containers;
pub use disk::watch as watch_disk;
pub use gate::watch as watch_gate;
pub use layout::keep as keep_layout;
pub use memory::watch as watch_memory;
pub use probe::watch as watch_probes;
pub use reconcile::{Command, reconcile};
pub use sampling::watch as watch_samples;
pub use sweep::recover;

use layout::Misfit;
use walls::Walls;

/// The ways in which any node can run work; see [`containers::runners`].
pub const RUNNERS: [&str; 1] = ["process"];

/// What all parts of a running agent share.
pub struct Node {
    /// The settings.
    pub config: Config,
    /// Where things lie.
    pub folders: Folders,
    /// What must not be forgotten.
    pub journal: Journal,
    /// The GPUs.
    pub gpus: watch::Receiver<Snapshot>,
    /// How they do.
    pub health: Arc<Health>,
    /// Keeps those out that are not free.
    pub gate: gate::Gate,
    /// The disk with its state and its jobs' files.
    pub disk: disk::Disk,
    /// What is to be said of the machine's clock.
    pub clock_warning: watch::Sender<Option<String>>,
    /// What is known of the container runtime.
    pub containers: watch::Sender<containers::Seen>,
    /// What they did, until it is sent.
    pub samples: Buffer,
    /// What was read of them last, for scrapers.
    pub board: Arc<Board>,
    /// Cuts them by MIG.
    pub cutter: Cutter,
    /// Shares them by MPS.
    pub mps: Mps,
    /// The node's lease.
    pub lease: Lease,
    /// How limits are enforced.
    pub cgroups: Cgroups,
    /// What keeps jobs apart.
    pub walls: Walls,
    /// Whether jobs run as their team's user.
    pub isolated: bool,
    /// Time between SIGTERM and SIGKILL where nobody says otherwise, as the server last
    /// told, in milliseconds.
    pub kill_grace_ms: std::sync::atomic::AtomicI64,
    claims: Mutex<claims::Claims>,
    phases: Mutex<BTreeMap<AssignmentId, AssignmentPhase>>,
    /// What keeps devices from being cut by the layout, by UUID.
    misfits: watch::Sender<BTreeMap<String, layout::Misfit>>,
    /// Held by who makes a job's checkpoint folder and by who puts an old one aside.
    checkpoints: Mutex<()>,
}

/// What [`Node::new`] is made of.
pub struct Parts {
    /// The settings.
    pub config: Config,
    /// Where things lie.
    pub folders: Folders,
    /// What must not be forgotten.
    pub journal: Journal,
    /// The GPUs.
    pub gpus: watch::Receiver<Snapshot>,
    /// How they do.
    pub health: Arc<Health>,
    /// The node's lease.
    pub lease: Lease,
    /// How limits are enforced.
    pub cgroups: Cgroups,
    /// How devices are cut whatever jobs ask.
    pub layout: Option<Layout>,
    /// What keeps jobs apart.
    pub walls: Walls,
}

/// Time between SIGTERM and SIGKILL until a server has said otherwise, in milliseconds.
const KILL_GRACE_MS: i64 = 30_000;

impl Node {
    /// Puts a node together.
    pub fn new(parts: Parts) -> Self {
        let capability = permission::capability(parts.config.mig_capability.as_deref());
        let rules = Rules {
            policy: parts.config.mig,
            keep: parts.config.mig_keep,
            permitted: permission::may_cut(capability),
            layout: parts.layout,
        };
        let library = parts.config.nvml_library.clone();
        let cutter = Cutter::new(library, rules, parts.folders.cuts());
        let isolated = nix::unistd::geteuid().is_root();
        let sharing = mps::Rules {
            program: parts.config.mps_control.clone(),
            across_teams: parts.config.mps_across_teams,
            memory_mib: parts.config.mps_memory_mib_max,
            isolated,
        };
        let mps = Mps::look(
            sharing,
            parts.folders.mps(),
            parts.config.nvml_library.clone(),
            parts.cgroups.clone(),
        );
        let disk = disk::Disk::new(parts.folders.clone(), parts.config.disk_bytes_min);
        Self {
            cutter,
            mps,
            disk,
            clock_warning: watch::channel(None).0,
            containers: watch::channel(containers::Seen::Unset).0,
            config: parts.config,
            folders: parts.folders,
            journal: parts.journal,
            gpus: parts.gpus,
            health: parts.health,
            gate: gate::Gate::default(),
            samples: Buffer::default(),
            board: Arc::default(),
            lease: parts.lease,
            cgroups: parts.cgroups,
            walls: parts.walls,
            isolated,
            kill_grace_ms: std::sync::atomic::AtomicI64::new(KILL_GRACE_MS),
            claims: Mutex::default(),
            phases: Mutex::default(),
            misfits: watch::channel(BTreeMap::new()).0,
            checkpoints: Mutex::default(),
        }
    }

    /// All that the node holds by its journal, for a hello, with the phases that their tasks are in.
    pub fn held(&self, journal: &State) -> Vec<wire::Held> {
        let phases = self.phases();
        let held = journal.kept.values().map(|kept| {
            // Without a phase its task has yet to begin, or has all but ended.
            let phase = match phases.get(&kept.assignment_id) {
                Some(phase) => *phase,
                None if kept.ended => AssignmentPhase::Cleaning,
                None => AssignmentPhase::HandedOver,
            };
            wire::Held {
                assignment_id: kept.assignment_id.to_string(),
                attempt_id: kept.attempt_id.to_string(),
                phase: phase.to_string(),
            }
        });
        held.collect()
    }

    /// Whose jobs are on a device, each team once, but for those that are being ended: what they err by then is
    /// the end's.
    pub fn teams_on(&self, uuid: &str) -> Vec<TeamId> {
        let ending: BTreeSet<AssignmentId> = self
            .phases()
            .iter()
            .filter(|(_, phase)| {
                !matches!(
                    phase,
                    AssignmentPhase::HandedOver | AssignmentPhase::Running
                )
            })
            .map(|(id, _)| *id)
            .collect();
        self.claims().teams_on(uuid, &ending)
    }

    fn set_phase(&self, id: AssignmentId, phase: AssignmentPhase) {
        self.phases().insert(id, phase);
    }

    fn drop_phase(&self, id: AssignmentId) {
        self.phases().remove(&id);
    }

    /// Keeps the folders of checkpoints as they are for as long as it is held.
    pub fn checkpoints_settled(&self) -> MutexGuard<'_, ()> {
        self.checkpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sentences on devices that are not cut by the layout, and on those that it names and that are not there.
    pub fn layout_warnings(&self) -> Vec<String> {
        let absent = {
            let gpus = self.gpus.borrow();
            let places: Vec<u32> = gpus.devices.iter().map(|device| device.index).collect();
            // Before anything was listed nobody knows what is there.
            gpus.listed.then(|| self.cutter.absent(&places))
        };
        let absent = absent.and_then(|absent| words_on_absent(&absent));
        let misfits = self.misfits.borrow();
        let misfits = misfits.values().map(|misfit| misfit.words.clone());
        absent.into_iter().chain(misfits).collect()
    }

    /// Sees each change of what keeps devices from being cut by the layout.
    pub fn layout_changes(&self) -> watch::Receiver<BTreeMap<String, Misfit>> {
        self.misfits.subscribe()
    }

    /// Gives up what an assignment has of the node's devices.
    fn give_up(&self, id: AssignmentId) {
        self.claims().release(id);
        self.drop_phase(id);
    }

    fn phases(&self) -> MutexGuard<'_, BTreeMap<AssignmentId, AssignmentPhase>> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self) -> MutexGuard<'_, claims::Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
