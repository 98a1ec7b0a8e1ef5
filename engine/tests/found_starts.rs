//! When work is told to start, where others are before it or leave yet: each failed before it was mended.

use chrono::TimeDelta;
use domain::Timestamp;
use domain::sharing::SharingMode;
use engine::cycles;
use engine::plan::{Code, Plan, Waiting};
use engine::rig::{Rig, before, eager, noon};
use engine::world::{Backfill, Node, NodeState, Pool, PreemptionPolicy, Reclaim, Workload, World};

fn waits<'p>(plan: &'p Plan, name: &str) -> &'p Waiting {
    let mut all = plan.waiting.iter();
    all.find(|w| w.workload == name).expect("it waits")
}

fn expected(plan: &Plan, name: &str) -> Option<Timestamp> {
    waits(plan, name).expected_start
}

fn minutes(count: i64) -> Option<Timestamp> {
    Some(noon() + TimeDelta::minutes(count))
}

fn limited(mut work: Workload, minutes: i64) -> Workload {
    work.time_limit_seconds = Some(minutes * 60);
    work
}

fn calm(backfill: Backfill) -> Pool {
    Pool::new("p")
        .preemption(PreemptionPolicy {
            reclaim: Reclaim::Never,
            ..PreemptionPolicy::default()
        })
        .with(|pool| pool.backfill = backfill)
}

/// Work that runs for an hour yet on each of two devices, and three that wait for ten minutes on one or two.
fn line(backfill: Backfill) -> Plan {
    let runs = |name: &str, device: u32, left: i64| {
        let work = Workload::waiting(name, "t", 1, before(120));
        limited(work.running_on("n1", &[device], before(30)), 30 + left)
    };
    let waits = |name: &str, gpus, minutes| {
        limited(Workload::waiting(name, "t", gpus, before(minutes)), 10)
    };
    Rig::new()
        .pool(calm(backfill))
        .nodes(1, 2)
        .team("t", 0)
        .work(runs("x", 0, 60))
        .work(runs("y", 1, 90))
        .work(waits("first", 2, 20))
        .work(waits("second", 1, 19))
        .work(waits("third", 2, 18))
        .plan()
}

#[test]
fn where_nothing_passes_a_head_each_start_is_told_behind_those_before_it() {
    let plan = line(Backfill::Strict);
    assert_eq!(expected(&plan, "first"), minutes(90));
    assert_eq!(expected(&plan, "second"), minutes(100));
    assert_eq!(expected(&plan, "third"), minutes(110));
}

#[test]
fn where_no_start_is_kept_those_in_front_are_counted_as_far_as_they_have_room() {
    let plan = line(Backfill::None);
    assert_eq!(expected(&plan, "first"), minutes(90));
    assert_eq!(expected(&plan, "second"), minutes(60));
    assert_eq!(expected(&plan, "third"), minutes(100));
}

#[test]
fn behind_a_head_that_waits_for_what_nobody_knows_no_start_is_told() {
    let runs = |name: &str, device: u32| {
        Workload::waiting(name, "t", 1, before(120)).running_on("n1", &[device], before(30))
    };
    let rig = Rig::new()
        .pool(calm(Backfill::Strict))
        .nodes(1, 2)
        .team("t", 0)
        .work(runs("endless", 0))
        .work(limited(runs("ends", 1), 90))
        .work(Workload::waiting("head", "t", 2, before(20)))
        .work(Workload::waiting("behind", "t", 1, before(10)));
    assert_eq!(expected(&rig.plan(), "behind"), None);
}

/// The world a cycle later.
fn later(world: &World, plan: &Plan) -> World {
    let mut world = world.clone();
    cycles::apply(&mut world, plan);
    cycles::advance(&mut world, None);
    world
}

#[test]
fn a_start_behind_work_whose_victims_leave_does_not_slip_while_they_do() {
    let policy = PreemptionPolicy {
        grace_seconds: 60,
        ..eager()
    };
    let borrows = Workload::waiting("borrows", "b", 1, before(120));
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 1)
        .team("o", 1)
        .team("b", 0)
        .work(borrows.running_on("n1", &[0], before(60)))
        .work(limited(Workload::waiting("owner", "o", 1, before(30)), 10))
        .work(Workload::waiting("next", "b", 1, before(20)));
    let mut world = rig.world().clone();
    let first = rig.plan();
    assert_eq!(expected(&first, "owner"), minutes(1));
    assert_eq!(expected(&first, "next"), minutes(11));
    let mut plan = first;
    for _ in 0..5 {
        world = later(&world, &plan);
        plan = engine::plan(&world);
        assert_eq!(expected(&plan, "owner"), minutes(1));
        assert_eq!(expected(&plan, "next"), minutes(11), "at {}", world.now);
    }
}

#[test]
fn where_a_mover_goes_nothing_is_reserved() {
    let part = |name: &str, class: &str, minutes| {
        let work = Workload::waiting(name, "t", 1, before(minutes)).class(class);
        Workload {
            team: "t".to_owned(),
            ..work
        }
    };
    let rig = Rig::new()
        .pool(Pool::new("p").sharing(SharingMode::ALL))
        .node(Node::new("n1", "p", 1).state(NodeState::Draining))
        .node(Node::new("n2", "p", 1))
        .team("t", 0)
        .work(part("mover", "high", 120).running_on("n1", &[0], before(60)))
        .work(part("waits", "normal", 60));
    let plan = rig.plan();
    assert_eq!(plan.migrations[0].workload, "mover");
    assert_eq!(waits(&plan, "waits").code, Code::InsufficientCapacity);
}

#[test]
fn work_that_has_outrun_its_limit_is_expected_to_end_with_the_next_cycle() {
    let over = limited(Workload::waiting("over", "t", 1, before(120)), 30);
    let rig = Rig::new()
        .pool(calm(Backfill::Easy))
        .nodes(1, 1)
        .team("t", 1)
        .work(over.running_on("n1", &[0], before(60)))
        .work(Workload::waiting("next", "t", 1, before(20)));
    let plan = rig.plan();
    let soon = noon() + TimeDelta::seconds(1);
    assert_eq!(plan.reservations[0].start, soon);
    assert_eq!(expected(&plan, "next"), Some(soon));
}
