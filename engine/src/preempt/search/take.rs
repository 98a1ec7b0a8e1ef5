//! Takes victims step by step until there is room, and gives back those that turn out not to be needed.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::{Harm, Outcome, Search, Turn, UNITS_MAX, Unit};
use crate::index::Amount;
use crate::ledger::{Held, Ledger, Sight, Slot, View};
use crate::place::{self, Query, place};
use crate::preempt::Right;
use crate::preempt::front::Front;
use crate::preempt::herd::Known;
use crate::preempt::hope::Hope;
use crate::preempt::outlook::Supply;
use crate::quota;

impl Search<'_> {
    /// Takes victims of a site in their order until there is room, then spares, in
    /// reverse, those that turn out not to be needed.
    pub(super) fn greedy(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
        rank: usize,
        spare: bool,
    ) -> Option<Outcome> {
        let mark = ledger.mark();
        let (units, slots) = self.take_until(ledger, site, spare);
        ledger.rollback(mark);
        Some(self.spare(ledger, units, slots?, site, rank))
    }

    /// Takes victims of a site in their order until there is room, or none is left.
    pub(super) fn take_until(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
        spare: bool,
    ) -> (Vec<Unit>, Option<Vec<Rc<Slot>>>) {
        let mut units = Vec::new();
        let mut slots = None;
        if site.is_none() && self.too_many(ledger) {
            return (units, slots);
        }
        let (mut front, mut known) = (Front::default(), Known::default());
        // A place is looked for only where there is something for it.
        let mut hope = Hope::of(self, ledger, site);
        while slots.is_none() && units.len() < UNITS_MAX {
            let next = match site {
                Some(nodes) => self.next_on(ledger, nodes, &units, spare),
                None => self.next_anywhere(ledger, &mut front, &mut known, &units, spare),
            };
            let Some(unit) = next else {
                break;
            };
            let gone = ledger.slots(unit.victim)[unit.keep..].to_vec();
            ledger.release(unit.victim, unit.keep);
            units.push(unit);
            if hope.rises(self, ledger, &gone) {
                slots = self.room(ledger, &units, site);
            }
        }
        (units, slots)
    }

    /// For a gang: room for one worker after another, each where it costs least.
    pub(super) fn worker_by_worker(
        &self,
        ledger: &mut Ledger<'_, '_>,
        domain: &[usize],
        rank: usize,
        spare: bool,
    ) -> Option<Outcome> {
        let mark = ledger.mark();
        let mut units: Vec<Unit> = Vec::new();
        let devices = self.devices(ledger).map_or(0, i64::from);
        let index = ledger.index;
        let fit = |node: &usize| place::fit(index, self.newcomer.work, *node, false).is_ok();
        let able = domain.iter().copied().filter(fit);
        let mut costs: Vec<(i128, usize)> = able
            .map(|node| (self.cost_least(ledger, node, devices), node))
            .collect();
        for _ in 0..self.newcomer.workers {
            costs.sort_unstable();
            let Some((more, slot)) = self.cheapest(ledger, &costs, &mut units, spare) else {
                ledger.rollback(mark);
                return None;
            };
            let mut changed = vec![slot.node];
            for unit in more {
                changed.extend(ledger.slots(unit.victim).iter().map(|s| s.node));
                ledger.release(unit.victim, unit.keep);
                units.push(unit);
            }
            ledger.occupy(View::Later, self.newcomer.work, &slot);
            for (cost, node) in costs.iter_mut().filter(|(_, n)| changed.contains(n)) {
                *cost = self.cost_least(ledger, *node, devices);
            }
        }
        ledger.rollback(mark);
        let slots = self.with(ledger, &units, Some(domain))?;
        Some(self.spare(ledger, units, slots, Some(domain), rank))
    }

    /// The node where room for one worker costs least, who leaves for it, and the room there;
    /// of equals the first. The nodes come with what they cost at least, the cheapest first.
    fn cheapest(
        &self,
        ledger: &mut Ledger<'_, '_>,
        costs: &[(i128, usize)],
        units: &mut Vec<Unit>,
        spare: bool,
    ) -> Option<(Vec<Unit>, Rc<Slot>)> {
        type Price = (i128, usize, Vec<Turn>, usize);
        let mut best: Option<(Price, Vec<Unit>, Rc<Slot>)> = None;
        for &(least, node) in costs {
            if best
                .as_ref()
                .is_some_and(|((price, ..), ..)| least > *price)
            {
                break;
            }
            let (here, before) = (ledger.mark(), units.len());
            let site = [node];
            let found = loop {
                if let Some(slots) = self.fits(ledger, 1, Some(&site)) {
                    break Some(slots);
                }
                let Some(unit) = self.next_on(ledger, &site, units, spare) else {
                    break None;
                };
                ledger.release(unit.victim, unit.keep);
                units.push(unit);
            };
            ledger.rollback(here);
            let more = units.split_off(before);
            let Some(slots) = found else { continue };
            let cost = more.iter().map(|u| u.cost).sum();
            // Where nothing is lost, the first node will do, whoever leaves: those before it cost.
            if cost == 0 {
                return Some((more, Rc::clone(&slots[0])));
            }
            let turns = more.iter().map(|unit| unit.turn).collect();
            let price = (cost, more.len(), turns, node);
            if best.as_ref().is_none_or(|(least, ..)| price < *least) {
                best = Some((price, more, Rc::clone(&slots[0])));
            }
        }
        best.map(|(_, more, slot)| (more, slot))
    }

    /// Gives back, in reverse, what turns out not to be needed, and weighs the rest.
    pub(super) fn spare(
        &self,
        ledger: &mut Ledger<'_, '_>,
        mut units: Vec<Unit>,
        mut slots: Vec<Rc<Slot>>,
        site: Option<&[usize]>,
        rank: usize,
    ) -> Outcome {
        let mut supply = self.supply_without(ledger, &units, site);
        for at in (0..units.len()).rev() {
            let victim = units[at].victim;
            let same = |unit: &&Unit| unit.victim == victim;
            // An elastic victim gives back its last worker first; the higher ranks are gone anyhow.
            if units[at + 1..].iter().any(|later| same(&later)) {
                continue;
            }
            let before = units[..at].iter().rev().find(same);
            let before = before.map_or(ledger.slots(victim).len(), |unit| unit.keep);
            let needed = supply
                .as_ref()
                .is_some_and(|supply| !self.spares(ledger, supply, &units[at], before));
            if needed {
                continue;
            }
            let mut fewer = units.clone();
            let spared = fewer.remove(at);
            if let Some(found) = self.with(ledger, &fewer, site) {
                (units, slots) = (fewer, found);
                if let Some(supply) = &mut supply {
                    Self::stays(ledger, supply, &units, &spared);
                }
            }
        }
        let mark = ledger.mark();
        let before = self.undercut(ledger, &units);
        for unit in &units {
            ledger.release(unit.victim, unit.keep);
        }
        let undercut = self.undercut(ledger, &units) - before;
        ledger.rollback(mark);
        let harm = Harm {
            undercut,
            cost: units.iter().map(|u| u.cost).sum(),
            units: units.len(),
            turns: units.iter().map(|u| u.turn).collect(),
            site: rank,
        };
        Outcome { harm, units, slots }
    }

    /// The room in workers, were these victims gone; nothing where one more could change it in
    /// other ways than by devices.
    fn supply_without(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Supply> {
        self.devices(ledger)?;
        let mark = ledger.mark();
        for unit in units {
            ledger.release(unit.victim, unit.keep);
        }
        let supply = self.supply(ledger, site);
        ledger.rollback(mark);
        supply
    }

    /// The same room after one victim less.
    fn stays(ledger: &mut Ledger<'_, '_>, supply: &mut Supply, units: &[Unit], spared: &Unit) {
        let held = ledger.slots(spared.victim).to_vec();
        let mark = ledger.mark();
        for unit in units {
            ledger.release(unit.victim, unit.keep);
        }
        supply.look_again(ledger, &held);
        ledger.rollback(mark);
    }

    /// Room with exactly these units taken in their order, each rightfully.
    fn with(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        let mark = ledger.mark();
        let mut rightful = true;
        for unit in units {
            let team = ledger.index.works[unit.victim].team;
            rightful &= unit.right == Right::Priority || self.borrows(ledger, team, unit.right);
            ledger.release(unit.victim, unit.keep);
        }
        let slots = if rightful {
            self.room(ledger, units, site)
        } else {
            None
        };
        ledger.rollback(mark);
        slots
    }

    /// Room as the ledger stands, if every unit is rightful in the end.
    fn room(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        if units.is_empty() {
            return None;
        }
        // Room is sooner told than right.
        let slots = self.fits(ledger, self.newcomer.workers, site)?;
        if !self.all_rightful(ledger, units, self.newcomer.amount) {
            return None;
        }
        let amount = slots.iter().map(|s| s.amount).sum();
        // A part asked for by memory counts for more on a smaller device than was reckoned with.
        let rightful = amount <= self.newcomer.amount || self.all_rightful(ledger, units, amount);
        (rightful && quota::allowed(ledger, self.newcomer.work, self.newcomer.pool, amount).is_ok())
            .then_some(slots)
    }

    /// Whether every unit is rightful in the end for a newcomer of that amount.
    fn all_rightful(&self, ledger: &mut Ledger<'_, '_>, units: &[Unit], amount: Amount) -> bool {
        let mut inside: FxHashMap<usize, bool> = FxHashMap::default();
        let mut even: FxHashMap<usize, bool> = FxHashMap::default();
        let mut out: FxHashMap<(usize, i64, Amount), bool> = FxHashMap::default();
        units.iter().all(|unit| {
            let facts = &ledger.index.works[unit.victim];
            let (team, priority) = (facts.team, facts.priority);
            match unit.right {
                Right::Priority => true,
                Right::Reclaim => *inside
                    .entry(team)
                    .or_insert_with(|| self.inside_against(ledger, team, amount)),
                Right::Share => {
                    *out.entry((team, priority, unit.amount)).or_insert_with(|| {
                        let held = ledger.held(self.newcomer.pool, team).gpu;
                        self.stays_out(ledger, unit, held, self.lower(ledger, unit.victim))
                    }) && *even
                        .entry(team)
                        .or_insert_with(|| self.evens_out(ledger, team, amount, &Held::default()))
                }
            }
        })
    }

    pub(in crate::preempt) fn fits(
        &self,
        ledger: &mut Ledger<'_, '_>,
        workers: u32,
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        let query = Query::start(ledger.index, self.newcomer.work, self.newcomer.pool)
            .workers(workers)
            .sight(Sight::Later);
        place(
            ledger,
            match site {
                Some(nodes) => query.only(nodes),
                None => query,
            },
        )
    }
}
