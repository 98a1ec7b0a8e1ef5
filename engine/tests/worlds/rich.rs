//! Worlds of all features at once: pools, a tree of teams, nodes of several kinds, work that runs, and work that waits.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use domain::quantity::Points;
use domain::sharing::SharingMode;
use domain::spec::{NvlinkRule, WorkloadKind};
use domain::{MilliCpu, MilliGpu};
use engine::rig::{before, noon};
use engine::world::{
    Backfill, Booking, Charge, Class, MigInstance, MigMode, Node, NodeState, Pool, PoolPolicy,
    PoolState, PreemptionPolicy, Quota, Reclaim, Service, Stopped, Strategy as Placing, Team,
    WithinTeam, Workload, WorkloadState, World,
};
use engine::{cycles, plan};
use proptest::prelude::*;

use super::dice::Dice;

/// Longer than any grace, so that a cycle finds the victims of the last one gone.
const CYCLE_SECONDS: i64 = 31;
/// Cycles that work has run for when the world is handed over.
const PAST_MAX: i64 = 5;

/// What a world of all features is made from.
#[derive(Debug, Clone)]
pub struct Recipe {
    rules: [u8; 32],
    teams: Vec<[u8; 12]>,
    nodes: Vec<[u8; 16]>,
    jobs: Vec<[u8; 32]>,
    late: Vec<[u8; 32]>,
    bookings: Vec<[u8; 6]>,
    services: [u8; 2],
}

/// Recipes for worlds of all features at once.
pub fn rich() -> impl Strategy<Value = Recipe> {
    let teams = prop::collection::vec(any::<[u8; 12]>(), 4..=6);
    let nodes = prop::collection::vec(any::<[u8; 16]>(), 1..5);
    let jobs = prop::collection::vec(any::<[u8; 32]>(), 0..14);
    let late = prop::collection::vec(any::<[u8; 32]>(), 0..10);
    let bookings = prop::collection::vec(any::<[u8; 6]>(), 0..3);
    let (rules, services) = (any::<[u8; 32]>(), any::<[u8; 2]>());
    let all = (rules, teams, nodes, jobs, late, bookings, services);
    all.prop_map(
        |(rules, teams, nodes, jobs, late, bookings, services)| Recipe {
            rules,
            teams,
            nodes,
            jobs,
            late,
            bookings,
            services,
        },
    )
}

impl Recipe {
    /// The world: some of its work runs, leaves or has room kept for it.
    pub fn world(&self) -> World {
        let mut dice = Dice::of(&self.rules);
        let mut world = World::empty(noon());
        world.cycle_seconds = CYCLE_SECONDS;
        world.classes = vec![
            Class::new("low", 0, true),
            Class::new("normal", 50, true),
            Class::new("high", 100, true),
            Class::new("fixed", 100, false),
        ];
        let past = dice.below(PAST_MAX + 1);
        world.pools.push(pool("p", &mut dice));
        if dice.once_in(3) {
            world.pools.push(pool("q", &mut dice));
        }
        for (i, bytes) in self.nodes.iter().enumerate() {
            let node = node(i, &mut Dice::of(bytes), &world);
            world.nodes.push(node);
        }
        world.teams = tree(&self.teams, &world);
        let mut most = Dice::of(&self.services);
        let mut most = || most.one(&[8, 8, 1, 2]);
        world.services = vec![
            service("s0", "t0", 1..=most()),
            service("s1", "t1", 0..=most()),
        ];
        for (i, bytes) in self.jobs.iter().enumerate() {
            let job = job(i, &mut Dice::of(bytes), &world);
            world.workloads.push(job);
        }
        for _ in 0..past {
            let made = plan(&world);
            cycles::apply(&mut world, &made);
            cycles::advance(&mut world, None);
        }
        for (i, bytes) in self.bookings.iter().enumerate() {
            let booking = booking(i, &mut Dice::of(bytes), &world);
            world.bookings.push(booking);
        }
        for (i, bytes) in self.late.iter().enumerate() {
            let job = job(self.jobs.len() + i, &mut Dice::of(bytes), &world);
            world.workloads.push(job);
        }
        for (node, bytes) in world.nodes.iter_mut().zip(&self.nodes) {
            befall(node, &mut Dice::of(&bytes[12..]));
        }
        world
    }
}

