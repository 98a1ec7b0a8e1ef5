//! What each team had of what it was entitled to, hour by hour, in the hours in which it was in need.
//!
//! An hour is long beside most jobs and short beside a day: what starts within it is not told as need, and what
//! an hour denied no later one makes good. A team's demand in an hour is what it had, and of each job that waits as
//! much as it could have run by the end of it: not more than is left of the job. Work that is wider than all
//! that the team would be entitled to if it asked for everything is no demand until it runs, for no entitlement
//! could hold it: it can only be lent its room. The entitlement is the fair share of that demand.

use std::collections::{BTreeMap, HashMap};

use chrono::TimeDelta;
use domain::quantity::MILLI;
use domain::{MilliGpu, Timestamp};
use engine::world::{Workload, World};

/// Seconds of what is looked at together.
const HOUR: i64 = 3600;

/// A job in the hour that is looked at.
struct Seen {
    team: String,
    /// The pool in which it is, else the first that it accepts.
    pool: String,
    /// Thousandths of GPUs of all its workers.
    milli: i64,
    /// When it came, or the hour began, and the seconds of its run that were left then.
    since: Timestamp,
    left: i64,
    /// Thousandths of GPU-seconds that it held in the hour.
    held: i128,
}

/// Thousandths of GPU-seconds of the hours in which a team was in need: what it had, and its entitlement.
#[derive(Debug, Default, Clone, Copy)]
pub struct Had {
    pub held: i128,
    pub entitled: i128,
}

/// The sums, and the hour that is looked at.
pub struct Fairness {
    /// The pools and teams of the scenario, without work.
    bare: World,
    team_of: BTreeMap<String, String>,
    begun: Timestamp,
    seen: HashMap<String, Seen>,
    teams: BTreeMap<String, Had>,
}

/// What one job asked for in an hour beyond what it had.
struct Unmet<'a> {
    team: &'a str,
    milli: i64,
    more: i128,
}

impl Fairness {
    /// Nothing has happened; each workload is of the team that is given with its name.
    pub fn of(world: &World, team_of: BTreeMap<String, String>) -> Self {
        let bare = World {
            workloads: Vec::new(),
            history: Vec::new(),
            services: Vec::new(),
            ..world.clone()
        };
        Self {
            begun: world.now,
            bare,
            team_of,
            seen: HashMap::new(),
            teams: BTreeMap::new(),
        }
    }

    /// A workload is there, and so many seconds of its run are left.
    pub fn comes(&mut self, work: &Workload, now: Timestamp, left: i64) {
        let Some(team) = self.team_of.get(&work.name) else {
            return;
        };
        let first = || self.bare.pools.first().map(|pool| pool.name.clone());
        let seen = Seen {
            team: team.clone(),
            pool: work
                .pools
                .first()
                .cloned()
                .or_else(first)
                .unwrap_or_default(),
            milli: work.per_worker.gpus().milli() * i64::from(work.workers),
            since: now,
            left,
            held: 0,
        };
        self.seen.insert(work.name.clone(), seen);
    }

    /// A workload holds so many thousandths of a pool for some seconds.
    pub fn holds(&mut self, name: &str, pool: &str, milli: i64, seconds: i64) {
        if let Some(seen) = self.seen.get_mut(name) {
            seen.held += i128::from(milli) * i128::from(seconds);
            if seen.pool != pool {
                pool.clone_into(&mut seen.pool);
            }
        }
    }

    /// When the hour ends that is looked at.
    pub fn ends(&self) -> Timestamp {
        self.begun + TimeDelta::seconds(HOUR)
    }

    /// An hour, or the part of one that is the last, is over.
    pub fn close(&mut self, now: Timestamp) {
        let seconds = (now - self.begun).num_seconds();
        self.bare.now = self.begun;
        if seconds > 0 {
            for pool in 0..self.bare.pools.len() {
                let pool = self.bare.pools[pool].name.clone();
                self.settle(&pool, now, seconds);
            }
        }
        self.seen.clear();
        self.begun = now;
    }

