//! Starts in the future that a cycle keeps: who is given one, what may pass it, and what becomes of it.

use std::rc::Rc;

use domain::Timestamp;
use rustc_hash::FxHashSet;

use super::Cycle;
use crate::backfill::{self, NEVER, Reserved, Timeline};
use crate::bookings;
use crate::consolidate;
use crate::index::{Amount, Need};
use crate::ledger::{Slot, Standing};
use crate::order::Picker;
use crate::place::Query;
use crate::plan::{Reason, Reservation};
use crate::preempt::Rules;
use crate::quota;
use crate::start;
use crate::world::Backfill;

/// What room is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The start of work that comes first.
    Start,
    /// Bookings that are yet to begin.
    Booking,
}

impl<'i, 'w> Cycle<'i, 'w> {
    /// A place for work that ends then, if it may stand there: one that leaves bookings and
    /// kept starts alone.
    pub(super) fn let_pass(
        &mut self,
        work: usize,
        pool: usize,
        slots: Vec<Rc<Slot>>,
        end: Timestamp,
    ) -> Option<Vec<Rc<Slot>>> {
        if !self.may_stand(work, pool, (self.index.world.now, end), &slots) {
            return None;
        }
        let inside = self.inside(work, pool, &slots);
        let Some(timeline) = self.timelines[pool].as_mut() else {
            return Some(slots);
        };
        if timeline.passes(work, &slots, end, inside) {
            return Some(slots);
        }
        let met = timeline.nodes_met(work, end, inside);
        let query = Query::start(self.index, work, pool)
            .workers(slots.len() as u32)
            .but(&met);
        let elsewhere = start::place_within(&mut self.ledger, query);
        if let Some(slots) = elsewhere.filter(|slots| self.passes(work, pool, slots, end)) {
            return Some(slots);
        }
        // Beside what is kept of the same nodes.
        let met = self.timelines[pool].as_ref()?.met(work, end, inside);
        let (owner, _) = met.first()?;
        let kept: Vec<Rc<Slot>> = met.iter().flat_map(|(_, slots)| slots.clone()).collect();
        let query = Query::start(self.index, work, pool).workers(slots.len() as u32);
        let found =
            backfill::beside_slots(&mut self.ledger, (*owner, &kept), query.sight, |ledger| {
                start::place_within(ledger, query)
            });
        found.filter(|slots| self.passes(work, pool, slots, end))
    }

    /// Whether work on these devices until then leaves the starts that are kept alone.
    pub(super) fn passes(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        end: Timestamp,
    ) -> bool {
        let inside = self.inside(work, pool, slots);
        let timeline = self.timelines[pool].as_mut();
        timeline.is_none_or(|timeline| timeline.passes(work, slots, end, inside))
    }

    /// Whether bookings let work stand on these devices, and those of its team who wait in kept room for their
    /// part of the guarantee: whoever borrows meanwhile would count before them.
    pub(super) fn may_stand(
        &self,
        work: usize,
        pool: usize,
        span: (Timestamp, Timestamp),
        slots: &[Rc<Slot>],
    ) -> bool {
        let milli = slots.iter().map(|s| bookings::milli(s)).sum();
        let lets = self.bookings.let_stand(self.index, work, pool, span, milli);
        lets && self.firm_lets(work, pool, slots)
    }

    /// Whether work on these devices is in its team's guarantee.
    pub(super) fn inside(&self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let amount: Amount = slots.iter().map(|s| s.amount).sum();
        amount > 0 && quota::in_guarantee(&self.ledger, pool, self.index.works[work].team, amount)
    }

    /// Whether work plainly asks for more than a kept start leaves, without looking for a place.
    pub(super) fn plainly_held(&self, work: usize, pool: usize, end: Timestamp) -> bool {
        let Some(timeline) = &self.timelines[pool] else {
            return false;
        };
        let facts = &self.index.works[work];
        let Need::Whole(count) = facts.need else {
            return false;
        };
        let least = facts.row.workers_least();
        let amount = self.index.charge_least(work, pool) * Amount::from(least);
        let inside = quota::in_guarantee(&self.ledger, pool, facts.team, amount);
        let count = i64::from(count) * i64::from(least);
        timeline.plainly_too_many(work, end, inside, count)
    }