fn pool(name: &str, dice: &mut Dice<'_>) -> Pool {
    let preemption = PreemptionPolicy {
        within_team: dice.one(&[WithinTeam::Never, WithinTeam::LowerPriority]),
        reclaim: dice.one(&[
            Reclaim::Any,
            Reclaim::Any,
            Reclaim::Any,
            Reclaim::LowerPriority,
            Reclaim::Never,
        ]),
        across_borrowers: dice.once_in(2),
        min_runtime_seconds: dice.one(&[0, 0, 0, 0, 60, 1_000_000]),
        min_runtime_reclaim_seconds: dice.one(&[None, Some(0), Some(90)]),
        delay_seconds: dice.rarely(8, 300, 0),
        max_per_day: dice.one(&[None, None, None, None, Some(1), Some(0)]),
        max_per_team_hour: dice.one(&[None, None, None, Some(1), Some(2)]),
        grace_seconds: dice.one(&[0, 30, 90]),
        consolidate: dice.once_in(2),
    };
    let policy = PoolPolicy {
        state: dice.rarely(16, PoolState::Closed, PoolState::Open),
        strategy: dice.one(&[Placing::Pack, Placing::Spread, Placing::LeastFragmentation]),
        sharing: SharingMode::ALL.to_vec(),
        time_slices: dice.one(&[4, 4, 4, 2, 1]),
        mps_across_teams: dice.once_in(2),
        mig_mode: dice.one(&[
            MigMode::Dynamic,
            MigMode::Dynamic,
            MigMode::Dynamic,
            MigMode::Static,
            MigMode::Never,
        ]),
        backfill: dice.one(&[
            Backfill::Easy,
            Backfill::Conservative,
            Backfill::None,
            Backfill::Strict,
        ]),
        charge: dice.one(&[Charge::Gpus, Charge::Gpus, Charge::Dominant]),
        non_preemptible_borrowing: dice.once_in(3),
        ageing_per_hour: dice.one(&[Points::ZERO, Points::ZERO, Points::whole(50)]),
        usage_half_life_seconds: dice.one(&[None, None, Some(3600)]),
        whole_node_guarantees: dice.once_in(3),
        preemption,
    };
    Pool {
        name: name.to_owned(),
        policy,
    }
}

fn node(i: usize, dice: &mut Dice<'_>, world: &World) -> Node {
    let pools: Vec<&str> = world.pools.iter().map(|p| p.name.as_str()).collect();
    let gpus = dice.one(&[4, 4, 2, 8, 4, 3, 1, 0]);
    let mut node = Node::new(&format!("n{i}"), dice.one(&pools), gpus);
    node.mps_across_teams = !i.is_multiple_of(3);
    let (model, memory) = dice.one(&[
        ("H100-80GB", 81_559),
        ("H100-80GB", 81_559),
        ("H100-80GB", 81_559),
        ("H100-80GB", 81_559),
        ("A30-24GB", 24_576),
        ("L4", 23_034),
    ]);
    node.gpu_model = Some(model.to_owned());
    node.gpu_memory_mib = memory;
    node.cpus = MilliCpu::whole(dice.one(&[64, 64, 8, 4]));
    node.memory_mib = dice.one(&[524_288, 524_288, 16_384]);
    let all: Vec<u32> = (0..gpus).collect();
    let half = all.len() / 2;
    let halves = vec![all[..half].to_vec(), all[half..].to_vec()];
    node.nvlink = dice.one(&[vec![all.clone()], halves.clone(), Vec::new()]);
    node.numa = dice.one(&[vec![all], halves, Vec::new()]);
    for (label, values) in [
        ("rack", ["r0", "r1", "r0", "r1", ""]),
        ("zone", ["z0", "z0", "z0", "z1", ""]),
    ] {
        let value = dice.one(&values);
        if !value.is_empty() {
            node = node.label(label, value);
        }
    }
    if model == "H100-80GB" && gpus > 0 && dice.once_in(3) {
        let layout: &[(&str, u32)] = dice.one(&[
            &[][..],
            &[("3g.40gb", 0), ("1g.10gb+me", 4)][..],
            &[("1g.10gb", 0), ("1g.10gb", 3), ("2g.20gb", 4)][..],
        ]);
        let instances = layout.iter().map(|&(profile, start)| MigInstance {
            profile: profile.to_owned(),
            start: Some(start),
        });
        node.mig.insert(gpus - 1, instances.collect());
    }
    node
}

