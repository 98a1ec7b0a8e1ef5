//! What a person asks for when submitting a job, and the checks that need no database.

mod check;
mod image;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::name::{JobName, Name};
use crate::sharing::SharingMode;
use crate::text_enum::text_enum;
use crate::{MilliCpu, MilliGpu, Timestamp};

pub use check::{
    ARRAY_COUNT_MAX, FAULTS_MAX, FILES_BYTES_MAX, FILES_MAX, GPUS_PER_WORKER_MAX, RETRIES_MAX,
    WORKERS_MAX, bounds, takes, whole_number,
};

text_enum!(
    /// What a workload is for.
    WorkloadKind, "kind" {
        /// Trains a model; long, wants many devices.
        Training = "training",
        /// Any other work that ends.
        Batch = "batch",
        /// A person sits before it.
        Interactive = "interactive",
        /// A replica of a service.
        Inference = "inference",
    }
);

text_enum!(
    /// What a job is for; a replica of a service is no job.
    JobKind, "kind" {
        /// Trains a model; long, wants many devices.
        Training = "training",
        /// Any other work that ends.
        Batch = "batch",
        /// A person sits before it.
        Interactive = "interactive",
    }
);

impl From<JobKind> for WorkloadKind {
    fn from(kind: JobKind) -> Self {
        match kind {
            JobKind::Training => Self::Training,
            JobKind::Batch => Self::Batch,
            JobKind::Interactive => Self::Interactive,
        }
    }
}

text_enum!(
    /// Whether the devices of a worker must be linked.
    NvlinkRule, "nvlink" {
        /// Linked devices before others.
        Prefer = "prefer",
        /// Only devices of one clique.
        Require = "require",
        /// Links do not matter.
        Any = "any",
    }
);

text_enum!(
    /// What a node that is cut off from the control plane does with a job.
    PartitionPolicy, "on_partition" {
        /// Stops it when the lease ends, so that it can run elsewhere.
        Stop = "stop",
        /// Keeps it; it is not placed again before the node answers or is declared dead.
        Keep = "keep",
    }
);

text_enum!(
    /// What carries a job's processes.
    Runner, "runner" {
        /// A process group on the machine.
        Process = "process",
        /// A container.
        Container = "container",
        /// A virtual machine.
        Vm = "vm",
    }
);

text_enum!(
    /// An end after which a job may be tried again at its owner's charge.
    RetryOn, "retries.on" {
        /// It ended with a non-zero exit code, by a signal or out of memory.
        Failure = "failure",
        /// It ran into its time limit.
        TimeLimit = "time_limit",
    }
);

/// What one worker needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PerWorker {
    /// Whole devices, or a fraction under 1; with `mig_profile` how many instances.
    /// Absent: 1 with `mig_profile`, else 0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub gpus: Option<MilliGpu>,
    /// The device model it needs.
    pub gpu_model: Option<String>,
    /// Least memory of the device, or of the fraction, in MiB.
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub gpu_memory_mib: Option<i64>,
    /// A MIG profile such as `1g.10gb`.
    pub mig_profile: Option<String>,
    /// The sharing modes that it accepts.
    pub sharing: Vec<SharingMode>,
    /// CPU cores.
    pub cpus: MilliCpu,
    /// Memory of the host in MiB.
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub memory_mib: i64,
}

/// Reads a value that may be left out and is never null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MilliGpu>, D::Error> {
    MilliGpu::deserialize(deserializer).map(Some)
}

impl Default for PerWorker {
    fn default() -> Self {
        Self {
            gpus: None,
            gpu_model: None,
            gpu_memory_mib: None,
            mig_profile: None,
            sharing: vec![SharingMode::Exclusive],
            cpus: MilliCpu::ZERO,
            memory_mib: 0,
        }
    }
}

impl PerWorker {
    /// The GPU amount asked for, with the default applied.
    pub fn gpus(&self) -> MilliGpu {
        self.gpus.unwrap_or(if self.mig_profile.is_some() {
            MilliGpu::whole(1)
        } else {
            MilliGpu::ZERO
        })
    }

    /// Whether it asks for a part of a device rather than whole ones.
    pub fn fraction(&self) -> bool {
        let gpus = self.gpus();
        self.mig_profile.is_none() && gpus > MilliGpu::ZERO && gpus < MilliGpu::whole(1)
    }
}

