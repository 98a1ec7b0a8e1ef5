//! What stands in one pool until when, turned to any moment; and the starts that are reserved in it.

mod keys;
mod reserved;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use domain::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use super::kept::{Kept, Undo};
use super::{NEVER, after_grace, end_from, known_end, once_left, soon};
use crate::index::{Index, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing, View};
use crate::place::{devices_free, stands_free};
use crate::whole::Promise;
use crate::world::{NodeState, Placed, WorkloadState};

pub(super) use keys::Keys;
pub(crate) use reserved::Reserved;
pub(super) use reserved::devices;

/// A moment in the order of ends; the number tells ends of one moment, and those that
/// nobody knows, apart.
pub(super) type Key = (Timestamp, usize);
pub(super) type Slots = Rc<[Rc<Slot>]>;

#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub work: usize,
    pub slots: Slots,
}

/// The future of one pool.
pub(crate) struct Timeline<'i, 'w> {
    pub(super) index: &'i Index<'w>,
    pub(super) pool: usize,
    /// What stands at the moment to which the timeline is turned, in the later view.
    pub(super) scratch: Ledger<'i, 'w>,
    pub(super) claims: BTreeMap<Key, Claim>,
    pub(super) of_work: FxHashMap<usize, Keys>,
    /// Claims up to here have ended in the scratch.
    pub(super) turned: Option<Key>,
    /// Whole devices that nothing stands on there, on nodes where work starts.
    pub(super) free: i64,
    /// Whether that is counted with each claim.
    pub(super) counts: bool,
    pub(super) serial: usize,
    pub(super) reserved: Vec<Reserved>,
    /// The nodes of starts that are kept.
    pub(super) kept_on: FxHashSet<usize>,
    /// Whether each start that is kept is known to have its room.
    pub(super) sure: bool,
    /// How often the starts that are kept, or what is known of them, became otherwise.
    pub(super) changes: u64,
    /// What became of claims since a cycle began.
    pub(super) undo: Vec<Undo>,
    /// What outlasts the cycle.
    pub(super) kept: Kept,
    /// The room for the gang whose start is looked for.
    pub(super) watch: Option<Watch>,
}

/// How many workers on whole devices each domain could hold, by counting.
pub(super) struct Watch {
    domains: Vec<Option<usize>>,
    count: i64,
    sums: Vec<i64>,
}

impl<'i, 'w> Timeline<'i, 'w> {
    /// The future of a pool as a cycle has it so far.
    pub fn of(ledger: &Ledger<'i, 'w>, pool: usize) -> Self {
        let index = ledger.index;
        let mut timeline = Self::without_claims(index, pool, Ledger::empty(index));
        let mut works: Vec<usize> = (0..index.works.len()).collect();
        works.retain(|&work| !ledger.slots(work).is_empty() || index.works[work].stint.placed > 0);
        works.sort_by_cached_key(|&work| Self::turn_of(index, work));
        timeline.counts = false;
        timeline.of_work.reserve(works.len());
        works
            .into_iter()
            .for_each(|work| timeline.claim(ledger, work));
        timeline.counts = true;
        timeline.count_free();
        timeline
    }

    /// A future in which nothing stands.
    pub(super) fn without_claims(
        index: &'i Index<'w>,
        pool: usize,
        scratch: Ledger<'i, 'w>,
    ) -> Self {
        Self {
            index,
            pool,
            scratch,
            claims: BTreeMap::new(),
            of_work: FxHashMap::default(),
            turned: None,
            free: 0,
            counts: true,
            serial: 0,
            reserved: Vec::new(),
            kept_on: FxHashSet::default(),
            sure: false,
            changes: 0,
            undo: Vec::new(),
            kept: Kept::default(),
            watch: None,
        }
    }

    /// Counts what is free at the moment to which it is turned.
    pub(super) fn count_free(&mut self) {
        let nodes = self.index.pools[self.pool].nodes.iter();
        self.free = nodes.map(|&node| self.free_on(node)).sum();
    }

