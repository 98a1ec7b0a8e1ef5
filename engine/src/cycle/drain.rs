//! Work that leaves nodes that are emptied: it takes its place in the line of its pool, as if it waited.
//!
//! Until its turn it counts for nothing, and its devices stay taken. At its turn it goes where it has room, or
//! waits where it is for room that others are about to leave; elastic work goes with as many workers as fit.
//! Who has no room is stopped, and has then what it could take back as who waits.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Cycle;
use crate::index::Amount;
use crate::ledger::{Sight, Slot, View};
use crate::order::Picker;
use crate::place::{Query, place};
use crate::plan::{Migration, Preemption, Reason};
use crate::preempt;
use crate::quota;
use crate::start;
use crate::world::NodeState;

type Slots = Vec<Rc<Slot>>;

/// What leaves nodes that are emptied and was not decided on, and where it is.
pub(super) type Leavers = BTreeMap<usize, Slots>;

/// At which turn work is looked at.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// As in its team's guarantee, with its least workers.
    pub inside: bool,
    /// Behind a head that nothing passes.
    pub blocked: bool,
}

impl Cycle<'_, '_> {
    /// All that has to leave emptied nodes, and may be preempted, comes into the lines.
    pub(super) fn line_up_leavers(&mut self) {
        if !self.index.drains() {
            return;
        }
        let works = 0..self.index.works.len();
        let leaving = works.filter_map(|work| Some((work, preempt::drained(&self.ledger, work)?)));
        self.leavers = leaving.collect();
        let works: Vec<usize> = self.leavers.keys().copied().collect();
        works
            .into_iter()
            .for_each(|work| self.ledger.put_aside(work));
    }

    /// Whether a workload leaves an emptied node and was not decided on.
    pub(super) fn leaves(&self, work: usize) -> bool {
        self.leavers.contains_key(&work)
    }

    /// All of that in a pool.
    pub(super) fn leavers_of(&self, pool: usize) -> Vec<usize> {
        let all = self.leavers.iter();
        let here = all.filter(|(_, slots)| self.index.nodes[slots[0].node].pool == pool);
        here.map(|(&work, _)| work).collect()
    }

    /// Whether there is any.
    pub(super) fn has_leavers(&self, pool: usize) -> bool {
        !self.leavers.is_empty() && !self.leavers_of(pool).is_empty()
    }

    /// Where a workload would go with all its workers, else with fewer.
    pub(super) fn where_it_goes(&mut self, work: usize, pool: usize) -> Option<Slots> {
        let most = self.leavers.get(&work)?.len();
        let least = self.least_of(work, most);
        (least..=most)
            .rev()
            .find_map(|workers| self.goes_to(work, pool, workers, Sight::Start))
    }

    /// Decides where a workload goes; gives the devices that are taken for it by that.
    pub(super) fn leave_at_turn(
        &mut self,
        work: usize,
        pool: usize,
        picker: &mut Picker,
        turn: Turn,
    ) -> Slots {
        let begun = picker.take_begun(self.index, work).is_some();
        if begun {
            // What it had in the guarantee it has again, or more.
            self.ledger.let_end(work);
        }
        let own = self.leavers[&work].clone();
        if turn.inside && !begun && !self.inside(work, pool, &own) {
            let part = self.part_inside(work, pool);
            self.ledger.nominate(work, part.clone());
            picker.put_back(self.index, work, Vec::new());
            return part;
        }
        if let Some(there) = self.goes_to(work, pool, own.len(), Sight::Start) {
            if turn.inside
                && self.makes_room(pool)
                && let Some(higher) = self.serve_higher(work, pool, &there, picker)
            {
                return self.ledger.slots(higher).to_vec();
            }
            self.go(work, pool, there.clone());
            return there;
        }
        // It has no place yet, and one that is about to be left.
        if let Some(there) = self.goes_to(work, pool, own.len(), Sight::Later) {
            self.stay(work, pool);
            return self.hold(work, &own, there);
        }
        let stays = self.stays_of(work, &own);
        let fewer = (self.least_of(work, own.len()).max(stays + 1)..own.len()).rev();
        let fewer = fewer.into_iter().find_map(|workers| {
            let there = self.goes_to(work, pool, workers, Sight::Later)?;
            Some((workers, there))
        });
        self.stay(work, pool);
        if let Some((workers, there)) = fewer {
            self.shrink(work, pool, workers);
            return self.hold(work, &own[..workers], there);
        }
        if stays == 0 && !preempt::service_can_lose(&self.ledger, work) {
            return Vec::new();
        }
        self.shrink(work, pool, stays);
        // What could be given room as who waits keeps what of it is free.
        if stays == 0 && !turn.blocked && self.make_room(work, pool) {
            return self.ledger.slots(work).to_vec();
        }
        Vec::new()
    }

    /// The fewest of so many workers with which a workload goes on.
    fn least_of(&self, work: usize, workers: usize) -> usize {
        (self.index.works[work].row.workers_least() as usize).min(workers)
    }

