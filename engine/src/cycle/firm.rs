//! Kept room for work that starts in its team's guarantee alone: who would borrow of that team waits until it has started.
//!
//! Whoever started meanwhile would count before it, and it would not be in the guarantee any more: its
//! victims would have left in vain.

use std::rc::Rc;

use super::Cycle;
use crate::backfill;
use crate::bookings;
use crate::index::Amount;
use crate::ledger::Slot;
use crate::quota;

impl Cycle<'_, '_> {
    /// Keeps room for work that waits.
    pub(super) fn keep_for(&mut self, work: usize, pool: usize, slots: Vec<Rc<Slot>>) {
        self.stands_later(work, pool, &slots);
        self.ledger.nominate(work, slots);
        self.engaged.push(work);
        self.unserved.clear();
        if self.is_firm(work, pool) {
            self.firm.insert((pool, self.index.works[work].team));
        }
    }

    /// Whether work starts in its team's guarantee alone.
    pub(super) fn is_firm(&self, work: usize, pool: usize) -> bool {
        let borrows = self.index.pools[pool].row.non_preemptible_borrowing;
        !self.index.works[work].preemptible && !borrows
    }

    /// Whether work that starts in its team's guarantee alone is in it once those that make way have left: what
    /// is booked may be over by then.
    pub(super) fn is_inside_then(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        leaving: &[(usize, usize)],
    ) -> bool {
        let index = self.index;
        let team = index.works[work].team;
        let over = bookings::over_by(index, pool, team, backfill::after_grace(index, pool));
        let amount: Amount = slots.iter().map(|slot| slot.amount).sum();
        if over == 0 || amount == 0 || !self.is_firm(work, pool) {
            return true;
        }
        let mark = self.ledger.mark();
        for &(victim, keep) in leaving {
            self.ledger.release(victim, keep);
        }
        let then = amount + over;
        let inside = quota::in_guarantee(&self.ledger, pool, team, then);
        self.ledger.rollback(mark);
        inside
    }

    /// Says that a workload stands on devices once those that make way have left.
    pub(super) fn stands_later(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>]) {
        let begin = match self.index.works[work].row.nominated {
            Some(_) => backfill::once_left(&self.ledger, slots),
            None => backfill::after_grace(self.index, pool),
        };
        let end = backfill::end_from(self.index, work, begin);
        self.stands(work, pool, slots, end);
    }

    /// Whether those of its team who wait so let work have these devices.
    pub(super) fn firm_lets(&self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let plain = || slots.iter().all(|slot| slot.amount == 0);
        let waits = self.firm.contains(&(pool, self.index.works[work].team));
        !waits || plain() || self.inside(work, pool, slots)
    }
}
