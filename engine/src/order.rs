//! The order in which waiting work is looked at: the cycle and the queue page use this one comparator.

mod begun;
mod buckets;
mod line;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Slot, Standing};
use crate::share::{KeptShares, Starters};
use crate::world::World;

pub(crate) use buckets::Kin;
pub(crate) use line::{Line, Lines};

/// The waiting work of one pool, picked one by one.
pub(crate) struct Picker {
    pool: usize,
    line: Rc<Line>,
    /// Whether what finds no room here is looked at in other pools.
    goes_on: bool,
    /// By team, by place in its queue; empty where nothing of it was taken.
    done: Vec<Vec<bool>>,
    /// By team: before it, everything is done.
    first: Vec<usize>,
    /// By team: how much of the work with devices that is left asks for each amount; nothing
    /// where nothing was taken.
    amounts: Vec<Option<BTreeMap<Amount, usize>>>,
    /// Whether anything is left in a subtree.
    left: Vec<usize>,
    /// How much is left in all.
    total: usize,
    /// By team and place: what was put back, and where it would have its other workers.
    begun: BTreeMap<(usize, usize), Vec<Rc<Slot>>>,
    /// Teams whose work has been seen to fit nowhere.
    stuck: Vec<bool>,
    /// The team and the bucket of what was taken last.
    last: (usize, u32),
    inside: Inside,
    shares: KeptShares,
    /// Whether who waits and who is stuck is as the shares last saw it.
    same: bool,
    /// Teams that have come to hold more since, where nobody else has, and the number of what teams
    /// hold with it.
    more: Vec<usize>,
    more_at: Option<u64>,
}

/// The first work of each team that is within what is left of its guarantee.
#[derive(Debug, Default)]
struct Inside {
    /// The state of the ledger when it was looked for.
    version: Option<u64>,
    /// By team: what was left of the guarantee, and where in the queue the work is.
    found: Vec<(Amount, Option<usize>)>,
    /// Teams of each subtree that have any.
    below: Vec<usize>,
    /// A team whose work was taken since.
    taken: Option<usize>,
}

impl Picker {
    /// The queue of a pool: these workloads, in no order yet.
    pub fn of(index: &Index<'_>, pool: usize, works: &[usize]) -> Self {
        Self {
            goes_on: true,
            ..Self::over(pool, Rc::new(Line::of(index, pool, works)))
        }
    }

    /// The queue of a pool: all of a line, of work that is looked at in no other pool.
    pub fn over(pool: usize, line: Rc<Line>) -> Self {
        let teams = line.queues.len();
        Self {
            pool,
            goes_on: false,
            done: vec![Vec::new(); teams],
            first: vec![0; teams],
            amounts: vec![None; teams],
            left: line.left.clone(),
            total: line.total,
            begun: BTreeMap::new(),
            stuck: vec![false; teams],
            last: (0, 0),
            inside: Inside::default(),
            shares: KeptShares::default(),
            same: false,
            more: Vec::new(),
            more_at: None,
            line,
        }
    }

    /// Leaves out what has been given room already, before anything is taken.
    pub fn leave_out(&mut self, index: &Index<'_>, works: &[usize]) {
        for &work in works {
            if let Some(at) = self.line.position(index, self.pool, work) {
                self.strike(index, index.works[work].team, at);
            }
        }
    }

    /// Leaves out whatever is so, before anything is taken: for when that is much.
    pub fn leave_out_all(&mut self, index: &Index<'_>, is_so: impl Fn(usize) -> bool) {
        for team in 0..self.line.queues.len() {
            let queue = &self.line.queues[team];
            let done: Vec<bool> = queue.iter().map(|entry| is_so(entry.work)).collect();
            let gone = done.iter().filter(|gone| **gone).count();
            if gone == 0 {
                continue;
            }
            let left = done.iter().position(|gone| !gone);
            self.first[team] = left.unwrap_or(queue.len());
            let mut amounts = BTreeMap::new();
            for (entry, _) in queue.iter().zip(&done).filter(|(_, gone)| !**gone) {
                if entry.amount > 0 {
                    *amounts.entry(entry.amount).or_default() += 1;
                }
            }
            self.amounts[team] = Some(amounts);
            self.done[team] = done;
            self.total -= gone;
            for &above in &index.teams[team].path {
                self.left[above] -= gone;
            }
        }
    }

    /// All that the queue began with.
    pub fn line(&self) -> &Rc<Line> {
        &self.line
    }