    /// Where as many of its workers have room as are in the guarantee, if any have.
    fn part_inside(&mut self, work: usize, pool: usize) -> Slots {
        let own = self.leavers[&work].clone();
        let workers = (self.least_of(work, own.len())..own.len()).rev();
        let part = workers.into_iter().find_map(|workers| {
            let there = self.goes_to(work, pool, workers, Sight::Start)?;
            self.inside(work, pool, &there).then_some(there)
        });
        part.unwrap_or_default()
    }

    /// Room for the first of its workers, as if it stood nowhere: it may go where it has a device already.
    fn goes_to(&mut self, work: usize, pool: usize, workers: usize, sight: Sight) -> Option<Slots> {
        let own = self.leavers.get(&work)?.clone();
        let found = self.room_without(work, pool, (&own, workers), sight, None)?;
        if self.room_holds(work, pool, &found, &[], &[]) {
            return Some(found);
        }
        let end = crate::backfill::end_from(self.index, work, self.index.world.now);
        let inside = self.inside(work, pool, &found);
        let met = self.timelines[pool].as_ref()?.nodes_met(work, end, inside);
        let nodes = self.index.pools[pool].nodes.iter().copied();
        let others: Vec<usize> = nodes.filter(|node| !met.contains(node)).collect();
        let found = self.room_without(work, pool, (&own, workers), sight, Some(&others))?;
        self.room_holds(work, pool, &found, &[], &[])
            .then_some(found)
    }

    fn room_without(
        &mut self,
        work: usize,
        pool: usize,
        (own, workers): (&[Rc<Slot>], usize),
        sight: Sight,
        only: Option<&[usize]>,
    ) -> Option<Slots> {
        let mark = self.ledger.mark();
        for slot in own {
            self.ledger.vacate(View::Now, work, slot);
            self.ledger.vacate(View::Later, work, slot);
        }
        let from = &own[..workers];
        let found = match only {
            None => start::room_elsewhere(&mut self.ledger, work, pool, from, sight),
            Some(nodes) => {
                let query = Query::start(self.index, work, pool);
                let query = query.workers(workers as u32).sight(sight).only(nodes);
                place(&mut self.ledger, query)
            }
        };
        self.ledger.rollback(mark);
        found.filter(|there| self.may_go_on(work, pool, there))
    }

    /// Whether limits let a workload have these devices: its own count against them as long as it has them.
    fn may_go_on(&self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let amount = |slots: &[Rc<Slot>]| slots.iter().map(|slot| slot.amount).sum::<Amount>();
        let more = amount(slots) - amount(&self.leavers[&work]);
        more <= 0 || quota::allowed(&self.ledger, work, pool, more).is_ok()
    }

    /// It moves.
    fn go(&mut self, work: usize, pool: usize, there: Slots) {
        let own = self.leavers.remove(&work).unwrap_or_default();
        self.ledger.take_back(work, own);
        self.ledger.release(work, 0);
        let placement = self.places(&there);
        self.stands_later(work, pool, &there);
        self.ledger.nominate(work, there);
        self.plan.migrations.push(Migration {
            workload: self.index.works[work].row.name.clone(),
            gainer: None,
            placement,
        });
    }

    /// It is where it was.
    fn stay(&mut self, work: usize, pool: usize) {
        let own = self.leavers.remove(&work).unwrap_or_default();
        self.ledger.take_back(work, own);
        self.look_at(work, pool);
    }

    /// Nobody else is given room that it goes to as soon as it can, beside its own.
    fn hold(&mut self, work: usize, own: &[Rc<Slot>], there: Slots) -> Slots {
        let has = |slot: &Rc<Slot>| {
            let mut own = own.iter();
            own.any(|o| o.node == slot.node && o.devices & slot.devices != 0)
        };
        for slot in there.iter().filter(|slot| !has(slot)) {
            self.ledger.occupy(View::Later, work, slot);
        }
        there
    }

    /// It keeps so many workers; the others leave.
    fn shrink(&mut self, work: usize, pool: usize, keep: usize) {
        let slots = self.ledger.slots(work).to_vec();
        let row = self.index.works[work].row;
        self.ledger.release(work, keep);
        self.loses(work);
        self.look_at(work, pool);
        self.plan.preemptions.push(Preemption {
            workload: row.name.clone(),
            gainer: None,
            reason: Reason::Drain,
            lost_gpu_seconds: preempt::lost_gpu_seconds(self.index, work, &slots[keep..]),
            to_workers: keep as u32,
            released: (keep as u32..row.placed.len() as u32).collect(),
        });
    }

    fn look_at(&mut self, work: usize, pool: usize) {
        if let Some(timeline) = self.timelines[pool].as_mut() {
            timeline.look_at(&self.ledger, work);
        }
    }

    /// How many workers can stay where they are: the highest ranks leave, down to the first on a node that
    /// is emptied, and those that stay must be enough.
    fn stays_of(&self, work: usize, slots: &[Rc<Slot>]) -> usize {
        let emptied =
            |slot: &Rc<Slot>| self.index.nodes[slot.node].row.state == NodeState::Draining;
        let keep = slots.iter().position(emptied).unwrap_or(slots.len());
        let least = self.index.works[work].row.workers_least() as usize;
        if keep < least { 0 } else { keep }
    }
}
