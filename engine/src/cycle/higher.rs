//! Higher work of a team that borrows, where lower work in the guarantee would start and leave for it a cycle later.

use std::rc::Rc;

use super::Cycle;
use super::again::Rivals;
use crate::ledger::{Slot, Standing};
use crate::order::Picker;
use crate::preempt::{Right, Rules, could_make_room};
use crate::start;

/// Most higher work of a team that is looked at before lower work starts: each may cost two searches for
/// victims, and what comes after so many seldom finds room first.
const HIGHER_MAX: usize = 4;

impl Cycle<'_, '_> {
    /// Starts higher work of the team, or makes room for it, before lower work starts in the guarantee on these
    /// slots: such as has room without that, and would have none beside it but by its leaving again.
    pub(super) fn serve_higher(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        picker: &mut Picker,
    ) -> Option<usize> {
        let index = self.index;
        let facts = &index.works[work];
        let rules = Rules::of(index, pool);
        if !facts.preemptible || !rules.allow(Right::Priority) {
            return None;
        }
        // What is in the guarantees of others has the room before any borrower; what starts in a guarantee
        // alone is none.
        let others = picker.others_inside(facts.team);
        let first = picker.pending(facts.team).take(HIGHER_MAX);
        let higher = first.filter(|&other| {
            index.works[other].priority > facts.priority
                && self.ledger.standing(other) == Standing::Idle
                && !self.unserved.contains(&other)
        });
        let higher: Vec<usize> = higher.collect();
        let mut beside = None;
        let served = higher.into_iter().find_map(|other| {
            // Limits may let it have what its victims leave.
            if !self.formable(other, pool) {
                return None;
            }
            let waits = others && !self.is_firm(other, pool);
            let first = self.comes_first(other, work);
            if first || !waits && !self.has_room_beside(other, pool, work, slots, &rules) {
                // Whoever of them is before it has room now: it would be taken by this one.
                let served = beside.filter(|&before| self.serve(before, pool));
                return served.or_else(|| self.serve(other, pool).then_some(other));
            }
            if !waits {
                beside = beside.or(Some(other));
            }
            self.meets(Rivals {
                pool,
                starts: work,
                taker: other,
            });
            None
        })?;
        self.goes_before(served, work, pool, picker);
        Some(served)
    }

    /// Says that work was served, and that other work whose turn it was has it once more.
    pub(super) fn goes_before(
        &mut self,
        served: usize,
        work: usize,
        pool: usize,
        picker: &mut Picker,
    ) {
        picker.leave_out(self.index, &[served]);
        picker.untake(self.index, work);
        if self.ledger.standing(served) == Standing::Nominated {
            self.passed[pool].push(served);
            if self.is_strict(pool) {
                self.heads[pool] = Some(served);
            }
        }
    }

    /// Whether work in the guarantee leaves its turn to that of other teams, for higher work of its own that is to
    /// be served before it.
    pub(super) fn stands_back(&self, work: usize, picker: &Picker) -> bool {
        let team = self.index.works[work].team;
        let to_be_served = |&(lower, taker): &(usize, usize)| {
            self.index.works[lower].team == team
                && self.index.works[taker].team == team
                && self.index.works[work].priority < self.index.works[taker].priority
                && self.ledger.standing(taker) == Standing::Idle
                && picker.holds(self.index, taker)
        };
        picker.others_inside(team) && self.to_serve().any(to_be_served)
    }

    /// Gives back their turns to those who left them to others.
    pub(super) fn turn_to(&self, aside: &mut Vec<usize>, picker: &mut Picker) {
        for work in aside.drain(..) {
            picker.untake(self.index, work);
        }
    }

    /// Whether work would start, or have room made for it, once another has started there.
    pub(super) fn has_room_beside(
        &mut self,
        work: usize,
        pool: usize,
        other: usize,
        slots: &[Rc<Slot>],
        rules: &Rules,
    ) -> bool {
        let mark = self.ledger.mark();
        self.ledger.start(other, slots.to_vec());
        let has = start::room_now(&mut self.ledger, work, pool).is_some()
            || could_make_room(&mut self.ledger, work, pool, rules);
        self.ledger.rollback(mark);
        has
    }

    /// Starts work, or makes room for it.
    pub(super) fn serve(&mut self, work: usize, pool: usize) -> bool {
        if let Some(slots) = self.find_start(work, pool) {
            self.start(work, slots);
            return true;
        }
        let made = self.make_room(work, pool);
        if !made {
            self.unserved.insert(work);
        }
        made
    }
}
