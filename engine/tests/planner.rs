//! The world in mind: after any changes it is what a fresh one would be.

use domain::sharing::SharingMode;
use domain::{MilliCpu, MilliGpu};
use engine::Planner;
use engine::plan::Start;
use engine::rig::{Rig, before};
use engine::world::{Node, Placed, Pool, Strategy, Workload, WorkloadState, World};

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
fn a_gang_that_had_no_place_starts_once_nodes_have_come_to_have_more_free() {
    let mut world = empty(Strategy::Pack);
    let nodes: Vec<String> = world.nodes.iter().map(|node| node.name.clone()).collect();
    for node in &nodes {
        let job = Workload::waiting(&format!("on-{node}"), "t", 4, before(10));
        let job = job.running_on(node, &[0, 1, 2, 3], before(5));
        world.workloads.push(job);
    }
    let gang = Workload::waiting("gang", "t", 4, before(1)).workers(2);
    world.workloads.push(gang);
    let mut planner = Planner::of(&world);
    let mut left = world.clone();
    for (ended, node) in nodes.iter().enumerate().take(3) {
        let plan = planner.decide();
        assert_eq!(plan, engine::decide(&left));
        assert_eq!(plan.starts.len(), usize::from(ended == 2), "{ended} ended");
        let name = format!("on-{node}");
        planner.end(&name);
        left.workloads.retain(|work| work.name != name);
    }
}

#[test]
fn work_of_a_team_that_is_not_there_is_not_taken_in() {
    let world = empty(Strategy::Pack);
    let stranger = Workload::waiting("x", "nobody", 1, before(1));
    assert!(!Planner::of(&world).take(&stranger));
    assert_eq!(Planner::of(&world).left("no-node"), None);
}

/// The cores of who had left were not free in the future that was kept.
#[test]
fn a_start_that_is_kept_comes_sooner_when_work_ends_before_its_time() {
    let running = |name: &str, node: &str, cores: i64, minutes: i64| {
        let mut work = Workload::waiting(name, "t", 1, before(60));
        work.per_worker.cpus = MilliCpu::whole(cores);
        work.time_limit_seconds = Some((50 + minutes) * 60);
        work.running_on(node, &[0], before(50))
    };
    let mut head = Workload::waiting("head", "t", 2, before(5));
    head.per_worker.cpus = MilliCpu::whole(4);
    let mut again = running("again", "n2", 1, 60);
    again.placed[0].devices[0].index = 1;
    let world = Rig::new()
        .node(Node::new("n1", "p", 2).host(4, 1024))
        .node(Node::new("n2", "p", 2).host(4, 1024))
        .team("t", 4)
        .work(running("long", "n1", 3, 120))
        .work(running("later", "n2", 3, 300))
        .work(again)
        .work(head);
    let mut planner = Planner::of(world.world());
    let kept = |planner: &mut Planner<'_>| {
        let plan = planner.decide();
        (
            plan.reservations[0].start,
            plan.reservations[0].nodes.clone(),
        )
    };
    // The first decision asks for the future, the second keeps it.
    for _ in 0..2 {
        assert_eq!(kept(&mut planner), (before(-120), vec!["n1".to_owned()]));
    }
    planner.end("later");
    assert_eq!(kept(&mut planner), (before(-60), vec!["n2".to_owned()]));
}

/// A gang that a plan shrinks is cheaper on all of its nodes while the plan is made, and no longer.
#[test]
fn what_a_plan_takes_counts_for_nothing_in_what_is_kept_for_the_next() {
    let running = |name: &str, node: &str, device: u32, minutes: i64| {
        let work = Workload::waiting(name, "t", 1, before(90)).class("low");
        work.running_on(node, &[device], before(minutes))
    };
    let mut gang = running("gang", "n1", 0, 50).workers(2);
    gang.min_workers = Some(1);
    gang.placed.push(Placed {
        node: "n2".to_owned(),
        devices: gang.placed[0].devices.clone(),
    });
    let mut pinned = Workload::waiting("pinned", "u", 1, before(5));
    pinned.node = Some("n3".to_owned());
    let rig = Rig::new().nodes(3, 2).team("t", 0).team("u", 3);
    let world = rig
        .work(gang)
        .work(running("one", "n1", 1, 50))
        .work(running("two", "n2", 1, 1))
        .work(running("three", "n3", 0, 50))
        .work(running("four", "n3", 1, 2))
        .work(Workload::waiting("pair", "u", 2, before(10)))
        .work(pinned);
    let mut planner = Planner::of(world.world());
    let plan = planner.decide();
    let gone = |name: &str| plan.preemptions.iter().any(|gone| gone.workload == name);
    assert!(
        gone("gang") && gone("two") && gone("four"),
        "{:?}",
        plan.preemptions
    );
    assert_eq!(planner.unlike(world.world()), Vec::<&str>::new());
}
