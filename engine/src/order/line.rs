//! The work that waits, pool by pool and team by team in each team's own order: kept while the world is, and changed piece by piece.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::index::{Amount, Index};
use crate::place::{Query, gang};
use crate::start::usable;
use crate::world::WorkloadState;

use super::buckets::{Buckets, Kin};

/// Numbers of buckets for each workload, those of which nothing is left among them: then they are
/// numbered anew.
const BUCKETS_EACH: usize = 4;
/// Workloads that are named for a kin, for each that is there: then those that have left are forgotten.
const NAMED_EACH: usize = 4;

/// What a workload is called inside a team's order: the larger goes first.
pub(super) type Rank = (i128, Reverse<domain::Timestamp>, Reverse<usize>);

/// Priority with ageing, exact: in points × thousandths × microseconds of an hour.
fn urgency(index: &Index<'_>, work: usize, pool: usize) -> i128 {
    const HOUR_MICROS: i128 = 3_600_000_000;
    let facts = &index.works[work];
    let ageing = i128::from(index.pools[pool].row.ageing_per_hour.milli());
    let waited = (index.world.now - facts.wait.submitted)
        .num_microseconds()
        .unwrap_or(0)
        .max(0);
    i128::from(facts.priority) * 1000 * HOUR_MICROS + ageing * i128::from(waited)
}

fn rank(index: &Index<'_>, work: usize, pool: usize) -> Rank {
    (
        urgency(index, work, pool),
        Reverse(index.works[work].wait.submitted),
        Reverse(work),
    )
}

/// What a workload counts for with all its workers, at the least.
fn amount(index: &Index<'_>, work: usize, pool: usize) -> Amount {
    index.charge_least(work, pool) * Amount::from(index.works[work].stint.workers)
}

/// A workload in a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    rank: Rank,
    pub work: usize,
    /// What it counts for with the least workers: with that it may be in a guarantee.
    pub amount: Amount,
    pub bucket: u32,
}

/// The waiting work of one pool.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// By team, in the team's own order.
    pub(super) queues: Vec<Vec<Entry>>,
    /// The bucket of each, apart from all else: who looks for some passes over many.
    pub(super) tags: Vec<Vec<u32>>,
    buckets: Buckets,
    /// By team: how much of its work with devices asks for each amount at the least.
    pub(super) amounts: Vec<BTreeMap<Amount, usize>>,
    /// How much there is in each subtree.
    pub(super) left: Vec<usize>,
    pub(super) total: usize,
    /// Work of which more than its kin tells whether there is a place.
    odd: usize,
}

impl Line {
    fn empty(index: &Index<'_>) -> Self {
        Self {
            queues: vec![Vec::new(); index.teams.len()],
            tags: vec![Vec::new(); index.teams.len()],
            buckets: Buckets::default(),
            amounts: vec![BTreeMap::new(); index.teams.len()],
            left: vec![0; index.teams.len()],
            total: 0,
            odd: 0,
        }
    }

    /// The line of these workloads, in whatever order they are given.
    pub fn of(index: &Index<'_>, pool: usize, works: &[usize]) -> Self {
        let mut line = Self::empty(index);
        for &work in works {
            let entry = Entry::of(index, work, pool, &mut line.buckets);
            line.queues[index.works[work].team].push(entry);
            line.count(index, entry, 1);
        }
        for (queue, tags) in line.queues.iter_mut().zip(&mut line.tags) {
            queue.sort_unstable_by_key(|entry| Reverse(entry.rank));
            *tags = queue.iter().map(|entry| entry.bucket).collect();
        }
        line
    }

    fn insert(&mut self, index: &Index<'_>, pool: usize, work: usize) {
        let entry = Entry::of(index, work, pool, &mut self.buckets);
        let team = index.works[work].team;
        let queue = &mut self.queues[team];
        let at = queue.partition_point(|there| there.rank > entry.rank);
        queue.insert(at, entry);
        self.tags[team].insert(at, entry.bucket);
        self.count(index, entry, 1);
        if self.buckets.len() > BUCKETS_EACH * self.total + 1000 {
            let works = self.queues.iter().flatten().map(|entry| entry.work);
            *self = Self::of(index, pool, &works.collect::<Vec<usize>>());
        }
    }