    fn settle(&mut self, pool: &str, now: Timestamp, seconds: i64) {
        let mut held: BTreeMap<&str, i128> = BTreeMap::new();
        let mut unmet: Vec<Unmet<'_>> = Vec::new();
        for seen in self.seen.values().filter(|seen| seen.pool == pool) {
            *held.entry(&seen.team).or_default() += seen.held;
            let could = seen.left.min((now - seen.since).num_seconds()).max(0);
            let more = i128::from(could) * i128::from(seen.milli) - seen.held;
            if more > 0 {
                unmet.push(Unmet {
                    team: &seen.team,
                    milli: seen.milli,
                    more,
                });
            }
        }
        let demand = self.demand(pool, &held, unmet, seconds);
        let fair = self.fair(pool, &demand, seconds);
        let in_need: Vec<(String, Had)> = demand
            .iter()
            .filter_map(|(team, asked)| {
                let held = held.get(team).copied().unwrap_or(0);
                let entitled = fair.get(*team).copied().unwrap_or(0);
                (*asked > held).then(|| ((*team).to_owned(), Had { held, entitled }))
            })
            .collect();
        for (team, had) in in_need {
            let sum = self.teams.entry(team).or_default();
            sum.held += had.held;
            sum.entitled += had.entitled;
        }
    }

    /// What teams had and could have used, without what is too wide for any entitlement of theirs: what that
    /// is turns on what others ask for.
    fn demand<'a>(
        &self,
        pool: &str,
        held: &BTreeMap<&'a str, i128>,
        mut unmet: Vec<Unmet<'a>>,
        seconds: i64,
    ) -> BTreeMap<&'a str, i128> {
        loop {
            let mut demand = held.clone();
            for job in &unmet {
                *demand.entry(job.team).or_default() += job.more;
            }
            let waits: Vec<&str> = demand.keys().copied().collect();
            let most: BTreeMap<&str, i64> = waits
                .into_iter()
                .filter(|team| unmet.iter().any(|job| job.team == *team))
                .map(|team| (team, self.most(pool, &demand, team, seconds)))
                .collect();
            let before = unmet.len();
            unmet.retain(|job| job.milli <= most[job.team]);
            if unmet.len() == before {
                return demand;
            }
        }
    }

    /// What a team would be entitled to if it asked for everything, in thousandths of GPUs.
    fn most(&self, pool: &str, demand: &BTreeMap<&str, i128>, team: &str, seconds: i64) -> i64 {
        let here = self.bare.nodes.iter().filter(|node| node.pool == pool);
        let all: i64 = here.map(|node| i64::from(node.gpus) * MILLI).sum();
        let mut asked = rates(demand, seconds);
        asked.insert(team.to_owned(), MilliGpu::from_milli(all));
        let fair = engine::fair_shares(&self.bare, pool, &asked);
        fair.get(team).map_or(0, |gpus| gpus.milli())
    }

    /// The fair shares of demands, in thousandths of GPU-seconds.
    fn fair(
        &self,
        pool: &str,
        demand: &BTreeMap<&str, i128>,
        seconds: i64,
    ) -> BTreeMap<String, i128> {
        let fair = engine::fair_shares(&self.bare, pool, &rates(demand, seconds));
        let sums = fair.into_iter();
        sums.map(|(team, gpus)| (team, i128::from(gpus.milli()) * i128::from(seconds)))
            .collect()
    }

    /// The sums of all hours, by team.
    pub fn teams(&self) -> &BTreeMap<String, Had> {
        &self.teams
    }
}

/// Thousandths of GPU-seconds as GPUs that are asked for all the time, rounded up.
fn rates(demand: &BTreeMap<&str, i128>, seconds: i64) -> BTreeMap<String, MilliGpu> {
    let seconds = i128::from(seconds);
    let rate = |asked: i128| i64::try_from((asked + seconds - 1) / seconds).unwrap_or(i64::MAX);
    demand
        .iter()
        .map(|(team, asked)| ((*team).to_owned(), MilliGpu::from_milli(rate(*asked))))
        .collect()
}
