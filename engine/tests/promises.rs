//! Promises to teams: what is guaranteed is had within one grace period, and nobody who gave way takes back from who gained.

mod worlds;

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use domain::MilliGpu;
use engine::cycles;
use engine::plan::Reason;
use engine::rig::{before, noon};
use engine::world::{
    Class, Node, Placed, Pool, PreemptionPolicy, Quota, Strategy as Placing, Team, Workload,
    WorkloadState, World,
};
use proptest::prelude::*;
use worlds::dice::Dice;
use worlds::rich::rich;
use worlds::tried;

/// What each of four teams in two departments is guaranteed, borrows at first, and may hold.
#[derive(Debug, Clone)]
struct Promises {
    nodes: Vec<u32>,
    teams: Vec<[u8; 4]>,
    borrowed: Vec<[u8; 5]>,
    policy: [u8; 6],
}

fn promises() -> impl Strategy<Value = Promises> {
    let nodes = prop::collection::vec(1..6_u32, 1..4);
    let teams = prop::collection::vec(any::<[u8; 4]>(), 6);
    let borrowed = prop::collection::vec(any::<[u8; 5]>(), 0..16);
    (nodes, teams, borrowed, any::<[u8; 6]>()).prop_map(|(nodes, teams, borrowed, policy)| {
        Promises {
            nodes,
            teams,
            borrowed,
            policy,
        }
    })
}

impl Promises {
    /// A full cluster of preemptible work of whoever came first, and what each team is guaranteed.
    fn world(&self) -> (World, Vec<i64>) {
        let mut world = World::empty(noon());
        world.classes = ["low", "normal", "high"]
            .iter()
            .zip([0, 50, 100])
            .map(|(name, priority)| Class::new(name, priority, true))
            .collect();
        let mut dice = Dice::of(&self.policy);
        let mut pool = Pool::new("p").preemption(PreemptionPolicy {
            grace_seconds: dice.one(&[30, 0, 90]),
            consolidate: dice.once_in(2),
            // What evens out shares swaps a team's work for other work of it, which takes a grace
            // period of its own.
            across_borrowers: false,
            ..PreemptionPolicy::default()
        });
        pool.strategy = dice.one(&[Placing::Pack, Placing::Spread, Placing::LeastFragmentation]);
        world.pools.push(pool);
        for (i, &gpus) in self.nodes.iter().enumerate() {
            world.nodes.push(Node::new(&format!("n{i}"), "p", gpus));
        }
        let mut left = i64::from(self.nodes.iter().sum::<u32>());
        let mut guaranteed = Vec::new();
        for i in 0..4 {
            let mut dice = Dice::of(&self.teams[i]);
            let own = dice.below(left + 1);
            left -= own;
            guaranteed.push(own);
            let mut row = Quota::guaranteed(MilliGpu::whole(own));
            row.limit = dice.rarely(
                3,
                Some(MilliGpu::whole(own + dice_more(&self.teams[i]))),
                None,
            );
            row.weight_milli = dice.one(&[1000, 0, 3000]);
            let parent = format!("d{}", i / 2);
            world
                .teams
                .push(Team::new(&format!("t{i}")).under(&parent).quota("p", row));
        }
        for i in 0..2 {
            let mut dice = Dice::of(&self.teams[4 + i]);
            let below = guaranteed[2 * i] + guaranteed[2 * i + 1];
            let mut team = Team::new(&format!("d{i}"));
            if dice.once_in(2) {
                let mut row = Quota::guaranteed(MilliGpu::whole(below));
                let limit = MilliGpu::whole(below + dice.below(3));
                row.limit = dice.rarely(2, Some(limit), None);
                team = team.quota("p", row);
            }
            world.teams.push(team);
        }
        for (i, bytes) in self.borrowed.iter().enumerate() {
            let mut dice = Dice::of(bytes);
            let team = format!("t{}", dice.below(4));
            let submitted = before(100 - i as i64);
            let mut job =
                Workload::waiting(&format!("b{i:02}"), &team, dice.one(&[1, 2, 3]), submitted)
                    .class(dice.one(&["normal", "low", "high"]))
                    .workers(dice.one(&[1, 1, 2, 3]));
            job.min_workers = dice.rarely(3, Some(1), None);
            world.workloads.push(job);
        }
        let made = engine::plan(&world);
        cycles::apply(&mut world, &made);
        world
            .workloads
            .retain(|w| w.state == WorkloadState::Running);
        world.now += TimeDelta::minutes(10);
        (world, guaranteed)
    }
}

/// How far above its guarantee a team's limit is.
fn dice_more(bytes: &[u8]) -> i64 {
    i64::from(bytes[3] % 4)
}

/// GPUs that each team's running work has; who moves has those to which it does.
fn held<'w>(world: &'w World, movers: &BTreeSet<String>) -> BTreeMap<&'w str, i64> {
    let mut held = BTreeMap::new();
    for work in &world.workloads {
        let places = match &work.nominated {
            Some(there) if movers.contains(&work.name) => &there.placement,
            _ if work.state == WorkloadState::Running => &work.placed,
            _ => continue,
        };
        let devices = places.iter().map(|p| p.devices.len() as i64);
        *held.entry(work.team.as_str()).or_default() += devices.sum::<i64>();
    }
    held
}

