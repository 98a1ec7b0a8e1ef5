//! Whether a change starts a workload, by deciding all anew with it.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::spec::NvlinkRule;
use serde_json::Value;

use super::trial::Trial;
use crate::cycle;
use crate::plan::Remedy;
use crate::world::Workload;

/// Most changes of one cycle that are decided anew: each costs as much as the cycle's decisions, and who
/// waits first is told first.
const PROOFS_MAX: usize = 16;
/// Most rows that are decided anew for them in all: the more there are, the fewer changes. So many take about
/// a tenth of a second, and longer is not worth a sentence to somebody who may not read it.
const ROWS_MAX: usize = 32_000;

/// Whether the workload starts with the change; no where that would cost too much.
pub(super) fn starts(trial: &mut Trial<'_, '_, '_>, remedy: &Remedy) -> bool {
    let index = trial.cycle.index;
    let rows = index.nodes.len() + index.count();
    if trial.cycle.proofs == PROOFS_MAX || (trial.cycle.proofs + 1) * rows > ROWS_MAX {
        return false;
    }
    trial.cycle.proofs += 1;
    let before = trial.facts().row;
    let Some(after) = changed(before, &remedy.change) else {
        return false;
    };
    let mut rows = index.rows();
    rows.works.retain(|row| row.name != before.name);
    rows.works.push(&after);
    cycle::starts(rows, &after.name)
}

/// The workload as its row would be.
fn changed(row: &Workload, change: &BTreeMap<String, Value>) -> Option<Workload> {
    let mut row = row.clone();
    // What room was kept for was the old request.
    row.nominated = None;
    for (key, value) in change {
        let count = || value.as_u64().and_then(|count| u32::try_from(count).ok());
        let text = value.as_str().map(str::to_owned);
        match key.as_str() {
            "workers" => row.workers = count()?,
            "min_workers" => row.min_workers = Some(count()?),
            "per_worker.gpus" => row.per_worker.gpus = Some(MilliGpu::whole(count()?.into())),
            "per_worker.mig_profile" => row.per_worker.mig_profile = text,
            "topology.require" => row.topology.require = text,
            "anti_affinity" => row.anti_affinity = text,
            "nvlink" => row.nvlink = NvlinkRule::Prefer,
            "time_limit_seconds" => row.time_limit_seconds = value.as_i64(),
            "preemptible" => row.preemptible = value.as_bool(),
            _ => return None,
        }
    }
    Some(row)
}
