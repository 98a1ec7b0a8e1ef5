//! What bookings that have begun take back: for work of their team that waits, and once for what is booked.

use std::cmp::Reverse;
use std::rc::Rc;

use domain::sharing::SharingMode;

use super::Cycle;
use crate::bookings;
use crate::index::{Amount, DEVICE};
use crate::ledger::{Sight, Slot, Standing};
use crate::place::devices_free;
use crate::plan::{Preemption, Reason};
use crate::preempt::{self, Room, Rules, service_can_lose};
use crate::quota;
use crate::share::{Everybody, coarse, share};
use crate::world::{Booking, NodeState};

/// A step of a victim: so many workers stay, so many thousandths are free then.
struct Step {
    work: usize,
    keep: usize,
    milli: i64,
}

/// What bookings have claimed of a pool, the first begun first.
struct Claims {
    /// Thousandths of free devices that none has claimed.
    free: i64,
    /// Thousandths that are claimed for each team and those below it.
    of: Vec<i64>,
}

impl<'w> Cycle<'_, 'w> {
    /// Room for a workload by the pool's rules, or by those of a booking of its team: what is
    /// the team's own by its guarantee is taken back by the pool's rules first.
    pub(super) fn room_for(
        &mut self,
        work: usize,
        pool: usize,
        rules: &Rules,
    ) -> Option<(Room, Option<&'w Booking>)> {
        let team = self.index.works[work].team;
        let own = bookings::lasting(self.index, pool)
            .into_iter()
            .find(|(_, of)| *of == team)
            .map(|(booking, _)| booking);
        let by_pool = |this: &mut Self| {
            let room = preempt::make_room(&mut this.ledger, work, pool, rules);
            room.map(|room| (room, None))
        };
        let Some(booking) = own else {
            return by_pool(self);
        };
        let workers = self.index.works[work].row.workers_least();
        let amount = self.index.charge_least(work, pool) * i128::from(workers);
        let booked = self.index.pools[pool].rows[team].booked;
        // As if what is booked were held: what is left then is the team's own.
        let plain = quota::in_guarantee(&self.ledger, pool, team, amount + booked);
        let by_booking = |this: &mut Self| {
            let room = preempt::make_room(&mut this.ledger, work, pool, &Rules::booked());
            room.map(|room| (room, Some(booking)))
        };
        if plain {
            by_pool(self).or_else(|| by_booking(self))
        } else {
            by_booking(self).or_else(|| by_pool(self))
        }
    }

    /// When a booking begins, work that was lent its GPUs leaves, whether or not its team
    /// has work yet. What is lent again after that is not in the way.
    pub(super) fn clear_booked(&mut self) {
        for pool in 0..self.index.pools.len() {
            let lasting = bookings::lasting(self.index, pool);
            if lasting.is_empty() {
                continue;
            }
            let mut claims = self.no_claims(pool);
            for (booking, team) in lasting {
                let need = self.owed(pool, booking, team, &mut claims);
                if need > 0 {
                    self.clear(pool, booking, team, need);
                }
            }
        }
    }

    /// Whether bookings that last are owed no more of a pool once work has grown by these
    /// workers: else what made way when they began would come back to make way again.
    pub(super) fn growth_owes_nothing(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
    ) -> bool {
        let lasting = bookings::lasting(self.index, pool);
        if lasting.is_empty() {
            return true;
        }
        let owed = |this: &Self| -> i64 {
            let mut claims = this.no_claims(pool);
            let each = lasting.iter();
            each.map(|&(booking, team)| this.owed(pool, booking, team, &mut claims))
                .sum()
        };
        let before = owed(self);
        let mark = self.ledger.mark();
        self.ledger.grow(work, slots);
        let team = self.index.works[work].team;
        let inside = quota::in_guarantee(&self.ledger, pool, team, 0);
        let after = owed(self);
        self.ledger.rollback(mark);
        // What a team has in its own guarantee no booking takes.
        inside || after <= before
    }

    /// Thousandths that a booking still has to get from others, beyond what is free for it; what it
    /// claims is neither free nor open for another.
    fn owed(&self, pool: usize, booking: &Booking, team: usize, claims: &mut Claims) -> i64 {
        let need = booking.gpus.milli().min(self.open(pool, team, claims));
        for &above in &self.index.teams[team].path {
            claims.of[above] += need;
        }
        let found = need.min(claims.free);
        claims.free -= found;
        (need - found - self.lent_again(pool, booking, team)).max(0)
    }

    fn no_claims(&self, pool: usize) -> Claims {
        Claims {
            free: self.free_milli(pool),
            of: vec![0; self.index.teams.len()],
        }
    }

    /// Thousandths that work of a team could yet use: of its guarantee, within all limits, and in whole
    /// devices where the pool gives out no parts.
    fn open(&self, pool: usize, team: usize, claims: &Claims) -> i64 {
        let facts = &self.index.pools[pool];
        let left = |of: usize, most: Amount| {
            facts.milli(most - self.ledger.held(pool, of).gpu) - claims.of[of]
        };
        let own = left(team, facts.rows[team].guaranteed);
        let path = self.index.teams[team].path.iter();
        let limits = path.filter_map(|&t| Some(left(t, facts.rows[t].limit?)));
        let open = limits.fold(own, i64::min).max(0);
        let whole = facts.row.sharing == [SharingMode::Exclusive];
        if whole { open - open % DEVICE } else { open }
    }

    /// Thousandths of whole devices that nothing stands on, once victims have left.
    fn free_milli(&self, pool: usize) -> i64 {
        let nodes = self.index.pools[pool].nodes.iter();
        let ready = nodes.filter(|&&n| self.index.nodes[n].row.state == NodeState::Ready);
        ready
            .map(|&n| i64::from(devices_free(&self.ledger, n, Sight::Later).count_ones()))
            .sum::<i64>()
            * DEVICE
    }

    fn lent_again(&self, pool: usize, booking: &Booking, team: usize) -> i64 {
        let since = (0..self.index.works.len()).filter(|&w| {
            let row = self.index.works[w].row;
            self.may_leave(w, pool, team)
                && match self.ledger.standing(w) {
                    Standing::Started => true,
                    _ => row.started.is_some_and(|at| at >= booking.from),
                }
        });
        since.map(|w| milli(self.ledger.slots(w))).sum()
    }

    /// Whether work of others stands in a pool that may be preempted.
    fn may_leave(&self, work: usize, pool: usize, team: usize) -> bool {
        let facts = &self.index.works[work];
        let here = self.ledger.slots(work).first();
        facts.preemptible
            && matches!(
                self.ledger.standing(work),
                Standing::Running | Standing::Started
            )
            && !self.index.teams[facts.team].path.contains(&team)
            && here.is_some_and(|s| self.index.nodes[s.node].pool == pool)
    }

    /// Takes borrowers in the order of victims until enough is free; then each is spared, in
    /// reverse, that turns out not to be needed.
    fn clear(&mut self, pool: usize, booking: &Booking, team: usize, need: i64) {
        let mark = self.ledger.mark();
        let mut steps: Vec<Step> = Vec::new();
        let mut freed = 0;
        while freed < need {
            let Some(step) = self.next_lent(pool, booking, team, &steps) else {
                break;
            };
            self.ledger.release(step.work, step.keep);
            freed += step.milli;
            steps.push(step);
        }
        self.ledger.rollback(mark);
        for at in (0..steps.len()).rev() {
            let last = steps[at + 1..].iter().all(|s| s.work != steps[at].work);
            if last && freed - steps[at].milli >= need {
                freed -= steps.remove(at).milli;
            }
        }
        for at in 0..steps.len() {
            let Step { work, keep, .. } = steps[at];
            if steps[at + 1..].iter().all(|s| s.work != work) {
                self.evict_lent(work, keep, booking);
            }
        }
    }

    fn next_lent(
        &mut self,
        pool: usize,
        booking: &Booking,
        team: usize,
        taken: &[Step],
    ) -> Option<Step> {
        let index = self.index;
        let mut best = None;
        for work in 0..index.works.len() {
            let facts = &index.works[work];
            let lent = self.may_leave(work, pool, team)
                && self.ledger.standing(work) == Standing::Running
                && facts.row.started.is_some_and(|at| at < booking.from)
                && self.ledger.held(pool, facts.team).gpu
                    > index.pools[pool].rows[facts.team].guaranteed;
            if !lent {
                continue;
            }
            let slots = self.ledger.slots(work);
            // A plan takes from a workload once: what was shrunk for another is left for now.
            if slots.len() < facts.row.placed.len() && taken.iter().all(|s| s.work != work) {
                continue;
            }
            let least = facts.row.workers_least() as usize;
            let keep = if slots.len() > least {
                slots.len() - 1
            } else {
                0
            };
            if keep == 0 && !service_can_lose(&self.ledger, work) {
                continue;
            }
            let step = Step {
                work,
                keep,
                milli: milli(&slots[keep..]),
            };
            if step.milli == 0 {
                continue;
            }
            let cost = preempt::cost(index, work, &slots[keep..]);
            let share = coarse(share(&self.ledger, pool, facts.team, &Everybody));
            let order = (
                Reverse(share),
                facts.priority,
                cost,
                Reverse(facts.row.started),
                work,
            );
            if best.as_ref().is_none_or(|(least, _)| order < *least) {
                best = Some((order, step));
            }
        }
        best.map(|(_, step)| step)
    }

    fn evict_lent(&mut self, work: usize, keep: usize, booking: &Booking) {
        let slots = self.ledger.slots(work).to_vec();
        let lost = preempt::lost_gpu_seconds(self.index, work, &slots[keep..]);
        self.plan.preemptions.push(Preemption {
            workload: self.index.works[work].row.name.clone(),
            gainer: Some(booking.name.clone()),
            reason: Reason::Reservation,
            lost_gpu_seconds: lost,
            to_workers: keep as u32,
            released: (keep as u32..slots.len() as u32).collect(),
        });
        self.ledger.release(work, keep);
    }
}

fn milli(slots: &[Rc<Slot>]) -> i64 {
    slots.iter().map(|s| bookings::milli(s)).sum()
}
