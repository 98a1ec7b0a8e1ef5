//! The largest and smallest values that a scenario may have: nothing overflows, and the checker finds nothing.

mod worlds;

use std::collections::BTreeSet;

use chrono::TimeZone;
use domain::policy::AGEING_PER_HOUR_MAX;
use domain::{MilliCpu, MilliGpu};
use engine::check::violations;
use engine::rig::{Rig, noon};
use engine::statement::{Starved, statements};
use engine::world::{Workload, WorkloadState, World};
use proptest::prelude::*;
use worlds::dice::Dice;
use worlds::rich::rich;
use worlds::tried;

/// A hundred years, the longest duration of a scenario, in seconds.
const CENTURY: i64 = 100 * 366 * 24 * 3600;
/// The most memory of a node, device or worker: 64 TiB.
const MEMORY_MIB: i64 = 64 * 1024 * 1024;

fn year(year: i32) -> domain::Timestamp {
    chrono::Utc
        .with_ymd_and_hms(year, 1, 1, 0, 0, 0)
        .single()
        .expect("a time")
}

/// The nodes on which work stands, or will.
fn used(world: &World) -> BTreeSet<String> {
    let kept = |work: &'_ Workload| work.nominated.clone().map(|kept| kept.placement);
    let works = world.workloads.iter();
    let placed = works.flat_map(|w| {
        w.placed
            .iter()
            .cloned()
            .chain(kept(w).into_iter().flatten())
    });
    placed.map(|place| place.node).collect()
}

/// The world with some values at their bounds, and none that contradicts another.
fn stretched(mut world: World, bytes: &[u8]) -> World {
    let mut dice = Dice::of(bytes);
    world.history.clear();
    // Ranks in their grace go on as rows that no file has.
    world
        .workloads
        .retain(|w| w.name.chars().all(|c| !c.is_control()));
    let used = used(&world);
    let far = |dice: &mut Dice<'_>| dice.once_in(3);
    for pool in &mut world.pools {
        if far(&mut dice) {
            pool.ageing_per_hour = AGEING_PER_HOUR_MAX;
        }
        if far(&mut dice) {
            pool.usage_half_life_seconds = Some(dice.one(&[1, CENTURY]));
        }
        if far(&mut dice) {
            pool.preemption.grace_seconds = CENTURY;
        }
        if far(&mut dice) {
            pool.preemption.min_runtime_seconds = CENTURY;
        }
        if far(&mut dice) {
            pool.preemption.delay_seconds = CENTURY;
        }
        if far(&mut dice) {
            pool.charge = engine::world::Charge::Dominant;
        }
    }
    for node in &mut world.nodes {
        // What stands there has memory of it, and instances are cut out of it.
        if far(&mut dice) && node.mig.is_empty() && !used.contains(&node.name) {
            node.gpu_memory_mib = dice.one(&[1, MEMORY_MIB]);
        }
        if far(&mut dice) {
            node.cpus = dice.one(&[
                MilliCpu::ZERO,
                MilliCpu::from_milli(1),
                MilliCpu::whole(100_000),
            ]);
        }
        if far(&mut dice) {
            node.memory_mib = dice.one(&[0, 1, MEMORY_MIB, MEMORY_MIB - 1]);
        }
    }
    for class in &mut world.classes {
        if far(&mut dice) {
            class.priority = dice.one(&[1_000_000_000, -1_000_000_000]);
        }
    }
    for team in &mut world.teams {
        for quota in team.quotas.values_mut() {
            if far(&mut dice) {
                quota.weight_milli = dice.one(&[1, 1_000_000_000, 999_999_999]);
            }
            if far(&mut dice) {
                quota.limit = Some(quota.guaranteed.max(MilliGpu::from_milli(1)));
            }
        }
        if far(&mut dice) {
            let past = dice.one(&[1, 1_000_000_000_000_000]);
            team.past_use.insert("p".to_owned(), past);
        }
    }
    for work in &mut world.workloads {
        let waits = work.placed.is_empty();
        if far(&mut dice) {
            work.submitted = dice.one(&[year(1970), year(2200)]);
        }
        if far(&mut dice) {
            work.time_limit_seconds = Some(dice.one(&[CENTURY, 1]));
        }
        if far(&mut dice) {
            work.predicted_seconds = Some(dice.one(&[CENTURY, 1]));
        }
        if far(&mut dice) {
            work.checkpoint_seconds = Some(dice.one(&[CENTURY, 1]));
            work.restart_seconds = CENTURY;
        }
        if far(&mut dice) && work.started.is_some() {
            work.started = Some(year(1970));
        }
        if far(&mut dice) && waits && work.nominated.is_none() {
            // An elastic gang is tried with every number that the nodes may hold: parts are many.
            work.workers = if work.min_workers.is_some() {
                64
            } else {
                16_384
            };
        }
        if far(&mut dice) && waits {
            work.per_worker.cpus = MilliCpu::from_milli(dice.one(&[1, 100_000_000]));
        }
        if far(&mut dice) && waits {
            work.per_worker.memory_mib = dice.one(&[1, MEMORY_MIB]);
        }
        if far(&mut dice) && waits && work.per_worker.fraction() {
            work.per_worker.gpus = Some(MilliGpu::from_milli(dice.one(&[1, 999])));
            work.per_worker.gpu_memory_mib = dice.one(&[None, Some(1), Some(MEMORY_MIB)]);
        }
    }
    for booking in &mut world.bookings {
        if far(&mut dice) {
            (booking.from, booking.to) =
                dice.one(&[(year(1970), year(2200)), (year(2199), year(2200))]);
        }
    }
    if far(&mut dice) {
        world.cycle_seconds = CENTURY;
    }
    world
}