    /// The team and the bucket of what was taken last.
    pub fn last(&self) -> (usize, u32) {
        self.last
    }

    /// Whether what finds no room here is looked at in other pools.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Whether a workload is in the queue.
    pub fn holds(&self, index: &Index<'_>, work: usize) -> bool {
        let at = self.line.position(index, self.pool, work);
        at.is_some_and(|at| !self.is_done(index.works[work].team, at))
    }

    /// What is left that goes on to other pools.
    pub fn rest(&self) -> Vec<usize> {
        if !self.goes_on {
            return Vec::new();
        }
        (0..self.line.queues.len())
            .flat_map(|team| self.pending(team))
            .collect()
    }

    /// Takes the next workload out of the queue.
    pub fn next(&mut self, ledger: &Ledger<'_, '_>) -> Option<usize> {
        self.next_inside(ledger)
            .or_else(|| self.next_borrower(ledger))
    }

    /// Takes the next workload that is in its team's guarantee: these go first.
    pub fn next_inside(&mut self, ledger: &Ledger<'_, '_>) -> Option<usize> {
        let (team, at) = self.first_inside(ledger)?;
        Some(self.take(ledger.index, team, at))
    }

    /// Takes the next workload of a borrower.
    pub fn next_borrower(&mut self, ledger: &Ledger<'_, '_>) -> Option<usize> {
        let (team, at) = self.first_borrower(ledger)?;
        Some(self.take(ledger.index, team, at))
    }

    /// Takes all that is in its team's guarantee, in its order, while nobody comes to hold otherwise.
    pub fn take_inside(&mut self, ledger: &Ledger<'_, '_>) -> Vec<usize> {
        std::iter::from_fn(|| self.next_inside(ledger)).collect()
    }

    /// Takes all the rest as borrowers', in its order, while nobody comes to hold otherwise: what is
    /// a team's own comes one after another then.
    pub fn take_borrowers(&mut self, ledger: &Ledger<'_, '_>) -> Vec<usize> {
        let mut all = Vec::with_capacity(self.total);
        while let Some((team, _)) = self.first_borrower(ledger) {
            let before = all.len();
            all.extend(self.pending(team));
            let queue = self.line.queues[team].len();
            let taken = all.len() - before;
            self.done[team] = vec![true; queue];
            self.first[team] = queue;
            self.amounts[team] = Some(BTreeMap::new());
            self.total -= taken;
            for &above in &ledger.index.teams[team].path {
                self.left[above] -= taken;
                self.same &= self.left[above] > 0;
            }
        }
        self.inside.version = None;
        all
    }

    fn take(&mut self, index: &Index<'_>, team: usize, at: usize) -> usize {
        self.strike(index, team, at);
        if self.inside.taken.replace(team).is_some() {
            self.inside.version = None;
        }
        let entry = &self.line.queues[team][at];
        self.last = (team, entry.bucket);
        entry.work
    }

    fn strike(&mut self, index: &Index<'_>, team: usize, at: usize) {
        let queue = &self.line.queues[team];
        let done = &mut self.done[team];
        done.resize(queue.len(), false);
        if std::mem::replace(&mut done[at], true) {
            return;
        }
        self.total -= 1;
        while done.get(self.first[team]).is_some_and(|done| *done) {
            self.first[team] += 1;
        }
        // What was put back asks for nothing in the guarantee any more.
        if !self.begun.contains_key(&(team, at)) {
            let amounts = &mut self.amounts[team];
            let amounts = amounts.get_or_insert_with(|| self.line.amounts[team].clone());
            let amount = queue[at].amount;
            if let Some(count) = amounts.get_mut(&amount) {
                *count -= 1;
                if *count == 0 {
                    amounts.remove(&amount);
                }
            }
        }
        for &above in &index.teams[team].path {
            self.left[above] -= 1;
            self.same &= self.left[above] > 0;
        }
    }

    fn is_done(&self, team: usize, at: usize) -> bool {
        self.done[team].get(at).is_some_and(|done| *done)
    }

    /// Says that a team has come to hold more, and nobody else has otherwise, since what teams held
    /// had this number.
    pub fn held_more(&mut self, ledger: &Ledger<'_, '_>, team: usize, before: u64) {
        if self.inside.version == Some(before) {
            self.inside.version = Some(ledger.version());
            for &above in &ledger.index.teams[team].path {
                self.look_inside_of(ledger, above);
            }
        }
        if self.more_at == Some(before) {
            self.more_at = Some(ledger.version());
            self.more.push(team);
        }
    }

