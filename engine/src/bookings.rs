//! Capacity booked ahead: what it adds to guarantees while it lasts, and what must not start on it.
//!
//! A booking is a count of GPUs in a pool, not a set of devices: everything may be lent, as long as enough
//! can be had once it has begun and its team has work. Work that may be preempted leaves when it is in
//! the way, so that only other work is counted here.

use domain::Timestamp;
use domain::quantity::MILLI;

use crate::backfill::{NEVER, end_of_running};
use crate::index::{Amount, Index, Moment, Need, TeamFacts};
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

/// What of a team's guarantee is booked now and is over by then.
pub(crate) fn over_by(index: &Index<'_>, pool: usize, team: usize, then: Timestamp) -> Amount {
    let booked = lasting(index, pool);
    let over = booked
        .iter()
        .filter(|(b, of)| b.to <= then && index.teams[*of].path.contains(&team));
    let over = over.map(|(b, _)| Amount::from(b.gpus.milli()));
    over.sum::<Amount>() * index.pools[pool].unit
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

/// A booking that is not over.
struct Open {
    from: Timestamp,
    to: Timestamp,
    team: usize,
    /// What its team may yet use of it, in thousandths.
    need: i64,
    /// What work that may not be preempted can still take while it lasts, in thousandths.
    spare: i64,
}

/// The bookings that last in a cycle or are ahead of it, by pool.
pub(crate) struct Bookings {
    open: Vec<Vec<Open>>,
}

impl Bookings {
    /// What is booked, and what the work that runs leaves of it.
    pub fn of(ledger: &Ledger<'_, '_>) -> Self {
        let index = ledger.index;
        let pools = 0..index.pools.len();
        Self {
            open: pools.map(|pool| open(ledger, pool)).collect(),
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
            || self.open[pool].iter().all(|b| {
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
        let team = index.works[work].team;
        for booking in self.open[pool].iter_mut().filter(|b| b.from < end) {
            let own =
                booking.from <= index.world.now && index.teams[team].path.contains(&booking.team);
            // What its team uses of it is not kept for it any more.
            let used = if own { milli.min(booking.need) } else { 0 };
            booking.need -= used;
            booking.spare -= milli - used;
        }
    }

    /// Whether anything is booked in a pool.
    pub fn any(&self, pool: usize) -> bool {
        !self.open[pool].is_empty()
    }

    /// The moments at which bookings of a pool begin or end, where they bind a workload.
    pub fn edges(&self, index: &Index<'_>, work: usize, pool: usize) -> Vec<Timestamp> {
        if index.works[work].preemptible || index.works[work].need == Need::Nothing {
            return Vec::new();
        }
        let open = self.open[pool].iter();
        let edges = open.flat_map(|b| [b.from, b.to]);
        edges.filter(|edge| *edge > index.world.now).collect()
    }
}

fn open(ledger: &Ledger<'_, '_>, pool: usize) -> Vec<Open> {
    let index = ledger.index;
    let now = index.world.now;
    let bookings = of_pool(index, pool, |b| b.to > now);
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
        let at = b.from.max(now);
        let beside = all.iter().filter(|(other, _)| lasts(other, at));
        let booked: i64 = beside.map(|&(b, team)| needed(b, team, at)).sum();
        Open {
            from: b.from,
            to: b.to,
            team,
            need: needed(b, team, at),
            spare: facts.milli(facts.capacity) - staying(at, None) - booked,
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
