//! One cycle, for each workload from harmless to harmful: kept room, starts, drains, room made by victims, growth, verdicts.

mod again;
mod begun;
mod booked;
mod coming;
mod dead;
mod even;
mod firm;
mod grow;
mod higher;
mod kept;
mod moves;
mod reserve;
mod slices;
mod starts;
mod stuck;
mod told;
mod trial;
mod turn;
mod victims;

pub(crate) use slices::slice_changes;

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use domain::Timestamp;
use domain::sharing::SharingMode;

pub(crate) use reserve::Keeps;

use crate::backfill::{self, Timeline};
use crate::bookings::Bookings;
use crate::index::{Index, Rows};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::order::{Lines, Picker};
use crate::place::{Gang, Query, place};
use crate::plan::{DevicePlace, Plan, Start, WorkerPlace};
use crate::start;
use crate::world::World;
use crate::{shares, verdict};

/// Decides everything for one moment. The same world gives the same plan, byte for byte,
/// whatever the order of its rows.
pub fn plan(world: &World) -> Plan {
    let index = Index::of(world);
    Cycle::of(&index).run()
}

/// What [`plan`] decides, and `shares`, without a word of what waits: for who replays a day and
/// shows nobody a verdict.
pub fn decide(world: &World) -> Plan {
    let index = Index::of(world);
    decided(Ledger::of(&index), Lasting::of(&index)).0
}

/// Whether a workload starts by what is decided for these rows.
pub(crate) fn starts(rows: Rows<'_>, workload: &str) -> bool {
    let index = Index::numbering(rows, 0);
    let mut cycle = Cycle::of(&index);
    cycle.cuts = true;
    cycle.decide().plan.start_of(workload).is_some()
}

/// All decisions from how things stand, without a word of what waits; and how things stood.
pub(crate) fn decided<'i, 'w>(
    ledger: Ledger<'i, 'w>,
    lasting: Lasting<'i, 'w>,
) -> (Plan, Ledger<'i, 'w>, Lasting<'i, 'w>) {
    let mut cycle = Cycle::over(ledger, lasting);
    cycle.cuts = true;
    cycle.settle().end()
}

/// Of a line so much of which was given room that looking it up one by one is dearer than looking at
/// all: one in so many.
const FEW_EACH: usize = 16;

/// Ends, and which work ends then, the first first.
type Ends = Rc<Vec<(Timestamp, usize)>>;

