//! Starts in the order of a pool; the rest is passed over once nothing of it can start.

use std::rc::Rc;

use domain::Timestamp;

use super::Cycle;
use super::dead::Dead;
use super::stuck::Hints;
use crate::backfill;
use crate::index::Amount;
use crate::ledger::Slot;
use crate::order::Picker;
use crate::place::{Stock, sizes};
use crate::quota;
use crate::start;
use crate::world::Backfill;

impl Cycle<'_, '_> {
    /// Starts what fits, in order, and makes room for what does not while others may yet start. What
    /// has neither is given back.
    pub(super) fn start_in(&mut self, pool: usize, picker: Picker) -> Vec<usize> {
        let makes_room = self.makes_room(pool);
        self.move_drained(pool, true);
        self.start_each(pool, picker, makes_room)
    }

    /// The same, with or without making room.
    pub(super) fn start_each(
        &mut self,
        pool: usize,
        mut picker: Picker,
        makes_room: bool,
    ) -> Vec<usize> {
        let strict = self.is_strict(pool);
        let mut before_head = None;
        if strict && let Some((head, before)) = self.kept_head(pool, &picker) {
            self.heads[pool] = Some(head);
            before_head = Some(before);
        }
        let mut given_back = Vec::new();
        let mut hints = Hints::of(self.index);
        let mut dead = Dead::of(picker.line());
        let asks = !picker.goes_on();
        let (mut failures, mut starts, mut asks_at) = (0_usize, 0_usize, (0, 0));
        let mut drained = false;
        let mut aside: Vec<usize> = Vec::new();
        loop {
            // Asked at first, and after one failure or start, two, four: it costs a look for each
            // kind of work.
            if asks && (failures == asks_at.0 || starts == asks_at.1) {
                asks_at = (
                    (failures + 1).next_power_of_two(),
                    (starts + 1).next_power_of_two(),
                );
                self.look_for_places(pool, &mut dead);
            }
            if dead.all() {
                self.turn_to(&mut aside, &mut picker);
            }
            if before_head.is_none() && self.may_cut(pool, &picker, dead.all()) {
                self.cut[pool] = true;
                break;
            }
            if asks && self.none_is_head(pool) && dead.all() {
                // Nothing else may have what these find.
                self.widen_all(pool, &mut picker);
                let mut rest = picker.take_inside(&self.ledger);
                self.find_stuck(&mut picker, &mut hints, &mut dead, pool);
                rest.extend(picker.take_borrowers(&self.ledger));
                if let Some(&last) = rest.last().filter(|_| self.index.pools.len() == 1) {
                    self.postponed = Some((last, pool));
                }
                self.passed[pool].extend_from_slice(&rest);
                given_back.extend(rest);
                break;
            }
            let inside = picker.next_inside(&self.ledger);
            if inside.is_none() && !aside.is_empty() {
                self.turn_to(&mut aside, &mut picker);
                continue;
            }
            if let Some(work) = inside.filter(|&work| self.stands_back(work, &picker)) {
                aside.push(work);
                continue;
            }
            if inside.is_none() && !std::mem::replace(&mut drained, true) {
                for (team, slots) in self.move_drained(pool, false) {
                    self.age(&mut hints, &mut dead, (team, pool), &slots);
                }
            }
            let next = inside.or_else(|| {
                // Who can start something matters to the shares of borrowers alone.
                self.find_stuck(&mut picker, &mut hints, &mut dead, pool);
                picker.next_borrower(&self.ledger)
            });
            let Some(work) = next else {
                break;
            };
            let (team, bucket) = picker.last();
            hints.taken(team, work);
            let passes = before_head.as_ref().is_some_and(|b| b.contains(&work));
            let blocked = strict && self.heads[pool].is_some() && !passes;
            if let Some(others) = picker.take_begun(self.index, work) {
                hints.ages(team);
                let before = self.ledger.version();
                if !blocked && let Some(others) = self.widen(work, pool, others, &mut picker) {
                    picker.held_more(&self.ledger, team, before);
                    self.age(&mut hints, &mut dead, (team, pool), &others);
                }
                continue;
            }
            match if blocked {
                None
            } else {
                self.find_start_of(work, pool, bucket, &mut dead)
            } {
                Some(slots) => {
                    let served = match inside {
                        _ if !makes_room => None,
                        Some(_) => self.serve_higher(work, pool, &slots, &mut picker),
                        None => self.serve_other(work, pool, &slots, &mut picker),
                    };
                    if let Some(served) = served {
                        let team = self.index.works[served].team;
                        hints.taken(team, served);
                        let slots = self.ledger.slots(served).to_vec();
                        self.age(&mut hints, &mut dead, (team, pool), &slots);
                        hints.start_anew();
                        self.ease(pool, &mut dead);
                        starts += 1;
                        continue;
                    }
                    let before = self.ledger.version();
                    let (slots, others) = match inside {
                        Some(_) => self.split_at_guarantee(work, pool, slots),
                        None => self.split_even(work, pool, slots, &picker),
                    };
                    self.start(work, slots.clone());
                    picker.held_more(&self.ledger, team, before);
                    if !others.is_empty() {
                        picker.put_back(self.index, work, others);
                    }
                    self.age(&mut hints, &mut dead, (team, pool), &slots);
                    starts += 1;
                }
                None => {
                    if strict && !blocked && self.could_start(work, pool) {
                        self.heads[pool] = Some(work);
                        before_head = None;
                    }
                    // In a strict pool nobody makes room later: that would pass a head.
                    let contested = if strict {
                        !blocked
                    } else {
                        !picker.is_empty() && !dead.all()
                    };
                    if makes_room && contested && self.make_room(work, pool) {
                        if strict {
                            self.heads[pool] = Some(work);
                            before_head = None;
                        }
                        self.passed[pool].push(work);
                        let slots = self.ledger.slots(work).to_vec();
                        self.age(&mut hints, &mut dead, (team, pool), &slots);
                        hints.start_anew();
                        self.ease(pool, &mut dead);
                        starts += 1;
                        continue;
                    }
                    if picker.is_empty() && self.index.pools.len() == 1 {
                        self.postponed = Some((work, pool));
                    } else if self.keeps_more(pool) {
                        self.reserve(work, pool);
                    }
                    self.passed[pool].push(work);
                    given_back.push(work);
                    failures += 1;
                }
            }
        }
        if !strict || self.heads[pool].is_none() {
            self.widen_all(pool, &mut picker);
        }
        if self.postponed.is_none() {
            self.mend(pool);
        }
        given_back
    }