    /// Says that none of a team's work can start any more, nor of a team above it
    /// all of whose teams are stuck.
    pub fn stick(&mut self, index: &Index<'_>, team: usize) {
        for &above in &index.teams[team].path {
            let children = &index.teams[above].children;
            if above != team && children.iter().any(|&c| self.waits(c) && self.starts(c)) {
                break;
            }
            self.stuck[above] = true;
            self.same = false;
        }
    }

    /// Whether nothing is in the queue.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Whether anything of a subtree is in the queue.
    pub fn waits(&self, team: usize) -> bool {
        self.left[team] > 0
    }

    /// Whether something of a subtree may start, as far as is known.
    pub fn starts(&self, team: usize) -> bool {
        self.waits(team) && !self.stuck[team]
    }

    /// The team's work that is still in the queue, in its order.
    pub fn pending(&self, team: usize) -> impl Iterator<Item = usize> + '_ {
        let places = self.pending_tags(team);
        places.map(move |(at, _)| self.line.queues[team][at].work)
    }

    /// Where it is, with its bucket.
    pub fn pending_tags(&self, team: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let tags = self.line.tags[team].iter().copied().enumerate();
        let left = tags.skip(self.first[team]);
        left.filter(move |(at, _)| !self.is_done(team, *at))
    }

    /// What is at a place of a team's queue.
    pub fn at(&self, team: usize, at: usize) -> usize {
        self.line.queues[team][at].work
    }

    /// In-guarantee work: down the tree by held / guarantee.
    fn first_inside(&mut self, ledger: &Ledger<'_, '_>) -> Option<(usize, usize)> {
        self.look_inside(ledger);
        let index = ledger.index;
        let rows = &index.pools[self.pool].rows;
        let mut level = &index.roots;
        loop {
            let held = |t: usize| (ledger.held(self.pool, t).gpu, rows[t].guaranteed);
            let any = level.iter().copied().filter(|&t| self.inside.below[t] > 0);
            let team = any.min_by(|&a, &b| by_ratio(held(a), held(b)).then(a.cmp(&b)))?;
            // Work of an inner team itself goes before its children's.
            if let (_, Some(at)) = self.inside.found[team] {
                return Some((team, at));
            }
            level = &index.teams[team].children;
        }
    }

    /// Finds the first work within the guarantee of each team whose guarantee or queue has changed.
    fn look_inside(&mut self, ledger: &Ledger<'_, '_>) {
        let index = ledger.index;
        if self.inside.found.is_empty() {
            // More than any guarantee leaves: everything is looked for.
            self.inside.found = vec![(Amount::MAX, None); index.teams.len()];
            self.inside.below = vec![0; index.teams.len()];
        }
        let taken = self.inside.taken.take();
        if self.inside.version == Some(ledger.version()) {
            if let Some(team) = taken {
                self.look_inside_of(ledger, team);
            }
            return;
        }
        self.inside.version = Some(ledger.version());
        for team in 0..index.teams.len() {
            self.look_inside_of(ledger, team);
        }
    }

    fn look_inside_of(&mut self, ledger: &Ledger<'_, '_>, team: usize) {
        let index = ledger.index;
        let row = &index.pools[self.pool].rows[team];
        let slack = row.guaranteed - ledger.held(self.pool, team).gpu;
        let (before, found) = self.inside.found[team];
        let queue = &self.line.queues[team];
        let out = |at: usize| self.is_done(team, at) || self.begun.contains_key(&(team, at));
        let still = found.is_some_and(|at| !out(at));
        if slack == before && (still || found.is_none()) {
            return;
        }
        let amounts = self.amounts[team].as_ref();
        let amounts = amounts.unwrap_or(&self.line.amounts[team]);
        let least = amounts.keys().next();
        let fits = least.is_some_and(|least| *least <= slack);
        // What was passed over was too large for more than is left now.
        let from = match found {
            Some(at) if slack <= before => at,
            _ => self.first[team],
        };
        let at = |from: usize| {
            let mut later = queue.iter().enumerate().skip(from);
            later.find(|(at, e)| e.amount > 0 && e.amount <= slack && !out(*at))
        };
        let now = fits.then(|| at(from)).flatten().map(|(at, _)| at);
        self.inside.found[team] = (slack, now);
        for &above in &index.teams[team].path {
            self.inside.below[above] += usize::from(now.is_some());
            self.inside.below[above] -= usize::from(found.is_some());
        }
    }

    /// Borrowers: down the tree by borrower share.
    fn first_borrower(&mut self, ledger: &Ledger<'_, '_>) -> Option<(usize, usize)> {
        let index = ledger.index;
        let mut shares = std::mem::take(&mut self.shares);
        let more = (self.more_at == Some(ledger.version())).then_some(&self.more[..]);
        shares.refresh(ledger, self.pool, self, self.same, more);
        self.shares = shares;
        self.same = true;
        self.more.clear();
        self.more_at = Some(ledger.version());
        let mut level = &index.roots;
        loop {
            let waiting = level.iter().copied().filter(|&t| self.left[t] > 0);
            let team = waiting.min_by_key(|&t| (self.shares.claim(t), t))?;
            // Before the first that is left everything is done.
            let first = self.first[team];
            if first < self.line.queues[team].len() {
                return Some((team, first));
            }
            level = &index.teams[team].children;
        }
    }
}

