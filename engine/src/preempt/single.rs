//! What room for one worker costs at least on each node: who all would have to leave it.

use std::cell::Cell;

use super::Right;
use super::bound::least_for;
use super::herd::{Berth, Herd, untouched};
use super::search::Search;
use crate::index::{DEVICE, Need, bit};
use crate::ledger::{Ledger, Load, Part, Sight, View};
use crate::place::{devices_free, host_free, joins, modes};

/// By which right each team may lose something to a newcomer that asks for one whole device, or for a
/// part of one.
pub(super) struct Single {
    rights: Vec<Option<Right>>,
    /// What a device, or something of one, costs at least on the nodes that were tried.
    pub least: Cell<i128>,
}

/// Who may leave a node.
type Leaves<'l> = &'l dyn Fn(usize) -> bool;
/// What the first step of work costs.
type Costs<'c> = &'c dyn Fn(&Berth) -> i128;

impl Search<'_> {
    /// Whether the newcomer asks for one device or a part of one, has room nowhere, and who may give it.
    pub(super) fn single(&self, ledger: &mut Ledger<'_, '_>) -> Option<Single> {
        let need = ledger.index.works[self.newcomer.work].need;
        let one = matches!(need, Need::Whole(1) | Need::Part { .. });
        if self.newcomer.workers != 1 || !one || self.fits(ledger, 1, None).is_some() {
            return None;
        }
        let inside = self.inside(ledger);
        // Who does not borrow now does not with less either.
        let right = |team| Some(self.flock(ledger, team, inside)?.right);
        let rights = self.herd.teams().map(right).collect();
        Some(Single {
            rights,
            least: Cell::new(i128::MAX),
        })
    }

    /// Nodes with what room for such a newcomer costs there at least, whoever may leave; the least first.
    pub(super) fn single_sites(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        match ledger.index.works[self.newcomer.work].need {
            Need::Part { milli, .. } => self.herd.parts(ledger, milli),
            _ => self.herd.devices(ledger),
        }
    }

    /// The least that room for the newcomer costs on a node by its devices, and by all that it asks for;
    /// nothing where none can be.
    pub(super) fn single_least(
        &self,
        ledger: &Ledger<'_, '_>,
        single: &Single,
        node: usize,
    ) -> Option<(i128, Option<i128>)> {
        self.least_where(ledger, node, &|work| {
            let right = single.rights[ledger.index.works[work].team];
            right.is_some_and(|right| self.is_candidate(ledger, work, right))
        })
    }

    /// The same where only some work may leave.
    pub(super) fn least_where(
        &self,
        ledger: &Ledger<'_, '_>,
        node: usize,
        leaves: Leaves<'_>,
    ) -> Option<(i128, Option<i128>)> {
        let herd = &self.herd;
        let devices = match ledger.index.works[self.newcomer.work].need {
            Need::Part { milli, memory } => {
                let part = (self.newcomer.work, milli, memory);
                part_least(ledger, herd, node, part, leaves)
            }
            _ => device_least(ledger, herd, node, &|berth| herd.cost(berth), leaves),
        }?;
        let host = self.host_least(ledger, node, leaves);
        Some((devices, host.map(|host| devices.max(host))))
    }

    /// The least that it costs to have the cores and the memory of one worker free.
    fn host_least(&self, ledger: &Ledger<'_, '_>, node: usize, leaves: Leaves<'_>) -> Option<i128> {
        let facts = &ledger.index.works[self.newcomer.work];
        let (cpus, memory) = host_free(ledger, node, Sight::Later);
        let missing = [facts.cpus - cpus, facts.memory - memory];
        if missing.iter().all(|missing| *missing <= 0) {
            return Some(0);
        }
        let cost = |berth: &Berth| self.herd.cost(berth);
        let there = self.herd.on(node).iter();
        let there = there.filter(|berth| leaves(berth.work));
        let there = there.map(|b| (at_least(ledger, b, &cost), [b.cpus, b.memory]));
        let there: Vec<(i128, [i64; 2])> = there.collect();
        let mut least = 0;
        for (at, &missing) in missing.iter().enumerate() {
            let frees = there.iter().map(|(cost, frees)| (*cost, frees[at].into()));
            let (cost, lacking) = least_for(&mut frees.collect(), missing.into());
            if lacking > 0 {
                return None;
            }
            least = least.max(cost);
        }
        Some(least)
    }
}

/// The least that it costs to have a part of a device of a node free; nothing where none can be.
fn part_least(
    ledger: &Ledger<'_, '_>,
    herd: &Herd,
    node: usize,
    (work, milli, memory): (usize, i64, Option<i64>),
    leaves: Leaves<'_>,
) -> Option<i128> {
    let index = ledger.index;
    let machine = &index.nodes[node];
    let out = machine.shut(false);
    let loads = &ledger.spaces[node].loads[View::Later as usize];
    let memory = memory.unwrap_or(machine.row.gpu_memory_mib * milli / DEVICE);
    let open = |(at, load): (usize, &Load)| {
        let joined = |mode| {
            let part = Part {
                index: at as u32,
                mode,
                milli,
                memory,
                slice: None,
            };
            joins(ledger, work, node, load, &part)
        };
        out & bit(at as u32) == 0 && modes(index, work, node).any(joined)
    };
    if loads.iter().enumerate().any(open) {
        return Some(0);
    }
    holder_least(ledger, herd, node, &|berth| herd.cost(berth), leaves)
}

/// The least that it costs to have something of a device of a node free, where only some work may leave.
pub(super) fn holder_least(
    ledger: &Ledger<'_, '_>,
    herd: &Herd,
    node: usize,
    cost: Costs<'_>,
    leaves: Leaves<'_>,
) -> Option<i128> {
    let there = herd.on(node).iter().filter(|berth| berth.devices != 0);
    let there = there.filter(|berth| leaves(berth.work));
    there.map(|berth| at_least(ledger, berth, cost)).min()
}

/// What any step of work costs at least: what is shrunk already may cost less than its first did.
fn at_least(ledger: &Ledger<'_, '_>, berth: &Berth, cost: Costs<'_>) -> i128 {
    match ledger.is_stirred() && !untouched(ledger, berth.work) {
        true => 0,
        false => cost(berth),
    }
}

/// The least that it costs to have a device of a node free, where only some work may leave;
/// nothing where none can be.
pub(super) fn device_least(
    ledger: &Ledger<'_, '_>,
    herd: &Herd,
    node: usize,
    cost: Costs<'_>,
    leaves: Leaves<'_>,
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
        let cost = if touched { 0 } else { cost(berth) };
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
