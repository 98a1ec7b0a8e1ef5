//! Work of a borrower that would start and leave a cycle later for work of another team.
//!
//! That evens out shares: where those are the same, the order falls to what teams hold in all, and who is below a team in its
//! guarantee adds nothing to a share. Or it is in its guarantee once lower work of its own team has made way.

use std::rc::Rc;

use super::Cycle;
use super::again::Rivals;
use crate::index::Amount;
use crate::ledger::{Held, Slot, Standing};
use crate::order::Picker;
use crate::preempt::{self, Right, Rules};
use crate::share::not_above;

/// Teams whose first work is looked at before a borrower starts: each costs a search for room.
const TAKERS_MAX: usize = 8;

impl Cycle<'_, '_> {
    /// Starts the first work of another team before work of a borrower starts on these slots: such as has room
    /// without that, and would have none beside it but by its leaving again.
    pub(super) fn serve_other(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        picker: &mut Picker,
    ) -> Option<usize> {
        let index = self.index;
        let facts = &index.works[work];
        let rules = Rules::of(index, pool);
        // Who is protected, or is one of a service, may stay.
        let stays = !facts.preemptible || facts.service.is_some() || rules.protects();
        if stays || !(rules.allow(Right::Share) || rules.mixes()) {
            return None;
        }
        let teams = (0..index.teams.len()).filter(|&team| team != facts.team);
        let first: Vec<usize> = teams
            .filter_map(|team| picker.pending(team).next())
            .filter(|&other| self.ledger.standing(other) == Standing::Idle)
            .filter(|&other| !rules.delayed(index, other))
            .collect();
        let mut tried = 0;
        let served = first.into_iter().find(|&other| {
            let even = rules.allow(Right::Share) && self.evens_out(pool, work, slots, other);
            if tried == TAKERS_MAX || !even && !self.takes_back(pool, work, slots, other, &rules) {
                return false;
            }
            tried += 1;
            let first = self.comes_first(other, work);
            if (first || !self.has_room_beside(other, pool, work, slots, &rules))
                && self.serve_rightly(other, pool, even)
            {
                return true;
            }
            self.meets(Rivals {
                pool,
                starts: work,
                taker: other,
            });
            false
        })?;
        self.goes_before(served, work, pool, picker);
        Some(served)
    }

    /// Starts work; where it takes nothing that evens out shares, it may have room made for it.
    fn serve_rightly(&mut self, work: usize, pool: usize, even: bool) -> bool {
        if !even {
            return self.serve(work, pool);
        }
        let found = self.find_start(work, pool);
        let starts = found.is_some();
        if let Some(slots) = found {
            self.start(work, slots);
        }
        starts
    }

    /// Whether a workload would be in its guarantee once lower work of its team has left, and take back from there what
    /// another team borrows by one that stands on these slots or would.
    pub(super) fn takes_back(
        &mut self,
        pool: usize,
        work: usize,
        slots: &[Rc<Slot>],
        taker: usize,
        rules: &Rules,
    ) -> bool {
        let index = self.index;
        let (own, other) = (index.works[work].team, index.works[taker].team);
        if !rules.mixes() || !rules.takes_back(index, taker, work) {
            return false;
        }
        let amount: Amount = slots.iter().map(|slot| slot.amount).sum();
        let stands = self.ledger.standing(work) != Standing::Idle;
        let more = if stands { 0 } else { amount };
        let guaranteed = |team: usize| index.pools[pool].rows[team].guaranteed;
        let borrows = self.ledger.held(pool, own).gpu + more > guaranteed(own);
        let workers = index.works[taker].row.workers_least();
        let least = index.charge_least(taker, pool) * Amount::from(workers);
        if !borrows || least == 0 || least > guaranteed(other) {
            return false;
        }
        let lower = preempt::lower_held(&mut self.ledger, taker, pool);
        let mut path = index.teams[other].path.iter();
        path.by_ref()
            .take_while(|team| !index.teams[own].path.contains(team))
            .all(|&team| self.ledger.held(pool, team).gpu - lower + least <= guaranteed(team))
    }

    /// Whether shares would be evened out by a workload that takes the place of another, which stands on these slots or would.
    pub(super) fn evens_out(
        &self,
        pool: usize,
        work: usize,
        slots: &[Rc<Slot>],
        taker: usize,
    ) -> bool {
        let index = self.index;
        let (own, other) = (index.works[work].team, index.works[taker].team);
        let below = |of: usize, other: usize| {
            let beside = move |t: &&usize| !index.teams[other].path.contains(t);
            index.teams[of].path.iter().take_while(beside)
        };
        let parted = (below(own, other).last(), below(other, own).last());
        let (Some(&loses), Some(&gains)) = parted else {
            return false;
        };
        let amount: Amount = slots.iter().map(|slot| slot.amount).sum();
        let less = Held::of(index, work, amount, slots.len() as i64);
        let stands = self.ledger.standing(work) != Standing::Idle;
        let without = |team: usize| {
            let held = self.ledger.held(pool, team);
            if stands { held.minus(&less) } else { *held }
        };
        let guaranteed = |team: usize| index.pools[pool].rows[team].guaranteed;
        let borrows = |team: usize| without(team).gpu + amount > guaranteed(team);
        // What is guaranteed is not borrowed.
        let kept = below(own, other).all(|&team| without(team).gpu >= guaranteed(team));
        let workers = index.works[taker].row.workers_least();
        let least = index.charge_least(taker, pool) * Amount::from(workers);
        let more = Held::of(index, taker, least, workers.into());
        let with = self.ledger.held(pool, gains).plus(&more);
        least > 0
            && borrows(own)
            && borrows(loses)
            && kept
            && not_above(index, pool, (gains, &with), (loses, &without(loses)))
    }
}
