//! The node: what it was told to hold, and one task per assignment that makes it so.

mod admission;
mod claims;
pub mod devices;
mod environment;
mod launch;
mod memory;
mod reconcile;
mod rights;
mod sweep;
mod workdir;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::ids::AssignmentId;
use domain::state::AssignmentPhase;
use protocol::wire;
use tokio::sync::watch;

use crate::config::Config;
use crate::folders::Folders;
use crate::gpus::Snapshot;
use crate::gpus::cut::Cutter;
use crate::journal::{Journal, State};
use crate::lease::Lease;
use crate::mps::Mps;
use crate::supervise::cgroup::Cgroups;

pub use memory::watch as watch_memory;
pub use reconcile::{Command, reconcile};
pub use sweep::recover;

/// The ways in which it can run work.
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
    /// Cuts them by MIG.
    pub cutter: Cutter,
    /// Shares them by MPS.
    pub mps: Mps,
    /// The node's lease.
    pub lease: Lease,
    /// How limits are enforced.
    pub cgroups: Cgroups,
    /// Whether jobs run as their team's user.
    pub isolated: bool,
    /// Time between SIGTERM and SIGKILL where nobody says otherwise, as the server last
    /// told, in milliseconds.
    pub kill_grace_ms: std::sync::atomic::AtomicI64,
    claims: Mutex<claims::Claims>,
    phases: Mutex<BTreeMap<AssignmentId, AssignmentPhase>>,
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
    /// The node's lease.
    pub lease: Lease,
    /// How limits are enforced.
    pub cgroups: Cgroups,
}

/// Time between SIGTERM and SIGKILL until a server has said otherwise, in milliseconds.
const KILL_GRACE_MS: i64 = 30_000;

impl Node {
    /// Puts a node together.
    pub fn new(parts: Parts) -> Self {
        let cutter = Cutter::new(
            parts.config.nvml_library.clone(),
            parts.config.mig,
            parts.config.mig_keep,
            parts.folders.cuts(),
        );
        let mps = Mps::look(parts.config.mps_control.as_deref(), parts.folders.mps());
        Self {
            cutter,
            mps,
            config: parts.config,
            folders: parts.folders,
            journal: parts.journal,
            gpus: parts.gpus,
            lease: parts.lease,
            cgroups: parts.cgroups,
            isolated: nix::unistd::geteuid().is_root(),
            kill_grace_ms: std::sync::atomic::AtomicI64::new(KILL_GRACE_MS),
            claims: Mutex::default(),
            phases: Mutex::default(),
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
