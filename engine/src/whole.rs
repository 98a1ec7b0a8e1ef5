//! Guarantees as whole nodes: every team's must stay formable from nodes that hold only its
//! own or borrowed work (HiveD's invariant, for the level of nodes).
//!
//! A team is promised as many nodes as its guarantee has whole ones, of the size that is
//! most common in the pool. Work in its team's guarantee makes a free node its team's, and a
//! node of another team nobody's; what is borrowed changes nothing, for it can be taken back.

use std::collections::HashMap;
use std::rc::Rc;

use crate::index::{Amount, DEVICE, Index};
use crate::ledger::{Ledger, Slot, Standing};
use crate::place::Query;
use crate::preempt;
use crate::quota;
use crate::world::NodeState;

/// Whose work in guarantee a node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Team(usize),
    Several,
}

/// Who owns which nodes, while one workload in guarantee is placed.
#[derive(Debug, Clone)]
pub(crate) struct Promise {
    team: usize,
    owners: HashMap<usize, Owner>,
    /// Nodes that each team is promised, and that it owns.
    promised: Vec<i64>,
    owned: Vec<i64>,
    free: i64,
}

impl Promise {
    /// The state of a pool that promises whole nodes; nothing where the pool does not, or
    /// the workload borrows.
    pub fn of(ledger: &Ledger<'_, '_>, query: Query<'_>) -> Option<Self> {
        let index = ledger.index;
        let facts = &index.works[query.work];
        let pool = &index.pools[query.pool];
        if !pool.row.whole_node_guarantees || ledger.is_bare() || query.relaxed {
            return None;
        }
        let amount = index.charge_least(query.work, query.pool) * Amount::from(query.workers);
        let inside = quota::in_guarantee(ledger, query.pool, facts.team, amount);
        if amount == 0 || (!inside && facts.preemptible) {
            return None;
        }
        let size = size(index, query.pool)?;
        let each = Amount::from(size) * Amount::from(DEVICE) * pool.unit;
        let leaf = |t: usize| index.teams[t].children.is_empty();
        let promised = (0..index.teams.len()).map(|t| {
            let nodes = if leaf(t) {
                pool.rows[t].guaranteed / each
            } else {
                0
            };
            i64::try_from(nodes).unwrap_or(i64::MAX)
        });
        let mut promise = Self {
            team: facts.team,
            owners: HashMap::new(),
            promised: promised.collect(),
            owned: vec![0; index.teams.len()],
            free: 0,
        };
        for &node in &pool.nodes {
            let machine = &index.nodes[node];
            if machine.row.gpus == size && machine.failed == 0 {
                promise.owners.insert(node, Owner::Nobody);
                promise.free += i64::from(machine.row.state == NodeState::Ready);
            }
        }
        for work in in_guarantee(ledger, query.pool) {
            let team = index.works[work].team;
            for slot in ledger.slots(work).iter().filter(|s| !s.parts.is_empty()) {
                promise.give(index, slot.node, team);
            }
        }
        Some(promise)
    }

    /// Whether a workload on these slots leaves every promise of a pool as good as it was.
    pub fn kept(ledger: &Ledger<'_, '_>, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let query = Query::start(ledger.index, work, pool).workers(slots.len() as u32);
        let Some(mut promise) = Self::of(ledger, query) else {
            return true;
        };
        slots.iter().all(|slot| {
            let admitted = slot.parts.is_empty() || promise.admits(slot.node);
            promise.take(ledger.index, slot.node);
            admitted
        })
    }

    /// Whether a worker on a node leaves every promise as good as it was.
    pub fn admits(&self, node: usize) -> bool {
        let Some(owner) = self.owners.get(&node) else {
            return true;
        };
        let more = match *owner {
            Owner::Several => 0,
            Owner::Team(team) if team == self.team => 0,
            Owner::Team(team) => i64::from(self.owned[team] <= self.promised[team]),
            Owner::Nobody => 1 - i64::from(self.owned[self.team] < self.promised[self.team]),
        };
        more <= 0 || self.shortage() + more <= 0
    }

    /// A worker is put on a node.
    pub fn take(&mut self, index: &Index<'_>, node: usize) {
        self.give(index, node, self.team);
    }

    /// Nodes that are promised and can not be formed any more.
    fn shortage(&self) -> i64 {
        let missing = self.promised.iter().zip(&self.owned);
        let missing: i64 = missing
            .map(|(promised, owned)| (promised - owned).max(0))
            .sum();
        missing - self.free
    }

    fn give(&mut self, index: &Index<'_>, node: usize, team: usize) {
        let Some(owner) = self.owners.get_mut(&node) else {
            return;
        };
        match *owner {
            Owner::Nobody => {
                *owner = Owner::Team(team);
                self.owned[team] += 1;
                self.free -= i64::from(index.nodes[node].row.state == NodeState::Ready);
            }
            Owner::Team(other) if other != team => {
                *owner = Owner::Several;
                self.owned[other] -= 1;
            }
            _ => {}
        }
    }
}

/// The size of most nodes of a pool, the larger among equals.
fn size(index: &Index<'_>, pool: usize) -> Option<u32> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for &node in &index.pools[pool].nodes {
        *counts.entry(index.nodes[node].row.gpus).or_default() += 1;
    }
    counts.remove(&0);
    counts
        .into_iter()
        .max_by_key(|&(gpus, count)| (count, gpus))
        .map(|(gpus, _)| gpus)
}

/// What stands in a pool and is in its team's guarantee, the longest there first; what may
/// not be preempted counts with it.
fn in_guarantee(ledger: &Ledger<'_, '_>, pool: usize) -> Vec<usize> {
    let index = ledger.index;
    let stands = |work: &usize| {
        let there = ledger.slots(*work).first();
        // Who stands on a node that is emptied is moved or stopped in this very cycle.
        there.is_some_and(|slot| index.nodes[slot.node].pool == pool)
            && ledger.standing(*work) != Standing::Leaving
            && preempt::drained(ledger, *work).is_none()
    };
    let mut works: Vec<usize> = (0..index.works.len()).filter(stands).collect();
    works.sort_by_key(|&w| {
        let new = ledger.standing(w) != Standing::Running;
        (
            index.works[w].preemptible,
            new,
            index.works[w].row.started,
            index.works[w].row.submitted,
            w,
        )
    });
    let mut held: HashMap<usize, Amount> = HashMap::new();
    works.retain(|&work| {
        let facts = &index.works[work];
        let so_far = held.entry(facts.team).or_default();
        *so_far += ledger.slots(work).iter().map(|s| s.amount).sum::<Amount>();
        !facts.preemptible || *so_far <= index.pools[pool].rows[facts.team].guaranteed
    });
    works
}
