//! Which devices of a node a worker gets.

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;

use super::{Query, devices_free, host_free, modes};
use crate::index::{DEVICE, Need, bit};
use crate::ledger::{Ledger, Load, Part};

/// Whether one worker may fit on a node: a cheap test before devices are chosen.
pub(super) fn room(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> bool {
    let facts = &ledger.index.works[query.work];
    let (cpus, memory) = host_free(ledger, node, query.sight);
    if cpus < facts.cpus || memory < facts.memory {
        return false;
    }
    match facts.need {
        Need::Nothing => true,
        Need::Whole(count) => devices_free(ledger, node, query.sight).count_ones() >= count,
        Need::Part { .. } => choose(ledger, query, node).is_some(),
        Need::Instances => false,
    }
}

/// The devices for one worker, and whether several of them are linked with one another.
pub(super) fn choose(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
) -> Option<(Vec<Part>, bool)> {
    match ledger.index.works[query.work].need {
        Need::Nothing => Some((Vec::new(), false)),
        Need::Whole(count) => whole(ledger, query, node, count),
        Need::Part { milli, memory } => part(ledger, query, node, milli, memory),
        Need::Instances => None,
    }
}

fn whole(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    count: u32,
) -> Option<(Vec<Part>, bool)> {
    let machine = ledger.index.nodes[node].row;
    let free = devices_free(ledger, node, query.sight);
    if free.count_ones() < count {
        return None;
    }
    let rule = ledger.index.works[query.work].row.nvlink;
    let cliques = if rule == NvlinkRule::Any {
        &[][..]
    } else {
        &machine.nvlink[..]
    };
    let linked = tightest(cliques, free, count);
    if rule == NvlinkRule::Require && count > 1 && !query.relaxed && linked.is_none() {
        return None;
    }
    // One device breaks a clique as little as possible; several want links, then one socket.
    let chosen = linked
        .or_else(|| tightest(&machine.numa, free, count))
        .unwrap_or(free);
    let indices = (0..u64::BITS)
        .filter(|&i| chosen & bit(i) != 0)
        .take(count as usize);
    let parts = indices.map(|index| Part {
        index,
        mode: SharingMode::Exclusive,
        milli: DEVICE,
        memory: machine.gpu_memory_mib,
    });
    Some((parts.collect(), count > 1 && linked.is_some()))
}

/// The free devices of the set with the fewest that still has enough.
fn tightest(sets: &[Vec<u32>], free: u64, count: u32) -> Option<u64> {
    let bits = sets
        .iter()
        .map(|set| set.iter().fold(0, |all, &i| all | bit(i)) & free);
    // The lowest devices among equals: the first set whose lowest bit is lowest.
    bits.filter(|set| set.count_ones() >= count)
        .min_by_key(|set| (set.count_ones(), set.trailing_zeros()))
}

fn part(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    milli: i64,
    memory: Option<i64>,
) -> Option<(Vec<Part>, bool)> {
    let machine = &ledger.index.nodes[node];
    let memory = memory.unwrap_or(machine.row.gpu_memory_mib * milli / DEVICE);
    let out = if ledger.is_bare() {
        0
    } else {
        machine.failed | machine.mig
    };
    let prices = ledger.prices[query.pool].as_ref();
    let cost = |part: &Part| {
        prices.map_or(0, |p| {
            p.cost(ledger, query, node, std::slice::from_ref(part))
        })
    };
    let mut best: Option<(Choice, Part)> = None;
    for (rank, mode) in modes(ledger.index, query.work, node).enumerate() {
        for index in (0..machine.row.gpus).filter(|&i| out & bit(i) == 0) {
            let mut left = DEVICE;
            let mut fresh = true;
            let part = Part {
                index,
                mode,
                milli,
                memory,
            };
            let fits = query.sight.views().iter().all(|&view| {
                let load = &ledger.spaces[node].loads[view as usize][index as usize];
                left = left.min(DEVICE - load.milli);
                fresh &= load.sharers == 0;
                joins(ledger, query.work, node, load, &part)
            });
            if !fits {
                continue;
            }
            let choice = Choice {
                cost: cost(&part),
                fresh,
                left,
                rank,
                index,
            };
            if best.as_ref().is_none_or(|(least, _)| choice < *least) {
                best = Some((choice, part));
            }
        }
    }
    best.map(|(_, part)| (vec![part], false))
}

/// A device for a fraction; the least is taken: where least is wasted, shared already, the
/// fullest, the mode that the workload likes best, the lowest index.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    cost: i64,
    fresh: bool,
    left: i64,
    rank: usize,
    index: u32,
}

/// Whether a part can join what stands on its device in one view.
pub(crate) fn joins(
    ledger: &Ledger<'_, '_>,
    work: usize,
    node: usize,
    load: &Load,
    part: &Part,
) -> bool {
    let index = ledger.index;
    let machine = &index.nodes[node];
    if load.sharers > 0 {
        let pool = index.pools[machine.pool].row;
        let full = part.mode == SharingMode::TimeSlice && load.sharers >= pool.time_slices;
        let foreign = part.mode == SharingMode::Mps
            && !pool.mps_across_teams
            && load.team != index.works[work].team;
        if part.mode == SharingMode::Exclusive || load.mode != Some(part.mode) || full || foreign {
            return false;
        }
    }
    load.milli + part.milli <= DEVICE && load.memory + part.memory <= machine.row.gpu_memory_mib
}