impl Starters for Picker {
    fn can_start(&self, team: usize) -> bool {
        self.starts(team)
    }

    fn wants(&self, team: usize) -> bool {
        self.waits(team)
    }
}

/// Compares a/b with c/d exactly; nothing guaranteed is the largest.
fn by_ratio(one: (Amount, Amount), other: (Amount, Amount)) -> std::cmp::Ordering {
    fn parts(mut a: Amount, mut b: Amount, mut c: Amount, mut d: Amount) -> std::cmp::Ordering {
        // By continued fractions: no product, so no overflow.
        let mut turned = false;
        loop {
            let ordering = match (b, d) {
                (0, 0) => std::cmp::Ordering::Equal,
                (0, _) => std::cmp::Ordering::Greater,
                (_, 0) => std::cmp::Ordering::Less,
                _ => (a / b).cmp(&(c / d)),
            };
            if ordering != std::cmp::Ordering::Equal || b == 0 {
                return if turned { ordering.reverse() } else { ordering };
            }
            (a, b, c, d) = (b, a % b, d, c % d);
            turned = !turned;
        }
    }
    parts(one.0.max(0), one.1.max(0), other.0.max(0), other.1.max(0))
}

/// The queue of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolQueue {
    /// The pool.
    pub pool: String,
    /// Its waiting workloads, in the order in which they would start.
    pub workloads: Vec<String>,
}

/// The waiting work of every pool in the engine's order: each is counted as held when its
/// turn comes, so that teams alternate as they will.
pub fn queue(world: &World) -> Vec<PoolQueue> {
    let index = Index::of(world);
    let mut ledger = Ledger::of(&index);
    let mut queues = Vec::with_capacity(index.pools.len());
    for (pool, facts) in index.pools.iter().enumerate() {
        let here: Vec<usize> = (0..index.works.len())
            .filter(|&w| {
                index.works[w].row.state == crate::world::WorkloadState::Waiting
                    && index.works[w].pools.contains(&pool)
                    && facts.rows[index.works[w].team].written
            })
            .collect();
        let mark = ledger.mark();
        let mut picker = Picker::of(&index, pool, &here);
        let mut workloads = Vec::with_capacity(here.len());
        while let Some(work) = picker.next(&ledger) {
            workloads.push(index.works[work].row.name.clone());
            if let Some(&node) = facts.nodes.first() {
                let each = index.charge_least(work, pool);
                let slot = |_| Rc::new(Slot::of(&index, work, node, Vec::new(), each));
                let slots = (0..index.works[work].row.workers).map(slot).collect();
                ledger.settle(work, slots, Standing::Nominated);
            }
        }
        ledger.rollback(mark);
        queues.push(PoolQueue {
            pool: facts.row.name.clone(),
            workloads,
        });
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    #[test]
    fn ratios_are_compared_exactly_without_products() {
        let big = i128::MAX / 3;
        assert_eq!(by_ratio((1, 3), (2, 6)), Ordering::Equal);
        assert_eq!(by_ratio((big, big - 1), (1, 1)), Ordering::Greater);
        assert_eq!(by_ratio((1, 3), (1, 2)), Ordering::Less);
        assert_eq!(by_ratio((5, 2), (7, 3)), Ordering::Greater);
        assert_eq!(by_ratio((0, 4), (0, 2)), Ordering::Equal);
        assert_eq!(by_ratio((1, 0), (9, 1)), Ordering::Greater);
    }
}
