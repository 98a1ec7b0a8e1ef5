//! Buckets and kin of a line of which nothing can start any more: while work only starts, they stay so.

use std::rc::Rc;

use domain::Timestamp;

use super::Cycle;
use crate::ledger::Slot;
use crate::order::Line;
use crate::place::{Query, place};

/// What is known so, of one line.
pub(super) struct Dead {
    line: Rc<Line>,
    /// Of the same team and shape as what failed whenever it ended.
    buckets: Vec<bool>,
    /// What has no place.
    kins: Vec<bool>,
    /// Whether all of the line is.
    all: bool,
}

impl Dead {
    /// Nothing is known yet.
    pub fn of(line: &Rc<Line>) -> Self {
        Self {
            buckets: vec![false; line.buckets().len()],
            kins: vec![false; line.buckets().kins()],
            all: false,
            line: Rc::clone(line),
        }
    }

    /// Whether nothing of a bucket can start.
    pub fn has(&self, bucket: u32) -> bool {
        let kin = || self.line.buckets().kin_of(bucket);
        self.all || self.buckets[bucket as usize] || kin().is_some_and(|kin| self.kins[kin])
    }

    /// Whether there is no place for anything in the line.
    pub fn all(&self) -> bool {
        self.all
    }
}

impl Cycle<'_, '_> {
    /// Looks for which kin of a line there is a place.
    pub(super) fn look_for_places(&mut self, pool: usize, dead: &mut Dead) {
        if dead.all {
            return;
        }
        let mut none = dead.line.is_plain();
        for (kin, work) in dead.line.each_kin() {
            if dead.kins[kin] {
                continue;
            }
            let least = self.index.works[work].row.workers_least();
            let query = Query::start(self.index, work, pool).workers(least);
            dead.kins[kin] = self.ledger.goes_nowhere(query) || {
                let nowhere = place(&mut self.ledger, query).is_none();
                if nowhere {
                    self.ledger.found_nowhere(query);
                }
                nowhere
            };
            none &= dead.kins[kin];
        }
        dead.all = none;
    }

    /// Where a workload of a bucket would start now; keeps in mind where others of it would not either.
    pub(super) fn find_start_of(
        &mut self,
        work: usize,
        pool: usize,
        bucket: u32,
        dead: &mut Dead,
    ) -> Option<Vec<Rc<Slot>>> {
        if dead.has(bucket) {
            return None;
        }
        let found = self.find_start(work, pool);
        if found.is_some() {
            return found;
        }
        let facts = &self.index.works[work];
        let key = (pool, facts.team, facts.shape);
        if self.failed.get(&key) == Some(&Timestamp::MIN_UTC) {
            dead.buckets[bucket as usize] = true;
        }
        if let Some(kin) = dead.line.buckets().kin_of(bucket) {
            let query = Query::start(self.index, work, pool).workers(facts.row.workers_least());
            dead.kins[kin] = self.ledger.goes_nowhere(query);
        }
        None
    }
}
