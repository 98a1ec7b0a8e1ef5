//! Room that comes by itself: what leaves anyhow leaves more than it was taken for, and nobody else need give way.

use std::rc::Rc;

use super::Cycle;
use crate::backfill;
use crate::bookings;
use crate::index::Amount;
use crate::ledger::{Sight, Slot};
use crate::place::{Query, stands_free};
use crate::preempt::{Rules, could_make_room};
use crate::quota;
use crate::start;

/// What a workload that might displace others has without doing so.
pub(super) enum Coming {
    /// Nothing.
    Nothing,
    /// Room this moment: a limit kept it from starting, and what leaves counts there no more.
    Now(Vec<Rc<Slot>>),
    /// Room once those that leave anyhow have left.
    Later(Vec<Rc<Slot>>),
}

impl Cycle<'_, '_> {
    /// Room for all workers of a workload that would otherwise take it from others. Who may
    /// take from nobody has no room kept either: it comes to it in the order.
    pub(super) fn coming(&mut self, work: usize, pool: usize, rules: &Rules) -> Coming {
        let Some(slots) = self.free_later(work, pool) else {
            return Coming::Nothing;
        };
        let team = self.index.works[work].team;
        let booked = bookings::lasting(self.index, pool)
            .iter()
            .any(|(_, of)| *of == team);
        let may_take = could_make_room(&mut self.ledger, work, pool, rules)
            || booked && could_make_room(&mut self.ledger, work, pool, &Rules::booked());
        if !may_take || !self.room_holds(work, pool, &slots, &[], &[]) {
            Coming::Nothing
        } else if stands_free(&mut self.ledger, work, &slots, Sight::Start) {
            let end = backfill::end_from(self.index, work, self.index.world.now);
            match self.let_pass(work, pool, slots.clone(), end) {
                Some(slots) => Coming::Now(slots),
                None => Coming::Later(slots),
            }
        } else {
            Coming::Later(slots)
        }
    }

    fn free_later(&mut self, work: usize, pool: usize) -> Option<Vec<Rc<Slot>>> {
        let workers = self.index.works[work].row.workers;
        let least = self.index.charge_least(work, pool) * Amount::from(workers);
        quota::allowed(&self.ledger, work, pool, least).ok()?;
        let query = Query::start(self.index, work, pool).sight(Sight::Later);
        start::place_within(&mut self.ledger, query)
    }
}
