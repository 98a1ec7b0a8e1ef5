//! Elastic work in a guarantee with fewer workers than it asks for: it starts with these, as all that is in a guarantee
//! does, and with more at its turn among the borrowers.

use std::rc::Rc;

use super::Cycle;
use crate::backfill;
use crate::index::Amount;
use crate::ledger::{Sight, Slot};
use crate::order::Picker;
use crate::place::{self, Query, stands_free};
use crate::quota;
use crate::start;

type Slots = Vec<Rc<Slot>>;

impl Cycle<'_, '_> {
    /// The workers with which work is in its team's guarantee, and the others; all together where that
    /// is none or all.
    pub(super) fn split_at_guarantee(
        &mut self,
        work: usize,
        pool: usize,
        mut slots: Slots,
    ) -> (Slots, Slots) {
        let index = self.index;
        let facts = &index.works[work];
        let least = facts.row.workers_least() as usize;
        // Where whole nodes are promised fewer workers may use up a promise that more leave alone; replicas
        // that keep apart are placed together.
        let whole = index.pools[pool].row.whole_node_guarantees || facts.service.is_some();
        if slots.len() == least || whole {
            return (slots, Vec::new());
        }
        let held = self.ledger.held(pool, facts.team).gpu;
        let mut slack = index.pools[pool].rows[facts.team].guaranteed - held;
        let fits = |slot: &&Rc<Slot>| {
            slack -= slot.amount;
            slack >= 0
        };
        let inside = slots.iter().take_while(fits).count();
        if inside < least || inside == slots.len() {
            return (slots, Vec::new());
        }
        let others = slots.split_off(inside);
        let end = backfill::end_from(index, work, index.world.now);
        if self.may_begin(work, pool, &slots, end) {
            return (slots, others);
        }
        slots.extend(others);
        (slots, Vec::new())
    }

    /// Whether bookings and kept starts leave work these devices until then.
    fn may_begin(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        end: domain::Timestamp,
    ) -> bool {
        self.may_stand(work, pool, (self.index.world.now, end), slots)
            && self.passes(work, pool, slots, end)
    }

    /// Lets work that starts within its guarantee start with more workers: with the others where they
    /// were found, else with as many as there is room for. Gives those.
    pub(super) fn widen(&mut self, work: usize, pool: usize, others: Slots) -> Option<Slots> {
        let end = backfill::end_from(self.index, work, self.index.world.now);
        let amount: Amount = others.iter().map(|slot| slot.amount).sum();
        let there = quota::allowed(&self.ledger, work, pool, amount).is_ok()
            && stands_free(&mut self.ledger, work, &others, Sight::Start)
            && self.may_begin(work, pool, &others, end);
        let added = if there {
            others
        } else {
            let mates = self.mates(work, pool);
            let gains = place::gains(&self.ledger, work, pool, &mates);
            gains.largest(|more| {
                let query = Query::start(self.index, work, pool)
                    .workers(more)
                    .only(&mates);
                let slots = start::place_within(&mut self.ledger, query)?;
                self.may_begin(work, pool, &slots, end).then_some(slots)
            })?
        };
        self.stands(work, pool, &added, end);
        let placement = self.places(&added);
        let name = &self.index.works[work].row.name;
        if let Some(told) = self.plan.starts.iter_mut().find(|s| s.workload == *name) {
            told.workers += added.len() as u32;
            told.placement.extend(placement);
        }
        self.ledger.grow(work, &added);
        Some(added)
    }

    /// The same for all that is left of it in a queue, in the order of borrowers.
    pub(super) fn widen_all(&mut self, pool: usize, queue: &mut Picker) {
        let begun = queue.take_all_begun(self.index);
        let works: Vec<usize> = begun.iter().map(|(work, _)| *work).collect();
        let mut picker = Picker::of(self.index, pool, &works);
        while let Some(work) = picker.next_borrower(&self.ledger) {
            let others = begun.iter().find(|(begun, _)| *begun == work);
            let others = others.map(|(_, others)| others.clone());
            self.widen(work, pool, others.unwrap_or_default());
        }
    }
}
