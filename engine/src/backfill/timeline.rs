//! What stands in one pool until when, turned to any moment; and the starts that are reserved in it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::rc::Rc;

use domain::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use super::kept::{Kept, Undo};
use super::{NEVER, after_grace, end_from, end_of_running, soon};
use crate::index::{Index, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing, View};
use crate::place::{Query, devices_free, place, stands_free};
use crate::whole::Promise;
use crate::world::{NodeState, Placed, WorkloadState};

/// A moment in the order of ends; the number tells ends of one moment, and those that
/// nobody knows, apart.
pub(super) type Key = (Timestamp, usize);
pub(super) type Slots = Rc<[Rc<Slot>]>;

/// A start in the future.
#[derive(Debug, Clone)]
pub(crate) struct Reserved {
    pub work: usize,
    /// What has ended by then leaves the room.
    pub(super) at: Key,
    pub(super) end: Timestamp,
    pub slots: Vec<Rc<Slot>>,
    /// Whether it starts in its team's guarantee: a borrower's start holds back less.
    pub inside: bool,
}

impl Reserved {
    /// When it starts; [`NEVER`] when it waits for work whose end nobody knows.
    pub fn start(&self) -> Timestamp {
        self.at.0
    }

    /// Whether work that ends then stands in its way: it has begun before.
    fn meets(&self, end: Timestamp) -> bool {
        self.at.0 < end || end == NEVER
    }

    /// Whether it has begun and not ended at a moment.
    pub(super) fn stands_at(&self, at: Key) -> bool {
        self.at <= at && (self.end > at.0 || self.end == NEVER)
    }
}

