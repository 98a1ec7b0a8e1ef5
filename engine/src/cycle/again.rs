//! A cycle decided anew: where what starts would leave a cycle later for work that lost its room to others meanwhile, that
//! work is served first.
//!
//! Who has room beside another when that one starts may have none at its own turn: others come between. Only the
//! end of the cycle tells, so that all is decided once more with what was learned.

use std::cmp::Reverse;

use rustc_hash::FxHashSet;

use super::Cycle;
use crate::index::Amount;
use crate::ledger::{Sight, Standing};
use crate::place::Query;
use crate::preempt::{Right, Rules, could_make_room};
use crate::{quota, start};

/// Most times that a cycle is decided: each costs as much as the first, and what is learned in one seldom brings more
/// than one thing more to light.
const ROUNDS_MAX: usize = 5;

/// Most work without room of which it is asked whether it would take that of others: each costs a search for victims.
const TAKERS_MAX: usize = 16;

/// Most work that started of which it is asked whether it would leave for one: as costly.
const LEAVERS_MAX: usize = 8;

/// Work that started, and work that would take its room a cycle later if it has none itself by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rivals {
    pub pool: usize,
    pub starts: usize,
    pub taker: usize,
}

impl Cycle<'_, '_> {
    /// All decisions, without what is said about them.
    pub fn decide(mut self) -> Self {
        let mut in_vain = FxHashSet::default();
        for round in 1..=ROUNDS_MAX {
            self.decide_once();
            let waits = |taker: usize| self.ledger.standing(taker) == Standing::Idle;
            let (vain, mut first): (FxHashSet<_>, FxHashSet<_>) =
                (self.first.iter()).partition(|(_, taker)| waits(*taker));
            in_vain.extend(vain);
            // The last rounds learn nothing more, and only forget what was in vain.
            if round + 2 < ROUNDS_MAX {
                first.extend(self.taken_back());
                first.retain(|pair| !in_vain.contains(pair));
            }
            if first == self.first || round == ROUNDS_MAX {
                break;
            }
            self = self.anew(first);
        }
        self
    }

    /// The cycle as it began, with who is to be served before whom.
    fn anew(self, first: FxHashSet<(usize, usize)>) -> Self {
        let cuts = self.cuts;
        let (_, ledger, lasting) = self.end();
        Self {
            cuts,
            first,
            ..Self::over(ledger, lasting)
        }
    }

    /// Keeps in mind that work starts whose room another would take a cycle later, had it none itself.
    pub(super) fn meets(&mut self, rivals: Rivals) {
        self.met.push(rivals);
    }

    /// Whether a workload is to be served before another.
    pub(super) fn comes_first(&self, taker: usize, work: usize) -> bool {
        self.first.contains(&(work, taker))
    }

    /// Work, and who is to be served before it.
    pub(super) fn to_serve(&self) -> impl Iterator<Item = &(usize, usize)> {
        self.first.iter()
    }

    /// Who started, and would leave for whom a cycle later.
    fn taken_back(&mut self) -> Vec<(usize, usize)> {
        let mut met: Vec<Rivals> = std::mem::take(&mut self.met);
        met.retain(|met| {
            self.ledger.standing(met.starts) == Standing::Started
                && self.ledger.standing(met.taker) == Standing::Idle
        });
        met.sort_unstable_by_key(|met| (met.pool, met.taker, met.starts));
        met.dedup();
        let same =
            |one: &Rivals, other: &Rivals| one.pool == other.pool && one.taker == other.taker;
        let groups = met.chunk_by(same).take(TAKERS_MAX);
        groups.flat_map(|group| self.taken_by(group)).collect()
    }

    /// Of work that started, what would leave for the same work, and for nothing less.
    fn taken_by(&mut self, group: &[Rivals]) -> Vec<(usize, usize)> {
        let Some(&Rivals { pool, taker, .. }) = group.first() else {
            return Vec::new();
        };
        let mut may_leave = self.may_leave(taker, pool);
        may_leave.truncate(LEAVERS_MAX);
        if !self.has_room_without(taker, pool, &may_leave) {
            return Vec::new();
        }
        let mut leave = may_leave.clone();
        for work in may_leave {
            let fewer: Vec<usize> = leave
                .iter()
                .copied()
                .filter(|other| *other != work)
                .collect();
            if self.has_room_without(taker, pool, &fewer) {
                leave = fewer;
            }
        }
        leave.into_iter().map(|work| (work, taker)).collect()
    }

    /// Whether work would have room, or have it made, once these have left.
    fn has_room_without(&mut self, taker: usize, pool: usize, leave: &[usize]) -> bool {
        let mark = self.ledger.mark();
        let rightful = leave.iter().all(|&work| self.leaves(work, taker, pool));
        let query = Query::start(self.index, taker, pool)
            .workers(self.index.works[taker].row.workers_least())
            .sight(Sight::Later);
        let least = Amount::from(query.workers) * self.index.charge_least(taker, pool);
        let rules = Rules::of(self.index, pool);
        let has = rightful
            && (quota::allowed(&self.ledger, taker, pool, least).is_ok()
                && start::place_within(&mut self.ledger, query).is_some()
                || could_make_room(&mut self.ledger, taker, pool, &rules));
        self.ledger.rollback(mark);
        has
    }

    /// What started and may have to leave for work a cycle later, whoever had its turn first: lower work of its team,
    /// and once that has left, work of borrowers; of each what is larger first.
    fn may_leave(&mut self, taker: usize, pool: usize) -> Vec<usize> {
        let index = self.index;
        let own = &index.works[taker];
        let started = |&&work: &&usize| {
            let first = self.ledger.slots(work).first();
            let here = first.is_some_and(|slot| index.nodes[slot.node].pool == pool);
            let facts = &index.works[work];
            let stands = self.ledger.standing(work) == Standing::Started;
            here && stands && facts.preemptible && facts.service.is_none()
        };
        let mut started: Vec<usize> = self.engaged.iter().filter(started).copied().collect();
        let amount = |work: usize| self.ledger.slots(work).iter().map(|slot| slot.amount).sum();
        started.sort_by_cached_key(|&work| {
            let amount: Amount = amount(work);
            (index.works[work].team != own.team, Reverse(amount), work)
        });
        let mark = self.ledger.mark();
        started.retain(|&work| self.leaves(work, taker, pool));
        self.ledger.rollback(mark);
        started
    }

    /// Takes away work that started, if it may be taken for another as things stand.
    fn leaves(&mut self, work: usize, taker: usize, pool: usize) -> bool {
        let index = self.index;
        let (facts, own) = (&index.works[work], &index.works[taker]);
        let rules = Rules::of(index, pool);
        let leaves = if facts.team == own.team {
            rules.allow(Right::Priority) && facts.priority < own.priority
        } else {
            let slots = self.ledger.slots(work).to_vec();
            rules.allow(Right::Share) && self.evens_out(pool, work, &slots, taker)
                || self.takes_back(pool, work, &slots, taker, &rules)
        };
        if leaves {
            self.ledger.release(work, 0);
        }
        leaves
    }
}
