//! Whether a changed workload would start in this very cycle.
//!
//! A change is tried on the cycle as it stands at its end, where no more is free than when the
//! workload had its turn. Where that is not so, nothing is said to start now.

use std::rc::Rc;

use domain::Timestamp;

use crate::backfill::{self, end_from};
use crate::cycle::Cycle;
use crate::index::{Amount, Need, TeamFacts, WorkFacts};
use crate::ledger::Slot;
use crate::place::{Query, place};
use crate::quota::{self, Block};
use crate::start;
use crate::world::Backfill;

/// One workload that waits, in a pool in which something may start.
pub(super) struct Trial<'c, 'i, 'w> {
    pub cycle: &'c mut Cycle<'i, 'w>,
    pub work: usize,
    pub pool: usize,
    /// Whether what was found out since this was last put back turns on who comes first then.
    pub unsure: bool,
}

impl<'c, 'i, 'w> Trial<'c, 'i, 'w> {
    /// Nothing where the end of the cycle does not tell.
    pub fn of(cycle: &'c mut Cycle<'i, 'w>, work: usize, pool: usize) -> Option<Self> {
        // Where nothing passes a head, another may come to be it in another order.
        let strict = cycle.index.pools[pool].row.backfill == Backfill::Strict;
        let another = strict && cycle.passed[pool].iter().any(|other| *other != work);
        (!another && cycle.undisturbed(pool)).then_some(Self {
            cycle,
            work,
            pool,
            unsure: false,
        })
    }

    pub fn facts(&self) -> &'i WorkFacts<'w> {
        &self.cycle.index.works[self.work]
    }

    pub fn team(&self) -> &'i TeamFacts<'w> {
        &self.cycle.index.teams[self.facts().team]
    }

    /// When it would end that started now.
    pub fn end(&self) -> Timestamp {
        end_from(self.cycle.index, self.work, self.cycle.index.world.now)
    }

    fn query(&self, workers: u32) -> Query<'static> {
        Query::start(self.cycle.index, self.work, self.pool).workers(workers)
    }

    /// Whether it starts with so many workers.
    pub fn starts_with(&mut self, workers: u32) -> bool {
        let query = self.query(workers);
        let end = self.end();
        self.starts(query, end)
    }

    /// Whether it starts without its demands on domains, links and affinity; promises of whole
    /// nodes, of which such a look knows nothing, stay demands.
    pub fn starts_relaxed(&mut self) -> bool {
        if self.cycle.index.pools[self.pool].row.whole_node_guarantees {
            return false;
        }
        let query = Query {
            relaxed: true,
            ..self.query(self.facts().row.workers_least())
        };
        let end = self.end();
        self.starts(query, end)
    }

    /// Whether it starts if it ends after so many seconds.
    pub fn starts_for(&mut self, seconds: i64) -> bool {
        let query = self.query(self.facts().row.workers_least());
        let end = backfill::after(self.cycle.index.world.now, Some(seconds));
        self.starts(query, end)
    }

    /// Whether it starts if it may be preempted.
    pub fn starts_yielding(&mut self) -> bool {
        let query = self.query(self.facts().row.workers_least());
        let end = self.end();
        place(&mut self.cycle.ledger, query).is_some_and(|slots| {
            let amount = self.amount(&slots);
            let firm = quota::allowed(&self.cycle.ledger, self.work, self.pool, amount);
            // Who borrows then is one of those by whose shares the order turns.
            matches!(firm, Err(Block::NonPreemptible { .. }))
                && self.comes(amount)
                && self.stands(slots, end)
        })
    }

    fn starts(&mut self, query: Query<'_>, end: Timestamp) -> bool {
        let slots = start::place_within(&mut self.cycle.ledger, query);
        slots.is_some_and(|slots| self.starts_on(slots, end))
    }

    /// Whether it starts on these devices and ends then.
    pub fn starts_on(&mut self, slots: Vec<Rc<Slot>>, end: Timestamp) -> bool {
        self.allows(self.amount(&slots)) && self.stands(slots, end)
    }

    fn amount(&self, slots: &[Rc<Slot>]) -> Amount {
        slots.iter().map(|slot| slot.amount).sum()
    }

    /// Whether limits let it have an amount.
    pub fn allows(&mut self, amount: Amount) -> bool {
        quota::allowed(&self.cycle.ledger, self.work, self.pool, amount).is_ok()
            && self.comes(amount)
    }

    /// Its turn comes, with others before it perhaps than those that were.
    fn comes(&mut self, amount: Amount) -> bool {
        self.unsure |= !self.cycle.comes_as_before(self.work, self.pool, amount);
        true
    }

    /// Whether bookings and kept starts let it stand there until then.
    fn stands(&mut self, slots: Vec<Rc<Slot>>, end: Timestamp) -> bool {
        // Beside a part that was started after its turn it takes no device that was free then.
        let shares = matches!(
            self.facts().need,
            Need::Part { .. } | Need::Instances { .. }
        );
        let as_then = !(shares && self.cycle.shared_now(self.pool));
        self.unbound(end) || as_then && self.cycle.would_pass(self.work, self.pool, slots, end)
    }

    /// Whether no booking and no kept start is in its way, wherever it stands.
    pub fn unbound(&self, end: Timestamp) -> bool {
        !self.cycle.binds(self.work, self.pool, end)
    }

    /// In how many seconds the starts and bookings begin that room is kept for, the soonest first.
    pub fn seconds_to_kept(&self) -> Vec<i64> {
        let now = self.cycle.index.world.now;
        let mut seconds: Vec<i64> = (self.cycle.kept_moments(self.work, self.pool).into_iter())
            .map(|at| (at - now).num_seconds())
            .collect();
        seconds.sort_unstable();
        seconds.dedup();
        seconds
    }
}
