//! The herds of all pools: kept while the world is, as work stands when a cycle begins.

use std::rc::Rc;

use domain::Timestamp;

use super::Herd;
use crate::index::Index;
use crate::ledger::{Ledger, Slot};

/// By pool.
#[derive(Debug, Default)]
pub(crate) struct Herds {
    /// What was found when nothing had been taken from running work yet: it lasts.
    kept: Vec<Option<Rc<Herd>>>,
    /// What is looked at in this cycle, once somebody has asked.
    at_hand: Vec<Option<Rc<Herd>>>,
}

impl Herds {
    /// None is known yet.
    pub fn of(index: &Index<'_>) -> Self {
        Self {
            kept: vec![None; index.pools.len()],
            at_hand: vec![None; index.pools.len()],
        }
    }

    /// The cycle is over.
    pub fn rest(mut self) -> Self {
        self.at_hand.fill(None);
        self
    }

    fn keep_any(&self) -> bool {
        self.kept.iter().any(Option::is_some)
    }

    /// Whether what is kept is what would be gathered.
    pub fn are_like(&mut self, ledger: &Ledger<'_, '_>) -> bool {
        (0..self.kept.len()).all(|pool| {
            let herd = self.change(pool);
            herd.is_none_or(|herd| herd.is_like(ledger, pool))
        })
    }

    /// What is looked at in this cycle.
    pub(super) fn at_hand(&self, pool: usize) -> Option<Rc<Herd>> {
        self.at_hand[pool].clone()
    }

    /// What was kept, as of now.
    pub(super) fn wake(&mut self, pool: usize, now: Timestamp) -> Option<Rc<Herd>> {
        let herd = self.kept[pool].as_mut()?;
        Rc::get_mut(herd)?.turn(now);
        self.at_hand[pool] = Some(Rc::clone(herd));
        self.at_hand(pool)
    }

    /// What was gathered is looked at in this cycle, and in later ones where it lasts.
    pub(super) fn take_in(&mut self, pool: usize, herd: &Rc<Herd>, lasts: bool) {
        self.at_hand[pool] = Some(Rc::clone(herd));
        if lasts {
            self.kept[pool] = Some(Rc::clone(herd));
        }
    }

    /// Numbers of work are others: nothing is known any more.
    pub fn forget(&mut self) {
        self.kept.fill(None);
        self.at_hand.fill(None);
    }

    /// Something was put on a node of a pool or taken from it.
    pub fn spoil(&self, pool: usize, node: usize) {
        for herd in [&self.kept[pool], &self.at_hand[pool]]
            .into_iter()
            .flatten()
        {
            herd.spoil(node);
        }
    }

    /// The herd that is kept of a pool, to be changed between cycles; whoever looks at one then
    /// has it alone.
    fn change(&mut self, pool: usize) -> Option<&mut Herd> {
        self.at_hand[pool] = None;
        let kept = &mut self.kept[pool];
        if kept
            .as_mut()
            .is_some_and(|herd| Rc::get_mut(herd).is_none())
        {
            *kept = None;
        }
        Rc::get_mut(kept.as_mut()?)
    }

    /// A workload that stood on these slots does so no more.
    pub fn leave(&mut self, index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) {
        if let Some(first) = slots.first()
            && let Some(herd) = self.change(index.nodes[first.node].pool)
        {
            herd.leave(index, work, slots);
        }
    }
}

impl Ledger<'_, '_> {
    /// A workload that is seated joins the herd of its pool, where that is kept and it is of it.
    pub fn join_herd(&mut self, work: usize) {
        if !self.herds.keep_any() {
            return;
        }
        let slots = self.slots(work).to_vec();
        if let Some(pool) = Herd::pool_of(self, work)
            && let Some(herd) = self.herds.change(pool)
        {
            herd.join(self.index, work, &slots);
        }
    }
}
