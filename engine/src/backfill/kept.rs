//! A future that outlasts its cycle: what a cycle did to it is undone, and what the world does to it is done piece by piece.

use std::collections::BTreeMap;
use std::rc::Rc;

use domain::Timestamp;
use domain::sharing::SharingMode;
use rustc_hash::FxHashMap;

use super::timeline::{Claim, Key, Keys, Slots, Timeline};
use super::{NEVER, OVERDUE, soon};
use crate::index::{Index, Need};
use crate::ledger::{Ledger, Paused, Slot, View};
use crate::order::Kin;
use crate::world::Strategy;

/// Kin of which it is kept in mind where they start; each takes some bytes.
const KIN_MAX: usize = 10_000;

type Place = Vec<Rc<Slot>>;

/// Looks for room at a moment.
pub(super) type Probe<'p, T> = dyn FnMut(&mut T, Key) -> Option<Place> + 'p;

/// What became of a claim.
#[derive(Debug)]
pub(super) enum Undo {
    Put(Key),
    Lifted(Key, Claim),
}

/// What is known of a future from cycle to cycle.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The time of the cycle that last looked.
    now: Option<Timestamp>,
    /// Whether it matters in which order claims came: such a future is made afresh each time.
    blurs: bool,
    /// The turn of the last claim whose end nobody knows.
    endless: Option<(Timestamp, Timestamp, usize)>,
    /// Where the first start that was kept was found, by kin.
    found: FxHashMap<Kin, Key>,
}

/// A future that is put aside.
pub(crate) struct PausedTimeline<'w> {
    pool: usize,
    scratch: Paused<'w>,
    claims: BTreeMap<Key, Claim>,
    of_work: FxHashMap<usize, Keys>,
    turned: Option<Key>,
    free: i64,
    serial: usize,
    kept: Kept,
}

impl<'w> PausedTimeline<'w> {
    /// Goes on over the same index.
    pub fn resume<'i>(self, index: &'i Index<'w>) -> Timeline<'i, 'w> {
        Timeline {
            claims: self.claims,
            of_work: self.of_work,
            turned: self.turned,
            free: self.free,
            serial: self.serial,
            kept: self.kept,
            ..Timeline::without_claims(index, self.pool, self.scratch.resume(index))
        }
    }
}

