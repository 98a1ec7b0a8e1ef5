//! A ledger that is put aside: its state without the index, which may take in more work until it goes on.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Held, Ledger, Nowhere, Slot, Space, Standing};
use crate::index::{Amount, Index};
use crate::place::{Able, NodeClasses, PlacementCosts};
use crate::preempt::{Fronts, Herds, Outlooks};

/// A state without its index.
pub(crate) struct Paused<'w> {
    pub spaces: Vec<Space>,
    held: Vec<Vec<Held>>,
    users: FxHashMap<(usize, usize, &'w str), Amount>,
    slots: Vec<Vec<Rc<Slot>>>,
    standing: Vec<Standing>,
    seats: Vec<Vec<usize>>,
    evicted: Vec<u32>,
    put: Vec<i64>,
    classes: NodeClasses,
    able: Able,
    nowhere: Nowhere,
    herds: Herds,
    costs: Vec<Option<PlacementCosts>>,
    bare: bool,
}

impl<'w> Paused<'w> {
    /// Goes on over the same index, which may know more work by now.
    pub fn resume<'i>(self, index: &'i Index<'w>) -> Ledger<'i, 'w> {
        let mut ledger = Ledger {
            index,
            spaces: self.spaces,
            held: self.held,
            users: self.users,
            slots: self.slots,
            standing: self.standing,
            seats: self.seats,
            blurred: FxHashSet::default(),
            evicted: self.evicted,
            journal: Vec::new(),
            put: self.put,
            version: 0,
            versions: 0,
            stands: 0,
            placed: FxHashMap::default(),
            classes: self.classes,
            able: self.able,
            nowhere: self.nowhere,
            stirred: 0,
            herds: self.herds,
            fronts: Fronts::default(),
            outlooks: Outlooks::default(),
            shares: vec![vec![None; index.teams.len()]; index.pools.len()],
            costs: self.costs,
            bare: self.bare,
        };
        ledger.widen();
        ledger
    }
}

impl<'w> Ledger<'_, 'w> {
    /// What is left when the index is let go, to go on with later; no going back beyond it.
    pub fn pause(self) -> Paused<'w> {
        Paused {
            spaces: self.spaces,
            held: self.held,
            users: self.users,
            slots: self.slots,
            standing: self.standing,
            seats: self.seats,
            evicted: self.evicted,
            put: self.put,
            classes: self.classes,
            able: self.able,
            nowhere: self.nowhere,
            herds: self.herds.rest(),
            costs: self.costs,
            bare: self.bare,
        }
    }
}
