//! The what-if state of a cycle: who holds which devices and how much quota, with checkpoints to go back to.
//!
//! Space is kept in two views. *Now* has everything that stands on a device this moment,
//! leaving work included. *Later* has what will stand there once victims have left: without
//! them, but with the room that is kept for those that displaced them. A start must fit in
//! both, a nomination only in the second.

mod future;
mod held;
mod nowhere;
mod part;
mod paused;
mod seats;
mod space;
mod stirred;

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::index::{Amount, Index, bit};
use crate::place::{Able, Gang, NodeClasses, PlacementCosts};
use crate::preempt::{Fronts, Herds, Outlooks};
use crate::share::{Everybody, coarse, share};
pub(crate) use held::Held;
use nowhere::Nowhere;
pub(crate) use part::{Load, Part, Slot, slot};
pub(crate) use paused::Paused;
pub(crate) use space::Space;

/// One of the two views of space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Now = 0,
    Later = 1,
}

/// Which views a placement must fit in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    /// Both: it starts now.
    Start,
    /// Only once victims have left.
    Later,
    /// Only this moment: as if no room were kept for others.
    Now,
}

impl Sight {
    pub fn views(self) -> &'static [View] {
        match self {
            Self::Start => &[View::Now, View::Later],
            Self::Later => &[View::Later],
            Self::Now => &[View::Now],
        }
    }
}

/// How a workload stands in the cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has nothing.
    Idle,
    /// It ran before the cycle and still does.
    Running,
    /// It starts in this plan.
    Started,
    /// It waits for room that is kept for it.
    Nominated,
    /// It leaves, by this plan or an earlier one.
    Leaving,
}

enum Step {
    Occupy(View, usize, Rc<Slot>),
    Vacate(View, usize, Rc<Slot>),
    Count {
        pool: usize,
        work: usize,
        amount: Amount,
        workers: i64,
    },
    Slots(usize, Vec<Rc<Slot>>),
    Stand(usize, Standing),
    Evicted(usize),
}

/// A point to go back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    steps: usize,
    /// The number of what teams held; nothing before everything.
    version: Option<u64>,
    /// The number of what stood where.
    stands: Option<u64>,
    nowhere: nowhere::Mark,
}

impl Mark {
    /// Before everything.
    const START: Self = Self {
        steps: 0,
        version: None,
        stands: None,
        nowhere: nowhere::Mark::START,
    };
}

/// The state.
pub(crate) struct Ledger<'i, 'w> {
    pub index: &'i Index<'w>,
    pub spaces: Vec<Space>,
    held: Vec<Vec<Held>>,
    /// What users hold of teams that bound it.
    users: FxHashMap<(usize, usize, &'w str), Amount>,
    /// Where each workload is: running, started or nominated.
    slots: Vec<Vec<Rc<Slot>>>,
    standing: Vec<Standing>,
    /// By node, in order: work that stood there when the cycle began.
    seats: Vec<Vec<usize>>,
    /// Nodes on which one of several sharers of a device was taken away: whose the device is
    /// taken to be may be another then.
    blurred: FxHashSet<usize>,
    /// Evictions that each team suffers in this cycle.
    evicted: Vec<u32>,
    journal: Vec<Step>,
    /// By node: workers that were put on it, less those that were taken away.
    put: Vec<i64>,
    /// A number for what teams hold, and how many were given so far.
    version: u64,
    versions: u64,
    /// A number for what stands where, given in the same way.
    stands: u64,
    /// Where gangs were placed to start, and the number of what stood where then.
    placed: FxHashMap<Gang, (u64, Vec<Rc<Slot>>)>,
    /// The nodes that look alike, and what is known of them.
    pub classes: NodeClasses,
    /// Which nodes can be candidates for which work.
    pub able: Able,
    /// Gangs that have no place to start.
    nowhere: Nowhere,
    /// How often something was taken from work that stood, or put to it, and was not gone back to.
    stirred: usize,
    /// Running work that may be preempted.
    pub herds: Herds,
    /// What teams may lose to whom, as long as they hold what they do.
    pub fronts: Fronts,
    /// What pools may give to gangs, as long as all stands where it does.
    pub outlooks: Outlooks,
    /// The borrower shares of teams, by pool, with what each held then.
    shares: Vec<Vec<Option<(Held, i128)>>>,
    /// What placements cost, in pools that waste little, by pool.
    pub costs: Vec<Option<PlacementCosts>>,
    /// Whether nodes count whatever their state and devices though they failed.
    bare: bool,
}

impl<'i, 'w> Ledger<'i, 'w> {
    /// The state at the beginning of a cycle.
    pub fn of(index: &'i Index<'w>) -> Self {
        let mut ledger = Self::without_work(index, false);
        ledger.seat_all();
        ledger
    }

    /// A state in which nothing runs, of what is there now.
    pub fn empty(index: &'i Index<'w>) -> Self {
        Self::without_work(index, false)
    }

    /// A state in which nothing runs and everything registered is there.
    pub fn bare(index: &'i Index<'w>) -> Self {
        Self::without_work(index, true)
    }

