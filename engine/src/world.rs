//! Everything that a planning cycle may know, as plain data; `scenario` is the same on paper.

mod node;
mod pool;
mod workload;

use std::collections::BTreeMap;

use domain::spec::PerWorker;
use domain::{MilliGpu, Timestamp};

pub use domain::policy::{
    Backfill, Charge, MigMode, PoolPolicy, PoolState, PreemptionPolicy, Reclaim, Strategy,
    WithinTeam,
};
pub use node::{Laid, MigInstance, Node, NodeState};
pub use pool::Pool;
pub use workload::{Nominated, Placed, PlacedDevice, Workload, WorkloadState};

/// What one cycle of the planner may know.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// The time of the cycle; the planner reads no clock.
    pub now: Timestamp,
    /// How far time moves between the cycles of `cycles::run`, in seconds.
    pub cycle_seconds: i64,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The registered nodes of all pools.
    pub nodes: Vec<Node>,
    /// The priority classes.
    pub classes: Vec<Class>,
    /// The tree of teams.
    pub teams: Vec<Team>,
    /// Waiting, running, leaving and suspended work; what has ended is absent.
    pub workloads: Vec<Workload>,
    /// The services whose replicas are among the workloads.
    pub services: Vec<Service>,
    /// Capacity booked ahead.
    pub bookings: Vec<Booking>,
    /// What work used to ask for, for placement that keeps room for its like. Not part of
    /// scenario files: on paper the past is what has run since the first cycle.
    pub history: Vec<Past>,
    /// Quotas that are known to hold later, the first first: for expected starts alone. Not part of
    /// scenario files, which know no weekly windows.
    pub ahead: Vec<QuotasAhead>,
}

/// The teams as they will be, with the quotas that hold from a moment on.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotasAhead {
    /// From when.
    pub from: Timestamp,
    /// All teams.
    pub teams: Vec<Team>,
}

impl World {
    /// A world without anything in it.
    pub fn empty(now: Timestamp) -> Self {
        Self {
            now,
            cycle_seconds: 1,
            pools: Vec::new(),
            nodes: Vec::new(),
            classes: Vec::new(),
            teams: Vec::new(),
            workloads: Vec::new(),
            services: Vec::new(),
            bookings: Vec::new(),
            history: Vec::new(),
            ahead: Vec::new(),
        }
    }

    /// Adds work that has ended in a pool to the history.
    pub fn remember(&mut self, pool: &str, work: &Workload) {
        let workers = i64::from(work.workers);
        let like = |past: &&mut Past| {
            past.pool == pool
                && past.per_worker == work.per_worker
                && past.selector == work.selector
        };
        if let Some(past) = self.history.iter_mut().find(like) {
            past.workers += workers;
        } else if self.history.len() < PASTS_MAX {
            self.history.push(Past {
                pool: pool.to_owned(),
                per_worker: work.per_worker.clone(),
                selector: work.selector.clone(),
                workers,
            });
        }
    }

    /// The workload of that name.
    pub fn workload(&self, name: &str) -> Option<&Workload> {
        self.workloads.iter().find(|w| w.name == name)
    }

    /// The class of that name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|c| c.name == name)
    }
}

/// A named priority, with whether its work may be preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Higher goes first within a team.
    pub priority: i64,
    /// Whether its work may be preempted unless a workload says otherwise.
    pub preemptible: bool,
}

impl Class {
    /// A class with these values.
    pub fn new(name: &str, priority: i64, preemptible: bool) -> Self {
        Self {
            name: name.to_owned(),
            priority,
            preemptible,
        }
    }
}

/// What a team may hold in one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// What it can have at any time.
    pub guaranteed: MilliGpu,
    /// The most it may hold; `None` is no limit.
    pub limit: Option<MilliGpu>,
    /// What others may use of its idle guarantee; `None` is all of it.
    pub lend_limit: Option<MilliGpu>,
    /// Its claim on spare capacity, in thousandths; 0 is none.
    pub weight_milli: i64,
}

/// The weight of a team whose row does not say another, in thousandths.
pub const WEIGHT_MILLI_DEFAULT: i64 = 1000;

impl Quota {
    /// A guarantee without a limit, with weight 1.
    pub fn guaranteed(guaranteed: MilliGpu) -> Self {
        Self {
            guaranteed,
            limit: None,
            lend_limit: None,
            weight_milli: WEIGHT_MILLI_DEFAULT,
        }
    }

    /// The same with a limit.
    #[must_use]
    pub fn limited(mut self, limit: MilliGpu) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The same with another weight, in thousandths.
    #[must_use]
    pub fn weighing(mut self, weight_milli: i64) -> Self {
        self.weight_milli = weight_milli;
        self
    }
}

/// What a budget has stopped of a team's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopped {
    /// Nothing.
    None,
    /// Work that would borrow.
    Borrowing,
    /// All new work.
    All,
}

/// A tenant: a node of the tree of teams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    /// Its name.
    pub name: String,
    /// The team above it.
    pub parent: Option<String>,
    /// Its rows, by pool; a leaf without a row for a pool may not use it.
    pub quotas: BTreeMap<String, Quota>,
    /// Past use by pool, decayed to now, in thousandths of a GPU-second.
    pub past_use: BTreeMap<String, i64>,
    /// The most that one user may hold of it, by pool.
    pub max_per_user: BTreeMap<String, MilliGpu>,
    /// What a budget has stopped, here and below.
    pub stopped: Stopped,
    /// Evictions that it suffered in the last hour, by pool.
    pub preemptions_this_hour: BTreeMap<String, u32>,
}

impl Team {
    /// A team at the root without rows.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parent: None,
            quotas: BTreeMap::new(),
            past_use: BTreeMap::new(),
            max_per_user: BTreeMap::new(),
            stopped: Stopped::None,
            preemptions_this_hour: BTreeMap::new(),
        }
    }

    /// The same below another team.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.parent = Some(parent.to_owned());
        self
    }

    /// The same with a row for a pool.
    #[must_use]
    pub fn quota(mut self, pool: &str, quota: Quota) -> Self {
        self.quotas.insert(pool.to_owned(), quota);
        self
    }
}

/// Inference work that stays: bounds on its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The team that it belongs to.
    pub team: String,
    /// Replicas that preemption leaves running.
    pub min_replicas: u32,
    /// The most replicas that it grows to.
    pub max_replicas: u32,
}

/// The most kinds of past work that are told apart: beyond the frequent ones they change no mix.
pub const PASTS_MAX: usize = 1000;

/// Workers of one kind that have been there and are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// The pool that they ran in.
    pub pool: String,
    /// What each asked for.
    pub per_worker: PerWorker,
    /// The labels that its node had to have.
    pub selector: BTreeMap<String, String>,
    /// How many there were.
    pub workers: i64,
}

/// Capacity booked ahead by people, lent out until it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// Its name.
    pub name: String,
    /// The team that it is for.
    pub team: String,
    /// The pool that it is in.
    pub pool: String,
    /// How much is booked.
    pub gpus: MilliGpu,
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub to: Timestamp,
}
