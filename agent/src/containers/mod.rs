//! The container runner: jobs as containers of Docker or Podman, by the API that both speak over a
//! unix socket.
//!
//! A container has the supervisor that a process has ([`crate::supervise`]): it pulls the image, makes the
//! container, keeps its output within the log's bound, enforces stop, grace and lease, and writes how it
//! ended. The agent only asks whether the runtime answers and clears away what nobody holds any more.

mod body;
mod engine;
mod image;
mod images;
mod output;
pub mod settings;
mod strays;
mod supervise;
mod wishes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::ids::AssignmentId;
use serde::{Deserialize, Serialize};

use settings::Pull;

pub use engine::{Runtime, look};
pub use images::{clean as clean_images, note as note_image};
pub use strays::{remove, remove_strays};
pub use supervise::run;

/// The label with the assignment that a container runs.
const LABEL_ASSIGNMENT: &str = "allotment.assignment";
/// The label with the state folder of the agent whose container it is: one runtime may serve several.
const LABEL_AGENT: &str = "allotment.agent";

/// What a supervisor must know of a job's container beside what it must know of any job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Container {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The image, as the job names it.
    pub image: String,
    /// When it is pulled.
    pub pull: Pull,
    /// For how long pulling may take, in seconds.
    pub pull_seconds_max: u64,
    /// The state folder of the agent.
    pub agent: String,
    /// Folders of the machine that it finds.
    pub mounts: Vec<Mount>,
    /// Its devices.
    pub devices: Devices,
    /// Where its process starts.
    pub directory: PathBuf,
    /// How much shared memory it has, in MiB.
    pub shared_memory_mib: i64,
    /// The network that it is in.
    pub network: String,
    /// Whether an init of the runtime's passes on signals and collects orphans.
    pub init: bool,
    /// The control group below which it is, where the runtime takes one of ours.
    pub parent: Option<String>,
}

/// A folder of the machine that a container finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The folder.
    pub from: PathBuf,
    /// Where.
    pub to: PathBuf,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// How a container gets at its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// What the runtime is asked for by name.
    pub named: Named,
    /// Device files: those of the machine, and the names that it finds them by.
    pub files: BTreeMap<PathBuf, PathBuf>,
}

/// Devices that a runtime is asked for by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    /// None.
    #[default]
    None,
    /// By the Container Device Interface, under these names.
    Cdi(Vec<String>),
    /// By a request to the runtime's own driver, by UUID.
    Request(Vec<String>),
}

/// What a container of an assignment is called.
pub fn name(id: &str) -> String {
    format!("allotment-{id}")
}

/// The assignment that a container's labels name.
fn assignment_of(labels: &std::collections::HashMap<String, String>) -> Option<AssignmentId> {
    labels.get(LABEL_ASSIGNMENT)?.parse().ok()
}