/// What becomes of a node after work has been put on it.
pub fn befall(node: &mut Node, dice: &mut Dice<'_>) {
    let (cordoned, draining) = (NodeState::Cordoned, NodeState::Draining);
    let befallen = dice.one(&[cordoned, draining, draining, NodeState::Unreachable]);
    node.state = dice.rarely(8, befallen, NodeState::Ready);
    if node.gpus > 0 && dice.once_in(12) {
        node.failed = vec![0];
    }
}

/// Two departments, and teams below them.
fn tree(rows: &[[u8; 12]], world: &World) -> Vec<Team> {
    let mut teams = vec![Team::new("d0"), Team::new("d1")];
    for (i, bytes) in rows.iter().enumerate() {
        let mut dice = Dice::of(bytes);
        let mut team = Team::new(&format!("t{i}")).under(&format!("d{}", i % 2));
        for pool in &world.pools {
            if pool.name == "q" && dice.once_in(4) {
                continue;
            }
            let guaranteed = dice.one(&[1000, 0, 2000, 500, 0]);
            let more = dice.one(&[None, None, None, None, Some(0), Some(1000), Some(2250)]);
            let quota = Quota {
                guaranteed: MilliGpu::from_milli(guaranteed),
                limit: more.map(|more| MilliGpu::from_milli(guaranteed + more)),
                lend_limit: dice
                    .one(&[None, None, None, None, Some(0), Some(1)])
                    .map(MilliGpu::whole),
                weight_milli: dice.one(&[1000, 2000, 0, 333]),
            };
            team = team.quota(&pool.name, quota);
        }
        let p = || "p".to_owned();
        if let Some(most) = dice.rarely(8, Some(2000), None) {
            team.max_per_user.insert(p(), MilliGpu::from_milli(most));
        }
        let past = dice.one(&[0, 1000, 50_000]);
        if past > 0 {
            team.past_use.insert(p(), past * 1000);
        }
        let hour = dice.one(&[0, 0, 1]);
        if hour > 0 {
            team.preemptions_this_hour.insert(p(), hour);
        }
        let stopped = dice.one(&[Stopped::Borrowing, Stopped::All]);
        team.stopped = dice.rarely(20, stopped, Stopped::None);
        teams.push(team);
    }
    // A department may promise more than its teams do, and bound them.
    for at in 0..2 {
        let mut dice = Dice::of(&rows[at][10..]);
        let below: i64 = (teams.iter().skip(2).skip(at).step_by(2))
            .filter_map(|t| t.quotas.get("p"))
            .map(|q| q.guaranteed.milli())
            .sum();
        if dice.once_in(2) {
            let own = below + dice.one(&[0, 1000]);
            let mut row = Quota::guaranteed(MilliGpu::from_milli(own));
            row.limit = dice
                .one(&[None, Some(own), Some(own + 1000)])
                .map(MilliGpu::from_milli);
            teams[at].quotas = BTreeMap::from([("p".to_owned(), row)]);
        }
    }
    teams
}

/// A service that keeps its first number of replicas, and has as many as the second at most.
fn service(name: &str, team: &str, replicas: RangeInclusive<u32>) -> Service {
    Service {
        name: name.to_owned(),
        team: team.to_owned(),
        min_replicas: *replicas.start(),
        max_replicas: *replicas.end(),
    }
}