    fn without_work(index: &'i Index<'w>, bare: bool) -> Self {
        let spaces = index.nodes.iter().map(|node| Space::of(node, bare));
        Self {
            index,
            spaces: spaces.collect(),
            held: vec![vec![Held::default(); index.teams.len()]; index.pools.len()],
            users: FxHashMap::default(),
            slots: vec![Vec::new(); index.works.len()],
            standing: vec![Standing::Idle; index.works.len()],
            seats: vec![Vec::new(); index.nodes.len()],
            blurred: FxHashSet::default(),
            evicted: vec![0; index.teams.len()],
            journal: Vec::new(),
            put: vec![0; index.nodes.len()],
            version: 0,
            versions: 0,
            stands: 0,
            placed: FxHashMap::default(),
            classes: NodeClasses::default(),
            able: Able::default(),
            nowhere: Nowhere::default(),
            stirred: 0,
            herds: Herds::of(index),
            fronts: Fronts::default(),
            outlooks: Outlooks::default(),
            shares: vec![vec![None; index.teams.len()]; index.pools.len()],
            costs: if bare {
                index.pools.iter().map(|_| None).collect()
            } else {
                PlacementCosts::of(index)
            },
            bare,
        }
    }

    /// Whether it is a bare state.
    pub fn is_bare(&self) -> bool {
        self.bare
    }

    /// A number that is another whenever what a team holds is; it is gone back to with it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A number that is another whenever what stands where is; it is gone back to with it.
    pub fn stands(&self) -> u64 {
        self.stands
    }

    /// The borrower share of a team as it is compared, whoever could start what.
    pub fn share(&mut self, pool: usize, team: usize) -> i128 {
        let held = self.held[pool][team];
        // What an inner team borrows turns on all below it.
        let leaf = self.index.teams[team].children.is_empty();
        if let Some((seen, share)) = self.shares[pool][team]
            && leaf
            && seen == held
        {
            return share;
        }
        let share = coarse(share(self, pool, team, &Everybody));
        self.shares[pool][team] = Some((held, share));
        share
    }

    /// Workers that were put on a node less those that were taken away: while work only
    /// starts, a node with the same number is the same.
    pub fn put_on(&self, node: usize) -> i64 {
        self.put[node]
    }

    /// What a team holds in a pool.
    pub fn held(&self, pool: usize, team: usize) -> &Held {
        &self.held[pool][team]
    }

    /// What one user holds of a team and all below it, where that is bounded.
    pub fn held_by_user(&self, pool: usize, team: usize, user: &'w str) -> Amount {
        self.users.get(&(pool, team, user)).copied().unwrap_or(0)
    }

    /// Where a workload is or will be.
    pub fn slots(&self, work: usize) -> &[Rc<Slot>] {
        &self.slots[work]
    }

    /// How a workload stands.
    pub fn standing(&self, work: usize) -> Standing {
        self.standing[work]
    }

    /// Evictions that a team suffers in this cycle.
    pub fn evicted(&self, team: usize) -> u32 {
        self.evicted[team]
    }

    /// A point to go back to.
    pub fn mark(&self) -> Mark {
        Mark {
            steps: self.journal.len(),
            version: Some(self.version),
            stands: Some(self.stands),
            nowhere: self.nowhere.mark(),
        }
    }

    /// Goes back to a point.
    pub fn rollback(&mut self, mark: Mark) {
        let seen = self.nowhere.seen_since(mark.nowhere);
        while self.journal.len() > mark.steps {
            match self.journal.pop() {
                Some(Step::Occupy(view, work, slot)) => {
                    self.put(view, work, &slot, -1);
                    if seen {
                        self.nowhere.gain(slot.node);
                    }
                }
                Some(Step::Vacate(view, work, slot)) => self.put(view, work, &slot, 1),
                Some(Step::Count {
                    pool,
                    work,
                    amount,
                    workers,
                }) => self.add(pool, work, -amount, -workers),
                Some(Step::Slots(work, slots)) => {
                    self.spoil(&slots);
                    self.stirred -= usize::from(!slots.is_empty());
                    self.slots[work] = slots;
                }
                Some(Step::Stand(work, standing)) => self.standing[work] = standing,
                Some(Step::Evicted(team)) => self.evicted[team] -= 1,
                None => break,
            }
        }
        if let Some(version) = mark.version {
            self.version = version;
        }
        if let Some(stands) = mark.stands {
            self.stands = stands;
        }
    }

    /// Puts a worker on its devices in one view.
    pub fn occupy(&mut self, view: View, work: usize, slot: &Rc<Slot>) {
        self.put(view, work, slot, 1);
        self.journal.push(Step::Occupy(view, work, Rc::clone(slot)));
    }

    /// Takes a worker from its devices in one view.
    pub fn vacate(&mut self, view: View, work: usize, slot: &Rc<Slot>) {
        let loads = &self.spaces[slot.node].loads[view as usize];
        let shared = |part: &Part| {
            loads
                .get(part.index as usize)
                .is_some_and(|l| l.sharers > 1)
        };
        if slot.parts.iter().any(shared) {
            self.blurred.insert(slot.node);
        }
        self.put(view, work, slot, -1);
        self.nowhere.gain(slot.node);
        self.journal.push(Step::Vacate(view, work, Rc::clone(slot)));
    }