/// The state of a cycle between its steps.
pub(crate) struct Cycle<'i, 'w> {
    pub index: &'i Index<'w>,
    pub ledger: Ledger<'i, 'w>,
    lasting: Lasting<'i, 'w>,
    /// Shapes that failed in this cycle, and the soonest end with which they did; free room
    /// only shrinks while work starts, and what ends later meets more.
    failed: FxHashMap<(usize, usize, usize), Timestamp>,
    /// The future of each pool in which somebody waits for it.
    timelines: Vec<Option<Timeline<'i, 'w>>>,
    bookings: Bookings,
    /// Work that no end would start, by pool, team, shape and length.
    startless: FxHashSet<(usize, usize, usize, Option<i64>)>,
    /// Expected starts that are known, by pool, team, shape and length.
    told: FxHashMap<(usize, usize, usize, Option<i64>), Option<Timestamp>>,
    /// The same of those in front, by pool, where no starts are kept.
    told_in_line: Vec<told::ToldStarts>,
    /// The first ends of work in a pool, and which work ends then.
    pub ends: Vec<Option<Ends>>,
    /// When limits will let work start, by pool, team and shape.
    pub limited: FxHashMap<(usize, usize, usize), Option<Timestamp>>,
    /// In how many seconds those will have run for long enough who may make way for work, by pool, team,
    /// shape and priority.
    pub protected: FxHashMap<(usize, usize, usize, i64), Option<i64>>,
    /// Work that is the last of its pool to be looked at and would be given a start that is kept:
    /// it is, unless it is given room.
    postponed: Option<(usize, usize)>,
    /// Pools in which a start that was kept is not needed any more.
    freed: Vec<bool>,
    /// Work that comes later in the order than the one that is looked at: its start holds nothing back.
    behind: FxHashSet<usize>,
    /// Pools in which such a start may have to be found anew.
    met_behind: Vec<bool>,
    /// The order in which work was looked at and not started, by pool.
    pub passed: Vec<Vec<usize>>,
    /// The head that nothing may pass, by pool.
    pub heads: Vec<Option<usize>>,
    /// How room is made in each pool, once it was.
    making: Vec<Option<turn::Making>>,
    /// Work that waited and was given room, for now or for later.
    engaged: Vec<usize>,
    /// Pools and teams in which room is kept for work that starts in the guarantee alone.
    firm: FxHashSet<(usize, usize)>,
    /// Higher work of teams that had no room before lower work: while work only starts, it has none later.
    unserved: FxHashSet<usize>,
    /// Work that started, and work that would take its room, had it none itself in the end.
    met: Vec<again::Rivals>,
    /// Work, and who is to be served before it: it would leave for that a cycle later.
    first: FxHashSet<(usize, usize)>,
    /// Teams that lost something to others, of whom limits may let more start since.
    lost: Vec<usize>,
    /// Whether the rest of a line is passed over once nothing of it can start: nobody asks for
    /// the order in which it would have been looked at.
    cuts: bool,
    /// Pools in which it was.
    cut: Vec<bool>,
    /// What verdicts have counted, and where they found a place.
    pub counted: verdict::Counted,
    pub places: FxHashMap<(Gang, Sight, bool), bool>,
    /// Verdicts that have been told so far: the first are told more of.
    pub explained: usize,
    /// Changes for which all was decided anew.
    pub proofs: usize,
    /// Who starts by what is known to change later; once somebody has asked.
    pub ahead: Option<verdict::Starts>,
    pub plan: Plan,
}

/// What a cycle finds out that holds for later ones, until a node changes.
pub(crate) struct Lasting<'i, 'w> {
    /// Nobody works, and everything registered is there; once somebody has asked.
    pub bare: Option<Ledger<'i, 'w>>,
    /// Whether a shape could ever be held by a pool.
    pub formable: FxHashMap<(usize, usize, usize, u32), bool>,
    /// What waits.
    pub lines: Lines,
    /// The future of each pool, where it is kept, and whether a cycle asked for it.
    pub futures: Vec<Option<Timeline<'i, 'w>>>,
    pub wanted: Vec<bool>,
}

impl<'i, 'w> Lasting<'i, 'w> {
    /// Found out anew.
    fn of(index: &'i Index<'w>) -> Self {
        Self {
            bare: None,
            formable: FxHashMap::default(),
            lines: Lines::of(index),
            futures: index.pools.iter().map(|_| None).collect(),
            wanted: vec![false; index.pools.len()],
        }
    }
}

impl<'i, 'w> Cycle<'i, 'w> {
    pub fn of(index: &'i Index<'w>) -> Self {
        Self::over(Ledger::of(index), Lasting::of(index))
    }

    /// A cycle from how things stand.
    pub fn over(ledger: Ledger<'i, 'w>, lasting: Lasting<'i, 'w>) -> Self {
        let index = ledger.index;
        let bookings = Bookings::of(&ledger);
        Self {
            index,
            ledger,
            lasting,
            failed: FxHashMap::default(),
            timelines: index.pools.iter().map(|_| None).collect(),
            bookings,
            startless: FxHashSet::default(),
            told: FxHashMap::default(),
            told_in_line: index
                .pools
                .iter()
                .map(|_| told::ToldStarts::default())
                .collect(),
            ends: vec![None; index.pools.len()],
            limited: FxHashMap::default(),
            protected: FxHashMap::default(),
            postponed: None,
            freed: vec![false; index.pools.len()],
            behind: FxHashSet::default(),
            met_behind: vec![false; index.pools.len()],
            passed: vec![Vec::new(); index.pools.len()],
            heads: vec![None; index.pools.len()],
            making: index.pools.iter().map(|_| None).collect(),
            engaged: Vec::new(),
            firm: FxHashSet::default(),
            unserved: FxHashSet::default(),
            met: Vec::new(),
            first: FxHashSet::default(),
            lost: Vec::new(),
            cuts: false,
            cut: vec![false; index.pools.len()],
            counted: verdict::Counted::default(),
            places: FxHashMap::default(),
            explained: 0,
            proofs: 0,
            ahead: None,
            plan: Plan {
                now: index.world.now,
                starts: Vec::new(),
                resizes: Vec::new(),
                preemptions: Vec::new(),
                migrations: Vec::new(),
                nominations: Vec::new(),
                slice_changes: Vec::new(),
                reservations: Vec::new(),
                waiting: Vec::new(),
                shares: Vec::new(),
            },
        }
    }

