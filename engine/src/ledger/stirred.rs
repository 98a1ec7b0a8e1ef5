//! Whether work that stood when a cycle began still stands as it did.

use std::rc::Rc;

use super::{Ledger, Slot, Step};

impl Ledger<'_, '_> {
    /// A workload has come to have other slots than these.
    pub(super) fn note_slots(&mut self, work: usize, before: Vec<Rc<Slot>>) {
        self.spoil(&before);
        self.stirred += usize::from(!before.is_empty());
        self.journal.push(Step::Slots(work, before));
    }

    /// Work on these slots has come to have more or fewer workers: on all of its nodes its next step
    /// costs otherwise.
    pub(super) fn spoil(&self, slots: &[Rc<Slot>]) {
        for slot in slots {
            self.herds
                .spoil(self.index.nodes[slot.node].pool, slot.node);
        }
    }

    /// Whether work that had devices has come to have more or fewer since the cycle began.
    pub fn is_stirred(&self) -> bool {
        self.stirred > 0
    }
}
