//! The environment of a job's process: built from nothing, never inherited.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::desired::Assignment;

use super::devices::View;

/// Where programs are looked for; a spec's `env` may say otherwise.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names the devices that a job sees.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The paths that a job is told of.
pub struct Places<'a> {
    /// Its own folder.
    pub home: &'a Path,
    /// Its temporary files.
    pub temporary: &'a Path,
    /// What it keeps between attempts.
    pub checkpoint: &'a Path,
    /// Where it puts what is to be kept of it.
    pub output: &'a Path,
    /// The file that tells who works with it.
    pub workers: &'a Path,
}

/// Builds the whole environment, with what it is told of its devices. What the node sets wins over the spec's `env`, but for
/// the few variables that are mere defaults.
pub fn build(
    assignment: &Assignment,
    places: &Places<'_>,
    devices: &View,
) -> BTreeMap<String, String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let defaults = [
        ("LOGNAME", assignment.team.to_string()),
        ("TMPDIR", path(places.temporary)),
        ("PATH", SEARCH_PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        // Logs are read while they are written, and Python would hold back kilobytes.
        ("PYTHONUNBUFFERED", "1".to_owned()),
    ];
    let rank = assignment.worker.to_string();
    let workers = assignment.workers.to_string();
    let set = [
        ("HOME", path(places.home)),
        ("USER", assignment.team.to_string()),
        // An empty list hides all devices from a job that has none.
        (VISIBLE, devices.names.join(",")),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("ALLOTMENT_JOB_ID", assignment.job_id.to_string()),
        ("ALLOTMENT_ATTEMPT", assignment.attempt.to_string()),
        ("ALLOTMENT_TEAM", assignment.team.to_string()),
        ("ALLOTMENT_WORKER", rank.clone()),
        ("ALLOTMENT_WORKERS", workers.clone()),
        ("ALLOTMENT_CHECKPOINT_DIR", path(places.checkpoint)),
        ("ALLOTMENT_OUTPUT_DIR", path(places.output)),
        ("ALLOTMENT_WORKERS_FILE", path(places.workers)),
        ("MASTER_ADDR", assignment.master_addr.clone()),
        ("MASTER_PORT", assignment.master_port.to_string()),
        ("WORLD_SIZE", workers),
        ("RANK", rank),
        ("LOCAL_RANK", "0".to_owned()),
        ("NODE_RANK", assignment.node_rank.to_string()),
    ];
    let index = assignment.job_id.index();
    let index = index.map(|index| ("ALLOTMENT_ARRAY_INDEX", index.to_string()));
    let bounds = devices.bounds.iter().cloned();
    let own = |(key, value): (&str, String)| (key.to_owned(), value);
    defaults
        .into_iter()
        .map(own)
        .chain(assignment.env.clone())
        .chain(set.into_iter().chain(bounds).chain(index).map(own))
        .collect()
}
