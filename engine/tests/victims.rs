//! The rules of preemption, one by one, on worlds of all features: what gives way is enough, all of it is
//! needed, it is kept for who gains, and there is an end to it. That gangs give way whole and that only
//! they do whom policy lets, the checker demands of every plan; that nobody takes back from who gained is
//! in `promises.rs`.

mod worlds;

use std::collections::BTreeMap;

use engine::cycles;
use engine::plan::{Plan, Preemption, Reason};
use engine::world::{PreemptionPolicy, Reclaim, WithinTeam, Workload, WorkloadState, World};
use proptest::prelude::*;
use worlds::rich::rich;
use worlds::tried;

/// Cycles within which the longest grace is over and who gained has started.
const GRACE_CYCLES: usize = 6;
/// Cycles that are looked at from the world that is given.
const CYCLES: usize = 4;
/// Cycles within which a world must come to rest.
const REST: usize = 200;

/// Who gives way to work by the policy of a pool: not for a booking, and not because a node is emptied.
fn by_policy(plan: &Plan) -> impl Iterator<Item = &Preemption> {
    let told = plan.preemptions.iter();
    told.filter(|p| !matches!(p.reason, Reason::Drain | Reason::Reservation))
}

/// The world with nothing that keeps room for later: no bookings, no room kept, nobody about to leave.
fn plain(mut world: World) -> World {
    world.bookings.clear();
    (world.workloads).retain(|w| w.state != WorkloadState::Leaving && w.nominated.is_none());
    world
}

/// The world in which nobody gives way or moves.
fn still(mut world: World) -> World {
    for pool in &mut world.pools {
        pool.preemption = PreemptionPolicy {
            reclaim: Reclaim::Never,
            within_team: WithinTeam::Never,
            across_borrowers: false,
            consolidate: false,
            ..PreemptionPolicy::default()
        };
    }
    world
}

/// The world in which work has so many workers left.
fn cut(world: &mut World, workload: &str, workers: usize) {
    if workers == 0 {
        world.workloads.retain(|w| w.name != workload);
    }
    let rows = world.workloads.iter_mut();
    for row in rows.filter(|w| w.name == workload) {
        row.placed.truncate(workers);
    }
}

fn told(plan: &Plan) -> String {
    serde_json::to_string(plan).expect("a plan is written")
}