    /// Says that work stands on devices from now on.
    pub(super) fn stands(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>], end: Timestamp) {
        let milli = slots.iter().map(|s| bookings::milli(s)).sum();
        self.bookings.count(self.index, work, pool, end, milli);
        // Who stands waits for no start any more, wherever one was kept for it.
        for timeline in self.timelines.iter_mut().flatten() {
            timeline.give_up(work);
        }
        if let Some(timeline) = self.timelines[pool].as_mut() {
            timeline.insert(work, slots, end);
        }
    }

    /// Keeps a start for blocked work, if it is a head: one in a pool, or everybody, as the
    /// pool backfills.
    pub(super) fn reserve(&mut self, work: usize, pool: usize) {
        let facts = &self.index.works[work];
        let key = (pool, facts.team, facts.shape, facts.row.length_seconds());
        if !self.keeps_more(pool)
            || self.reservation_of(work).is_some()
            || self.startless.contains(&key)
            || !self.could_start(work, pool)
            || !self.allowed_beside(work, pool)
        {
            return;
        }
        let Some(found) = self.earliest(work, pool, backfill::KEPT) else {
            self.startless.insert(key);
            return;
        };
        let sooner = self.elsewhere(work, pool).into_iter().any(|other| {
            let limits = self.could_start(work, other);
            limits
                && (self.find_start(work, other).is_some()
                    || self
                        .earliest(work, other, backfill::KEPT)
                        .is_some_and(|there| there.start() < found.start()))
        });
        if !sooner {
            self.timeline(pool).keep(found);
        }
    }

    /// Whether one start more would be kept in a pool.
    pub(super) fn keeps_more(&self, pool: usize) -> bool {
        let kept = self.timelines[pool]
            .as_ref()
            .map_or(0, |timeline| timeline.reserved().len());
        kept < match self.index.pools[pool].row.backfill {
            Backfill::Easy => 1,
            Backfill::Conservative => backfill::RESERVED_MAX,
            Backfill::None | Backfill::Strict => 0,
        }
    }

    /// Who has a start that is kept in a pool.
    pub(super) fn reserved_of(&self, pool: usize) -> FxHashSet<usize> {
        let timeline = self.timelines[pool].iter();
        timeline
            .flat_map(|t| t.reserved().iter().map(|r| r.work))
            .collect()
    }

    /// The pools in which a workload is tried after this one.
    pub(super) fn elsewhere(&self, work: usize, pool: usize) -> Vec<usize> {
        let pools = self.index.works[work].pools.iter().copied();
        pools
            .skip_while(|&p| p != pool)
            .skip(1)
            .filter(|&p| self.usable(work, p))
            .collect()
    }

    /// Whether limits let a workload run beside those for which starts are kept.
    fn allowed_beside(&mut self, work: usize, pool: usize) -> bool {
        let before: Vec<(usize, Vec<Rc<Slot>>)> = match &self.timelines[pool] {
            Some(timeline) => timeline
                .reserved()
                .iter()
                .map(|r| (r.work, r.slots.clone()))
                .collect(),
            None => return true,
        };
        let mark = self.ledger.mark();
        for (other, slots) in before {
            self.ledger.settle(other, slots, Standing::Nominated);
        }
        let least = Amount::from(self.index.works[work].row.workers_least());
        let amount = self.index.charge_least(work, pool) * least;
        let allowed = quota::allowed(&self.ledger, work, pool, amount).is_ok();
        self.ledger.rollback(mark);
        allowed
    }

    /// The earliest start of a workload in a pool, by the ends that are known.
    pub fn earliest(
        &mut self,
        work: usize,
        pool: usize,
        bounds: backfill::Bounds,
    ) -> Option<Reserved> {
        let index = self.index;
        let workers = index.works[work].row.workers_least();
        let milli = bookings::asked(index, work, workers);
        let edges = self.bookings.edges(index, work, pool);
        let least = index.charge_least(work, pool) * Amount::from(workers);
        let inside =
            least > 0 && quota::in_guarantee(&self.ledger, pool, index.works[work].team, least);
        self.timeline(pool);
        let bookings = &self.bookings;
        let clear = |begin: Timestamp, end: Timestamp| {
            bookings.let_stand(index, work, pool, (begin, end), milli)
        };
        let timeline = self.timelines[pool].as_mut()?;
        let found = timeline.earliest(work, None, inside, &edges, &clear, bounds)?;
        let amount = found.slots.iter().map(|s| s.amount).sum();
        if quota::allowed(&self.ledger, work, pool, amount).is_ok() {
            return Some(found);
        }
        let query = Query::start(index, work, pool).workers(workers);
        let nodes = start::affordable(&self.ledger, query)?;
        timeline.earliest(work, Some(nodes.into()), inside, &edges, &clear, bounds)
    }

    pub(super) fn timeline(&mut self, pool: usize) -> &mut Timeline<'i, 'w> {
        let ledger = &self.ledger;
        let kept = &mut self.lasting.futures[pool];
        self.timelines[pool].get_or_insert_with(|| {
            let kept = kept.take();
            let joined = kept.and_then(|mut kept| kept.join_in(ledger).then_some(kept));
            joined.unwrap_or_else(|| Timeline::of(ledger, pool))
        })
    }

    /// Keeps a future for the next who asks, if it is one that is kept.
    pub(super) fn put_by(&mut self, pool: usize, mut timeline: Timeline<'i, 'w>) {
        if timeline.is_kept() {
            timeline.go_back();
            self.lasting.futures[pool] = Some(timeline);
        }
    }

    /// The start that is kept for a workload, and in which pool.
    pub fn reservation_of(&self, work: usize) -> Option<(usize, &Reserved)> {
        let pools = self.timelines.iter().enumerate();
        pools
            .filter_map(|(pool, timeline)| Some((pool, timeline.as_ref()?)))
            .find_map(|(pool, t)| Some((pool, t.reserved().iter().find(|r| r.work == work)?)))
    }

    /// Whether a workload has a start that it need only wait for, where nobody is displaced.
    pub fn waits_for_time(&self, work: usize, pool: usize) -> bool {
        let kept = self.timelines[pool]
            .as_ref()
            .and_then(|t| t.reserved().iter().find(|r| r.work == work));
        kept.is_some_and(|r| r.start() != NEVER) && !Rules::of(self.index, pool).any()
    }

    /// For what room in a pool is kept from a workload.
    pub fn held_back(&self, work: usize, pool: usize) -> Option<Keeps> {
        let index = self.index;
        let now = index.world.now;
        let least = index.works[work].row.workers_least();
        let span = (now, backfill::end_from(index, work, now));
        let asked = bookings::asked(index, work, least);
        if !self.bookings.let_stand(index, work, pool, span, asked) {
            return Some(Keeps::Booking);
        }
        let timeline = self.timelines[pool].as_ref();
        if timeline.is_some_and(|t| t.reserved().iter().any(|r| r.work != work)) {
            return Some(Keeps::Start);
        }
        let bound = !index.works[work].preemptible && self.bookings.any(pool);
        bound.then_some(Keeps::Booking)
    }

    /// Whether a workload that waits for these devices leaves kept starts and bookings alone,
    /// as do those that make way: who leaves keeps so many workers, who moves goes elsewhere.
    /// Who has a start itself gives it up for the room; starts of those behind it in the order
    /// are found anew where it takes theirs.
    pub(super) fn room_holds(
        &mut self,
        work: usize,
        pool: usize,
        slots: &[Rc<Slot>],
        leaving: &[(usize, usize)],
        movers: &[consolidate::Mover],
    ) -> bool {
        let index = self.index;
        let begin = backfill::after_grace(index, pool);
        let end = backfill::end_from(index, work, begin);
        let inside = self.inside(work, pool, slots);
        let stands = self.may_stand(work, pool, (begin, end), slots);
        if !stands || !self.is_inside_then(work, pool, slots, leaving) {
            return false;
        }
        let Some(timeline) = self.timelines[pool].as_mut() else {
            return true;
        };
        let own = timeline.give_up(work);
        let behind: Vec<(usize, Reserved)> = self
            .behind
            .iter()
            .filter_map(|&later| timeline.give_up(later))
            .collect();
        let moving = movers.iter().map(|mover| (mover.work, 0));
        let mut before = Vec::new();
        for (victim, keep) in leaving.iter().copied().chain(moving) {
            let claims = timeline.remove(victim);
            let held = self.ledger.slots(victim);
            // What it gave up in this plan before stands until its grace is over.
            for (end, slots) in &claims {
                let gone = |s: &&Rc<Slot>| held.iter().all(|h| !Rc::ptr_eq(h, s));
                let gone: Vec<Rc<Slot>> = slots.iter().filter(gone).cloned().collect();
                timeline.insert(victim, &gone, *end);
            }
            let (stay, go) = held.split_at(keep.min(held.len()));
            timeline.insert(victim, stay, backfill::end_of_running(index, victim));
            timeline.insert(victim, go, begin);
            before.push((victim, claims));
        }
        for mover in movers {
            let end = backfill::end_from(index, mover.work, begin);
            timeline.insert(mover.work, &mover.there, end);
        }
        let holds =
            timeline.passes(work, slots, end, inside) && (movers.is_empty() || timeline.holds());
        if holds {
            self.freed[pool] |= own.is_some();
            self.met_behind[pool] |= !behind.is_empty();
            behind.into_iter().rev().for_each(|b| timeline.take_back(b));
            return true;
        }
        for (victim, claims) in before {
            timeline.remove(victim);
            for (end, slots) in claims {
                timeline.insert(victim, &slots, end);
            }
        }
        behind.into_iter().rev().for_each(|b| timeline.take_back(b));
        if let Some(own) = own {
            timeline.take_back(own);
        }
        false
    }

    /// Whether workers that running work gains leave kept starts and bookings alone; those stay where
    /// they are until they [`settle_kept`](Self::settle_kept).
    pub(super) fn growth_holds(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let before = self.timelines[pool].as_ref().map(Timeline::kept);
        let holds = self.leaves_alone(work, pool, slots);
        if let Some((timeline, before)) = self.timelines[pool].as_mut().zip(before) {
            timeline.keep_as(before);
        }
        holds
    }

    /// Says that running work gains workers; starts that are kept go where they have room then.
    pub(super) fn settle_kept(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>]) {
        let end = backfill::end_of_running(self.index, work);
        self.leaves_alone(work, pool, slots);
        self.stands(work, pool, slots, end);
    }

    fn leaves_alone(&mut self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let end = backfill::end_of_running(self.index, work);
        let inside = self.inside(work, pool, slots);
        self.may_stand(work, pool, (self.index.world.now, end), slots)
            && self.timelines[pool]
                .as_mut()
                .is_none_or(|timeline| timeline.passes(work, slots, end, inside))
    }

    /// After work was moved, or stopped for nobody that waits, futures are made afresh.
    pub(super) fn look_again(&mut self) {
        let moved = !self.plan.migrations.is_empty()
            || self
                .plan
                .preemptions
                .iter()
                .any(|p| p.reason == Reason::Drain);
        if moved {
            (0..self.index.pools.len()).for_each(|pool| self.renew(pool));
        }
    }

    /// Sees to it that every start that is kept has its room, after work that nothing holds
    /// back was decided on.
    pub(super) fn mend(&mut self, pool: usize) {
        let holds = self.timelines[pool].as_mut().is_none_or(Timeline::holds);
        if !holds {
            self.renew(pool);
        }
    }

    /// Looks at the future of a pool afresh, and gives those who have a start their earliest.
    pub(super) fn renew(&mut self, pool: usize) {
        let Some(old) = self.timelines[pool].take() else {
            return;
        };
        let reserved = old.reserved().to_vec();
        self.put_by(pool, old);
        for kept in reserved {
            if self.ledger.standing(kept.work) == Standing::Idle
                && let Some(found) = self.earliest(kept.work, pool, backfill::KEPT)
            {
                self.timeline(pool).keep(found);
            }
        }
    }

    /// Looks again at what was held back for a start that is not kept any more.
    pub(super) fn start_again(&mut self) {
        for pool in 0..self.index.pools.len() {
            if !std::mem::take(&mut self.freed[pool]) {
                continue;
            }
            self.failed
                .retain(|key, end| key.0 != pool || *end == Timestamp::MIN_UTC);
            self.startless.retain(|key| key.0 != pool);
            let picker = if self.lasting.lines.apart() {
                // All that was looked at in the pool, and all that was passed over.
                self.line(pool)
            } else {
                let held = self.passed[pool].iter().copied();
                let held = held.filter(|&work| self.ledger.standing(work) == Standing::Idle);
                Picker::of(self.index, pool, &held.collect::<Vec<usize>>())
            };
            let order = self.passed[pool].clone();
            self.start_each(pool, picker, false);
            self.passed[pool] = order;
        }
    }

    /// Writes the starts that are kept into the plan.
    pub(super) fn tell_reservations(&mut self) {
        for pool in 0..self.index.pools.len() {
            self.mend(pool);
            let Some(timeline) = &self.timelines[pool] else {
                continue;
            };
            for kept in timeline.reserved().iter().filter(|r| r.start() != NEVER) {
                let mut nodes: Vec<usize> = kept.slots.iter().map(|s| s.node).collect();
                nodes.sort_unstable();
                nodes.dedup();
                self.plan.reservations.push(Reservation {
                    workload: self.index.works[kept.work].row.name.clone(),
                    start: kept.start(),
                    nodes: nodes
                        .into_iter()
                        .map(|n| self.index.nodes[n].row.name.clone())
                        .collect(),
                });
            }
        }
    }
}