pub fn job(i: usize, dice: &mut Dice<'_>, world: &World) -> Workload {
    let teams: Vec<&str> = (world.teams.iter().map(|t| t.name.as_str()))
        .filter(|name| name.starts_with('t'))
        .collect();
    let team = dice.one(&teams);
    let submitted = before(30 + dice.below(200));
    let gpus = dice.one(&[1, 2, 1, 3, 1, 4, 0]);
    let mut job = Workload::waiting(&format!("j{i:02}"), team, gpus, submitted);
    job.class = dice
        .one(&["normal", "low", "high", "low", "normal", "fixed"])
        .to_owned();
    asks(&mut job, dice);
    job.workers = dice.one(&[1, 1, 2, 3]);
    job.min_workers = dice.one(&[None, None, Some(1)]);
    job.per_worker.cpus = MilliCpu::whole(dice.one(&[0, 0, 1, 2]));
    job.per_worker.memory_mib = dice.one(&[0, 0, 1024, 4096]);
    job.user = dice.one(&[None, Some("u0"), Some("u1")]).map(str::to_owned);
    job.kind = dice.one(&[WorkloadKind::Batch, WorkloadKind::Inference]);
    let minutes = |m: Option<i64>| m.map(|m| m * 60);
    job.time_limit_seconds = minutes(dice.one(&[None, Some(5), Some(30), Some(120)]));
    job.predicted_seconds = minutes(dice.one(&[None, None, None, Some(1), Some(40)]));
    job.preemptible = dice.one(&[None, None, None, None, None, Some(true), Some(false)]);
    job.checkpoint_seconds = dice.one(&[None, Some(60)]);
    let rack = || Some("rack".to_owned());
    job.topology.require = dice.rarely(8, rack(), None);
    job.topology.prefer = dice.rarely(4, rack(), None);
    job.nvlink = dice.one(&[NvlinkRule::Prefer, NvlinkRule::Any]);
    job.nvlink = dice.rarely(10, NvlinkRule::Require, job.nvlink);
    if dice.once_in(16) {
        job.selector.insert("zone".to_owned(), "z0".to_owned());
    }
    job.node = dice.once_in(24).then(|| "n0".to_owned());
    if dice.once_in(3) && ["t0", "t1"].contains(&team) {
        job.service = Some(format!("s{}", &team[1..]));
        job.anti_affinity = dice.rarely(4, rack(), None);
    }
    job.state = dice.rarely(30, WorkloadState::Suspended, WorkloadState::Waiting);
    job.not_before = dice.once_in(20).then(|| before(-2));
    if dice.once_in(20) && i > 0 {
        job.after = vec![format!("j{:02}", i - 1)];
    }
    if world.pools.len() > 1 {
        let (p, q) = (|| "p".to_owned(), || "q".to_owned());
        job.pools = dice.one(&[vec![], vec![q(), p()], vec![p(), q()], vec![q()], vec![p()]]);
    }
    job
}

/// What a worker asks of devices.
fn asks(job: &mut Workload, dice: &mut Dice<'_>) {
    let asked = &mut job.per_worker;
    match dice.below(11) {
        0..=6 => {
            asked.gpu_model = dice.rarely(10, Some("H100-80GB".to_owned()), None);
            asked.gpu_memory_mib = dice.rarely(10, Some(40_000), None);
        }
        7 | 8 => {
            let profile = dice.one(&[
                "1g.10gb",
                "2g.20gb",
                "3g.40gb",
                "1g.10gb+me",
                "1g.20gb",
                "7g.80gb",
                "1g.6gb",
            ]);
            asked.mig_profile = Some(profile.to_owned());
            asked.sharing = vec![SharingMode::Mig];
            asked.gpus = Some(MilliGpu::whole(dice.one(&[1, 1, 2, 3])));
        }
        _ => {
            let (slice, mps, vgpu) = (SharingMode::TimeSlice, SharingMode::Mps, SharingMode::Vgpu);
            asked.sharing = dice.one(&[vec![slice], vec![mps], vec![vgpu], vec![mps, slice]]);
            asked.gpus = Some(MilliGpu::from_milli(dice.one(&[250, 500, 100, 333])));
            asked.gpu_memory_mib = dice.one(&[None, None, Some(8_000), Some(23_000)]);
        }
    }
}

fn booking(i: usize, dice: &mut Dice<'_>, world: &World) -> Booking {
    let begins = dice.one(&[0, -10, 5, 60]);
    let minute = |minutes: i64| world.now - chrono::TimeDelta::minutes(-minutes);
    Booking {
        name: format!("b{i}"),
        team: dice.one(&["t0", "t1", "d0"]).to_owned(),
        pool: "p".to_owned(),
        gpus: MilliGpu::from_milli(dice.one(&[1000, 2000, 500])),
        from: minute(begins),
        to: minute(begins + dice.one(&[30, 3, 300])),
    }
}