/// Who gains by a victim of its own though those before it left room: each job that gains takes
/// one device, which may be any. What elastic work gave up is counted as used.
fn needless(world: &World, plan: &engine::plan::Plan) -> Option<String> {
    let devices = |placed: &[Placed]| placed.iter().map(|p| p.devices.len() as i64).sum::<i64>();
    let mut rows = world.teams.iter().flat_map(|t| t.quotas.values());
    if rows.any(|row| row.limit.is_some()) {
        // Who is at a limit displaces for it, whatever room there is.
        return None;
    }
    let mut left = 0;
    for nomination in &plan.nominations {
        let mut own = (plan.preemptions.iter())
            .filter(|p| p.gainer.as_ref() == Some(&nomination.workload))
            .peekable();
        if own.peek().is_none() {
            left -= 1;
        } else if left > 0 {
            return Some(nomination.workload.clone());
        }
        let whole = own.filter_map(|p| world.workload(&p.workload));
        let whole = whole.filter(|work| work.min_workers.is_none());
        left += whole.map(|work| devices(&work.placed) - 1).sum::<i64>();
    }
    None
}

/// The state that a plan leads to: victims have left and wait, gainers run, nobody else waits,
/// and no time or count protects anybody.
fn outcome(world: &World, plan: &engine::plan::Plan) -> World {
    let mut after = world.clone();
    cycles::apply(&mut after, plan);
    let victims: Vec<&str> = plan
        .preemptions
        .iter()
        .map(|p| p.workload.as_str())
        .collect();
    let placed: BTreeMap<&str, Vec<Placed>> = (plan.nominations.iter())
        .map(|n| {
            (
                n.workload.as_str(),
                n.placement.iter().map(Placed::from).collect(),
            )
        })
        .chain(plan.migrations.iter().map(|m| {
            (
                m.workload.as_str(),
                m.placement.iter().map(Placed::from).collect(),
            )
        }))
        .collect();
    after.workloads.retain(|w| {
        let kept = placed.contains_key(w.name.as_str()) || victims.contains(&w.name.as_str());
        w.state == WorkloadState::Running || kept
    });
    for work in &mut after.workloads {
        (work.nominated, work.leaves_at) = (None, None);
        if let Some(there) = placed.get(work.name.as_str()) {
            work.state = WorkloadState::Running;
            work.started = Some(after.now);
            work.placed.clone_from(there);
        } else if work.state == WorkloadState::Leaving {
            (work.state, work.started) = (WorkloadState::Waiting, None);
            work.placed.clear();
        }
    }
    for pool in &mut after.pools {
        let policy = &mut pool.preemption;
        policy.min_runtime_seconds = 0;
        policy.min_runtime_reclaim_seconds = None;
        policy.delay_seconds = 0;
        policy.max_per_day = None;
        policy.max_per_team_hour = None;
    }
    after
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn who_asks_for_its_guarantee_has_it_within_one_grace_period(recipe in promises()) {
        let (mut world, guaranteed) = recipe.world();
        for (team, &own) in guaranteed.iter().enumerate() {
            for i in 0..own {
                let job = Workload::waiting(&format!("own{team}-{i}"), &format!("t{team}"), 1, world.now);
                world.workloads.push(job);
            }
        }
        let grace = world.pools[0].preemption.grace_seconds;
        world.cycle_seconds = grace.max(1);
        let asked = world.clone();
        let plan = engine::plan(&asked);
        prop_assert_eq!(needless(&asked, &plan), None, "in {:?} of {}", plan, engine::scenario::write(&asked));
        let (mut plans, mut movers) = (Vec::new(), BTreeSet::new());
        for _ in 0..2 {
            let made = engine::plan(&world);
            movers.extend(made.migrations.iter().map(|m| m.workload.clone()));
            cycles::apply(&mut world, &made);
            plans.push(serde_json::to_string(&made).expect("a plan is written"));
            cycles::advance(&mut world, None);
        }
        let held = held(&world, &movers);
        for (team, &own) in guaranteed.iter().enumerate() {
            let name = format!("t{team}");
            let has = held.get(name.as_str()).copied().unwrap_or(0);
            // A team whose own large job waits before the others has its guarantee kept for it.
            let waits = |w: &&Workload| w.team == name && w.state != WorkloadState::Running;
            if world.workloads.iter().filter(waits).any(|w| w.name.starts_with('b')) {
                continue;
            }
            prop_assert!(has >= own, "{name} has {has} of {own}: {plans:#?} of {}", engine::scenario::write(&asked));
        }
    }

    #[test]
    fn nobody_who_gave_way_takes_back_from_who_gained(recipe in rich()) {
        let mut world = recipe.world();
        for _ in 0..4 {
            let made = engine::plan(&world);
            let by_rule = |reason: Reason| !matches!(reason, Reason::Drain | Reason::Reservation);
            let gave: Vec<(&str, &str)> = made.preemptions.iter()
                .filter(|p| by_rule(p.reason))
                .filter_map(|p| Some((p.workload.as_str(), p.gainer.as_deref()?)))
                .collect();
            if !gave.is_empty() {
                let after = outcome(&world, &made);
                let next = engine::plan(&after);
                for told in &next.preemptions {
                    let back = (told.gainer.as_deref().unwrap_or(""), told.workload.as_str());
                    prop_assert!(!gave.contains(&back), "{back:?} after {} of {} then {} of {}",
                        serde_json::to_string(&made).expect("written"), engine::scenario::write(&world),
                        serde_json::to_string(&next).expect("written"), engine::scenario::write(&after));
                }
            }
            cycles::apply(&mut world, &made);
            cycles::advance(&mut world, None);
        }
    }
}
