//! What running work loses: ranks that it gives up, and all of it where it ends.

use std::rc::Rc;

use super::{Ledger, Slot, Standing, Step, View};
use crate::index::Amount;

impl Ledger<'_, '_> {
    /// A running workload loses its highest ranks, so that `keep` workers stay.
    pub fn release(&mut self, work: usize, keep: usize) {
        let slots = self.slots[work].clone();
        if slots.len() == self.index.works[work].row.placed.len() {
            let team = self.index.works[work].team;
            self.evicted[team] += 1;
            self.journal.push(Step::Evicted(team));
        }
        self.lose(work, &slots, keep);
        if keep == 0 {
            self.stand(work, Standing::Leaving);
        }
    }

    /// Of these slots of a workload so many stay, from the first on.
    fn lose(&mut self, work: usize, slots: &[Rc<Slot>], keep: usize) {
        for slot in &slots[keep.min(slots.len())..] {
            self.vacate(View::Later, work, slot);
        }
        self.uncount(work, keep);
    }

    pub(super) fn uncount(&mut self, work: usize, keep: usize) {
        let mut stay = self.slots[work].clone();
        let gone = stay.split_off(keep.min(stay.len()));
        if let Some(first) = gone.first() {
            let amount = gone.iter().map(|s| s.amount).sum::<Amount>();
            self.count(
                self.index.nodes[first.node].pool,
                work,
                -amount,
                -(gone.len() as i64),
            );
        }
        let before = std::mem::replace(&mut self.slots[work], stay);
        self.note_slots(work, before);
    }

    /// A running workload ends by itself while victims have their grace: who waits for its devices may have
    /// them, and it gives way to nobody.
    pub fn let_end(&mut self, work: usize) {
        let gone = self.slots[work].clone();
        self.lose(work, &gone, 0);
        self.stand(work, Standing::Leaving);
    }
}
