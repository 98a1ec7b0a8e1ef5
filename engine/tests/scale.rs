//! The worlds of the benchmarks, small: that they are what they say, and that a plan of one is right.

#[path = "../benches/scale/sizes.rs"]
mod sizes;
#[path = "../benches/scale/worlds.rs"]
mod worlds;

use engine::check::violations;
use engine::plan;
use worlds::{Scale, fewest_victims, full, newcomer, singles, waiting};

const SMALL: Scale = Scale {
    nodes: 32,
    tree: [2, 2, 2],
    waiting: 120,
};

#[test]
fn a_small_cluster_is_filled_by_the_rules() {
    let world = waiting(SMALL, 1);
    let plan = plan(&world);
    assert_eq!(violations(&world, &plan), Vec::<String>::new());
    assert_eq!(
        plan.starts.len() + plan.waiting.len(),
        world.workloads.len()
    );
    assert!(plan.starts.len() > 60, "{} start", plan.starts.len());
}

#[test]
fn in_a_small_full_cluster_everything_that_waits_has_a_verdict() {
    let world = full(SMALL, 1);
    let plan = plan(&world);
    assert_eq!(violations(&world, &plan), Vec::<String>::new());
    let waited = world
        .workloads
        .iter()
        .filter(|work| work.placed.is_empty())
        .count();
    assert_eq!(plan.starts.len() + plan.waiting.len(), waited);
    assert!(!plan.preemptions.is_empty() && !plan.reservations.is_empty());
}

#[test]
fn a_gang_takes_hardly_more_than_the_fewest_victims() {
    let mut world = singles(SMALL, 1, 4);
    let least = fewest_victims(&world, 4);
    world.workloads.push(newcomer(SMALL, 4));
    let plan = plan(&world);
    assert_eq!(violations(&world, &plan), Vec::<String>::new());
    assert_eq!(plan.nominations.len(), 1);
    assert!(plan.preemptions.len() * 10 <= least * 11);
}
