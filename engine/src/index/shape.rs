//! What makes two workloads alike: those of one shape fit or fail together.

use std::collections::BTreeMap;

use domain::spec::{NvlinkRule, PerWorker, Topology, WorkloadKind};

use crate::world::Workload;

/// All of a workload that placement and limits look at.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Shape<'w> {
    per_worker: &'w PerWorker,
    workers: (u32, Option<u32>),
    selector: &'w BTreeMap<String, String>,
    topology: &'w Topology,
    nvlink: NvlinkRule,
    spread: (Option<&'w str>, Option<&'w str>),
    node: Option<&'w str>,
    user: Option<&'w str>,
    class: (&'w str, Option<bool>),
    /// Work that serves is drawn to instances that are there.
    serves: bool,
}

impl<'w> Shape<'w> {
    pub fn of(row: &'w Workload) -> Self {
        Self {
            per_worker: &row.per_worker,
            workers: (row.workers, row.min_workers),
            selector: &row.selector,
            topology: &row.topology,
            nvlink: row.nvlink,
            spread: (row.service.as_deref(), row.anti_affinity.as_deref()),
            node: row.node.as_deref(),
            user: row.user.as_deref(),
            class: (&row.class, row.preemptible),
            serves: row.kind == WorkloadKind::Inference && row.per_worker.mig_profile.is_some(),
        }
    }
}
