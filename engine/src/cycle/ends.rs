//! Work that ends by its limit no later than it had to leave as a victim: it gives way to nobody, and whoever would
//! have its room waits for its end as for that of a grace period.

use std::rc::Rc;

use super::Cycle;
use crate::backfill::ending;
use crate::index::Amount;
use crate::ledger::{Sight, Slot, Standing};
use crate::place::stands_free;
use crate::quota;

impl Cycle<'_, '_> {
    /// Room for all workers of a workload once those have ended; it need not be for them that it is there.
    pub(super) fn once_ended(&mut self, work: usize, pool: usize) -> Option<Vec<Rc<Slot>>> {
        let ending = self.ending(pool);
        if ending.is_empty() {
            return None;
        }
        let mark = self.ledger.mark();
        ending.iter().for_each(|&other| self.ledger.let_end(other));
        let slots = self.free_later(work, pool);
        self.ledger.rollback(mark);
        slots
    }

    /// Those of them who have to end before a workload can have these slots, within its limits: as few as
    /// are enough, and the first to end.
    pub(super) fn awaited(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> Vec<usize> {
        let mut awaited = self.ending(pool);
        if awaited.is_empty() || !self.has_once_ended(work, pool, slots, &awaited) {
            return Vec::new();
        }
        for at in (0..awaited.len()).rev() {
            let mut fewer = awaited.clone();
            fewer.remove(at);
            if self.has_once_ended(work, pool, slots, &fewer) {
                awaited = fewer;
            }
        }
        awaited
    }

    /// Says that room is kept for others where these end.
    pub(super) fn let_end(&mut self, works: &[usize]) {
        for &work in works {
            self.ledger.let_end(work);
            self.loses(work);
        }
    }

    fn ending(&self, pool: usize) -> Vec<usize> {
        let index = self.index;
        let here = |&work: &usize| {
            let there = self.ledger.slots(work).first();
            self.ledger.standing(work) == Standing::Running
                && there.is_some_and(|slot| index.nodes[slot.node].pool == pool)
        };
        ending(index, pool).filter(here).collect()
    }

    fn has_once_ended(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        ended: &[usize],
    ) -> bool {
        let amount: Amount = slots.iter().map(|slot| slot.amount).sum();
        let mark = self.ledger.mark();
        ended.iter().for_each(|&other| self.ledger.let_end(other));
        let has = stands_free(&mut self.ledger, work, slots, Sight::Later)
            && quota::allowed(&self.ledger, work, pool, amount).is_ok();
        self.ledger.rollback(mark);
        has
    }
}
