//! Elastic gangs: the number of workers that is found by halves is that found one by one.

mod worlds;

use engine::world::{WorkloadState, World};
use proptest::prelude::*;
use worlds::rich::rich;
use worlds::tried;

/// Workers that an elastic gang asks for: more than most worlds hold.
const WORKERS: u32 = 9;

/// The world in which the last of its elastic work waits alone and for one pool, the first of which
/// is taken whatever the next could hold, with so many workers at most and at least; nothing where
/// none waits.
fn alone(world: &World, most: u32, least: Option<u32>) -> Option<(World, String)> {
    let mut world = world.clone();
    let waits = world.workloads.iter();
    let mut waits = waits.filter(|w| w.state == WorkloadState::Waiting && w.nominated.is_none());
    let elastic = waits.rfind(|w| w.min_workers.is_some())?;
    let name = elastic.name.clone();
    world
        .workloads
        .retain(|w| w.state == WorkloadState::Running || w.name == name);
    let row = world.workloads.iter_mut().find(|w| w.name == name)?;
    (row.workers, row.min_workers, row.after) = (most, least, Vec::new());
    row.pools = vec![world.pools[0].name.clone()];
    Some((world, name))
}

fn starts(world: &World, name: &str) -> Option<u32> {
    engine::decide(world)
        .start_of(name)
        .map(|start| start.workers)
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn no_larger_number_of_workers_has_room(recipe in rich()) {
        let world = recipe.world();
        if let Some((elastic, name)) = alone(&world, WORKERS, Some(1)) {
            let found = starts(&elastic, &name);
            let one_by_one = (1..=WORKERS).rev().find(|&workers| {
                let fixed = alone(&world, workers, None);
                fixed.is_some_and(|(fixed, _)| starts(&fixed, &name).is_some())
            });
            prop_assert_eq!(found, one_by_one, "{} in {}", name, engine::scenario::write(&elastic));
        }
    }
}
