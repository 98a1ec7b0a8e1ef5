//! What one whole device costs at least on each node: who all would have to leave it.

use super::Right;
use super::herd::{Herd, untouched};
use super::search::Search;
use crate::index::bit;
use crate::ledger::{Ledger, Sight, View};
use crate::place::devices_free;

/// By which right each team may lose something to a newcomer that asks for one whole device.
pub(super) struct Single {
    rights: Vec<Option<Right>>,
}

impl Search<'_> {
    /// Whether the newcomer asks for one whole device that is nowhere free, and who may give one.
    pub(super) fn single(&self, ledger: &mut Ledger<'_, '_>) -> Option<Single> {
        let one = self.newcomer.workers == 1 && self.devices(ledger) == Some(1);
        if !one || self.fits(ledger, 1, None).is_some() {
            return None;
        }
        let inside = self.inside(ledger);
        // Who does not borrow now does not with less either.
        let right = |team| Some(self.flock(ledger, team, inside)?.right);
        let rights = self.herd.teams().map(right).collect();
        Some(Single { rights })
    }

    /// The least that it costs to have a device of a node free; nothing where none can be.
    pub(super) fn device_least(
        &self,
        ledger: &Ledger<'_, '_>,
        single: &Single,
        node: usize,
    ) -> Option<i128> {
        device_least(ledger, &self.herd, node, &|work| {
            let right = single.rights[ledger.index.works[work].team];
            right.is_some_and(|right| self.is_candidate(ledger, work, right))
        })
    }
}

/// The least that it costs to have a device of a node free, where only some work may leave;
/// nothing where none can be.
pub(super) fn device_least(
    ledger: &Ledger<'_, '_>,
    herd: &Herd,
    node: usize,
    leaves: &dyn Fn(usize) -> bool,
) -> Option<i128> {
    if devices_free(ledger, node, Sight::Later) != 0 {
        return Some(0);
    }
    let loads = &ledger.spaces[node].loads[View::Later as usize];
    // Per device: who stands there and may leave, and what their first steps cost.
    let mut there = [(0_u32, 0_i128); u64::BITS as usize];
    let stirred = ledger.is_stirred();
    for berth in herd.on(node) {
        if !leaves(berth.work) {
            continue;
        }
        // What is shrunk already may cost less than it did, and has less.
        let touched = stirred && !untouched(ledger, berth.work);
        let cost = if touched { 0 } else { herd.cost(berth) };
        let mut count = |device: u32, sharers: u32, cost: i128| {
            if let Some(there) = there.get_mut(device as usize) {
                there.0 += sharers;
                there.1 += cost;
            }
        };
        if !touched && berth.parts == berth.devices.count_ones() {
            let mut left = berth.devices;
            while left != 0 {
                count(left.trailing_zeros(), 1, cost);
                left &= left - 1;
            }
            continue;
        }
        let here = ledger.slots(berth.work).iter();
        let here = here.filter(|slot| slot.node == node);
        let mut counted = 0;
        for part in here.flat_map(|slot| &slot.parts) {
            let first = counted & bit(part.index) == 0;
            counted |= bit(part.index);
            count(part.index, 1, if first { cost } else { 0 });
        }
    }
    let emptied = there.iter().zip(loads);
    let emptied = emptied.filter(|((sharers, _), load)| *sharers == load.sharers);
    emptied.map(|((_, sum), _)| *sum).min()
}