    fn remove(&mut self, index: &Index<'_>, pool: usize, work: usize) {
        let team = index.works[work].team;
        if let Some(at) = self.position(index, pool, work) {
            let gone = self.queues[team].remove(at);
            self.tags[team].remove(at);
            self.count(index, gone, -1);
            self.find_one(index, pool, gone.bucket);
        }
    }

    /// Where in its team's queue a workload is.
    pub(super) fn position(&self, index: &Index<'_>, pool: usize, work: usize) -> Option<usize> {
        let rank = rank(index, work, pool);
        let queue = &self.queues[index.works[work].team];
        let at = queue.partition_point(|there| there.rank > rank);
        queue
            .get(at)
            .is_some_and(|there| there.work == work)
            .then_some(at)
    }

    fn count(&mut self, index: &Index<'_>, entry: Entry, more: isize) {
        let Entry {
            work,
            amount,
            bucket,
            ..
        } = entry;
        let facts = &index.works[work];
        let add = |count: &mut usize| *count = count.saturating_add_signed(more);
        if amount > 0 {
            let amounts = &mut self.amounts[facts.team];
            let count = amounts.entry(amount).or_default();
            add(count);
            if *count == 0 {
                amounts.remove(&amount);
            }
        }
        for &team in &index.teams[facts.team].path {
            add(&mut self.left[team]);
        }
        add(&mut self.total);
        match self.buckets.kin_of(bucket) {
            Some(kin) => {
                let alike = &mut self.buckets.alike[kin];
                add(&mut alike.count);
                if more > 0 {
                    alike.works.push(work);
                }
            }
            None => add(&mut self.odd),
        }
    }

    /// Sees to it that the last that is named of a kin is in the line, after one of it has left.
    fn find_one(&mut self, index: &Index<'_>, pool: usize, bucket: u32) {
        let Some(kin) = self.buckets.kin_of(bucket) else {
            return;
        };
        let mut works = std::mem::take(&mut self.buckets.alike[kin].works);
        let there = |work: usize| {
            let at = self.position(index, pool, work);
            let bucket = at.map(|at| self.tags[index.works[work].team][at]);
            bucket.is_some_and(|bucket| self.buckets.kin_of(bucket) == Some(kin))
        };
        while works.last().is_some_and(|&work| !there(work)) {
            works.pop();
        }
        if works.len() > NAMED_EACH * self.buckets.alike[kin].count + 64 {
            works.sort_unstable();
            works.dedup();
            works.retain(|&work| there(work));
        }
        self.buckets.alike[kin].works = works;
    }

    /// How much it is.
    pub fn len(&self) -> usize {
        self.total
    }

    /// The kin that are there by their numbers, with one workload of each.
    pub fn each_kin(&self) -> Vec<(usize, usize)> {
        let alike = self.buckets.alike.iter().enumerate();
        let there = alike.filter(|(_, alike)| alike.count > 0);
        there
            .filter_map(|(kin, alike)| Some((kin, *alike.works.last()?)))
            .collect()
    }

    /// Whether its kin tells of all of it whether there is a place.
    pub fn is_plain(&self) -> bool {
        self.odd == 0
    }

    /// Its buckets, those of which nothing is left among them.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }
}

/// Nothing where more than it tells whether there is a place.
pub(super) fn kin(index: &Index<'_>, pool: usize, work: usize) -> Option<Kin> {
    let least = index.works[work].stint.least;
    match gang(index, Query::start(index, work, pool).workers(least))? {
        (_, frame, least, None) => Some((frame, least)),
        _ => None,
    }
}

impl Entry {
    fn of(index: &Index<'_>, work: usize, pool: usize, buckets: &mut Buckets) -> Self {
        Self {
            rank: rank(index, work, pool),
            work,
            amount: index.charge_least(work, pool)
                * Amount::from(index.works[work].row.workers_least()),
            bucket: buckets.number(index, pool, work),
        }
    }
}

