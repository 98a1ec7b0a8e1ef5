//! When waiting work would start, by the ends that are known.

use std::rc::Rc;

use chrono::TimeDelta;
use domain::Timestamp;

use super::remedies::RANKED_MAX;
use crate::backfill::{self, NEVER};
use crate::cycle::Cycle;
use crate::index::Amount;
use crate::ledger::{Ledger, Sight, Standing};
use crate::place::Query;
use crate::plan::Code;
use crate::preempt::{self, Rules};
use crate::quota;
use crate::start;

/// Most ends that are looked at.
const ENDS_MAX: usize = 200;

/// When a workload would start if all that runs ended as predicted and nothing else came; sooner where
/// those make room for it before who have run for as long as they are protected.
pub(super) fn start_of(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    code: Code,
) -> Option<Timestamp> {
    if let Some((pool, kept)) = cycle.reservation_of(work) {
        let kept = Some(kept.start()).filter(|start| *start != NEVER);
        let made = once_room_is_made(cycle, work, pool);
        return kept.into_iter().chain(made).min();
    }
    match code {
        Code::NotYet => cycle.index.works[work].row.not_before,
        _ if cycle.explained > RANKED_MAX || !cycle.usable(work, pool) => None,
        Code::PreemptionNotAllowed => {
            let made = once_room_is_made(cycle, work, pool);
            let ended = cycle.told_start(work, pool);
            made.into_iter().chain(ended).min()
        }
        Code::Topology
        | Code::Fragmented
        | Code::InsufficientCapacity
        | Code::HeldForReservation
        | Code::BehindInOrder => cycle.told_start(work, pool),
        Code::OverLimit | Code::AncestorOverLimit | Code::NonPreemptibleOverGuarantee => {
            once_limits_let(cycle, work, pool)
        }
        _ => None,
    }
}

/// When a workload would have its room, made by those who are protected for a known time yet, or once it
/// has waited for as long as it must before it may displace them.
fn once_room_is_made(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<Timestamp> {
    let index = cycle.index;
    let ran = once_protected_ran(cycle, work, pool)?;
    let wait = ran.max(Rules::of(index, pool).delay_left(index, work));
    // What could make room now and does not is kept from it by something else than time.
    let wait = TimeDelta::try_seconds(wait).filter(|wait| *wait > TimeDelta::zero())?;
    // Whoever gives way then has its grace to leave in.
    backfill::after_grace(index, pool).checked_add_signed(wait)
}

/// In how many seconds those have run for long enough; equal work is told the same.
fn once_protected_ran(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<i64> {
    let facts = &cycle.index.works[work];
    let key = (pool, facts.team, facts.shape, facts.priority);
    if let Some(known) = cycle.protected.get(&key) {
        return *known;
    }
    let found = preempt::once_protected_ran(&mut cycle.ledger, work, pool);
    cycle.protected.insert(key, found);
    found
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
        if start::place_within(&mut cycle.ledger, query).is_some() {
            found = Some(end);
            break;
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