    /// Of ends that nobody knows that of who began first is taken to be first.
    pub(super) fn turn_of(index: &Index<'_>, work: usize) -> (Timestamp, Timestamp, usize) {
        let facts = &index.works[work];
        let started = facts.stint.started.unwrap_or(index.world.now);
        (started, facts.wait.submitted, work)
    }

    /// A workload stands where it does and will in the cycle's state, and where it leaves.
    pub(super) fn claim(&mut self, ledger: &Ledger<'i, 'w>, work: usize) {
        let index = self.index;
        let slots = ledger.slots(work);
        let here = slots
            .first()
            .is_some_and(|s| index.nodes[s.node].pool == self.pool);
        if here {
            self.insert(work, slots, self.end(ledger, work));
        }
        let (gone, at) = self.leaving(ledger, work);
        let gone: Vec<Rc<Slot>> = gone
            .iter()
            .filter_map(|p| {
                let node = index.node(&p.node)?;
                let here = index.nodes[node].pool == self.pool;
                here.then(|| Rc::new(crate::ledger::slot(index, work, p, node)))
            })
            .collect();
        self.insert(work, &gone, at);
    }

    /// When what a workload holds in the cycle's state is free again.
    fn end(&self, ledger: &Ledger<'_, '_>, work: usize) -> Timestamp {
        match ledger.standing(work) {
            Standing::Running => known_end(self.index, work),
            Standing::Nominated => end_from(self.index, work, self.begin(ledger, work)),
            _ => end_from(self.index, work, self.index.world.now),
        }
    }

    /// When a workload begins for which room is kept: an earlier plan knows who leaves when.
    fn begin(&self, ledger: &Ledger<'_, '_>, work: usize) -> Timestamp {
        match self.index.works[work].row.nominated {
            Some(_) => once_left(ledger, ledger.slots(work)),
            None => after_grace(self.index, self.pool),
        }
    }

    /// What a workload still stands on that is leaving, and until when.
    fn leaving(&self, ledger: &Ledger<'_, '_>, work: usize) -> (&'w [Placed], Timestamp) {
        let row = self.index.works[work].row;
        let kept = match ledger.standing(work) {
            Standing::Running => ledger.slots(work).len(),
            _ => 0,
        };
        match row.state {
            WorkloadState::Leaving => {
                let soon = soon(self.index);
                (&row.placed, row.leaves_at.map_or(soon, |at| at.max(soon)))
            }
            WorkloadState::Running if kept < row.placed.len() => {
                (&row.placed[kept..], after_grace(self.index, self.pool))
            }
            _ => (&[], NEVER),
        }
    }

    /// Says that a workload stands on devices until some moment.
    pub fn insert(&mut self, work: usize, slots: &[Rc<Slot>], end: Timestamp) {
        if slots.is_empty() {
            return;
        }
        let sure = self.sure && self.apart(slots);
        self.know(sure);
        self.serial += 1;
        let key = (end, self.serial);
        let slots: Slots = slots.into();
        self.blur(work, &slots);
        self.put(key, Claim { work, slots });
        self.undo.push(Undo::Put(key));
    }

    /// Says that a workload stands on nothing; gives what it stood on, and until when.
    pub fn remove(&mut self, work: usize) -> Vec<(Timestamp, Vec<Rc<Slot>>)> {
        let keys = self.of_work.get(&work).cloned().unwrap_or_default();
        let told = keys.as_slice().iter().filter_map(|&key| {
            let claim = self.lift(key)?;
            self.undo.push(Undo::Lifted(key, claim.clone()));
            Some((key.0, claim.slots.to_vec()))
        });
        told.collect()
    }