/// The lines of all pools, with what their teams ask for.
#[derive(Debug)]
pub(crate) struct Lines {
    pools: Vec<Rc<Line>>,
    /// By pool and team: what its ready work asks for in all.
    asked: Vec<Vec<Amount>>,
    /// Ready work that may start in several pools: it goes from one to the next, and no lines
    /// that are kept tell when.
    several: usize,
    /// Waiting work that an hour or another's end makes ready.
    bound: BTreeSet<usize>,
    /// By work: whether it is counted as ready.
    ready: Vec<bool>,
}

impl Lines {
    /// Those of a moment.
    pub fn of(index: &Index<'_>) -> Self {
        let mut lines = Self {
            pools: Vec::new(),
            asked: vec![vec![0; index.teams.len()]; index.pools.len()],
            several: 0,
            bound: BTreeSet::new(),
            ready: vec![false; index.works.len()],
        };
        let mut works: Vec<Vec<usize>> = vec![Vec::new(); index.pools.len()];
        for work in 0..index.works.len() {
            if bound(index, work) {
                lines.bound.insert(work);
            }
            if index.ready(work) {
                lines.ready[work] = true;
                lines.tally(index, work, 1);
                if let Some(pool) = first_pool(index, work) {
                    works[pool].push(work);
                }
            }
        }
        let each = works.iter().enumerate();
        lines.pools = each
            .map(|(pool, works)| Rc::new(Line::of(index, pool, works)))
            .collect();
        lines
    }

    /// Whether no work goes on from one pool to the next.
    pub fn apart(&self) -> bool {
        self.several == 0
    }

    /// The line of a pool.
    pub fn line(&self, pool: usize) -> Rc<Line> {
        Rc::clone(&self.pools[pool])
    }

    /// What a team's own ready work asks for in a pool.
    pub fn asked(&self, pool: usize, team: usize) -> Amount {
        self.asked[pool][team]
    }

    /// Takes in a workload; who was there before has been taken out.
    pub fn insert(&mut self, index: &Index<'_>, work: usize) {
        self.ready.resize(index.works.len(), false);
        if bound(index, work) {
            self.bound.insert(work);
        }
        if index.ready(work) {
            self.set_ready(index, work, true);
        }
    }

    /// Takes out a workload, before it is another.
    pub fn remove(&mut self, index: &Index<'_>, work: usize) {
        self.bound.remove(&work);
        if self.ready.get(work).copied().unwrap_or(false) {
            self.set_ready(index, work, false);
        }
    }

    /// Looks again at what an hour or another's end makes ready.
    pub fn look_again(&mut self, index: &Index<'_>) {
        let changed = |&&work: &&usize| index.ready(work) != self.ready[work];
        let changed: Vec<usize> = self.bound.iter().filter(changed).copied().collect();
        for work in changed {
            self.set_ready(index, work, !self.ready[work]);
        }
    }

    fn set_ready(&mut self, index: &Index<'_>, work: usize, ready: bool) {
        self.ready[work] = ready;
        self.tally(index, work, if ready { 1 } else { -1 });
        if let Some(pool) = first_pool(index, work) {
            let line = Rc::make_mut(&mut self.pools[pool]);
            if ready {
                line.insert(index, pool, work);
            } else {
                line.remove(index, pool, work);
            }
        }
    }

    fn tally(&mut self, index: &Index<'_>, work: usize, sign: Amount) {
        let facts = &index.works[work];
        for &pool in facts.pools.iter() {
            self.asked[pool][facts.team] += sign * amount(index, work, pool);
        }
        if facts
            .pools
            .iter()
            .filter(|&&pool| usable(index, work, pool))
            .nth(1)
            .is_some()
        {
            self.several = self.several.saturating_add_signed(sign as isize);
        }
    }
}

/// Whether something else than its state may keep a workload from being ready.
fn bound(index: &Index<'_>, work: usize) -> bool {
    let wait = index.works[work].wait;
    wait.state == WorkloadState::Waiting && wait.bound
}

fn first_pool(index: &Index<'_>, work: usize) -> Option<usize> {
    let pools = index.works[work].pools.iter().copied();
    pools.into_iter().find(|&pool| usable(index, work, pool))
}
