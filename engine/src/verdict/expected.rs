//! When waiting work would start, by the ends that are known.

use std::rc::Rc;

use chrono::TimeDelta;
use domain::Timestamp;

use super::ahead;
use super::remedies::RANKED_MAX;
use crate::backfill::{self, NEVER};
use crate::cycle::Cycle;
use crate::cycles::told_name;
use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Sight, Standing};
use crate::place::Query;
use crate::plan::{Code, Once};
use crate::preempt::{self, Rules};
use crate::quota;
use crate::start;
use crate::world::{Placed, WorkloadState};

/// Most ends that are looked at.
const ENDS_MAX: usize = 200;

/// When a workload is expected to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expected {
    pub at: Timestamp,
    /// What lets it start then; nothing where its own request says when it may at the soonest.
    pub once: Option<Once>,
}

impl Expected {
    fn once((at, once): (Timestamp, Once)) -> Self {
        Self {
            at,
            once: Some(once),
        }
    }
}

/// When a workload would start if all that runs ended as predicted and nothing else came; sooner where
/// those make room for it before who have run for as long as they are protected, and where a booking
/// begins or quotas change before.
pub(super) fn start_of(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    code: Code,
) -> Option<Expected> {
    match code {
        Code::NotYet => {
            let at = cycle.index.works[work].row.not_before?;
            return Some(Expected { at, once: None });
        }
        Code::WaitingForVictims => return victims_left(cycle, work).map(Expected::once),
        _ => {}
    }
    let by_itself = by_itself(cycle, work, pool, code);
    let changes = match code {
        Code::Topology
        | Code::Fragmented
        | Code::InsufficientCapacity
        | Code::HeldForReservation
        | Code::BehindInOrder
        | Code::PreemptionNotAllowed
        | Code::OverLimit
        | Code::AncestorOverLimit
        | Code::NonPreemptibleOverGuarantee
            if cycle.explained <= RANKED_MAX =>
        {
            ahead::start_of(cycle, work)
        }
        _ => None,
    };
    let first = by_itself.into_iter().chain(changes).min();
    first.map(Expected::once)
}

/// The same by what runs alone.
fn by_itself(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    code: Code,
) -> Option<(Timestamp, Once)> {
    if let Some((pool, kept)) = cycle.reservation_of(work) {
        let kept = Some(kept.start()).filter(|start| *start != NEVER);
        let kept = kept.map(|at| by_end(cycle.index, pool, at));
        let made = once_room_is_made(cycle, work, pool);
        return kept.into_iter().chain(made).min();
    }
    if cycle.explained > RANKED_MAX || !cycle.usable(work, pool) {
        return None;
    }
    match code {
        Code::PreemptionNotAllowed => {
            let made = once_room_is_made(cycle, work, pool);
            let ended = told_start(cycle, work, pool);
            made.into_iter().chain(ended).min()
        }
        Code::Topology
        | Code::Fragmented
        | Code::InsufficientCapacity
        | Code::HeldForReservation
        | Code::BehindInOrder => told_start(cycle, work, pool),
        Code::OverLimit | Code::AncestorOverLimit | Code::NonPreemptibleOverGuarantee => {
            let at = once_limits_let(cycle, work, pool)?;
            Some((at, Once::Ended))
        }
        _ => None,
    }
}

fn told_start(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<(Timestamp, Once)> {
    let at = cycle.told_start(work, pool)?;
    Some(by_end(cycle.index, pool, at))
}

/// What ends at a moment: a booking, or else what runs.
fn by_end(index: &Index<'_>, pool: usize, at: Timestamp) -> (Timestamp, Once) {
    let name = &index.pools[pool].row.name;
    let mut bookings = index.world.bookings.iter();
    let booked = bookings.any(|booking| booking.pool == *name && booking.to == at);
    let once = match booked {
        true => Once::BookingEnds,
        false => Once::Ended,
    };
    (at, once)
}

/// When all those have left whose devices are kept for a workload.
fn victims_left(cycle: &Cycle<'_, '_>, work: usize) -> Option<(Timestamp, Once)> {
    let index = cycle.index;
    let pool = index.nodes[cycle.ledger.slots(work).first()?.node].pool;
    let name = index.name(work);
    let mut kept = cycle.plan.nominations.iter();
    let kept = kept.find(|kept| kept.workload == name)?;
    let own = |placed: &Placed| {
        let mut there = kept.placement.iter().filter(|p| p.node == placed.node);
        there.any(|place| {
            let has = |index: u32| placed.devices.iter().any(|d| d.index == index);
            place.devices.is_empty() || place.devices.iter().any(|d| has(d.index))
        })
    };
    // Ranks that were released before have a row of their own.
    let leaves_at = |&there: &usize| {
        let row = index.works[there].row;
        let awaited = kept
            .waits_for
            .iter()
            .any(|name| name == told_name(&row.name));
        if !awaited || !row.placed.iter().any(own) {
            return None;
        }
        match row.state {
            WorkloadState::Leaving => row.leaves_at,
            _ => Some(backfill::after_grace(index, pool)),
        }
    };
    let nodes = cycle.ledger.slots(work).iter().map(|slot| slot.node);
    let there = nodes.flat_map(|node| cycle.ledger.seated(node));
    let last = there.filter_map(leaves_at).max();
    let soon = backfill::soon(index);
    Some((last.unwrap_or(soon).max(soon), Once::VictimsLeft))
}

/// When a workload would have its room, made by those who are protected for a known time yet, or once it
/// has waited for as long as it must before it may displace them.
fn once_room_is_made(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
) -> Option<(Timestamp, Once)> {
    let index = cycle.index;
    let ran = once_protected_ran(cycle, work, pool)?;
    let delay = Rules::of(index, pool).delay_left(index, work);
    // What could make room now and does not is kept from it by something else than time.
    let wait = TimeDelta::try_seconds(ran.max(delay)).filter(|wait| *wait > TimeDelta::zero())?;
    // Whoever gives way then has its grace to leave in.
    let at = backfill::after_grace(index, pool).checked_add_signed(wait)?;
    let once = if delay >= ran {
        Once::DelayOver
    } else {
        Once::ProtectionOver
    };
    Some((at, once))
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
