//! Higher work of a team that borrows, where lower work in the guarantee would start and leave for it a cycle later.

use std::rc::Rc;

use super::Cycle;
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
                && (!others || self.is_firm(other, pool))
        });
        let higher: Vec<usize> = higher.collect();
        let served = higher.into_iter().find(|&other| {
            // Limits may let it have what its victims leave.
            self.formable(other, pool)
                && !self.has_room_beside(other, pool, work, slots, &rules)
                && self.serve(other, pool)
        })?;
        picker.leave_out(index, &[served]);
        picker.untake(index, work);
        if self.ledger.standing(served) == Standing::Nominated {
            self.passed[pool].push(served);
            if self.is_strict(pool) {
                self.heads[pool] = Some(served);
            }
        }
        Some(served)
    }

    /// Whether work would start, or have room made for it, once another has started there.
    fn has_room_beside(
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

    fn serve(&mut self, work: usize, pool: usize) -> bool {
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
