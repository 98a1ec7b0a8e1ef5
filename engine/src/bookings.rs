//! Capacity booked ahead: what it adds to guarantees while it lasts, and what must not start before it begins.
//!
//! A booking is a count of GPUs in a pool, not a set of devices: until it begins everything
//! may be lent, as long as enough can be had by then. Work that may be preempted leaves when
//! it is in the way, so that only other work is counted here.

use domain::Timestamp;
use domain::quantity::MILLI;

use crate::backfill::{NEVER, end_of_running};
use crate::index::{Index, Moment, Need, TeamFacts};
use crate::ledger::{Ledger, Slot, Standing};
use crate::world::{Booking, Pool};

/// What each team has booked of a pool now, in thousandths of a GPU.
pub(crate) fn booked_now(world: Moment<'_>, pool: &Pool, teams: &[TeamFacts<'_>]) -> Vec<i64> {
    let of = |team: &TeamFacts<'_>| {
        let own = world
            .bookings
            .iter()
            .filter(|b| b.pool == pool.name && b.team == team.row.name && lasts(b, world.now));
        own.map(|b| b.gpus.milli()).sum()
    };
    teams.iter().map(of).collect()
}

fn lasts(booking: &Booking, at: Timestamp) -> bool {
    booking.from <= at && at < booking.to
}

/// The bookings of a pool that last now, each with its team, the first begun first.
pub(crate) fn lasting<'w>(index: &Index<'w>, pool: usize) -> Vec<(&'w Booking, usize)> {
    of_pool(index, pool, |b| lasts(b, index.world.now))
}

fn of_pool<'w>(
    index: &Index<'w>,
    pool: usize,
    some: impl Fn(&Booking) -> bool,
) -> Vec<(&'w Booking, usize)> {
    let here = index
        .world
        .bookings
        .iter()
        .filter(|b| b.pool == index.pools[pool].row.name && some(b));
    let mut all: Vec<(&Booking, usize)> = here
        .filter_map(|b| {
            let named = |team: &TeamFacts<'_>| team.row.name == b.team;
            Some((b, index.teams.iter().position(named)?))
        })
        .collect();
    all.sort_by(|a, b| (a.0.from, &a.0.name).cmp(&(b.0.from, &b.0.name)));
    all
}

/// A booking that has not begun.
struct Ahead {
    from: Timestamp,
    to: Timestamp,
    team: usize,
    /// What work that may not be preempted can still take beyond its beginning, in thousandths.
    spare: i64,
}

/// The bookings ahead of a cycle, by pool.
pub(crate) struct Bookings {
    ahead: Vec<Vec<Ahead>>,
}

impl Bookings {
    /// What is booked ahead, and what the work that runs leaves of it.
    pub fn of(ledger: &Ledger<'_, '_>) -> Self {
        let index = ledger.index;
        let pools = 0..index.pools.len();
        Self {
            ahead: pools.map(|pool| ahead(ledger, pool)).collect(),
        }
    }

    /// Whether a workload may stand on so many thousandths between two moments.
    pub fn let_stand(
        &self,
        index: &Index<'_>,
        work: usize,
        pool: usize,
        span: (Timestamp, Timestamp),
        milli: i64,
    ) -> bool {
        let (begin, end) = span;
        let facts = &index.works[work];
        facts.preemptible
            || milli == 0
            || self.ahead[pool].iter().all(|b| {
                let own = begin >= b.from && index.teams[facts.team].path.contains(&b.team);
                begin >= b.to || end <= b.from || own || milli <= b.spare
            })
    }

    /// Counts work that stands from now on.
    pub fn count(
        &mut self,
        index: &Index<'_>,
        work: usize,
        pool: usize,
        end: Timestamp,
        milli: i64,
    ) {
        if index.works[work].preemptible {
            return;
        }
        for booking in self.ahead[pool].iter_mut().filter(|b| b.from < end) {
            booking.spare -= milli;
        }
    }

    /// Whether anything is booked ahead in a pool.
    pub fn any(&self, pool: usize) -> bool {
        !self.ahead[pool].is_empty()
    }

    /// The moments at which bookings of a pool begin or end, where they bind a workload.
    pub fn edges(&self, index: &Index<'_>, work: usize, pool: usize) -> Vec<Timestamp> {
        if index.works[work].preemptible || index.works[work].need == Need::Nothing {
            return Vec::new();
        }
        let ahead = self.ahead[pool].iter();
        ahead.flat_map(|b| [b.from, b.to]).collect()
    }
}

fn ahead(ledger: &Ledger<'_, '_>, pool: usize) -> Vec<Ahead> {
    let index = ledger.index;
    let bookings = of_pool(index, pool, |b| b.from > index.world.now);
    if bookings.is_empty() {
        return Vec::new();
    }
    let facts = &index.pools[pool];
    let all = of_pool(index, pool, |_| true);
    // Work that stays: its team, its end, its amount.
    let fixed: Vec<(usize, Timestamp, i64)> = (0..index.works.len())
        .filter(|&w| !index.works[w].preemptible && ledger.standing(w) == Standing::Running)
        .filter(|&w| {
            let first = ledger.slots(w).first();
            first.is_some_and(|s| index.nodes[s.node].pool == pool)
        })
        .map(|w| {
            let milli = ledger.slots(w).iter().map(|s| milli(s)).sum();
            (index.works[w].team, end_of_running(index, w), milli)
        })
        .collect();
    let staying = |at: Timestamp, within: Option<usize>| -> i64 {
        let there = fixed.iter().filter(|(team, end, _)| {
            (*end > at || *end == NEVER)
                && within.is_none_or(|t| index.teams[*team].path.contains(&t))
        });
        there.map(|(.., milli)| milli).sum()
    };
    // Of its booked part a team may have something already, beyond its own guarantee.
    let needed = |b: &Booking, team: usize, at: Timestamp| {
        let own = facts.milli(facts.rows[team].guaranteed - facts.rows[team].booked);
        let has = (staying(at, Some(team)) - own).max(0);
        (b.gpus.milli() - has).max(0)
    };
    let made = bookings.iter().map(|&(b, team)| {
        let beside = all.iter().filter(|(other, _)| lasts(other, b.from));
        let booked: i64 = beside.map(|&(b, team)| needed(b, team, b.from)).sum();
        Ahead {
            from: b.from,
            to: b.to,
            team,
            spare: facts.milli(facts.capacity) - staying(b.from, None) - booked,
        }
    });
    made.collect()
}

/// Thousandths of devices that a worker stands on.
pub(crate) fn milli(slot: &Slot) -> i64 {
    slot.parts.iter().map(|part| part.milli).sum()
}

/// Thousandths of devices that so many workers ask for.
pub(crate) fn asked(index: &Index<'_>, work: usize, workers: u32) -> i64 {
    let each = match index.works[work].need {
        Need::Nothing => 0,
        Need::Whole(count) => i64::from(count) * MILLI,
        Need::Instances { count, profile } => i64::from(count) * index.instance_milli(profile),
        Need::Part { .. } => index.works[work].row.per_worker.gpus().milli(),
    };
    each * i64::from(workers)
}
