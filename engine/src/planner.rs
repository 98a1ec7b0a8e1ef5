//! A world that is kept in mind and takes changes: one more workload costs one placement, not a plan of everything.
//!
//! The numbers of the world and the state of its devices are made once. What comes later is
//! borrowed from whoever holds it, so that a trace of a million tasks is not copied. By the
//! rules of a cycle a workload starts where it fits within its limits; order among those
//! that wait, victims and reservations are the cycle's.

use domain::{MilliCpu, MilliGpu};

use crate::cycle::places;
use crate::index::{DEVICE, Index, bit};
use crate::ledger::{Ledger, Paused, View};
use crate::plan::Start;
use crate::start::{room_now, usable};
use crate::world::{Strategy, Workload, World};

/// The mix of work is learned anew when a part of it is new: one in so many.
const LEARNED_ANEW: usize = 6;

/// A world in mind.
pub struct Planner<'w> {
    index: Index<'w>,
    /// Absent only while it is worked on.
    state: Option<Paused<'w>>,
    /// How many workloads there are when the mix is learned next.
    learns_at: usize,
}

/// A workload that the planner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(usize);

/// What is free on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Cores.
    pub cpus: MilliCpu,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// The part of each device that is sound.
    pub devices: Vec<MilliGpu>,
}

impl<'w> Planner<'w> {
    /// Takes a checked world in.
    pub fn of(world: &'w World) -> Self {
        let index = Index::of(world);
        let state = Some(Ledger::of(&index).pause());
        let learns_at = index.works.len() + 1;
        Self {
            index,
            state,
            learns_at,
        }
    }

    /// Takes in a workload that was submitted; nothing where its team is not there.
    pub fn submit(&mut self, workload: &'w Workload) -> Option<Entry> {
        let entry = self.index.admit(workload).map(Entry)?;
        let known = self.index.works.len();
        if known >= self.learns_at {
            self.learns_at = known + 1 + known / LEARNED_ANEW;
            let learns = |pool: &crate::index::PoolFacts<'_>| {
                pool.row.strategy == Strategy::LeastFragmentation
            };
            if self.index.pools.iter().any(learns) {
                self.with(|ledger| ledger.price());
            }
        }
        Some(entry)
    }

    /// Starts a workload in the best of its pools that has room within its limits, if one has.
    pub fn start(&mut self, entry: Entry) -> Option<Start> {
        let Entry(work) = entry;
        let slots = self.with(|ledger| {
            let index = ledger.index;
            let pools = index.works[work].pools.iter().copied();
            let mut pools = pools.filter(|&pool| usable(index, work, pool));
            let slots = pools.find_map(|pool| room_now(ledger, work, pool))?;
            ledger.start(work, slots.clone());
            Some(slots)
        })?;
        Some(Start {
            workload: self.index.works[work].row.name.clone(),
            workers: slots.len() as u32,
            placement: places(&self.index, &slots),
        })
    }

    /// A workload is over: what it held is free.
    pub fn end(&mut self, entry: Entry) {
        let Entry(work) = entry;
        self.with(|ledger| ledger.end(work));
    }

    /// What is free on a node; nothing where there is no such node.
    pub fn left(&self, node: &str) -> Option<Left> {
        let node = self
            .index
            .nodes
            .binary_search_by(|n| n.row.name.as_str().cmp(node))
            .ok()?;
        let machine = &self.index.nodes[node];
        let space = &self.state.as_ref()?.spaces[node];
        let sound = (0..machine.row.gpus).filter(|&i| machine.failed & bit(i) == 0);
        let loads = &space.loads[View::Now as usize];
        Some(Left {
            cpus: MilliCpu::from_milli(space.cpus[View::Now as usize]),
            memory_mib: space.memory[View::Now as usize],
            devices: sound
                .map(|i| MilliGpu::from_milli(DEVICE - loads[i as usize].milli))
                .collect(),
        })
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Ledger<'_, 'w>) -> T) -> T {
        let state = self.state.take().expect("it is put back below");
        let mut ledger = state.resume(&self.index);
        let done = act(&mut ledger);
        self.state = Some(ledger.pause());
        done
    }
}
