//! Running work that is put aside until it is decided where it goes: in the order it counts for nothing, as what
//! waits does, and against limits for what it holds.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Ledger, Slot, Standing};
use crate::index::Amount;

/// What is put aside, and what it holds.
#[derive(Debug, Default)]
pub(super) struct Aside<'w> {
    works: FxHashSet<usize>,
    /// By pool and team, and by user too.
    teams: FxHashMap<(usize, usize), Amount>,
    users: FxHashMap<(usize, usize, &'w str), Amount>,
}

impl<'w> Ledger<'_, 'w> {
    /// Puts running work aside; its devices stay taken.
    pub fn put_aside(&mut self, work: usize) {
        self.count_aside(work, 1);
        self.aside.works.insert(work);
        self.uncount(work, 0);
        self.stand(work, Standing::Leaving);
    }

    /// It is aside no more, with these devices that stayed taken: it may run on there, or lose them.
    pub fn take_back(&mut self, work: usize, slots: Vec<Rc<Slot>>) {
        self.settle(work, slots, Standing::Running);
        self.count_aside(work, -1);
        self.aside.works.remove(&work);
    }

    fn count_aside(&mut self, work: usize, sign: Amount) {
        let index = self.index;
        let slots = self.slots(work);
        let Some(first) = slots.first() else {
            return;
        };
        let pool = index.nodes[first.node].pool;
        let amount = slots.iter().map(|slot| slot.amount).sum::<Amount>() * sign;
        let facts = &index.works[work];
        for &team in &index.teams[facts.team].path {
            *self.aside.teams.entry((pool, team)).or_default() += amount;
            if let Some(user) = &facts.row.user {
                let key = (pool, team, user.as_str());
                *self.aside.users.entry(key).or_default() += amount;
            }
        }
    }

    /// Whether work is put aside.
    pub fn is_aside(&self, work: usize) -> bool {
        self.aside.works.contains(&work)
    }

    /// What a team has against its limits: what it holds, and what of it is put aside.
    pub fn bound_by(&self, pool: usize, team: usize) -> Amount {
        let held = self.held(pool, team).gpu;
        if self.aside.works.is_empty() {
            return held;
        }
        held + self.aside.teams.get(&(pool, team)).copied().unwrap_or(0)
    }

    /// The same of one user of a team.
    pub fn bound_by_user(&self, pool: usize, team: usize, user: &'w str) -> Amount {
        let aside = self.aside.users.get(&(pool, team, user));
        self.held_by_user(pool, team, user) + aside.copied().unwrap_or(0)
    }
}
