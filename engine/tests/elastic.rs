//! Elastic gangs: the number of workers that is found by halves is that found one by one.

mod worlds;

use domain::MilliCpu;
use engine::rig::{Rig, before, noon};
use engine::world::{
    Node, Pool, PreemptionPolicy, Reclaim, Strategy as Placing, Workload, WorkloadState, World,
};
use proptest::prelude::*;
use worlds::dice::Dice;
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

/// An elastic gang that runs and may grow.
fn grows(world: &World) -> Option<String> {
    let mut runs = world.workloads.iter();
    let gang = runs.rfind(|w| w.state == WorkloadState::Running && w.min_workers.is_some())?;
    Some(gang.name.clone())
}

fn placed(world: &World, name: &str) -> u32 {
    world.workload(name).map_or(0, |w| w.placed.len() as u32)
}

/// The world in which a gang runs that asks for so many workers, and nothing waits.
fn sized(world: &World, name: &str, workers: u32) -> World {
    let mut world = world.clone();
    (world.workloads).retain(|w| w.state == WorkloadState::Running);
    for row in &mut world.workloads {
        if row.name == name {
            row.workers = workers;
        } else {
            // What else could grow would take what this one leaves.
            row.workers = row.placed.len() as u32;
            row.min_workers = row.min_workers.map(|least| least.min(row.workers));
        }
    }
    world
}

/// How many workers a gang grows to.
fn growth(world: &World, name: &str) -> Option<u32> {
    let plan = engine::decide(world);
    let grown = plan.resizes.iter().find(|r| r.workload == name)?;
    Some(grown.to)
}

/// Nodes of a few devices on which work stands that may move, and a gang that asks for so many workers.
fn scattered(nodes: &[[u8; 12]], job: [u8; 4], workers: u32, least: Option<u32>) -> World {
    let mut dice = Dice::of(&job);
    let mut pool = Pool::new("p").preemption(PreemptionPolicy {
        reclaim: Reclaim::Never,
        consolidate: true,
        ..PreemptionPolicy::default()
    });
    pool.strategy = dice.one(&[Placing::Pack, Placing::Spread]);
    let mut gang = Workload::waiting("gang", "t", dice.one(&[2, 1, 3]), before(5)).workers(workers);
    gang.min_workers = least;
    gang.per_worker.cpus = MilliCpu::whole(dice.one(&[0, 0, 1]));
    gang.topology.require = dice.rarely(4, Some("rack".to_owned()), None);
    let mut rig = Rig::new().pool(pool).team("t", 0).work(gang);
    let mut halves: Vec<Workload> = Vec::new();
    for (i, bytes) in nodes.iter().enumerate() {
        let mut dice = Dice::of(bytes);
        let gpus = dice.one(&[4, 2, 3, 6]);
        let name = format!("n{i}");
        let mut node = Node::new(&name, "p", gpus).host(dice.one(&[64, 6]), 4096);
        node = node.label("rack", dice.one(&["r0", "r1"]));
        rig = rig.node(node);
        let mut device = 0;
        while device < gpus {
            let takes = dice.one(&[1, 0, 0, 2]).min(gpus - device);
            let devices: Vec<u32> = (device..device + takes).collect();
            device += takes.max(1);
            if takes == 0 {
                continue;
            }
            let name = format!("w{i}-{device}");
            let mut work = Workload::waiting(&name, "t", takes.into(), before(60));
            work.per_worker.cpus = MilliCpu::whole(dice.one(&[0, 0, 1]));
            let ran = before(50 - dice.below(40));
            let work = work.running_on(&format!("n{i}"), &devices, ran);
            match dice.below(6) {
                0 => rig = rig.work(work.class("fixed")),
                1 => halves.push(work),
                _ => rig = rig.work(work),
            }
        }
    }
    // Some are gangs of two, here and there.
    while let (Some(mut one), Some(other)) = (halves.pop(), halves.pop()) {
        let alike = one.placed[0].devices.len() == other.placed[0].devices.len();
        if alike {
            one.workers = 2;
            one.placed.extend(other.placed);
        }
        rig = rig.work(one);
    }
    rig.world().clone()
}

/// With how many workers room is made for the gang by moves.
fn made_room(world: &World) -> Option<usize> {
    let plan = Rig::new().with(|w| *w = world.clone()).plan();
    plan.nomination_of("gang").map(|n| n.placement.len())
}

/// Each number of workers from the largest on was tried on all nodes, which took minutes.
#[test]
fn the_largest_elastic_gang_grows_to_what_there_is() {
    let mut gang = Workload::waiting("gang", "a", 1, noon()).running_on("n1", &[0], noon());
    (gang.workers, gang.min_workers) = (16_384, Some(1));
    let plan = Rig::new().nodes(100, 8).team("a", 8).work(gang).plan();
    assert_eq!((plan.resizes[0].from, plan.resizes[0].to), (1, 800));
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

    #[test]
    fn moves_make_room_for_no_larger_number_of_workers(
        nodes in prop::collection::vec(any::<[u8; 12]>(), 2..9),
        job in any::<[u8; 4]>(),
        least in 1..5_u32,
    ) {
        let most = least + WORKERS;
        let elastic = scattered(&nodes, job, most, Some(least));
        let found = made_room(&elastic);
        let started = engine::decide(&elastic).start_of("gang").is_some();
        let one_by_one = (least..=most).rev().filter(|_| !started).find(|&workers| {
            made_room(&scattered(&nodes, job, workers, None)).is_some()
        });
        prop_assert_eq!(found, one_by_one.map(|n| n as usize), "{}", engine::scenario::write(&elastic));
    }

    #[test]
    fn no_gang_could_grow_to_a_larger_number_of_workers(recipe in rich()) {
        let world = recipe.world();
        let Some(name) = grows(&world) else { return Ok(()) };
        let (most, from) = (sized(&world, &name, WORKERS), placed(&world, &name));
        let found = growth(&most, &name);
        let one_by_one = (from + 1..=WORKERS).rev().find(|&workers| {
            growth(&sized(&world, &name, workers), &name) == Some(workers)
        });
        prop_assert_eq!(found, one_by_one, "{} in {}", name, engine::scenario::write(&most));
    }
}