proptest! {
    #![proptest_config(tried())]

    /// Sufficient, committed and useful: the room is kept for who gains until it starts, which it does
    /// once the grace is over.
    #[test]
    fn who_gains_by_victims_keeps_the_room_and_starts_once_they_have_left(recipe in rich()) {
        let mut world = plain(recipe.world());
        let first = world.clone();
        let made = engine::plan(&world);
        let mut gainers: Vec<String> = by_policy(&made).filter_map(|p| p.gainer.clone()).collect();
        cycles::apply(&mut world, &made);
        let mut plans = vec![told(&made)];
        for _ in 0..GRACE_CYCLES {
            cycles::advance(&mut world, None);
            let made = engine::plan(&world);
            plans.push(told(&made));
            gainers.retain(|gainer| made.start_of(gainer).is_none());
            for gainer in &gainers {
                prop_assert!(made.nomination_of(gainer).is_some(), "{gainer} in {plans:#?} of {}", engine::scenario::write(&first));
            }
            cycles::apply(&mut world, &made);
        }
        prop_assert!(gainers.is_empty(), "{gainers:?} in {plans:#?} of {}", engine::scenario::write(&first));
    }

    /// Minimal: with any victim left in place, or with one worker more of one that shrinks, there is no room.
    #[test]
    fn no_victim_could_have_stayed(recipe in rich(), which in 0..8_usize) {
        let mut world = plain(recipe.world());
        let waits: Vec<String> = (world.workloads.iter())
            .filter(|w| w.state == WorkloadState::Waiting && w.after.is_empty())
            .map(|w| w.name.clone())
            .collect();
        let Some(alone) = waits.get(which % waits.len().max(1)) else { return Ok(()) };
        world.workloads.retain(|w| w.state == WorkloadState::Running || w.name == *alone);
        let plan = engine::plan(&world);
        let victims: Vec<&Preemption> = by_policy(&plan).collect();
        if victims.iter().any(|v| v.gainer.as_ref() != Some(alone)) || victims.len() != plan.preemptions.len() {
            return Ok(());
        }
        let row = |name: &str| world.workload(name).expect("it is there");
        let root = |team: &str| {
            let of = world.teams.iter().find(|t| t.name == team);
            of.and_then(|t| t.parent.clone()).unwrap_or_else(|| team.to_owned())
        };
        for stays in &victims {
            // What leaves beside the one who gains may be what brings it into the guarantee of their
            // department, by which it takes the others.
            let own = row(&stays.workload);
            let beside = root(&own.team) == root(&row(alone).team);
            if beside && victims.iter().any(|v| row(&v.workload).team != own.team) {
                continue;
            }
            let mut without = still(world.clone());
            for other in victims.iter().filter(|v| v.workload != stays.workload) {
                cut(&mut without, &other.workload, other.to_workers as usize);
            }
            cut(&mut without, &stays.workload, stays.to_workers as usize + stays.released.len());
            let then = engine::decide(&without);
            prop_assert!(then.start_of(alone).is_none(), "{} need not give way: {} of {}",
                stays.workload, told(&plan), engine::scenario::write(&world));
        }
    }

    /// Bounded: by what a team may suffer in an hour, and a workload in a day.
    #[test]
    fn nobody_gives_way_more_often_than_policy_lets(recipe in rich()) {
        let mut world = recipe.world();
        for _ in 0..CYCLES {
            let made = engine::plan(&world);
            let mut taken: BTreeMap<(String, String), u32> = BTreeMap::new();
            for victim in by_policy(&made) {
                let work = world.workload(&victim.workload).expect("it runs");
                let node = world.nodes.iter().find(|n| n.name == work.placed[0].node).expect("it is there");
                let pool = world.pools.iter().find(|p| p.name == node.pool).expect("it is there");
                let day = pool.preemption.max_per_day;
                prop_assert!(day.is_none_or(|most| work.preemptions_today < most), "{victim:?}");
                *taken.entry((work.team.clone(), pool.name.clone())).or_default() += 1;
            }
            for ((team, pool), taken) in taken {
                let row = world.teams.iter().find(|t| t.name == team).expect("it is there");
                let before = row.preemptions_this_hour.get(&pool).copied().unwrap_or(0);
                let hour = world.pools.iter().find(|p| p.name == pool).and_then(|p| p.preemption.max_per_team_hour);
                prop_assert!(hour.is_none_or(|most| before + taken <= most), "{team} in {}: {}", told(&made), engine::scenario::write(&world));
            }
            cycles::apply(&mut world, &made);
            cycles::advance(&mut world, None);
        }
    }

    /// The first half of T-2.10, with all features: a fixed point within jobs × teams evictions.
    #[test]
    fn every_world_of_all_features_comes_to_rest_with_few_evictions(recipe in rich()) {
        let mut world = recipe.world();
        let first = world.clone();
        let most = world.workloads.len() * world.teams.len();
        let mut evictions = 0;
        let mut at_rest = false;
        for _ in 0..REST {
            let made = engine::plan(&world);
            evictions += made.preemptions.len();
            let rests = made.idle();
            cycles::apply(&mut world, &made);
            cycles::advance(&mut world, None);
            let pending = |w: &Workload| w.state == WorkloadState::Leaving || w.nominated.as_ref().is_some_and(|room| room.until > world.now);
            if rests && !world.workloads.iter().any(pending) {
                at_rest = true;
                break;
            }
        }
        prop_assert!(at_rest, "it does not come to rest in {REST} cycles: {}", engine::scenario::write(&first));
        prop_assert!(evictions <= most, "{evictions} evictions of {most} in {}", engine::scenario::write(&first));
    }
}