/// How many wait that may start in a pool some time.
fn queued(world: &World, pool: &str) -> usize {
    let has_row = |team: &str| {
        let team = world.teams.iter().find(|t| t.name == team);
        team.is_some_and(|team| team.quotas.contains_key(pool))
    };
    let waits = world.workloads.iter().filter(|w| {
        w.state == WorkloadState::Waiting
            && (w.pools.is_empty() || w.pools.iter().any(|p| p == pool))
            && has_row(&w.team)
    });
    waits.count()
}

/// Each number of workers from the largest on was tried on all nodes, which took minutes.
#[test]
fn the_largest_elastic_gang_starts_with_what_there_is() {
    let mut gang = Workload::waiting("gang", "a", 1, noon());
    (gang.workers, gang.min_workers) = (16_384, Some(1));
    let plan = Rig::new().nodes(100, 8).team("a", 8).work(gang).plan();
    assert_eq!(plan.starts.len(), 1);
    assert_eq!(plan.starts[0].workers, 800);
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn no_value_within_the_bounds_is_too_much(recipe in rich(), bytes in prop::collection::vec(any::<u8>(), 400)) {
        let text = engine::scenario::write(&stretched(recipe.world(), &bytes));
        let read = engine::scenario::parse(&text);
        prop_assert!(read.is_ok(), "{:?} of {text}", read.err());
        let world = read.expect("it is");
        let plan = engine::plan(&world);
        let found = violations(&world, &plan);
        prop_assert!(found.is_empty(), "{found:#?} in {} of {text}", serde_json::to_string(&plan).expect("written"));
        let statements = statements(&world, &Starved::new());
        prop_assert!(statements.iter().all(|s| s.held.milli() >= 0 && s.reclaimable.milli() >= 0));
        let there: usize = world.pools.iter().map(|pool| queued(&world, &pool.name)).sum();
        let queues = engine::order::queue(&world);
        prop_assert_eq!(queues.iter().map(|queue| queue.workloads.len()).sum::<usize>(), there);
        let plans = engine::cycles::run(world, 2);
        prop_assert_eq!(serde_json::to_string(&plans[0]).expect("written"), serde_json::to_string(&plan).expect("written"));
    }
}