impl<'i, 'w> Timeline<'i, 'w> {
    /// What is left when the index is let go; nothing where a fresh one has to be made.
    pub fn pause(mut self) -> Option<PausedTimeline<'w>> {
        self.go_back();
        (!self.kept.blurs).then(|| PausedTimeline {
            pool: self.pool,
            scratch: self.scratch.pause(),
            claims: self.claims,
            of_work: self.of_work,
            turned: self.turned,
            free: self.free,
            serial: self.serial,
            kept: self.kept,
        })
    }

    /// Whether it outlasts the cycle.
    pub fn is_kept(&self) -> bool {
        self.kept.now.is_some()
    }

    /// Undoes what a cycle did.
    pub fn go_back(&mut self) {
        while let Some(done) = self.undo.pop() {
            match done {
                Undo::Put(key) => {
                    self.lift(key);
                }
                Undo::Lifted(key, claim) => self.put(key, claim),
            }
        }
        self.reserved.clear();
        self.look_at_kept();
    }

    /// A future of how things stand when a cycle begins, to be kept; nothing where it cannot be.
    pub fn keeping(ledger: &Ledger<'i, 'w>, pool: usize) -> Option<Self> {
        if ledger.index.pools[pool].row.strategy == Strategy::LeastFragmentation {
            // What placements cost is learned anew whenever work comes or goes.
            return None;
        }
        let mut timeline = Self::of(ledger, pool);
        timeline.undo.clear();
        timeline.kept.now = Some(ledger.index.world.now);
        let endless = timeline.claims.range((NEVER, 0)..).next_back();
        timeline.kept.endless = endless.map(|(_, claim)| Self::turn_of(ledger.index, claim.work));
        (!timeline.kept.blurs).then_some(timeline)
    }

    /// Takes in how these workloads stand when a cycle begins, and that time has moved on; false
    /// where a fresh future has to be made.
    pub fn catch_up(&mut self, ledger: &Ledger<'i, 'w>, touched: &[usize]) -> bool {
        let now = self.index.world.now;
        if self.kept.now.replace(now).is_none_or(|before| before > now) {
            return false;
        }
        let due = self
            .claims
            .range((OVERDUE, usize::MAX)..=(soon(self.index), usize::MAX));
        let mut works: Vec<usize> = due.map(|(_, claim)| claim.work).collect();
        works.extend_from_slice(touched);
        works.sort_unstable();
        works.dedup();
        works.sort_by_key(|&work| Self::turn_of(self.index, work));
        for &work in &works {
            self.remove(work);
            self.claim(ledger, work);
            if self.endless(work) {
                let turn = Self::turn_of(self.index, work);
                if self.kept.endless.is_some_and(|last| last >= turn) {
                    return false;
                }
                self.kept.endless = Some(turn);
            }
        }
        self.undo.clear();
        !self.kept.blurs
    }

    /// Whether it is the future of how things stand, if it has been told the time: who stands where
    /// until when, and what is free at each moment.
    pub fn is_like(&mut self, ledger: &Ledger<'i, 'w>, pool: usize) -> bool {
        if self.kept.now != Some(self.index.world.now) {
            return true;
        }
        let mut fresh = Self::of(ledger, pool);
        let told = |of: &Self| {
            let claims = of.claims.iter();
            let mut told: Vec<(Timestamp, usize, Slots)> = claims
                .map(|(key, claim)| (key.0, claim.work, Rc::clone(&claim.slots)))
                .collect();
            told.sort_by_key(|(end, work, slots)| (*end, *work, slots.first().map(|s| s.node)));
            told
        };
        let known = |at: &Key| at.0 != NEVER;
        told(self) == told(&fresh)
            && self.ends(usize::MAX).into_iter().filter(known).all(|at| {
                self.turn(at);
                fresh.turn(at);
                self.free == fresh.free && self.scratch.spaces == fresh.scratch.spaces
            })
    }

    /// Takes in what a cycle has done so far; false where a fresh future has to be made.
    pub fn join_in(&mut self, ledger: &Ledger<'i, 'w>) -> bool {
        let mut works = ledger.changed();
        works.sort_by_key(|&work| Self::turn_of(self.index, work));
        let now = self.index.world.now;
        if self
            .kept
            .endless
            .is_some_and(|(started, ..)| started >= now)
            || works.iter().any(|&work| self.endless(work))
        {
            return false;
        }
        for work in works {
            self.remove(work);
            self.claim(ledger, work);
        }
        !self.kept.blurs
    }

    /// Whether nobody knows when a workload ends that stands there.
    fn endless(&self, work: usize) -> bool {
        let keys = self.of_work.get(&work).map_or(&[][..], Keys::as_slice);
        keys.iter().any(|key| key.0 == NEVER)
    }

    /// A node itself is another.
    pub fn remake(&mut self, ledger: &Ledger<'_, '_>, node: usize) {
        self.scratch.remake(node);
        for work in ledger.seated(node) {
            let keys = self.of_work.get(work).map_or(&[][..], Keys::as_slice);
            let standing = keys.iter().filter(|key| Some(**key) > self.turned);
            let slots = standing.filter_map(|key| self.claims.get(key));
            for slot in slots.flat_map(|claim| claim.slots.iter()) {
                if slot.node == node {
                    self.scratch.occupy(View::Later, *work, slot);
                }
            }
        }
        self.count_free();
    }

    pub(super) fn put(&mut self, key: Key, claim: Claim) {
        if Some(key) > self.turned {
            self.occupy(claim.work, &claim.slots);
        }
        self.of_work.entry(claim.work).or_default().push(key);
        self.claims.insert(key, claim);
    }

    pub(super) fn lift(&mut self, key: Key) -> Option<Claim> {
        let claim = self.claims.remove(&key)?;
        if Some(key) > self.turned {
            self.vacate(claim.work, &claim.slots);
        }
        if let Some(keys) = self.of_work.get_mut(&claim.work) {
            keys.remove(key);
            if keys.as_slice().is_empty() {
                self.of_work.remove(&claim.work);
            }
        }
        Some(claim)
    }

    /// Whose a device is, of several that share it, and who is on a node, are told by who came
    /// first: that is lost when claims come and go.
    pub(super) fn blur(&mut self, work: usize, slots: &Slots) {
        let first = |mode| matches!(mode, SharingMode::Mps | SharingMode::Vgpu);
        let mut parts = slots.iter().flat_map(|slot| &slot.parts);
        self.kept.blurs |= self.tells_whose(work) || parts.any(|part| first(part.mode));
    }

    /// Where work starts, looked for from where its kin did, or from the moment to which the future is
    /// turned: room only grows, so that the first moment with room is the one after the last without.
    /// The outer nothing says that all moments have to be searched, the inner one that none has room.
    pub(super) fn nearby(
        &mut self,
        work: usize,
        probe: &mut Probe<'_, Self>,
    ) -> Option<Option<(Key, Place)>> {
        if !self.only_grows(work) {
            return None;
        }
        let known = self.kept.found.get(&self.kin(work)).copied();
        let at = self.moment_from(known.or(self.turned)?)?;
        Some(match probe(self, at) {
            Some(found) => Some(self.sooner(at, found, probe)),
            None => self.later(at, probe),
        })
    }

    /// Whether what has room for it at one moment has at every later one. Of several parts the
    /// first may be placed where it is in the way of the others.
    fn only_grows(&self, work: usize) -> bool {
        let facts = &self.index.works[work];
        match facts.need {
            Need::Nothing | Need::Whole(_) => true,
            Need::Part { .. } => facts.row.workers_least() == 1,
            Need::Instances { .. } => false,
        }
    }

    /// The first moment with room, no later than this one that has.
    fn sooner(&mut self, at: Key, found: Place, probe: &mut Probe<'_, Self>) -> (Key, Place) {
        let (mut first, mut stride) = ((at, found), 1);
        loop {
            let before: Vec<Key> = self.moments_before(first.0).take(stride).collect();
            let Some(&farthest) = before.last() else {
                return first;
            };
            match probe(self, farthest) {
                Some(found) => first = (farthest, found),
                // Somewhere between them it begins.
                None => return self.between(before.iter().rev().skip(1), first, probe),
            }
            stride *= 2;
        }
    }

    /// The first moment with room after this one that has none.
    fn later(&mut self, at: Key, probe: &mut Probe<'_, Self>) -> Option<(Key, Place)> {
        let (mut last, mut stride) = (at, 1);
        loop {
            let after: Vec<Key> = self.moments_after(last).take(stride).collect();
            let &farthest = after.last()?;
            if let Some(found) = probe(self, farthest) {
                let between = after[..after.len() - 1].iter();
                return Some(self.between(between, (farthest, found), probe));
            }
            last = farthest;
            stride *= 2;
        }
    }

    /// The first of some moments in their order that has room, else the one after them that has.
    fn between<'a>(
        &mut self,
        moments: impl Iterator<Item = &'a Key>,
        mut first: (Key, Place),
        probe: &mut Probe<'_, Self>,
    ) -> (Key, Place) {
        let moments: Vec<Key> = moments.copied().collect();
        let mut left = &moments[..];
        while !left.is_empty() {
            let middle = left.len() / 2;
            match probe(self, left[middle]) {
                Some(found) => {
                    first = (left[middle], found);
                    left = &left[..middle];
                }
                None => left = &left[middle + 1..],
            }
        }
        first
    }

    /// Keeps in mind where a start was found.
    pub(super) fn note(&mut self, work: usize, at: Key) {
        if self.kept.found.len() > KIN_MAX {
            self.kept.found.clear();
        }
        self.kept.found.insert(self.kin(work), at);
    }

    fn kin(&self, work: usize) -> Kin {
        let facts = &self.index.works[work];
        (facts.frame, facts.row.workers_least())
    }

    fn moment_from(&self, at: Key) -> Option<Key> {
        let next = self.claims.range((at.0, 0)..).next();
        next.or_else(|| self.claims.last_key_value())
            .map(|(key, _)| moment(*key))
    }

    /// The moments after one, the next first.
    fn moments_after(&self, at: Key) -> impl Iterator<Item = Key> + '_ {
        let next = (at.0, at.1.saturating_add(1));
        each_once(self.claims.range(next..).map(|(key, _)| moment(*key)))
    }

    /// The moments before one, the last first.
    fn moments_before(&self, at: Key) -> impl Iterator<Item = Key> + '_ {
        let first = if at.0 == NEVER { at } else { (at.0, 0) };
        let earlier = self.claims.range(..first).rev();
        each_once(earlier.map(|(key, _)| moment(*key)))
    }
}

fn each_once(moments: impl Iterator<Item = Key>) -> impl Iterator<Item = Key> {
    let mut last = None;
    moments.filter(move |moment| last.replace(*moment) != Some(*moment))
}

/// Ends of one moment are one; each that nobody knows is its own.
pub(super) fn moment(key: Key) -> Key {
    if key.0 == NEVER {
        key
    } else {
        (key.0, usize::MAX)
    }
}
