//! What stands at a moment in the future: workloads join and part there piece by piece.

use std::rc::Rc;

use super::{Ledger, Slot, Standing, Step};
use crate::index::Amount;

impl Ledger<'_, '_> {
    /// A workload stands on these slots too, and they count in its team's quota; the space is the caller's.
    pub fn join(&mut self, work: usize, slots: &[Rc<Slot>]) {
        let mut all = self.slots[work].clone();
        all.extend(slots.iter().cloned());
        self.have(work, all, Standing::Running);
        self.tally(work, slots, 1);
    }

    /// A workload stands on these slots no more; the space is the caller's.
    pub fn part(&mut self, work: usize, slots: &[Rc<Slot>]) {
        let mut left = self.slots[work].clone();
        left.retain(|has| slots.iter().all(|gone| !Rc::ptr_eq(has, gone)));
        let standing = if left.is_empty() {
            Standing::Idle
        } else {
            Standing::Running
        };
        self.have(work, left, standing);
        self.tally(work, slots, -1);
    }

    fn have(&mut self, work: usize, slots: Vec<Rc<Slot>>, standing: Standing) {
        let before = std::mem::replace(&mut self.slots[work], slots);
        self.journal.push(Step::Slots(work, before));
        self.stand(work, standing);
    }

    fn tally(&mut self, work: usize, slots: &[Rc<Slot>], sign: i64) {
        if let Some(first) = slots.first() {
            let amount = slots.iter().map(|s| s.amount).sum::<Amount>();
            let pool = self.index.nodes[first.node].pool;
            let workers = slots.len() as i64;
            self.count(pool, work, amount * Amount::from(sign), workers * sign);
        }
    }
}
