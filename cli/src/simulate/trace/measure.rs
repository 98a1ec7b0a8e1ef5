//! What a replay is measured by: sums over time, waits, shares, and what was destroyed.

mod fairness;
mod fragments;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;

use domain::Timestamp;
use domain::quantity::MILLI;
use engine::plan::Plan;
use engine::world::{NodeState, Workload, WorkloadState, World};

use super::Job;
use fairness::Fairness;
use fragments::Fragments;
pub use report::{Report, span};

/// Moments at which fragmentation is looked at, at most, while work arrives: it takes every node.
const LOOKS: i64 = 400;

/// A moment as charts show it.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Seconds since the beginning.
    pub at: i64,
    /// Thousandths of GPUs that are held, and that there are.
    pub held_milli: i64,
    pub there_milli: i64,
    pub waiting: usize,
}

/// A pool in sum.
#[derive(Debug, Default)]
struct PoolSum {
    /// Thousandths of GPUs that are held now, and that there are.
    held: i64,
    there: i64,
    /// Thousandths of GPU-seconds.
    held_seconds: i128,
    there_seconds: i128,
    /// The part of what is idle that is of no use, in billionths, and its sum over the seconds.
    fragmented_now: i64,
    fragments: i128,
    seconds: i128,
}

/// What a job's wait is counted for.
struct Coming {
    team: String,
    submitted: Timestamp,
    /// Thousandths of GPU-seconds.
    work: i128,
    first_start: Option<Timestamp>,
    ended: bool,
}

/// The seconds that are left of a workload's run at some moment.
pub type Left<'a> = dyn Fn(&Workload, Timestamp) -> i64 + 'a;

/// The sums.
pub struct Measure {
    begun: Timestamp,
    look_every: i64,
    looked: Option<Timestamp>,
    fragments: Fragments,
    pool_of: BTreeMap<String, String>,
    jobs: BTreeMap<String, Coming>,
    pools: BTreeMap<String, PoolSum>,
    /// Teams that have none below.
    teams: Vec<String>,
    fairness: Fairness,
    /// By reason: how many, and the GPU-seconds that they destroyed.
    preemptions: BTreeMap<String, (u64, i64)>,
    migrations: u64,
    cycles: u64,
    moments: Vec<Moment>,
}

impl Measure {
    /// Nothing has happened.
    pub fn of(world: &World, jobs: &[Job]) -> Self {
        let last = jobs.last().map_or(world.now, |job| job.work.submitted);
        let coming = |job: &Job| {
            let gpus = i128::from(job.work.per_worker.gpus().milli());
            let coming = Coming {
                team: job.work.team.clone(),
                submitted: job.work.submitted,
                work: gpus * i128::from(job.work.workers) * i128::from(job.run_seconds),
                first_start: None,
                ended: false,
            };
            (job.work.name.clone(), coming)
        };
        let works = jobs.iter().map(|job| &job.work).chain(&world.workloads);
        let team_of = works.map(|w| (w.name.clone(), w.team.clone())).collect();
        let parents: BTreeSet<&str> = world
            .teams
            .iter()
            .filter_map(|t| t.parent.as_deref())
            .collect();
        let leaves = world
            .teams
            .iter()
            .filter(|t| !parents.contains(t.name.as_str()));
        Self {
            begun: world.now,
            look_every: ((last - world.now).num_seconds() / LOOKS).max(1),
            looked: None,
            fragments: Fragments::of(jobs),
            pool_of: world
                .nodes
                .iter()
                .map(|n| (n.name.clone(), n.pool.clone()))
                .collect(),
            jobs: jobs.iter().map(coming).collect(),
            pools: world
                .pools
                .iter()
                .map(|p| (p.name.clone(), PoolSum::default()))
                .collect(),
            teams: leaves.map(|t| t.name.clone()).collect(),
            fairness: Fairness::of(world, team_of),
            preemptions: BTreeMap::new(),
            migrations: 0,
            cycles: 0,
            moments: Vec::new(),
        }
    }

