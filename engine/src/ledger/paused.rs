//! A ledger that is put aside: its state without the index, which may take in more work until it goes on.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Held, Ledger, Slot, Space, Standing};
use crate::index::{Amount, Index};
use crate::place::{Classes, Prices};

/// A state without its index.
pub(crate) struct Paused<'w> {
    pub spaces: Vec<Space>,
    held: Vec<Vec<Held>>,
    users: HashMap<(usize, usize, &'w str), Amount>,
    slots: Vec<Vec<Rc<Slot>>>,
    standing: Vec<Standing>,
    evicted: Vec<u32>,
    classes: Classes,
    prices: Vec<Option<Prices>>,
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
            evicted: self.evicted,
            journal: Vec::new(),
            classes: self.classes,
            prices: self.prices,
            bare: self.bare,
        };
        ledger.admit();
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
            evicted: self.evicted,
            classes: self.classes,
            prices: self.prices,
            bare: self.bare,
        }
    }
}