/// Where a gang's workers should lie, by a node label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// All workers must lie in one domain of this label.
    pub require: Option<String>,
    /// All workers should lie in one domain of this label.
    pub prefer: Option<String>,
}

/// When and how often a job is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Retries {
    /// Most further attempts; 0 is none.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub limit: u32,
    /// The ends that are tried again.
    pub on: Vec<RetryOn>,
}

/// An array of jobs that ask for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// How many elements it has: those with the indices from 0 to one less.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub count: u32,
    /// Most elements that hold their places at once; absent: as many as find one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    pub at_most: Option<u32>,
}

/// Everything a person says of a job. Unknown fields are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The job's name; need not be unique.
    pub name: JobName,
    /// What it is for: training, batch or interactive.
    #[serde(default = "default_kind")]
    pub kind: JobKind,
    /// Its priority class.
    #[serde(default = "default_class")]
    pub class: Name,
    /// Acceptable pools, best first; empty is all.
    #[serde(default)]
    pub pools: Vec<Name>,
    /// The program and its arguments; no shell reads them.
    pub command: Vec<String>,
    /// The container image, with runner `container`.
    #[serde(default)]
    pub image: Option<String>,
    /// What carries its processes.
    #[serde(default = "default_runner")]
    pub runner: Runner,
    /// Environment variables of the job.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A folder below a root that the agent's configuration names.
    #[serde(default)]
    pub working_directory: Option<String>,
    /// Small texts that are laid into the job's own folder, by relative path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Workers, placed all or none.
    #[serde(default = "default_workers")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
    pub workers: u32,
    /// Elastic work: the least workers that it starts with.
    #[serde(default)]
    pub min_workers: Option<u32>,
    /// What each worker needs.
    #[serde(default)]
    pub per_worker: PerWorker,
    /// Node labels that must match.
    #[serde(default)]
    pub selector: BTreeMap<String, String>,
    /// Where its workers should lie.
    #[serde(default)]
    pub topology: Topology,
    /// Whether a worker's devices must be linked.
    #[serde(default = "default_nvlink")]
    pub nvlink: NvlinkRule,
    /// A label whose values its replicas must not share.
    #[serde(default)]
    pub anti_affinity: Option<String>,
    /// The one node that it may run on.
    #[serde(default)]
    pub node: Option<Name>,
    /// Not started before this time.
    #[serde(default, deserialize_with = "crate::time::read")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub not_before: Option<Timestamp>,
    /// Ids of jobs that must have ended well; of an array, all its elements. In a batch `#0` is the
    /// batch's first job, which only one behind it may follow.
    #[serde(default)]
    pub after: Vec<String>,
    /// Makes it an array: so many jobs, told apart by an index from 0.
    #[serde(default)]
    pub array: Option<Array>,
    /// Longest run of one attempt, in seconds.
    #[serde(default)]
    pub time_limit_seconds: Option<i64>,
    /// How long it is expected to run, in seconds.
    #[serde(default)]
    pub predicted_seconds: Option<i64>,
    /// Whether it may be preempted; absent: as its class says.
    #[serde(default)]
    pub preemptible: Option<bool>,
    /// It saves its state every so many seconds.
    #[serde(default)]
    pub checkpoint_seconds: Option<i64>,
    /// What a restart costs, in seconds.
    #[serde(default = "default_restart_seconds")]
    pub restart_seconds: i64,
    /// When and how often it is tried again.
    #[serde(default)]
    pub retries: Retries,
    /// What a node that is cut off does with it.
    #[serde(default = "default_on_partition")]
    pub on_partition: PartitionPolicy,
    /// Labels for people; they decide nothing.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The class of a job that names none; it is never removed.
pub const CLASS_DEFAULT: &str = "normal";

/// What a restart costs unless a job says otherwise, in seconds.
pub const RESTART_SECONDS_DEFAULT: i64 = 120;

fn default_kind() -> JobKind {
    JobKind::Batch
}
fn default_class() -> Name {
    CLASS_DEFAULT.parse().expect("a well-formed name")
}
fn default_runner() -> Runner {
    Runner::Process
}
fn default_workers() -> u32 {
    1
}
fn default_nvlink() -> NvlinkRule {
    NvlinkRule::Prefer
}
fn default_restart_seconds() -> i64 {
    RESTART_SECONDS_DEFAULT
}
fn default_on_partition() -> PartitionPolicy {
    PartitionPolicy::Stop
}
