//! Fewer whole devices for each worker.

use std::rc::Rc;

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use serde_json::json;

use super::change;
use super::trial::Trial;
use crate::index::{Amount, DEVICE, bit};
use crate::ledger::{Part, Sight, Slot};
use crate::place::{devices_free, host_free, nodes_able};
use crate::plan::Remedy;
use crate::world::Charge;

/// The most devices under what is asked for.
pub(super) fn of(trial: &mut Trial<'_, '_, '_>, count: u32) -> Option<Remedy> {
    let fewer = (1..count).rev().find(|&n| starts(trial, n))?;
    Some(change("per_worker.gpus", json!(fewer)))
}

/// Whether it would start with so many devices for each worker: found by counting alone, where no
/// label or link is demanded and no promise of whole nodes looks at where it is.
fn starts(trial: &mut Trial<'_, '_, '_>, count: u32) -> bool {
    let facts = trial.facts();
    let pool = trial.cycle.index.pools[trial.pool].row;
    let demands = facts.row.topology.require.is_some()
        || facts.row.anti_affinity.is_some()
        || facts.row.nvlink == NvlinkRule::Require
        || pool.whole_node_guarantees;
    if demands || pool.charge == Charge::Dominant {
        return false;
    }
    let end = trial.end();
    match slots(trial, count) {
        Some(slots) => trial.starts_on(slots, end),
        None => false,
    }
}

/// Room for its least workers with so many devices each; where starts are kept that are in its way,
/// on other nodes than theirs, which is where it is looked for at last.
fn slots(trial: &mut Trial<'_, '_, '_>, count: u32) -> Option<Vec<Rc<Slot>>> {
    let facts = trial.facts();
    let workers = facts.row.workers_least() as usize;
    let able = nodes_able(&mut trial.cycle.ledger, trial.work, trial.pool);
    let unbound = trial.unbound(trial.end());
    let open = |node: &usize| unbound || !trial.cycle.kept_on(trial.work, trial.pool, *node);
    let nodes: Vec<usize> = able.iter().copied().filter(open).collect();
    let by = |free: i64, each: i64| free.max(0).checked_div(each).unwrap_or(i64::MAX);
    let mut slots = Vec::with_capacity(workers);
    for node in nodes {
        let (cpus, memory) = host_free(&trial.cycle.ledger, node, Sight::Start);
        let free = devices_free(&trial.cycle.ledger, node, Sight::Start);
        let mut free = (0..u64::BITS).filter(|&device| free & bit(device) != 0);
        for _ in 0..by(cpus, facts.cpus).min(by(memory, facts.memory)) {
            let devices: Vec<u32> = free.by_ref().take(count as usize).collect();
            if devices.len() < count as usize || slots.len() == workers {
                break;
            }
            slots.push(Rc::new(worker(trial, node, &devices)));
        }
    }
    (slots.len() == workers).then_some(slots)
}

fn worker(trial: &Trial<'_, '_, '_>, node: usize, devices: &[u32]) -> Slot {
    let index = trial.cycle.index;
    let part = |&device: &u32| Part {
        index: device,
        mode: SharingMode::Exclusive,
        milli: DEVICE,
        memory: index.nodes[node].row.gpu_memory_mib,
        slice: None,
    };
    let milli = Amount::from(devices.len() as i64 * DEVICE);
    let amount = milli * index.pools[trial.pool].unit;
    let parts = devices.iter().map(part).collect();
    Slot::of(index, trial.work, node, parts, amount)
}