    /// Whether nothing that fails becomes a head any more, or is given a start that is kept.
    fn none_is_head(&self, pool: usize) -> bool {
        match self.index.pools[pool].row.backfill {
            Backfill::Strict => self.heads[pool].is_some(),
            _ => !self.keeps_more(pool),
        }
    }

    /// Whether nothing of what is left in a line can start, nor is given a start that is kept.
    fn may_cut(&self, pool: usize, picker: &Picker, hopeless: bool) -> bool {
        let strict = self.index.pools[pool].row.backfill == Backfill::Strict;
        let blocked = self.none_is_head(pool) && (strict || hopeless);
        // Of one that is left the look is as cheap, and it may be alone.
        let some = self.passed[pool].len() > 1 && !picker.is_empty();
        blocked && some && self.cuts && !picker.goes_on()
    }

    /// Whether limits would let a workload run in a pool that could hold it: such a head reserves.
    pub(super) fn could_start(&mut self, work: usize, pool: usize) -> bool {
        let least = Amount::from(self.index.works[work].row.workers_least());
        let amount = self.index.charge_least(work, pool) * least;
        quota::allowed(&self.ledger, work, pool, amount).is_ok() && self.formable(work, pool)
    }

    /// Where a workload would start now: with all its workers, else with fewer.
    pub(super) fn find_start(&mut self, work: usize, pool: usize) -> Option<Vec<Rc<Slot>>> {
        let facts = &self.index.works[work];
        let key = (pool, facts.team, facts.shape);
        let end = backfill::end_from(self.index, work, self.index.world.now);
        if self.failed.get(&key).is_some_and(|failed| end >= *failed)
            || self.plainly_held(work, pool, end)
        {
            return None;
        }
        let mut failed = Timestamp::MIN_UTC;
        let sizes = sizes(&mut self.ledger, work, pool, Stock::Free);
        let found = sizes.largest(|workers| {
            let slots = start::room_of(&mut self.ledger, work, pool, workers)?;
            failed = end;
            self.let_pass(work, pool, slots, end)
        });
        if found.is_some() {
            return found;
        }
        let before = self.failed.get(&key).copied().unwrap_or(failed);
        self.failed.insert(key, failed.min(before));
        None
    }
}