    /// The moments at which something ends, the first first; each end that nobody knows is one.
    pub(super) fn ends(&self, most: usize) -> Vec<Key> {
        let claims = self.claims.keys().take(most).map(|&(at, serial)| {
            if at == NEVER {
                (at, serial)
            } else {
                (at, usize::MAX)
            }
        });
        let reserved = self.reserved.iter().map(|r| r.end);
        let reserved = reserved.filter(|e| *e != NEVER).map(|e| (e, usize::MAX));
        let mut ends: Vec<Key> = claims.chain(reserved).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Turns to a moment: what has ended by then is gone, all else stands.
    pub(super) fn turn(&mut self, to: Key) {
        let to = Some(to);
        if to == self.turned {
            return;
        }
        let (low, high) = (self.turned.min(to), self.turned.max(to));
        let low = low.map_or(Bound::Unbounded, Bound::Excluded);
        let high = high.map_or(Bound::Unbounded, Bound::Included);
        let between: Vec<Claim> = self
            .claims
            .range((low, high))
            .map(|(_, claim)| claim.clone())
            .collect();
        let forward = to > self.turned;
        for claim in between {
            if forward {
                self.vacate(claim.work, &claim.slots);
            } else {
                self.occupy(claim.work, &claim.slots);
            }
        }
        self.turned = to;
    }

    pub(super) fn occupy(&mut self, work: usize, slots: &[Rc<Slot>]) {
        for slot in slots {
            self.count(slot.node, -1);
            self.scratch.occupy(View::Later, work, slot);
            self.count(slot.node, 1);
        }
        if self.tells_whose(work) {
            self.scratch.join(work, slots);
        }
    }

    pub(super) fn vacate(&mut self, work: usize, slots: &[Rc<Slot>]) {
        for slot in slots {
            self.count(slot.node, -1);
            self.scratch.vacate(View::Later, work, slot);
            self.count(slot.node, 1);
        }
        if self.tells_whose(work) {
            self.scratch.part(work, slots);
        }
    }

    /// Whether it matters whose the devices are: replicas of one service keep apart, and who
    /// is on a node matters where whole ones are promised.
    pub(super) fn tells_whose(&self, work: usize) -> bool {
        self.index.works[work].service.is_some() || self.promises()
    }

    /// Whether the pool promises whole nodes.
    pub(super) fn promises(&self) -> bool {
        self.index.pools[self.pool].row.whole_node_guarantees
    }

    /// Whether all workers can stand on their devices as the scratch has it, and leave every
    /// promise of whole nodes as good as it is.
    pub(super) fn stands(&mut self, work: usize, slots: &[Rc<Slot>]) -> bool {
        stands_free(&mut self.scratch, work, slots, Sight::Later)
            && Promise::kept(&self.scratch, work, self.pool, slots)
    }

    /// Adds what is free on a node, or takes it away.
    fn count(&mut self, node: usize, sign: i64) {
        if !self.counts {
            return;
        }
        let free = self.free_on(node);
        self.free += sign * free;
        if let Some(watch) = &mut self.watch
            && let Some(domain) = watch.domains[node]
        {
            watch.sums[domain] += sign * (free / watch.count);
        }
    }

    /// Watches the room for a gang on whole devices, in its domains where it must lie in one.
    pub(super) fn watch(&mut self, work: usize) {
        let facts = &self.index.works[work];
        let Need::Whole(count) = facts.need else {
            return;
        };
        let domains = match &facts.row.topology.require {
            Some(label) => match self.index.domains.get(label.as_str()) {
                Some(domains) => domains.clone(),
                None => return,
            },
            None => vec![Some(0); self.index.nodes.len()],
        };
        let most = domains.iter().flatten().max().map_or(0, |most| most + 1);
        let mut watch = Watch {
            domains,
            count: i64::from(count),
            sums: vec![0; most],
        };
        for &node in &self.index.pools[self.pool].nodes {
            if let Some(domain) = watch.domains[node] {
                watch.sums[domain] += self.free_on(node) / watch.count;
            }
        }
        self.watch = Some(watch);
    }

    /// Whether the gang that is watched may have room, by counting.
    pub(super) fn may_hold(&self, workers: u32) -> bool {
        self.watch.as_ref().is_none_or(|watch| {
            let most = watch.sums.iter().max().copied().unwrap_or(0);
            most >= i64::from(workers)
        })
    }

    fn free_on(&self, node: usize) -> i64 {
        if self.index.nodes[node].row.state == NodeState::Ready {
            i64::from(devices_free(&self.scratch, node, Sight::Later).count_ones())
        } else {
            0
        }
    }
}
