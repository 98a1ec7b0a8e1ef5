//! What would start a workload now, and when it would start by the ends that are known.

mod instances;

use std::collections::BTreeMap;
use std::rc::Rc;

use domain::{MilliGpu, Timestamp};
use serde_json::{Value, json};

use crate::backfill::{self, NEVER};
use crate::cycle::Cycle;
use crate::index::{Amount, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::place::{Query, place};
use crate::plan::{Code, Remedy};
use crate::quota;

/// Most changes that are named; the contract's own bound.
const REMEDIES_MAX: usize = 3;
/// Most waiting work for which changes and times are sought: each costs some placements,
/// and who waits behind so many has other worries.
const RANKED_MAX: usize = 200;
/// Most ends that are looked at for an expected start.
const ENDS_MAX: usize = 200;

/// Whether a cause is one that a smaller request might avoid.
fn by_size(code: Code) -> bool {
    matches!(
        code,
        Code::OverLimit
            | Code::AncestorOverLimit
            | Code::NonPreemptibleOverGuarantee
            | Code::Topology
            | Code::Fragmented
            | Code::PreemptionNotAllowed
            | Code::InsufficientCapacity
            | Code::HeldForReservation
            | Code::NeverFits
    )
}

/// Up to three changes, each of which alone would start the workload now.
pub(super) fn of(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize, code: Code) -> Vec<Remedy> {
    let cut = matches!(cycle.index.works[work].need, Need::Instances { .. });
    let mends = by_size(code) || cut && code == Code::NoSuchHardware;
    if !mends || cycle.explained > RANKED_MAX || !cycle.usable(work, pool) {
        return Vec::new();
    }
    let mut remedies = Vec::new();
    let facts = &cycle.index.works[work];
    let least = facts.row.workers_least();
    if code == Code::Topology && starts(cycle, work, pool, least, true) {
        let dropped = [
            (
                "topology.require",
                facts.row.topology.require.is_some(),
                Value::Null,
            ),
            (
                "anti_affinity",
                facts.row.anti_affinity.is_some(),
                Value::Null,
            ),
            (
                "nvlink",
                facts.row.nvlink == domain::spec::NvlinkRule::Require,
                json!("prefer"),
            ),
        ];
        let all = dropped
            .into_iter()
            .filter(|(_, set, _)| *set)
            .map(|(key, _, value)| (key.to_owned(), value));
        remedies.push(Remedy {
            change: all.collect(),
            effect: "starts_now",
        });
    }
    if least > 1 {
        let fewer = (1..least)
            .rev()
            .take(64)
            .find(|&n| starts(cycle, work, pool, n, false));
        if let Some(workers) = fewer {
            let key = if facts.row.min_workers.is_some() {
                "min_workers"
            } else {
                "workers"
            };
            remedies.push(change(key, json!(workers)));
        }
    }
    if let Need::Whole(count) = facts.need {
        let fewer = (1..count)
            .rev()
            .find(|&n| starts_smaller(cycle, work, pool, least, n));
        if let Some(gpus) = fewer {
            remedies.push(change("per_worker.gpus", json!(gpus)));
        }
    }
    if let Need::Instances { count, .. } = facts.need {
        remedies.extend(instances::of(cycle, work, pool, count));
    }
    remedies.truncate(REMEDIES_MAX);
    remedies
}

fn change(key: &str, value: Value) -> Remedy {
    Remedy {
        change: BTreeMap::from([(key.to_owned(), value)]),
        effect: "starts_now",
    }
}

fn starts(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    workers: u32,
    relaxed: bool,
) -> bool {
    let query = Query {
        relaxed,
        ..Query::start(cycle.index, work, pool).workers(workers)
    };
    let Some(slots) = place(&mut cycle.ledger, query) else {
        return false;
    };
    let amount = slots.iter().map(|s| s.amount).sum();
    quota::allowed(&cycle.ledger, work, pool, amount).is_ok()
}

/// Whether it would start with so many devices for each worker: by counting alone, where
/// no label or link is demanded.
fn starts_smaller(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    workers: u32,
    count: u32,
) -> bool {
    let index = cycle.index;
    let facts = &index.works[work];
    let demands = facts.row.topology.require.is_some()
        || facts.row.anti_affinity.is_some()
        || facts.row.nvlink == domain::spec::NvlinkRule::Require;
    if demands || index.pools[pool].row.charge == crate::world::Charge::Dominant {
        return false;
    }
    let able = crate::place::nodes_able(&mut cycle.ledger, work, pool);
    let able = able.iter().copied();
    let room: i64 = able
        .map(|node| {
            let (cpus, memory) = crate::place::host_free(&cycle.ledger, node, Sight::Start);
            let devices =
                crate::place::devices_free(&cycle.ledger, node, Sight::Start).count_ones() / count;
            let by = |free: i64, each: i64| {
                if each == 0 {
                    i64::MAX
                } else {
                    free.max(0) / each
                }
            };
            i64::from(devices)
                .min(by(cpus, facts.cpus))
                .min(by(memory, facts.memory))
        })
        .sum();
    let amount = MilliGpu::whole(i64::from(count)).milli() * i64::from(workers);
    room >= i64::from(workers)
        && quota::allowed(
            &cycle.ledger,
            work,
            pool,
            Amount::from(amount) * index.pools[pool].unit,
        )
        .is_ok()
}

/// When a workload would start if all that runs ended as predicted and nothing else came.
pub(super) fn expected_start(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    code: Code,
) -> Option<Timestamp> {
    if let Some((_, kept)) = cycle.reservation_of(work) {
        return Some(kept.start()).filter(|start| *start != NEVER);
    }
    match code {
        Code::NotYet => cycle.index.works[work].row.not_before,
        _ if cycle.explained > RANKED_MAX || !cycle.usable(work, pool) => None,
        Code::Topology
        | Code::Fragmented
        | Code::PreemptionNotAllowed
        | Code::InsufficientCapacity
        | Code::HeldForReservation
        | Code::BehindInOrder => cycle.told_start(work, pool),
        Code::OverLimit | Code::AncestorOverLimit | Code::NonPreemptibleOverGuarantee => {
            once_limits_let(cycle, work, pool)
        }
        _ => None,
    }
}

/// The first end after which a workload would be within its limits and have room; equal work
/// is told the same.
fn once_limits_let(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<Timestamp> {
    let facts = &cycle.index.works[work];
    let key = (pool, facts.team, facts.shape);
    if let Some(known) = cycle.limited.get(&key) {
        return *known;
    }
    let found = find_once_limits_let(cycle, work, pool);
    cycle.limited.insert(key, found);
    found
}

fn find_once_limits_let(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<Timestamp> {
    let index = cycle.index;
    let ends = match &cycle.ends[pool] {
        Some(ends) => Rc::clone(ends),
        None => {
            let ends = Rc::new(ends(&cycle.ledger, pool));
            cycle.ends[pool] = Some(Rc::clone(&ends));
            ends
        }
    };
    let least = index.works[work].row.workers_least();
    let mark = cycle.ledger.mark();
    let mut found = None;
    for &(end, ended) in ends.iter() {
        cycle.ledger.release(ended, 0);
        let amount = index.charge_least(work, pool) * Amount::from(least);
        if quota::allowed(&cycle.ledger, work, pool, amount).is_err() {
            continue;
        }
        let query = Query::start(index, work, pool)
            .workers(least)
            .sight(Sight::Later);
        if let Some(slots) = place(&mut cycle.ledger, query) {
            let amount = slots.iter().map(|s: &Rc<Slot>| s.amount).sum();
            if quota::allowed(&cycle.ledger, work, pool, amount).is_ok() {
                found = Some(end);
                break;
            }
        }
    }
    cycle.ledger.rollback(mark);
    found
}

/// The first ends of work that runs or starts in a pool, the first first.
fn ends(ledger: &Ledger<'_, '_>, pool: usize) -> Vec<(Timestamp, usize)> {
    let index = ledger.index;
    let mut ends: Vec<(Timestamp, usize)> = (0..index.works.len())
        .filter_map(|work| {
            let first = ledger.slots(work).first()?;
            let end = match ledger.standing(work) {
                Standing::Running => backfill::end_of_running(index, work),
                Standing::Started => backfill::end_from(index, work, index.world.now),
                _ => NEVER,
            };
            (index.nodes[first.node].pool == pool && end != NEVER).then_some((end, work))
        })
        .collect();
    ends.sort_unstable();
    ends.truncate(ENDS_MAX);
    ends
}
