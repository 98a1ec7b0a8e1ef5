//! What makes two workloads alike: those of one shape fit or fail together.

use std::collections::BTreeMap;

use domain::spec::{NvlinkRule, PerWorker, Topology, WorkloadKind};

use crate::world::Workload;

/// All of a worker that the choice of a node and of its devices looks at, beside labels of a gang.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Form<'w> {
    per_worker: &'w PerWorker,
    selector: &'w BTreeMap<String, String>,
    nvlink: NvlinkRule,
    node: Option<&'w str>,
    serves: bool,
}

impl<'w> Form<'w> {
    pub fn of(row: &'w Workload) -> Self {
        Self {
            per_worker: &row.per_worker,
            selector: &row.selector,
            nvlink: row.nvlink,
            node: row.node.as_deref(),
            serves: serves(row),
        }
    }
}

/// Work that serves is drawn to instances that are there.
fn serves(row: &Workload) -> bool {
    row.kind == WorkloadKind::Inference && row.per_worker.mig_profile.is_some()
}

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
    serves: bool,
}

impl<'w> Shape<'w> {
    /// `by_user` says that limits tell the users of its team apart.
    pub fn of(row: &'w Workload, by_user: bool) -> Self {
        Self {
            per_worker: &row.per_worker,
            workers: (row.workers, row.min_workers),
            selector: &row.selector,
            topology: &row.topology,
            nvlink: row.nvlink,
            spread: (row.service.as_deref(), row.anti_affinity.as_deref()),
            node: row.node.as_deref(),
            user: row.user.as_deref().filter(|_| by_user),
            class: (&row.class, row.preemptible),
            serves: serves(row),
        }
    }
}
