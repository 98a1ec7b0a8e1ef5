//! What a replay is measured by: sums over time, waits, shares, and what was destroyed.

mod fragments;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use domain::Timestamp;
use domain::quantity::MILLI;
use engine::plan::Plan;
use engine::world::{NodeState, Workload, WorkloadState, World};

use super::Job;
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

/// A team in sum: what it had, and what it was entitled to.
#[derive(Debug, Default)]
struct TeamSum {
    /// Thousandths of GPUs.
    used_now: i64,
    fair_now: i64,
    waits_now: bool,
    /// Whether it ever had work that waited while time passed.
    in_need: bool,
    /// Thousandths of GPU-seconds.
    used: i128,
    fair: i128,
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

/// The sums.
pub struct Measure {
    begun: Timestamp,
    look_every: i64,
    looked: Option<Timestamp>,
    fragments: Fragments,
    pool_of: BTreeMap<String, String>,
    jobs: BTreeMap<String, Coming>,
    pools: BTreeMap<String, PoolSum>,
    teams: BTreeMap<String, TeamSum>,
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
            teams: leaves
                .map(|t| (t.name.clone(), TeamSum::default()))
                .collect(),
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
        self.share(world, plan);
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

    fn share(&mut self, world: &World, plan: &Plan) {
        for team in self.teams.values_mut() {
            *team = TeamSum {
                used_now: 0,
                fair_now: 0,
                waits_now: false,
                ..*team
            };
        }
        for work in world
            .workloads
            .iter()
            .filter(|w| w.state == WorkloadState::Waiting)
        {
            if let Some(team) = self.teams.get_mut(&work.team) {
                team.waits_now = true;
            }
        }
        for share in &plan.shares {
            if let Some(team) = self.teams.get_mut(&share.team) {
                team.used_now += share.used.milli();
                team.fair_now += share.fair_share.milli();
            }
        }
    }

    /// Time passes until `next`, and nothing changes.
    pub fn pass(&mut self, world: &World, next: Timestamp) {
        let seconds = (next - world.now).num_seconds().max(0);
        let seconds = i128::from(seconds);
        for pool in self.pools.values_mut() {
            pool.held_seconds += i128::from(pool.held) * seconds;
            pool.there_seconds += i128::from(pool.there) * seconds;
            pool.fragments += i128::from(pool.fragmented_now) * seconds;
            pool.seconds += seconds;
        }
        for team in self.teams.values_mut() {
            team.in_need |= team.waits_now && seconds > 0;
            team.used += i128::from(team.used_now) * seconds;
            team.fair += i128::from(team.fair_now) * seconds;
        }
    }

    /// A job is done.
    pub fn ended(&mut self, work: &Workload) {
        if let Some(job) = self.jobs.get_mut(&work.name) {
            job.ended = true;
        }
    }
}