    pub fn run(self) -> Plan {
        let mut settled = self.settle();
        settled.explain();
        settled.plan
    }

    /// Verdicts on what waits.
    pub fn explain(&mut self) {
        self.plan.waiting = verdict::all(self);
    }

    /// The plan, and how things stood when the cycle began.
    pub fn end(mut self) -> (Plan, Ledger<'i, 'w>, Lasting<'i, 'w>) {
        self.ledger.go_back();
        for pool in 0..self.index.pools.len() {
            if let Some(timeline) = self.timelines[pool].take() {
                self.lasting.wanted[pool] = true;
                self.put_by(pool, timeline);
            }
        }
        (self.plan, self.ledger, self.lasting)
    }

    /// All decisions, with what follows from them.
    pub fn settle(self) -> Self {
        let mut decided = self.decide();
        decided.plan.slice_changes = slices::of(decided.index, &decided.plan);
        decided.plan.shares = shares::all(&decided);
        decided
    }

    /// All decisions by what is known of who is to be served first.
    fn decide_once(&mut self) {
        self.keep_room();
        self.in_pools(Self::start_in);
        if !self.alone() {
            self.reserve_postponed();
        }
        self.drain();
        self.look_again();
        if self.any_pool(Self::consolidates) {
            self.in_pools(Self::consolidate_in);
        }
        if self.any_pool(Self::displaces) {
            self.in_pools(Self::displace_in);
        }
        self.reserve_postponed();
        self.look_again();
        self.start_again();
        self.reserve_postponed();
        self.grow();
        self.tell_reservations();
    }

    /// Whether nothing but the one workload that waits could mind the start that is kept for it,
    /// and nothing moves before room is made for it.
    fn alone(&self) -> bool {
        let kept = self.timelines.iter().all(Option::is_none) && self.plan.nominations.is_empty();
        let whole = !self.cut.contains(&true);
        kept && whole && !self.index.drains() && self.passed.iter().flatten().count() == 1
    }

    /// Keeps a start for work that was not given room in another way.
    fn reserve_postponed(&mut self) {
        if let Some((work, pool)) = self.postponed.take()
            && self.ledger.standing(work) == Standing::Idle
        {
            self.reserve(work, pool);
            self.mend(pool);
        }
    }

    /// Work that waited and was given room, for now or for later.
    pub fn engaged(&self) -> &[usize] {
        &self.engaged
    }

    /// What waited when the cycle began.
    pub fn lines(&self) -> &Lines {
        &self.lasting.lines
    }

    /// Whether a workload may start in a pool at all.
    pub fn usable(&self, work: usize, pool: usize) -> bool {
        start::usable(self.index, work, pool)
    }

    /// Whether a pool's nodes, whatever their state, could ever hold a workload.
    pub fn formable(&mut self, work: usize, pool: usize) -> bool {
        let facts = &self.index.works[work];
        let least = facts.stint.least;
        // Replicas keep apart from one another.
        let service = facts.service.map_or(0, |service| 1 + service);
        let key = (pool, facts.frame, service, least);
        if let Some(&known) = self.lasting.formable.get(&key) {
            return known;
        }
        let query = Query::start(self.index, work, pool).workers(least);
        let bare = self
            .lasting
            .bare
            .get_or_insert_with(|| Ledger::bare(self.index));
        let known = place(bare, query).is_some();
        self.lasting.formable.insert(key, known);
        known
    }

