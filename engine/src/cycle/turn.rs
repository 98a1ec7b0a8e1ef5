//! Room that is made for work at its turn: what comes later does not take the part of it that is free.
//!
//! What fails to start while others behind it still may is given room by moves or victims at once, if it
//! may have that. Were it left to the end of the cycle, what comes later would start on devices that it
//! needs, to be taken from them a moment after. Who has room in another of its pools starts there.

use rustc_hash::FxHashSet;

use super::Cycle;
use crate::index::Index;
use crate::ledger::Standing;
use crate::order::Picker;
use crate::preempt::Rules;
use crate::world::Backfill;

/// How room is made in a pool: by what rules, and for whom it was sought in vain.
pub(crate) struct Making {
    pub rules: Rules,
    /// No victims: by team, shape, priority, and whether it has not waited long enough.
    pub hopeless: FxHashSet<(usize, usize, i64, bool)>,
    /// No moves.
    pub immovable: FxHashSet<(usize, usize, bool)>,
    /// The numbers of what teams held and of what stood where when that was known.
    seen: (u64, u64),
}

impl Making {
    /// What makes two workloads find victims or none together.
    pub fn asks(&self, index: &Index<'_>, work: usize) -> (usize, usize, i64, bool) {
        let facts = &index.works[work];
        let delayed = self.rules.delayed(index, work);
        (facts.team, facts.shape, facts.priority, delayed)
    }
}

impl Cycle<'_, '_> {
    /// Whether nothing passes a blocked head in a pool.
    pub(super) fn is_strict(&self, pool: usize) -> bool {
        self.index.pools[pool].row.backfill == Backfill::Strict
    }

    /// Whether room may be made in a pool.
    pub(super) fn makes_room(&self, pool: usize) -> bool {
        self.consolidates(pool) || self.displaces(pool)
    }

    /// How room is made in a pool as things stand, taken out to be put back.
    pub(super) fn making(&mut self, pool: usize) -> Making {
        let seen = (self.ledger.version(), self.ledger.stands());
        let making = self.making[pool].take();
        let mut making = making.unwrap_or_else(|| Making {
            rules: Rules::of(self.index, pool),
            hopeless: FxHashSet::default(),
            immovable: FxHashSet::default(),
            seen,
        });
        if making.seen != seen {
            making.hopeless.clear();
            making.immovable.clear();
            making.seen = seen;
        }
        making
    }

    /// Gives work that found no room to start the room that it may have by moves, else by victims.
    pub(super) fn make_room(&mut self, work: usize, pool: usize) -> bool {
        if !self.makes_room(pool) || self.starts_elsewhere(work, pool) {
            return false;
        }
        let mut making = self.making(pool);
        let made = self.consolidates(pool) && self.move_for(work, pool, &mut making)
            || self.displaces(pool) && self.displace_for(work, pool, &mut making);
        self.making[pool] = Some(making);
        made
    }

    /// Whether a workload may start in a pool in which it is tried after this one.
    fn starts_elsewhere(&mut self, work: usize, pool: usize) -> bool {
        let mut others = self.elsewhere(work, pool).into_iter();
        others.any(|other| self.could_start(work, other) && self.find_start(work, other).is_some())
    }

    /// Where nothing passes a blocked head: the first of those for whom room is kept, and who comes
    /// before it and passes nobody.
    pub(super) fn kept_head(
        &mut self,
        pool: usize,
        picker: &Picker,
    ) -> Option<(usize, FxHashSet<usize>)> {
        let index = self.index;
        let waits = |&work: &usize| {
            let there = self.ledger.slots(work).first();
            self.ledger.standing(work) == Standing::Nominated
                && there.is_some_and(|slot| index.nodes[slot.node].pool == pool)
        };
        let kept: Vec<usize> = self.engaged.iter().copied().filter(waits).collect();
        if kept.is_empty() {
            return None;
        }
        let teams = 0..index.teams.len();
        let mut all: Vec<usize> = teams.flat_map(|team| picker.pending(team)).collect();
        all.extend(&kept);
        let mark = self.ledger.mark();
        for &work in &kept {
            self.ledger.release(work, 0);
        }
        let mut picker = Picker::of(index, pool, &all);
        let mut before = FxHashSet::default();
        let mut head = None;
        while let Some(work) = picker.next(&self.ledger) {
            if kept.contains(&work) {
                head = Some(work);
                break;
            }
            before.insert(work);
        }
        self.ledger.rollback(mark);
        head.map(|head| (head, before))
    }
}
