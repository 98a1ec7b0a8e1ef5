//! Work that moves: off nodes that are emptied, and together to make room for work on whole devices.

use std::cmp::Reverse;
use std::rc::Rc;

use super::Cycle;
use super::turn::Making;
use crate::consolidate;
use crate::index::Amount;
use crate::ledger::{Sight, Slot, View};
use crate::order::Picker;
use crate::plan::{Migration, Nomination, Preemption, Reason};
use crate::preempt::{self, Rules};
use crate::quota;
use crate::start;
use crate::world::NodeState;

impl Cycle<'_, '_> {
    /// Moves or stops what may be preempted on nodes that are emptied.
    pub(super) fn drain(&mut self) {
        if !self.index.drains() {
            return;
        }
        for (work, slots) in self.drained() {
            let pool = self.index.nodes[slots[0].node].pool;
            if self.move_off(work, pool, &slots, true).is_some() {
                continue;
            }
            let keep = self.stays_of(work, &slots);
            if keep == 0 && !preempt::service_can_lose(&self.ledger, work) {
                continue;
            }
            let lost = preempt::lost_gpu_seconds(self.index, work, &slots[keep..]);
            self.ledger.release(work, keep);
            let row = self.index.works[work].row;
            // What was shrunk for another before leaves for nobody by now.
            let told = &mut self.plan.preemptions;
            let before = told.iter().position(|p| p.workload == row.name);
            let before = before.map_or(0, |at| told.remove(at).lost_gpu_seconds);
            told.push(Preemption {
                workload: row.name.clone(),
                gainer: None,
                reason: Reason::Drain,
                lost_gpu_seconds: before + lost,
                to_workers: keep as u32,
                released: (keep as u32..row.placed.len() as u32).collect(),
            });
        }
    }

    /// Moves work of a pool off nodes that are emptied before others start where it would go: what is in its
    /// team's guarantee, or what is not. What would count for more there leaves that to those that start.
    /// Gives whose it is and where it goes.
    pub(super) fn move_drained(
        &mut self,
        pool: usize,
        inside: bool,
    ) -> Vec<(usize, Vec<Rc<Slot>>)> {
        let mut moved = Vec::new();
        if !self.index.drains() {
            return moved;
        }
        for (work, slots) in self.drained() {
            let team = self.index.works[work].team;
            if self.index.nodes[slots[0].node].pool == pool
                && quota::in_guarantee(&self.ledger, pool, team, 0) == inside
                && let Some(there) = self.move_off(work, pool, &slots, false)
            {
                moved.push((team, there));
            }
        }
        if !moved.is_empty() {
            self.renew(pool);
        }
        moved
    }

    /// What has to leave nodes that are emptied, and where it is. Places may be few: who would be the last
    /// to be a victim is the first to have one.
    fn drained(&self) -> Vec<(usize, Vec<Rc<Slot>>)> {
        let mut all: Vec<(usize, Vec<Rc<Slot>>)> = (0..self.index.works.len())
            .filter_map(|work| Some((work, preempt::drained(&self.ledger, work)?)))
            .collect();
        all.sort_by_cached_key(|(work, slots)| {
            let facts = &self.index.works[*work];
            let cost = preempt::cost(self.index, *work, slots);
            let first = (Reverse(facts.priority), Reverse(cost));
            (first, facts.row.started, *work)
        });
        all
    }

    /// Moves work from these devices to others of its pool, if there is room; where it counts for more
    /// only if that is let.
    fn move_off(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        for_more: bool,
    ) -> Option<Vec<Rc<Slot>>> {
        let mark = self.ledger.mark();
        self.ledger.release(work, 0);
        let amount = |slots: &[Rc<Slot>]| slots.iter().map(|slot| slot.amount).sum::<Amount>();
        // Nobody is told what a mover waits for: but for itself, its place is free now.
        let gone = self.ledger.mark();
        for slot in slots {
            self.ledger.vacate(View::Now, work, slot);
        }
        let there = start::room_elsewhere(&mut self.ledger, work, pool, slots, Sight::Start);
        self.ledger.rollback(gone);
        let there = there.filter(|there| for_more || amount(there) <= amount(slots));
        let Some(there) = there else {
            self.ledger.rollback(mark);
            return None;
        };
        let placement = self.places(&there);
        self.ledger.nominate(work, there.clone());
        self.plan.migrations.push(Migration {
            workload: self.index.works[work].row.name.clone(),
            gainer: None,
            placement,
        });
        Some(there)
    }

    /// How many workers of what has no room elsewhere can stay where they are: the highest ranks leave,
    /// down to the first on a node that is emptied, and those that stay must be enough.
    fn stays_of(&self, work: usize, slots: &[Rc<Slot>]) -> usize {
        let emptied =
            |slot: &Rc<Slot>| self.index.nodes[slot.node].row.state == NodeState::Draining;
        let keep = slots.iter().position(emptied).unwrap_or(slots.len());
        let least = self.index.works[work].row.workers_least() as usize;
        if keep < least { 0 } else { keep }
    }

    /// Whether work may move in a pool to make room.
    pub(super) fn consolidates(&self, pool: usize) -> bool {
        Rules::of(self.index, pool).consolidates()
    }

    /// Makes room for waiting work on whole devices by moves, in order.
    pub(super) fn consolidate_in(&mut self, pool: usize, mut picker: Picker) -> Vec<usize> {
        if !self.consolidates(pool) || self.is_strict(pool) {
            return picker.rest();
        }
        let mut making = self.making(pool);
        let mut given_back = Vec::new();
        while let Some(work) = picker.next(&self.ledger) {
            if !self.move_for(work, pool, &mut making) {
                given_back.push(work);
            }
        }
        self.making[pool] = Some(making);
        given_back
    }

    /// Gives a workload room by moves, if it may have it.
    pub(super) fn move_for(&mut self, work: usize, pool: usize, making: &mut Making) -> bool {
        let facts = &self.index.works[work];
        let key = (
            facts.team,
            facts.shape,
            making.rules.delayed(self.index, work),
        );
        if making.immovable.contains(&key) || !self.formable(work, pool) {
            return false;
        }
        let Some(moves) = consolidate::find(&mut self.ledger, work, pool, &making.rules) else {
            making.immovable.insert(key);
            return false;
        };
        if !self.room_holds(work, pool, &moves.slots, &[], &moves.movers) {
            return false;
        }
        making.immovable.clear();
        self.make_way(work, moves);
        true
    }

    /// Nominates a workload, and each mover where it goes.
    fn make_way(&mut self, work: usize, moves: consolidate::Moves) {
        let gainer = self.index.works[work].row.name.clone();
        let mut waits_for = Vec::with_capacity(moves.movers.len());
        for mover in &moves.movers {
            self.ledger.release(mover.work, 0);
        }
        let placement = self.places(&moves.slots);
        let pool = self.index.nodes[moves.slots[0].node].pool;
        self.keep_for(work, pool, moves.slots);
        for mover in moves.movers {
            let workload = self.index.works[mover.work].row.name.clone();
            waits_for.push(workload.clone());
            self.plan.migrations.push(Migration {
                workload,
                gainer: Some(gainer.clone()),
                placement: self.places(&mover.there),
            });
            self.ledger.nominate(mover.work, mover.there);
        }
        self.plan.nominations.push(Nomination {
            workload: gainer,
            placement,
            waits_for,
        });
    }
}