    /// Runs a step in every pool over the work that waits, each workload in its best
    /// pool first; what a step does not settle goes on to the next of its pools.
    fn in_pools(&mut self, step: fn(&mut Self, usize, Picker) -> Vec<usize>) {
        if self.lasting.lines.apart() {
            for pool in 0..self.index.pools.len() {
                let picker = self.line(pool);
                if !picker.is_empty() {
                    step(self, pool, picker);
                }
            }
        } else {
            self.pool_by_pool(step);
        }
    }

    fn any_pool(&self, does: fn(&Self, usize) -> bool) -> bool {
        (0..self.index.pools.len()).any(|pool| does(self, pool))
    }

    /// What waits in a pool and in no other, without what was given room.
    pub(super) fn line(&self, pool: usize) -> Picker {
        let mut picker = Picker::over(pool, self.lasting.lines.line(pool));
        if self.engaged.len() > picker.line().len() / FEW_EACH {
            picker.leave_out_all(self.index, |work| {
                self.ledger.standing(work) != Standing::Idle
            });
        } else {
            picker.leave_out(self.index, &self.engaged);
        }
        picker
    }

    fn pool_by_pool(&mut self, step: fn(&mut Self, usize, Picker) -> Vec<usize>) {
        let index = self.index;
        let mut queues: Vec<Vec<usize>> = vec![Vec::new(); index.pools.len()];
        let mut stage = vec![0; index.works.len()];
        let mut advance = |this: &Self, queues: &mut Vec<Vec<usize>>, work: usize| {
            while let Some(&pool) = index.works[work].pools.get(stage[work]) {
                stage[work] += 1;
                if this.usable(work, pool) {
                    queues[pool].push(work);
                    break;
                }
            }
        };
        for work in 0..index.works.len() {
            if index.ready(work) && self.ledger.standing(work) == Standing::Idle {
                advance(self, &mut queues, work);
            }
        }
        while let Some(pool) = queues.iter().position(|queue| !queue.is_empty()) {
            let works = std::mem::take(&mut queues[pool]);
            let picker = Picker::of(index, pool, &works);
            for work in step(self, pool, picker) {
                advance(self, &mut queues, work);
            }
        }
    }

    fn start(&mut self, work: usize, slots: Vec<Rc<Slot>>) {
        let end = backfill::end_from(self.index, work, self.index.world.now);
        self.stands(work, self.index.nodes[slots[0].node].pool, &slots, end);
        let placement = self.places(&slots);
        let workload = self.index.works[work].row.name.clone();
        self.plan.starts.push(Start {
            workload,
            workers: slots.len() as u32,
            placement,
        });
        self.ledger.start(work, slots);
        self.engaged.push(work);
    }

    /// Slots in the words of the plan.
    pub fn places(&self, slots: &[Rc<Slot>]) -> Vec<WorkerPlace> {
        places(self.index, slots)
    }
}

/// Slots in the words of the plan.
pub(crate) fn places(index: &Index<'_>, slots: &[Rc<Slot>]) -> Vec<WorkerPlace> {
    let worker = |slot: &Rc<Slot>| {
        let mut devices: Vec<DevicePlace> = slot
            .parts
            .iter()
            .map(|part| DevicePlace {
                index: part.index,
                mode: part.mode,
                mig: part.slice.map(|slice| slice.profile.name.clone()),
                start: part.slice.map(|slice| slice.start),
                gpus: domain::MilliGpu::from_milli(part.milli),
                memory_mib: (part.mode != SharingMode::Exclusive && part.slice.is_none())
                    .then_some(part.memory),
            })
            .collect();
        devices.sort_by_key(|d| (d.index, d.start));
        WorkerPlace {
            node: index.nodes[slot.node].row.name.clone(),
            devices,
        }
    };
    slots.iter().map(worker).collect()
}
