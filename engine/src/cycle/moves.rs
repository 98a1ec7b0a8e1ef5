//! Work that moves: off nodes that are emptied, and together to make room for work on whole devices.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::rc::Rc;

use super::Cycle;
use crate::consolidate;
use crate::ledger::Slot;
use crate::order::Picker;
use crate::plan::{Migration, Nomination, Preemption, Reason};
use crate::preempt::{self, Rules};
use crate::start;

impl Cycle<'_, '_> {
    /// Moves or stops what may be preempted on nodes that are emptied.
    pub(super) fn drain(&mut self) {
        if !self.index.drains() {
            return;
        }
        // Places may be few: who would be the last to be a victim is the first to have one.
        let mut all: Vec<(usize, Vec<Rc<Slot>>)> = (0..self.index.works.len())
            .filter_map(|work| Some((work, preempt::drained(&self.ledger, work)?)))
            .collect();
        all.sort_by_cached_key(|(work, slots)| {
            let facts = &self.index.works[*work];
            let cost = preempt::cost(self.index, *work, slots);
            let first = (Reverse(facts.priority), Reverse(cost));
            (first, facts.row.started, *work)
        });
        for (work, slots) in all {
            let workers = slots.len() as u32;
            let pool = self.index.nodes[slots[0].node].pool;
            let workload = self.index.works[work].row.name.clone();
            let lost = preempt::lost_gpu_seconds(self.index, work, &slots);
            self.ledger.release(work, 0);
            match start::room_elsewhere(&mut self.ledger, work, pool, &slots) {
                Some(there) => {
                    let placement = self.places(&there);
                    self.ledger.nominate(work, there);
                    self.plan.migrations.push(Migration {
                        workload,
                        gainer: None,
                        placement,
                    });
                }
                None => self.plan.preemptions.push(Preemption {
                    workload,
                    gainer: None,
                    reason: Reason::Drain,
                    lost_gpu_seconds: lost,
                    to_workers: 0,
                    released: (0..workers).collect(),
                }),
            }
        }
    }

    /// Whether work may move in a pool to make room.
    pub(super) fn consolidates(&self, pool: usize) -> bool {
        self.heads[pool].is_none() && Rules::of(self.index, pool).consolidates()
    }

    /// Makes room for waiting work on whole devices by moves, in order.
    pub(super) fn consolidate_in(&mut self, pool: usize, mut picker: Picker) -> Vec<usize> {
        if !self.consolidates(pool) {
            return picker.rest();
        }
        let rules = Rules::of(self.index, pool);
        let mut given_back = Vec::new();
        let mut hopeless = HashSet::new();
        while let Some(work) = picker.next(&self.ledger) {
            let facts = &self.index.works[work];
            let key = (facts.team, facts.shape, rules.delayed(self.index, work));
            let moves = if hopeless.contains(&key) || !self.formable(work, pool) {
                None
            } else {
                consolidate::find(&mut self.ledger, work, pool, &rules)
            };
            let holds = moves
                .as_ref()
                .is_none_or(|moves| self.room_holds(work, pool, &moves.slots, &[], &moves.movers));
            if !holds {
                given_back.push(work);
                continue;
            }
            match moves {
                Some(moves) => {
                    hopeless.clear();
                    self.make_way(work, moves);
                }
                None => {
                    hopeless.insert(key);
                    given_back.push(work);
                }
            }
        }
        given_back
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
        self.stands_later(work, pool, &moves.slots);
        self.ledger.nominate(work, moves.slots);
        self.engaged.push(work);
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
