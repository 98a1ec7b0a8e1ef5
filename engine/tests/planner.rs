//! The world in mind: after any changes it is what a fresh one would be.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use engine::Planner;
use engine::plan::Start;
use engine::rig::{Rig, before};
use engine::world::{Placed, Pool, Strategy, Workload, WorkloadState, World};

fn empty(strategy: Strategy) -> World {
    let mut pool = Pool::new("p").sharing(&[SharingMode::Exclusive, SharingMode::TimeSlice]);
    pool.strategy = strategy;
    let rig = Rig::new().pool(pool).nodes(5, 4).team("t", 20);
    rig.world().clone()
}

/// Jobs of all sizes, one after another.
fn jobs() -> Vec<Workload> {
    let job = |i: i64| {
        let name = format!("j{i:03}");
        match i % 5 {
            0 => Workload::waiting(&name, "t", 1 + i % 4, before(10)),
            1 => Workload::waiting(&name, "t", 1, before(10)).workers(2),
            _ => Workload::waiting(&name, "t", 0, before(10)).fraction(
                SharingMode::TimeSlice,
                MilliGpu::from_milli(100 + i * 130 % 800),
                None,
            ),
        }
    };
    (0..500).map(job).collect()
}

fn running(job: &Workload, start: &Start) -> Workload {
    Workload {
        state: WorkloadState::Running,
        started: Some(before(5)),
        placed: start.placement.iter().map(Placed::from).collect(),
        ..job.clone()
    }
}

#[test]
fn after_five_hundred_changes_it_is_what_a_fresh_one_is() {
    let (world, jobs) = (empty(Strategy::Pack), jobs());
    let mut planner = Planner::of(&world);
    let mut there: Vec<Workload> = Vec::new();
    let mut refused = 0;
    for (i, job) in jobs.iter().enumerate() {
        assert!(planner.take(job));
        match planner.start(&job.name) {
            Some(start) => there.push(running(job, &start)),
            None => refused += 1,
        }
        if i % 3 == 2 && !there.is_empty() {
            let gone = there.remove(i * 7 % there.len());
            planner.end(&gone.name);
        }
        let mut fresh = world.clone();
        fresh.workloads.clone_from(&there);
        let fresh_planner = Planner::of(&fresh);
        for node in &world.nodes {
            assert_eq!(planner.left(&node.name), fresh_planner.left(&node.name));
        }
    }
    assert!(refused > 50 && there.len() > 5, "{refused} refused");
}

#[test]
fn what_it_starts_is_what_a_plan_starts() {
    let (world, jobs) = (empty(Strategy::LeastFragmentation), jobs());
    for job in &jobs[..20] {
        let mut planner = Planner::of(&world);
        assert!(planner.take(job));
        let mut planned = world.clone();
        planned.workloads.push(job.clone());
        let plan = engine::plan(&planned);
        assert_eq!(planner.start(&job.name).as_ref(), plan.start_of(&job.name));
    }
}

#[test]
fn work_of_a_team_that_is_not_there_is_not_taken_in() {
    let world = empty(Strategy::Pack);
    let stranger = Workload::waiting("x", "nobody", 1, before(1));
    assert!(!Planner::of(&world).take(&stranger));
    assert_eq!(Planner::of(&world).left("no-node"), None);
}