    /// A plan was made and done; the world is as it left it.
    pub fn planned(&mut self, world: &World, plan: &Plan) {
        self.cycles += 1;
        for start in &plan.starts {
            if let Some(job) = self.jobs.get_mut(&start.workload) {
                job.first_start.get_or_insert(world.now);
            }
        }
        for eviction in &plan.preemptions {
            let reason = serde_json::to_value(eviction.reason).ok();
            let reason = reason.as_ref().and_then(|r| r.as_str()).unwrap_or("other");
            let sum = self.preemptions.entry(reason.to_owned()).or_default();
            *sum = (sum.0 + 1, sum.1 + eviction.lost_gpu_seconds);
        }
        self.migrations += plan.migrations.len() as u64;
        self.hold(world);
        let sum = |of: &dyn Fn(&PoolSum) -> i64| self.pools.values().map(of).sum::<i64>();
        self.moments.push(Moment {
            at: (world.now - self.begun).num_seconds(),
            held_milli: sum(&|p| p.held),
            there_milli: sum(&|p| p.there),
            waiting: world
                .workloads
                .iter()
                .filter(|w| w.state == WorkloadState::Waiting)
                .count(),
        });
    }

    fn hold(&mut self, world: &World) {
        for pool in self.pools.values_mut() {
            (pool.held, pool.there) = (0, 0);
        }
        for node in world
            .nodes
            .iter()
            .filter(|n| n.state != NodeState::Unreachable)
        {
            if let Some(pool) = self.pools.get_mut(&node.pool) {
                pool.there += (i64::from(node.gpus) - node.failed.len() as i64) * MILLI;
            }
        }
        for place in world.workloads.iter().flat_map(|w| &w.placed) {
            if let Some(pool) = self
                .pool_of
                .get(&place.node)
                .and_then(|p| self.pools.get_mut(p))
            {
                pool.held += place.devices.iter().map(|d| d.gpus.milli()).sum::<i64>();
            }
        }
        let due = self
            .looked
            .is_none_or(|at| (world.now - at).num_seconds() >= self.look_every);
        if due {
            self.looked = Some(world.now);
            for (name, fragmented) in self.fragments.by_pool(world) {
                if let Some(pool) = self.pools.get_mut(&name) {
                    pool.fragmented_now = fragmented;
                }
            }
        }
    }

    /// A workload is there, and so many seconds of its run are left.
    pub fn comes(&mut self, work: &Workload, now: Timestamp, left: i64) {
        self.fairness.comes(work, now, left);
    }

    /// Time passes until `next`, and nothing changes; `left` are the seconds that are left of a run at some moment.
    pub fn pass(&mut self, world: &World, next: Timestamp, left: &Left<'_>) {
        let seconds = (next - world.now).num_seconds().max(0);
        for pool in self.pools.values_mut() {
            let seconds = i128::from(seconds);
            pool.held_seconds += i128::from(pool.held) * seconds;
            pool.there_seconds += i128::from(pool.there) * seconds;
            pool.fragments += i128::from(pool.fragmented_now) * seconds;
            pool.seconds += seconds;
        }
        let mut from = world.now;
        while from < next {
            let to = next.min(self.fairness.ends());
            self.hold_on(world, to - from);
            if to == self.fairness.ends() {
                self.fairness.close(to);
                for work in &world.workloads {
                    self.fairness.comes(work, to, left(work, to));
                }
            }
            from = to;
        }
    }

    /// Everything stays where it is for some time.
    fn hold_on(&mut self, world: &World, time: TimeDelta) {
        for work in world.workloads.iter().filter(|w| !w.placed.is_empty()) {
            let devices = work.placed.iter().flat_map(|place| &place.devices);
            let milli = devices.map(|device| device.gpus.milli()).sum();
            if let Some(pool) = self.pool_of.get(&work.placed[0].node) {
                self.fairness
                    .holds(&work.name, pool, milli, time.num_seconds());
            }
        }
    }

    /// A job is done.
    pub fn ended(&mut self, work: &Workload) {
        if let Some(job) = self.jobs.get_mut(&work.name) {
            job.ended = true;
        }
    }
}
