//! Work that moves to make room for work on whole devices.

use super::Cycle;
use super::turn::Making;
use crate::consolidate;
use crate::order::Picker;
use crate::plan::{Migration, Nomination};
use crate::preempt::Rules;

impl Cycle<'_, '_> {
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
        // Who has room once others have ended makes nobody move.
        if self.once_ended(work, pool).is_some() {
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
