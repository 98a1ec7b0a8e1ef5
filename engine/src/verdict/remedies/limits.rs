//! Requests that no end of other work would bring within their limits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::workers_key;
use crate::index::{Amount, DEVICE, Index, Need};
use crate::plan::Remedy;
use crate::quota;
use crate::world::Charge;

/// The most that limits would let a workload have, were nobody else there, where that is less than
/// it asks for.
pub(in crate::verdict) fn never(index: &Index<'_>, work: usize, pool: usize) -> Option<Amount> {
    let least = Amount::from(index.works[work].row.workers_least());
    let asked = index.charge_least(work, pool) * least;
    quota::ceiling(index, work, pool).filter(|most| asked > *most)
}

/// The most workers, or the most whole devices for each, with which it could start some time.
pub(super) fn within(index: &Index<'_>, work: usize, pool: usize) -> Option<Remedy> {
    let most = never(index, work, pool)?;
    let facts = &index.works[work];
    let workers = most.checked_div(index.charge_least(work, pool))?;
    if workers > 0 {
        return Some(waits(
            workers_key(facts.row),
            json!(i64::try_from(workers).ok()?),
        ));
    }
    let least = Amount::from(facts.row.workers_least());
    let each = Amount::from(DEVICE) * index.pools[pool].unit * least;
    let devices = most.checked_div(each)?;
    let devices = i64::try_from(devices).ok().filter(|devices| *devices > 0)?;
    // Where it counts for its cores or memory, devices may not be what it asks for too many of.
    let fewer = |count: u32| devices < i64::from(count);
    let by_devices = index.pools[pool].row.charge == Charge::Gpus;
    let helps = matches!(facts.need, Need::Whole(count) if fewer(count)) && by_devices;
    helps.then(|| waits("per_worker.gpus", json!(devices)))
}

fn waits(key: &str, value: Value) -> Remedy {
    Remedy {
        change: BTreeMap::from([(key.to_owned(), value)]),
        effect: "within_limit",
    }
}
