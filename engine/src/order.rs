//! The order in which waiting work is looked at: the cycle and the queue page use this one comparator.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Slot, Standing};
use crate::share::{Starters, coarse, dominant, shares};
use crate::world::World;

/// What a workload is called inside a team's order: the larger goes first.
type Rank = (i128, Reverse<domain::Timestamp>, Reverse<usize>);

/// Priority with ageing, exact: in points × thousandths × microseconds of an hour.
fn urgency(index: &Index<'_>, work: usize, pool: usize) -> i128 {
    const HOUR_MICROS: i128 = 3_600_000_000;
    let facts = &index.works[work];
    let ageing = i128::from(index.pools[pool].row.ageing_milli_per_hour);
    let waited = (index.world.now - facts.row.submitted)
        .num_microseconds()
        .unwrap_or(0)
        .max(0);
    i128::from(facts.priority) * 1000 * HOUR_MICROS + ageing * i128::from(waited)
}

/// The waiting work of one pool, picked one by one.
pub(crate) struct Picker {
    pool: usize,
    /// By team, in the team's own order.
    queues: Vec<Vec<Entry>>,
    /// By team: before it, everything is done.
    first: Vec<usize>,
    /// By team: no work with devices that is left asks for less.
    least: Vec<Amount>,
    /// Whether anything is left in a subtree.
    left: Vec<usize>,
    /// Teams whose work has been seen to fit nowhere.
    stuck: HashSet<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    work: usize,
    amount: Amount,
    done: bool,
}

impl Picker {
    /// The queue of a pool: these workloads, in no order yet.
    pub fn of(index: &Index<'_>, pool: usize, works: &[usize]) -> Self {
        let mut ranked: Vec<(Rank, usize)> = works
            .iter()
            .map(|&w| {
                (
                    (
                        urgency(index, w, pool),
                        Reverse(index.works[w].row.submitted),
                        Reverse(w),
                    ),
                    w,
                )
            })
            .collect();
        ranked.sort_by_key(|&(rank, _)| Reverse(rank));
        let mut queues = vec![Vec::new(); index.teams.len()];
        let mut left = vec![0; index.teams.len()];
        for (_, work) in ranked {
            let each = index.charge_least(work, pool);
            let amount = each * Amount::from(index.works[work].row.workers);
            queues[index.works[work].team].push(Entry {
                work,
                amount,
                done: false,
            });
            for &team in &index.teams[index.works[work].team].path {
                left[team] += 1;
            }
        }
        Self {
            pool,
            first: vec![0; queues.len()],
            least: queues.iter().map(|queue| least(queue)).collect(),
            queues,
            left,
            stuck: HashSet::new(),
        }
    }

    /// Takes the next workload out of the queue.
    pub fn next(&mut self, ledger: &Ledger<'_, '_>) -> Option<usize> {
        let (team, at) = self
            .first_inside(ledger)
            .or_else(|| self.first_borrower(ledger))?;
        let entry = &mut self.queues[team][at];
        entry.done = true;
        let (work, amount) = (entry.work, entry.amount);
        while self.queues[team]
            .get(self.first[team])
            .is_some_and(|e| e.done)
        {
            self.first[team] += 1;
        }
        if amount == self.least[team] {
            self.least[team] = least(&self.queues[team][self.first[team]..]);
        }
        for &team in &ledger.index.teams[team].path {
            self.left[team] -= 1;
        }
        Some(work)
    }

    /// Says that none of a team's work can start any more, nor of a team above it
    /// all of whose teams are stuck.
    pub fn stick(&mut self, index: &Index<'_>, team: usize) {
        for &above in &index.teams[team].path {
            let children = &index.teams[above].children;
            if above != team && children.iter().any(|&c| self.waits(c) && self.starts(c)) {
                break;
            }
            self.stuck.insert(above);
        }
    }

    /// Whether anything of a subtree is in the queue.
    pub fn waits(&self, team: usize) -> bool {
        self.left[team] > 0
    }

    /// Whether something of a subtree may start, as far as is known.
    pub fn starts(&self, team: usize) -> bool {
        self.waits(team) && !self.stuck.contains(&team)
    }

    /// The team's work that is still in the queue, in its order.
    pub fn pending(&self, team: usize) -> impl Iterator<Item = usize> + '_ {
        self.queues[team].iter().filter(|e| !e.done).map(|e| e.work)
    }

    /// In-guarantee work: down the tree by held / guarantee.
    fn first_inside(&self, ledger: &Ledger<'_, '_>) -> Option<(usize, usize)> {
        let index = ledger.index;
        let rows = &index.pools[self.pool].rows;
        let mut best: Vec<Option<usize>> = vec![None; index.teams.len()];
        let mut any = vec![false; index.teams.len()];
        for team in (0..index.teams.len()).filter(|&t| self.left[t] > 0) {
            let slack = rows[team].guaranteed - ledger.held(self.pool, team).gpu;
            if slack < self.least[team] {
                continue;
            }
            let from = self.first[team];
            let fits = |e: &Entry| !e.done && e.amount > 0 && e.amount <= slack;
            best[team] = self.queues[team][from..]
                .iter()
                .position(fits)
                .map(|at| from + at);
            if best[team].is_some() {
                for &above in &index.teams[team].path {
                    any[above] = true;
                }
            }
        }
        let mut level: Vec<usize> = index.roots.iter().copied().filter(|&t| any[t]).collect();
        loop {
            let held = |t: usize| (ledger.held(self.pool, t).gpu, rows[t].guaranteed);
            let team = level
                .into_iter()
                .min_by(|&a, &b| by_ratio(held(a), held(b)).then(a.cmp(&b)))?;
            // Work of an inner team itself goes before its children's.
            if let Some(at) = best[team] {
                return Some((team, at));
            }
            level = index.teams[team]
                .children
                .iter()
                .copied()
                .filter(|&c| any[c])
                .collect();
        }
    }

    /// Borrowers: down the tree by borrower share.
    fn first_borrower(&self, ledger: &Ledger<'_, '_>) -> Option<(usize, usize)> {
        let index = ledger.index;
        let waits = |teams: &[usize]| -> Vec<usize> {
            teams
                .iter()
                .copied()
                .filter(|&t| self.left[t] > 0)
                .collect()
        };
        let mut level = waits(&index.roots);
        loop {
            let team = match level.len() {
                0 => return None,
                1 => level[0],
                _ => {
                    let borrower = shares(ledger, self.pool, &level, self)
                        .into_iter()
                        .map(coarse);
                    let whole = level
                        .iter()
                        .map(|&t| coarse(dominant(ledger, self.pool, t)));
                    borrower.zip(whole).zip(level.iter().copied()).min()?.1
                }
            };
            let from = self.first[team];
            if let Some(at) = self.queues[team][from..].iter().position(|e| !e.done) {
                return Some((team, from + at));
            }
            level = waits(&index.teams[team].children);
        }
    }
}

/// The least amount of work with devices that is left; endless when there is none.
fn least(queue: &[Entry]) -> Amount {
    let amounts = queue
        .iter()
        .filter(|e| !e.done && e.amount > 0)
        .map(|e| e.amount);
    amounts.min().unwrap_or(Amount::MAX)
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
                let slot = |_| {
                    std::rc::Rc::new(Slot {
                        node,
                        parts: Vec::new(),
                        amount: each,
                    })
                };
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
