//! Buckets and kin of a line of which nothing can start any more: while work only starts, they stay so.

use std::rc::Rc;

use domain::Timestamp;

use super::Cycle;
use crate::backfill;
use crate::index::Amount;
use crate::ledger::{Ledger, Sight, Slot};
use crate::order::Line;
use crate::place::{Query, stands_free};
use crate::quota;
use crate::world::Stopped;

/// What is known so, of one line.
pub(super) struct Dead {
    line: Rc<Line>,
    /// Of the same team and shape as what failed whenever it ended.
    buckets: Vec<bool>,
    /// What has no place.
    kins: Vec<bool>,
    /// Whether all of the line is.
    all: bool,
    /// By kin, where one of it could start when that was last looked for.
    spare: Vec<Option<Spare>>,
}

/// Where something could start.
struct Spare {
    work: usize,
    slots: Vec<Rc<Slot>>,
}

/// What limits leave to a team, as far as they look at nothing but it and those above it.
pub(super) struct Bounds {
    room: Option<Amount>,
    slack: Amount,
    /// Whether what may not be preempted has to be in the guarantee.
    firm_inside: bool,
    stopped: Stopped,
}

impl Bounds {
    pub fn of(ledger: &Ledger<'_, '_>, team: usize, pool: usize) -> Self {
        let facts = &ledger.index.pools[pool];
        let held = |t: usize| ledger.held(pool, t).gpu;
        let path = ledger.index.teams[team].path.iter();
        let rooms = path.filter_map(|&t| Some(facts.rows[t].limit? - held(t)));
        Self {
            room: rooms.min(),
            slack: facts.rows[team].guaranteed - held(team),
            firm_inside: !facts.row.non_preemptible_borrowing,
            stopped: ledger.index.teams[team].stopped,
        }
    }

    /// Whether they plainly do not let work hold an amount.
    fn refuse(&self, amount: Amount, firm: bool) -> bool {
        let over = self.room.is_some_and(|room| room < amount);
        let kept_inside = self.stopped == Stopped::Borrowing || firm && self.firm_inside;
        let outside = amount > self.slack && kept_inside;
        self.stopped == Stopped::All || amount > 0 && (over || outside)
    }
}

impl Dead {
    /// Nothing is known yet.
    pub fn of(line: &Rc<Line>) -> Self {
        Self {
            buckets: vec![false; line.buckets().len()],
            kins: line.buckets().each_kin().map(|_| false).collect(),
            all: false,
            spare: line.buckets().each_kin().map(|_| None).collect(),
            line: Rc::clone(line),
        }
    }

    /// Whether nothing of a bucket can start.
    pub fn has(&self, bucket: u32) -> bool {
        let kin = || self.line.buckets().kin_of(bucket);
        self.all || self.buckets[bucket as usize] || kin().is_some_and(|kin| self.kins[kin])
    }

    /// Whether limits plainly let nothing of a bucket start: they leave less and less.
    pub fn is_over(&mut self, bucket: u32, bounds: &Bounds) -> bool {
        let (amount, firm) = self.line.buckets().asks(bucket);
        let over = bounds.refuse(amount, firm);
        self.buckets[bucket as usize] |= over;
        over
    }

    /// Says that limits may let teams have more again.
    fn ease(&mut self, eased: impl Fn(usize) -> bool) {
        let buckets = self.line.buckets();
        for bucket in 0..buckets.len() {
            self.buckets[bucket] &= !eased(buckets.team_of(bucket));
        }
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
            dead.kins[kin] = self.ledger.place_to_start(query).is_none();
            none &= dead.kins[kin];
        }
        dead.all = none;
    }

    /// Forgets who found no start, where limits may let them have what victims leave.
    pub(super) fn ease(&mut self, pool: usize, dead: &mut Dead) {
        let lost = std::mem::take(&mut self.lost);
        if lost.is_empty() {
            return;
        }
        let root = |team: usize| self.index.teams[team].path.last();
        let eased = |team: usize| lost.iter().any(|&other| root(other) == root(team));
        (self.failed).retain(|&(there, team, _), _| there != pool || !eased(team));
        dead.ease(eased);
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
        let facts = &self.index.works[work];
        let found = self.find_start(work, pool);
        if let Some(slots) = &found {
            let kin = dead.line.buckets().kin_of(bucket);
            let kin = kin.filter(|&kin| dead.spare[kin].is_none());
            if let Some(kin) = kin.filter(|_| facts.row.min_workers.is_none()) {
                let slots = slots.clone();
                dead.spare[kin] = Some(Spare { work, slots });
            }
            return found;
        }
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

    /// Where others of its kin could start, if a workload plainly could there too: then it could, and
    /// the best place for it need not be known.
    pub(super) fn spare_place(
        &mut self,
        dead: &mut Dead,
        bucket: u32,
        work: usize,
        pool: usize,
    ) -> Option<(usize, Vec<Rc<Slot>>)> {
        let kin = dead.line.buckets().kin_of(bucket)?;
        let facts = &self.index.works[work];
        // Elsewhere it may count for another amount, or meet what it does not meet here.
        if facts.stint.elastic || !self.index.pools[pool].is_uniform() || self.bookings.any(pool) {
            return None;
        }
        if dead.spare[kin].is_none() && facts.stint.workers == 1 {
            let slots = self.ledger.last_place(Query::start(self.index, work, pool));
            dead.spare[kin] = slots.map(|slots| Spare { work, slots });
        }
        let slots = &dead.spare[kin].as_ref()?.slots;
        let end = backfill::end_from(self.index, work, self.index.world.now);
        let key = (pool, facts.team, facts.shape);
        let failed = self.failed.get(&key);
        let amount: Amount = slots.iter().map(|s| s.amount).sum();
        if failed.is_some_and(|failed| end >= *failed)
            || self.timelines[pool]
                .as_ref()
                .is_some_and(|t| t.binds(work, end, self.inside(work, pool, slots)))
            || quota::allowed(&self.ledger, work, pool, amount).is_err()
        {
            return None;
        }
        Some((kin, slots.clone()))
    }

    /// The kin that cannot start any more where they were known to, now that something has on these
    /// slots.
    pub(super) fn spoilt(&mut self, dead: &mut Dead, slots: &[Rc<Slot>]) -> Vec<usize> {
        let mut spoilt = Vec::new();
        for (kin, spare) in dead.spare.iter_mut().enumerate() {
            let Some(Spare { work, slots: known }) = spare else {
                continue;
            };
            let there = |known: &Rc<Slot>| slots.iter().any(|slot| slot.node == known.node);
            if known.iter().any(there) && !stands_free(&mut self.ledger, *work, known, Sight::Start)
            {
                *spare = None;
                spoilt.push(kin);
            }
        }
        spoilt
    }
}
