//! A world that is kept in mind and takes changes: what comes, goes or is otherwise costs what it touches, not the world.
//!
//! Rows are borrowed from whoever holds them, so that a trace of a million tasks is not
//! copied; [`Shelf`](crate::Shelf) holds those that come one by one. The numbers of names, the state of
//! devices and what teams hold are made once and then changed. A decision is that of
//! [`decide`](crate::decide) for the rows as they are, whatever came before.

mod unlike;

use domain::quantity::Points;
use domain::{MilliCpu, MilliGpu, Timestamp};
use rustc_hash::FxHashMap;

use crate::backfill::{PausedTimeline, Timeline};
use crate::cycle::{Cycle, Lasting, decided, places};
use crate::index::{DEVICE, Index, Rows, bit};
use crate::ledger::{Ledger, Paused, View};
use crate::order::Lines;
use crate::plan::{Plan, Start};
use crate::start::{room_now, usable};
use crate::world::{Node, Past, Strategy, Team, Workload, World};

/// The mix of work is learned anew when a part of it is new: one in so many.
const LEARNED_ANEW: usize = 6;
/// One number in so many is left vacant for work whose name comes between others.
const VACANT_EACH: usize = 8;

/// A world in mind.
pub struct Planner<'w> {
    index: Index<'w>,
    /// Absent only while it is worked on.
    state: Option<Paused<'w>>,
    /// Nobody works, and everything registered is there; once somebody has asked.
    bare: Option<Paused<'w>>,
    formable: FxHashMap<(usize, usize, usize, u32), bool>,
    /// What waits; nothing where it has to be lined up anew.
    lines: Option<Lines>,
    /// The future of each pool, where it is kept, and whether a cycle asked for it.
    futures: Vec<Option<PausedTimeline<'w>>>,
    wanted: Vec<bool>,
    /// Work and nodes that changed since the futures were looked at.
    touched: Vec<usize>,
    struck: Vec<usize>,
    /// How many workloads there are when the mix is learned next.
    learns_at: usize,
    /// Whether the mix of work is other than what placements cost by.
    unlearned: bool,
    renewed: u64,
}

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
        Self::numbering(Rows::of(world))
    }

    fn numbering(rows: Rows<'w>) -> Self {
        let index = Index::numbering(rows, VACANT_EACH);
        let state = Some(Ledger::of(&index).pause());
        let learns_at = index.count() + 1;
        Self {
            state,
            bare: None,
            formable: FxHashMap::default(),
            lines: None,
            futures: index.pools.iter().map(|_| None).collect(),
            wanted: vec![false; index.pools.len()],
            touched: Vec::new(),
            struck: Vec::new(),
            learns_at,
            unlearned: false,
            renewed: 0,
            index,
        }
    }

    /// Takes in a workload as it is now: a new one, or one in place of that of its name. False
    /// where its team is not there: such work is not taken in.
    pub fn take(&mut self, row: &'w Workload) -> bool {
        if !self.index.takes(row) {
            self.end(&row.name);
            return false;
        }
        let (work, left) = match self.index.work(&row.name) {
            Some(work) => (work, self.unseat(work)),
            None => match self.number(row) {
                Some(work) => (work, Vec::new()),
                None => return true,
            },
        };
        self.touched.push(work);
        self.index.vacate(work);
        self.index.settle(work, row);
        if let Some(lines) = &mut self.lines {
            lines.insert(&self.index, work);
        }
        self.with(|ledger| {
            ledger.widen();
            ledger.seat(work);
            let there = ledger.nodes_of(work);
            for node in left.into_iter().chain(there) {
                ledger.fill(node);
            }
        });
        self.unlearned = true;
        true
    }

    /// A number for a new workload; nothing where all had to be numbered anew, with it.
    fn number(&mut self, row: &'w Workload) -> Option<usize> {
        let Some(place) = self.index.place(&row.name) else {
            self.renew(|rows| rows.works.push(row));
            return None;
        };
        if !place.moved.is_empty() {
            self.lines = None;
            self.futures.iter_mut().for_each(|future| *future = None);
        }
        self.with(|ledger| {
            ledger.widen();
            for (old, new) in place.moved {
                ledger.renumber(old, new);
            }
        });
        Some(place.work)
    }

    /// A workload is over, or was never there: what it held is free.
    pub fn end(&mut self, name: &str) {
        let Some(work) = self.index.work(name) else {
            return;
        };
        let left = self.unseat(work);
        self.touched.push(work);
        self.index.vacate(work);
        self.with(|ledger| {
            ledger.seat(work);
            left.into_iter().for_each(|node| ledger.fill(node));
        });
        self.unlearned = true;
    }

    /// Takes a workload from where it stands and waits; gives the nodes that have to be filled
    /// after that.
    fn unseat(&mut self, work: usize) -> Vec<usize> {
        if let Some(lines) = &mut self.lines {
            lines.remove(&self.index, work);
        }
        self.with(|ledger| ledger.unseat(work))
    }

    /// Takes in a node as it is now, with what stands on it; all is numbered anew where it is
    /// new or of another make.
    pub fn take_node(&mut self, row: &'w Node) {
        if !self.index.change_node(row) {
            self.renew(|rows| {
                rows.nodes.retain(|node| node.name != row.name);
                rows.nodes.push(row);
            });
            return;
        }
        let node = self.index.node(&row.name).expect("its row was changed");
        self.struck.push(node);
        self.with(|ledger| ledger.remake(node));
        if let Some(bare) = self.bare.take() {
            let mut bare = bare.resume(&self.index);
            bare.remake(node);
            self.bare = Some(bare.pause());
        }
        self.formable.clear();
        self.unlearned = true;
    }

    /// A node is not registered any more. All is numbered anew.
    pub fn drop_node(&mut self, name: &str) {
        self.renew(|rows| rows.nodes.retain(|node| node.name != name));
    }

    /// Takes in a team as it is now; all is numbered anew where the tree is another.
    pub fn take_team(&mut self, row: &'w Team) {
        // Who may use a pool, and what a priority is, may be otherwise.
        self.lines = None;
        if !self.index.change_team(row) {
            self.renew(|rows| {
                rows.teams.retain(|team| team.name != row.name);
                rows.teams.push(row);
            });
        }
    }

    /// What work used to ask for is otherwise now.
    pub fn remember(&mut self, history: &'w [Past]) {
        self.index.world.history = history;
        self.unlearned = true;
    }

    /// Moves time on, or back.
    pub fn turn(&mut self, now: Timestamp) {
        // Where waiting counts, who waits longest may be another.
        let mut pools = self.index.pools.iter();
        if pools.any(|pool| pool.row.ageing_per_hour != Points::ZERO) {
            self.lines = None;
        }
        self.index.turn(now);
    }

    /// How often all was numbered anew because a change could not be taken in alone.
    pub fn renewed(&self) -> u64 {
        self.renewed
    }

    /// What [`decide`](crate::decide) decides for the world as it is. Nothing is done: what comes
    /// of the plan is taken in by whoever does it.
    pub fn decide(&mut self) -> Plan {
        self.cycle(|ledger, lasting| decided(ledger, lasting))
    }

    /// What [`plan`](crate::plan()) decides for the world as it is, verdicts and all.
    pub fn plan(&mut self) -> Plan {
        self.cycle(|ledger, lasting| {
            let mut cycle = Cycle::over(ledger, lasting).settle();
            cycle.explain();
            cycle.end()
        })
    }

    fn cycle(
        &mut self,
        run: impl for<'i> FnOnce(
            Ledger<'i, 'w>,
            Lasting<'i, 'w>,
        ) -> (Plan, Ledger<'i, 'w>, Lasting<'i, 'w>),
    ) -> Plan {
        if std::mem::take(&mut self.unlearned) && self.learns() {
            self.with(|ledger| ledger.price());
        }
        let index = &self.index;
        let mut lines = self.lines.take().unwrap_or_else(|| Lines::of(index));
        lines.look_again(index);
        let bare = self.bare.take();
        let state = self.state.take().expect("it is put back below");
        let ledger = state.resume(index);
        let (touched, struck) = (&self.touched, &self.struck);
        let future =
            |(pool, (paused, wanted)): (usize, (&mut Option<PausedTimeline<'w>>, &bool))| {
                let kept = paused.take().map(|paused| paused.resume(index));
                let kept = kept.and_then(|mut future| {
                    let caught_up = future.catch_up(&ledger, touched);
                    struck.iter().for_each(|&node| future.remake(&ledger, node));
                    caught_up.then_some(future)
                });
                kept.or_else(|| wanted.then(|| Timeline::keeping(&ledger, pool))?)
            };
        let futures = self.futures.iter_mut().zip(&self.wanted).enumerate();
        let futures = futures.map(future).collect();
        self.touched.clear();
        self.struck.clear();
        let lasting = Lasting {
            bare: bare.map(|bare| bare.resume(index)),
            formable: std::mem::take(&mut self.formable),
            lines,
            futures,
            wanted: std::mem::take(&mut self.wanted),
        };
        let (plan, ledger, lasting) = run(ledger, lasting);
        self.state = Some(ledger.pause());
        self.bare = lasting.bare.map(Ledger::pause);
        self.formable = lasting.formable;
        self.lines = Some(lasting.lines);
        let futures = lasting.futures.into_iter();
        self.futures = futures.map(|future| future?.pause()).collect();
        self.wanted = lasting.wanted;
        plan
    }

    /// Whether the mix of work matters to where it is placed.
    fn learns(&self) -> bool {
        let mut pools = self.index.pools.iter();
        pools.any(|pool| pool.row.strategy == Strategy::LeastFragmentation)
    }

    /// Starts a workload in the best of its pools that has room within its limits, if one has:
    /// one placement, without a look at who waits beside it.
    pub fn start(&mut self, name: &str) -> Option<Start> {
        let work = self.index.work(name)?;
        let known = self.index.count();
        if known >= self.learns_at {
            self.learns_at = known + 1 + known / LEARNED_ANEW;
            if self.learns() {
                self.with(|ledger| ledger.price());
            }
        }
        let slots = self.with(|ledger| {
            let index = ledger.index;
            let pools = index.works[work].pools.iter().copied();
            let mut pools = pools.filter(|&pool| usable(index, work, pool));
            let slots = pools.find_map(|pool| room_now(ledger, work, pool))?;
            ledger.start(work, slots.clone());
            ledger.keep_seat(work);
            Some(slots)
        })?;
        Some(Start {
            workload: self.index.works[work].row.name.clone(),
            workers: slots.len() as u32,
            placement: places(&self.index, &slots),
        })
    }

    /// What is free on a node; nothing where there is no such node.
    pub fn left(&self, node: &str) -> Option<Left> {
        let node = self.index.node(node)?;
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

    /// Numbers all anew, after a change of the rows.
    fn renew(&mut self, change: impl FnOnce(&mut Rows<'w>)) {
        let mut rows = self.index.rows();
        change(&mut rows);
        let started = self.with(|ledger| ledger.started());
        let renewed = self.renewed + 1;
        *self = Self::numbering(rows);
        self.renewed = renewed;
        for (name, slots) in started {
            if let Some(work) = self.index.work(name) {
                self.with(|ledger| {
                    ledger.start(work, slots);
                    ledger.keep_seat(work);
                });
            }
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Ledger<'_, 'w>) -> T) -> T {
        let state = self.state.take().expect("it is put back below");
        let mut ledger = state.resume(&self.index);
        let done = act(&mut ledger);
        self.state = Some(ledger.pause());
        done
    }
}
