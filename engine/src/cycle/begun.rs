//! Elastic work in a guarantee with fewer workers than it asks for: it starts with these, as all that is in a guarantee
//! does, and with more at its turn among the borrowers.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Cycle;
use crate::backfill;
use crate::index::Amount;
use crate::ledger::{Sight, Slot, Standing};
use crate::order::Picker;
use crate::place::{self, Query, stands_free};
use crate::preempt::{Right, Rules};
use crate::quota;
use crate::start;

/// Teams whose first work is tried beside elastic work before it has more workers: each costs a search for room, and it
/// is looked at again after each worker.
const RIVALS_MAX: usize = 8;

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

    /// Of workers that a borrower would start with, or gain, those that it has before it is looked at again, and the
    /// others: all at once where no borrower of another team has room beside it, else the fewest, so that
    /// nobody takes back a cycle later what evens out shares.
    pub(super) fn split_even(
        &mut self,
        work: usize,
        pool: usize,
        mut slots: Slots,
        picker: &Picker,
    ) -> (Slots, Slots) {
        let index = self.index;
        let facts = &index.works[work];
        let begins = self.ledger.standing(work) == Standing::Idle;
        let fewest = if begins {
            facts.row.workers_least() as usize
        } else {
            1
        };
        let whole = index.pools[pool].row.whole_node_guarantees || facts.service.is_some();
        if slots.len() <= fewest || whole || !Rules::of(index, pool).allow(Right::Share) {
            return (slots, Vec::new());
        }
        let others = slots.split_off(fewest);
        let end = backfill::end_from(index, work, index.world.now);
        if self.leaves_room(work, pool, &slots, picker) && self.may_begin(work, pool, &slots, end) {
            return (slots, others);
        }
        slots.extend(others);
        (slots, Vec::new())
    }

    /// Whether the first work of another team would have room beside these workers more.
    fn leaves_room(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        picker: &Picker,
    ) -> bool {
        let own = self.index.works[work].team;
        let teams = (0..self.index.teams.len()).filter(|&team| team != own && picker.waits(team));
        let rivals = teams.filter_map(|team| picker.pending(team).next());
        let rivals: Vec<usize> = rivals.take(RIVALS_MAX).collect();
        let mark = self.ledger.mark();
        match self.ledger.standing(work) {
            Standing::Idle => self.ledger.start(work, slots.to_vec()),
            _ => self.ledger.grow(work, slots),
        }
        let mut rivals = rivals.into_iter();
        let leaves = rivals.any(|other| start::room_now(&mut self.ledger, other, pool).is_some());
        self.ledger.rollback(mark);
        leaves
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

    /// Lets work that starts with fewer workers than it asks for start with more, as far as shares let it at this turn;
    /// it is put back for the rest. Gives those.
    pub(super) fn widen(
        &mut self,
        work: usize,
        pool: usize,
        others: Slots,
        picker: &mut Picker,
    ) -> Option<Slots> {
        let (now, later) = self.split_even(work, pool, others, picker);
        let most = if later.is_empty() { i64::MAX } else { 1 };
        let added = self.widen_by(work, pool, now, most)?;
        if !later.is_empty() {
            picker.put_back(self.index, work, later);
        }
        Some(added)
    }

    /// With the others where they were found, else with as many as there is room for, up to so many.
    fn widen_by(&mut self, work: usize, pool: usize, others: Slots, most: i64) -> Option<Slots> {
        let end = backfill::end_from(self.index, work, self.index.world.now);
        let amount: Amount = others.iter().map(|slot| slot.amount).sum();
        let there = quota::allowed(&self.ledger, work, pool, amount).is_ok()
            && stands_free(&mut self.ledger, work, &others, Sight::Start)
            && self.may_begin(work, pool, &others, end);
        let added = if there {
            others
        } else {
            let mates = self.mates(work, pool);
            let gains = place::gains(&self.ledger, work, pool, &mates).at_most(most);
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
        let mut begun: FxHashMap<usize, Slots> = begun.into_iter().collect();
        while let Some(work) = picker.next_borrower(&self.ledger) {
            let again = picker.take_begun(self.index, work);
            let others = again.or_else(|| begun.remove(&work)).unwrap_or_default();
            self.widen(work, pool, others, &mut picker);
        }
    }
}