/// The starts that are kept, as of some moment.
pub(crate) struct KeptStarts {
    reserved: Vec<Reserved>,
    sure: bool,
}

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
    pub(super) of_work: FxHashMap<usize, Vec<Key>>,
    /// Claims up to here have ended in the scratch.
    pub(super) turned: Option<Key>,
    /// Whole devices that nothing stands on there, on nodes where work starts.
    pub(super) free: i64,
    pub(super) serial: usize,
    pub(super) reserved: Vec<Reserved>,
    /// The nodes of starts that are kept.
    pub(super) kept_on: FxHashSet<usize>,
    /// Whether each start that is kept is known to have its room.
    pub(super) sure: bool,
    /// What became of claims since a cycle began.
    pub(super) undo: Vec<Undo>,
    /// What outlasts the cycle.
    pub(super) kept: KeptStarts,
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
        timeline.count_free();
        let mut works: Vec<usize> = (0..index.works.len()).collect();
        works.retain(|&work| {
            let row = index.works[work].row;
            !ledger.slots(work).is_empty() || !row.placed.is_empty()
        });
        works.sort_by_key(|&work| Self::turn_of(index, work));
        works
            .into_iter()
            .for_each(|work| timeline.claim(ledger, work));
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
            serial: 0,
            reserved: Vec::new(),
            kept_on: FxHashSet::default(),
            sure: false,
            undo: Vec::new(),
            kept: KeptStarts::default(),
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
        let row = index.works[work].row;
        (row.started.unwrap_or(index.world.now), row.submitted, work)
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
            Standing::Running => end_of_running(self.index, work),
            Standing::Nominated => end_from(self.index, work, after_grace(self.index, self.pool)),
            _ => end_from(self.index, work, self.index.world.now),
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
        self.sure &= self.apart(slots);
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
        let told = keys.into_iter().filter_map(|key| {
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

    /// The starts that are kept, in the order in which they were given.
    pub fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// Keeps a start.
    pub fn keep(&mut self, reserved: Reserved) {
        self.turn(reserved.at);
        self.reserved.push(reserved);
        self.look_at_kept();
    }

    /// After starts that are kept have changed.
    pub(super) fn look_at_kept(&mut self) {
        self.sure = false;
        let slots = self.reserved.iter().flat_map(|r| &r.slots);
        self.kept_on = slots.map(|slot| slot.node).collect();
    }

    /// The starts that are kept, to come back to after a look at what might be.
    pub fn kept(&self) -> KeptStarts {
        KeptStarts {
            reserved: self.reserved.clone(),
            sure: self.sure,
        }
    }

    /// Comes back to them.
    pub fn keep_as(&mut self, kept: KeptStarts) {
        self.reserved = kept.reserved;
        self.look_at_kept();
        self.sure = kept.sure;
    }

    /// Whether devices are on other nodes than all starts that are kept.
    pub fn apart(&self, slots: &[Rc<Slot>]) -> bool {
        !slots.iter().any(|slot| self.kept_on.contains(&slot.node))
    }

    /// Whether the starts that are kept are known to have their room, whatever comes on other nodes.
    pub fn is_sure(&self) -> bool {
        // Who owns other nodes matters where whole ones are promised.
        self.sure && !self.promises()
    }

    /// Gives up the start of a workload, if one is kept.
    pub fn give_up(&mut self, work: usize) -> Option<(usize, Reserved)> {
        let at = self.reserved.iter().position(|r| r.work == work)?;
        let given_up = self.reserved.remove(at);
        self.look_at_kept();
        Some((at, given_up))
    }

    /// Keeps again what was given up.
    pub fn take_back(&mut self, (at, reserved): (usize, Reserved)) {
        self.reserved.insert(at, reserved);
        self.look_at_kept();
    }

    /// Whether any start stands in the way of work that ends then. Work in its guarantee
    /// minds no borrower's.
    pub fn binds(&self, work: usize, end: Timestamp, inside: bool) -> bool {
        self.binding(work, end, inside).next().is_some()
    }

    fn binding(
        &self,
        work: usize,
        end: Timestamp,
        inside: bool,
    ) -> impl Iterator<Item = (usize, &Reserved)> {
        self.reserved
            .iter()
            .enumerate()
            .filter(move |(_, r)| r.work != work && r.meets(end) && (!inside || r.inside))
    }

    /// Whether so many devices are plainly more than the one reserved start leaves free.
    pub fn plainly_too_many(&self, work: usize, end: Timestamp, inside: bool, count: i64) -> bool {
        let [head] = &self.reserved[..] else {
            return false;
        };
        self.turned == Some(head.at)
            && self.binds(work, end, inside)
            && count > self.free - devices(self.index, head)
    }

    /// Whether work on these devices until some moment leaves every start that it meets
    /// where it is; which devices those get may change.
    pub fn passes(
        &mut self,
        work: usize,
        slots: &[Rc<Slot>],
        end: Timestamp,
        inside: bool,
    ) -> bool {
        let met: Vec<usize> = self.binding(work, end, inside).map(|(i, _)| i).collect();
        if met.is_empty() || self.is_sure() && self.apart(slots) {
            return true;
        }
        let (before, sure) = (self.reserved.clone(), self.sure);
        self.insert(work, slots, end);
        let passes = self.hold(&met);
        self.forget_last(work);
        if !passes {
            self.reserved = before;
        }
        self.look_at_kept();
        self.sure = if passes {
            met.len() == self.reserved.len()
        } else {
            sure
        };
        passes
    }

    fn forget_last(&mut self, work: usize) {
        let keys = self.of_work.get(&work);
        let Some(&key) = keys.and_then(|keys| keys.last()) else {
            return;
        };
        let Some(claim) = self.lift(key) else {
            return;
        };
        if matches!(self.undo.last(), Some(Undo::Put(last)) if *last == key) {
            self.undo.pop();
        } else {
            self.undo.push(Undo::Lifted(key, claim));
        }
    }

    /// Whether all starts that are kept can be.
    pub fn holds(&mut self) -> bool {
        if self.is_sure() {
            return true;
        }
        let all: Vec<usize> = (0..self.reserved.len()).collect();
        let holds = self.hold(&all);
        self.look_at_kept();
        self.sure = holds;
        holds
    }

    /// Whether these starts have room at their moments; who has not is given other devices.
    fn hold(&mut self, some: &[usize]) -> bool {
        let mut moved = false;
        for &at in some {
            if self.has_room(at) {
                continue;
            }
            let Some(slots) = self.place_again(at) else {
                return false;
            };
            self.reserved[at].slots = slots;
            moved = true;
        }
        !moved || self.reserved.len() == 1 || (0..self.reserved.len()).all(|at| self.has_room(at))
    }

    fn has_room(&mut self, at: usize) -> bool {
        let own = self.reserved[at].clone();
        self.beside(own.at, Some(own.work), |this| {
            this.stands(own.work, &own.slots)
        })
    }

    fn place_again(&mut self, at: usize) -> Option<Vec<Rc<Slot>>> {
        let own = self.reserved[at].clone();
        let query = Query::start(self.index, own.work, self.pool)
            .workers(own.slots.len() as u32)
            .sight(Sight::Later);
        self.beside(own.at, Some(own.work), |this| {
            place(&mut this.scratch, query)
        })
    }

    /// Looks at a moment with all starts that have begun by then, but for one's own.
    pub(super) fn beside<T>(
        &mut self,
        at: Key,
        but: Option<usize>,
        look: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.turn(at);
        let others: Vec<Reserved> = self
            .reserved
            .iter()
            .filter(|r| Some(r.work) != but && r.stands_at(at))
            .cloned()
            .collect();
        for other in &others {
            self.occupy(other.work, &other.slots);
        }
        let seen = look(self);
        for other in &others {
            self.vacate(other.work, &other.slots);
        }
        seen
    }

    /// The nodes on which starts that work would meet are kept.
    pub fn nodes_met(&self, work: usize, end: Timestamp, inside: bool) -> HashSet<usize> {
        self.binding(work, end, inside)
            .flat_map(|(_, r)| r.slots.iter().map(|s| s.node))
            .collect()
    }
}

/// The whole devices that a start takes.
pub(super) fn devices(index: &Index<'_>, reserved: &Reserved) -> i64 {
    match index.works[reserved.work].need {
        Need::Whole(_) => reserved.slots.iter().map(|s| s.parts.len() as i64).sum(),
        _ => 0,
    }
}