    /// Says where a workload is and counts it in its team's quota; the space is the caller's.
    pub fn settle(&mut self, work: usize, slots: Vec<Rc<Slot>>, standing: Standing) {
        if let Some(first) = slots.first() {
            let amount = slots.iter().map(|s| s.amount).sum();
            self.count(
                self.index.nodes[first.node].pool,
                work,
                amount,
                slots.len() as i64,
            );
        }
        let before = std::mem::replace(&mut self.slots[work], slots);
        self.note_slots(work, before);
        self.stand(work, standing);
    }

    fn stand(&mut self, work: usize, standing: Standing) {
        let before = std::mem::replace(&mut self.standing[work], standing);
        self.journal.push(Step::Stand(work, before));
    }

    /// A workload starts now.
    pub fn start(&mut self, work: usize, slots: Vec<Rc<Slot>>) {
        for slot in &slots {
            self.occupy(View::Now, work, slot);
            self.occupy(View::Later, work, slot);
        }
        self.settle(work, slots, Standing::Started);
    }

    /// Room is kept for a workload.
    pub fn nominate(&mut self, work: usize, slots: Vec<Rc<Slot>>) {
        for slot in &slots {
            self.occupy(View::Later, work, slot);
        }
        self.settle(work, slots, Standing::Nominated);
    }

    /// A running workload loses its highest ranks, so that `keep` workers stay.
    pub fn release(&mut self, work: usize, keep: usize) {
        let slots = self.slots[work].clone();
        if slots.len() == self.index.works[work].row.placed.len() {
            let team = self.index.works[work].team;
            self.evicted[team] += 1;
            self.journal.push(Step::Evicted(team));
        }
        let gone = &slots[keep.min(slots.len())..];
        for slot in gone {
            self.vacate(View::Later, work, slot);
        }
        if let Some(first) = gone.first() {
            let amount = gone.iter().map(|s| s.amount).sum::<Amount>();
            self.count(
                self.index.nodes[first.node].pool,
                work,
                -amount,
                -(gone.len() as i64),
            );
        }
        let before = std::mem::replace(
            &mut self.slots[work],
            slots[..keep.min(slots.len())].to_vec(),
        );
        self.note_slots(work, before);
        if keep == 0 {
            self.stand(work, Standing::Leaving);
        }
    }

    /// A running workload has more workers.
    pub fn grow(&mut self, work: usize, added: &[Rc<Slot>]) {
        for slot in added {
            self.occupy(View::Now, work, slot);
            self.occupy(View::Later, work, slot);
        }
        if let Some(first) = added.first() {
            let amount = added.iter().map(|s| s.amount).sum::<Amount>();
            self.count(
                self.index.nodes[first.node].pool,
                work,
                amount,
                added.len() as i64,
            );
        }
        let before = self.slots[work].clone();
        self.slots[work].extend(added.iter().cloned());
        self.note_slots(work, before);
    }

    /// Reckons the costs of placements anew, by all work that the index knows by now.
    pub fn price(&mut self) {
        self.costs = PlacementCosts::of(self.index);
        self.classes = NodeClasses::default();
    }

    fn count(&mut self, pool: usize, work: usize, amount: Amount, workers: i64) {
        self.add(pool, work, amount, workers);
        self.journal.push(Step::Count {
            pool,
            work,
            amount,
            workers,
        });
    }

    fn add(&mut self, pool: usize, work: usize, amount: Amount, workers: i64) {
        self.versions += 1;
        self.version = self.versions;
        let facts = &self.index.works[work];
        let more = Held::of(self.index, work, amount, workers);
        for &team in &self.index.teams[facts.team].path {
            let held = &mut self.held[pool][team];
            *held = held.plus(&more);
            if let Some(user) = &facts.row.user
                && self.index.teams[facts.team].by_user
            {
                *self.users.entry((pool, team, user.as_str())).or_default() += amount;
            }
        }
    }

    fn put(&mut self, view: View, work: usize, slot: &Slot, sign: i64) {
        let team = self.index.works[work].team;
        self.versions += 1;
        self.stands = self.versions;
        self.classes.mark(slot.node);
        self.put[slot.node] += sign;
        let space = &mut self.spaces[slot.node];
        let node = &self.index.nodes[slot.node];
        self.herds.spoil(node.pool, slot.node);
        let v = view as usize;
        space.cpus[v] -= sign * slot.cpus;
        space.memory[v] -= sign * slot.memory;
        for part in &slot.parts {
            let Some(load) = space.loads[v].get_mut(part.index as usize) else {
                continue;
            };
            if sign > 0 {
                load.put(team, part);
            } else {
                load.take(part);
            }
            space.given[v] += sign * part.milli;
            if load.sharers == 0 {
                space.free[v] |= bit(part.index) & !node.shut(self.bare);
            } else {
                space.free[v] &= !bit(part.index);
            }
        }
    }
}
