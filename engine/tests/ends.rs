//! Who ends by its limit no later than its grace would be over does not give way: whoever wants its room waits for the end.

use chrono::TimeDelta;
use engine::cycles;
use engine::plan::{Code, Plan};
use engine::rig::{Rig, before, eager, noon};
use engine::world::{Booking, Node, NodeState, Pool, PreemptionPolicy, Quota, Team, Workload};

const GRACE: i64 = 30;

fn policy() -> PreemptionPolicy {
    PreemptionPolicy {
        grace_seconds: GRACE,
        ..eager()
    }
}

/// A pool with that grace, an owner of two devices and a borrower.
fn rig() -> Rig {
    Rig::new()
        .pool(Pool::new("p").preemption(policy()))
        .team("o", 2)
        .team("b", 0)
}

/// Work that has run for ten minutes on some devices of n1, and has so many seconds left.
fn ending(name: &str, team: &str, devices: &[u32], left: i64) -> Workload {
    let work = Workload::waiting(name, team, devices.len() as i64, before(60));
    let mut work = work.running_on("n1", devices, before(10));
    work.time_limit_seconds = Some(600 + left);
    work
}

fn owner(gpus: i64) -> Workload {
    Workload::waiting("owner", "o", gpus, before(5))
}

fn victims(plan: &Plan) -> Vec<&str> {
    let all = plan.preemptions.iter();
    all.map(|p| p.workload.as_str()).collect()
}

#[test]
fn who_ends_within_its_grace_is_waited_for_and_not_preempted() {
    let rig = rig()
        .nodes(1, 2)
        .work(ending("e", "b", &[0, 1], GRACE))
        .work(owner(2));
    let plan = rig.plan();
    assert_eq!(victims(&plan), Vec::<&str>::new());
    assert_eq!(plan.nominations[0].waits_for, ["e"]);
    let told = plan.waiting_for("owner").expect("it waits");
    assert_eq!(told.code, Code::WaitingForVictims);
    assert_eq!(
        told.expected_start,
        Some(noon() + TimeDelta::seconds(GRACE))
    );
}

#[test]
fn who_ends_after_its_grace_or_by_a_guess_is_preempted() {
    let late = rig()
        .nodes(1, 2)
        .work(ending("e", "b", &[0, 1], GRACE + 1))
        .work(owner(2));
    assert_eq!(victims(&late.plan()), ["e"]);
    let mut guessed = ending("e", "b", &[0, 1], GRACE);
    guessed.predicted_seconds = guessed.time_limit_seconds.take();
    let guess = rig().nodes(1, 2).work(guessed).work(owner(2));
    assert_eq!(victims(&guess.plan()), ["e"]);
}

#[test]
fn the_room_of_who_ends_is_kept_until_it_has() {
    let rig = rig()
        .nodes(1, 2)
        .work(ending("e", "b", &[0, 1], 20))
        .work(owner(2))
        .work(Workload::waiting("other", "b", 2, before(50)));
    let mut world = rig.world().clone();
    for second in 0..20 {
        let plan = engine::plan(&world);
        assert_eq!(victims(&plan), Vec::<&str>::new(), "second {second}");
        assert_eq!(plan.nominations[0].workload, "owner", "second {second}");
        cycles::apply(&mut world, &plan);
        cycles::advance(&mut world, None);
    }
    let plan = engine::plan(&world);
    assert_eq!(plan.starts[0].workload, "owner");
}

#[test]
fn who_ends_by_itself_is_waited_for_before_somebody_else_gives_way() {
    // The work of the owner's own team that ends is nobody's victim.
    let rig = rig()
        .nodes(1, 3)
        .work(ending("own", "o", &[0], 10))
        .work(ending("e", "b", &[1, 2], 3600))
        .work(owner(1));
    let plan = rig.plan();
    assert_eq!(victims(&plan), Vec::<&str>::new());
    assert_eq!(plan.nominations[0].waits_for, ["own"]);
}

#[test]
fn beside_who_ends_only_those_give_way_whose_room_is_needed_too() {
    let rig = rig()
        .nodes(1, 3)
        .work(ending("e", "b", &[0], 10))
        .work(ending("x", "b", &[1], 3600))
        .work(ending("y", "b", &[2], 3600))
        .work(owner(2));
    let plan = rig.plan();
    assert_eq!(victims(&plan), ["x"]);
    assert_eq!(plan.nominations[0].waits_for.len(), 2);
    assert!(plan.nominations[0].waits_for.contains(&"e".to_owned()));
}

#[test]
fn elastic_work_that_ends_is_not_shrunk() {
    let mut gang = ending("gang", "b", &[0], 10);
    (gang.workers, gang.min_workers) = (2, Some(1));
    gang.placed.push(ending("", "b", &[1], 10).placed.remove(0));
    let plan = rig().nodes(1, 2).work(gang).work(owner(1)).plan();
    assert_eq!(victims(&plan), Vec::<&str>::new());
    assert_eq!(plan.nominations[0].waits_for, ["gang"]);
}

#[test]
fn who_has_outrun_its_limit_for_longer_than_its_grace_is_preempted() {
    let over = |seconds: i64| {
        let rig = rig().nodes(1, 2).work(ending("e", "b", &[0, 1], -seconds));
        rig.work(owner(2)).plan()
    };
    assert_eq!(victims(&over(GRACE - 1)), Vec::<&str>::new());
    assert_eq!(victims(&over(GRACE)), ["e"]);
}

#[test]
fn who_ends_on_an_emptied_node_neither_moves_nor_is_stopped() {
    let rig = |left: i64| {
        let node = Node::new("n1", "p", 2).state(NodeState::Draining);
        rig()
            .node(node)
            .node(Node::new("n2", "p", 1))
            .work(ending("a", "b", &[0], left))
            .work(ending("b", "b", &[1], left))
            .plan()
    };
    let (ends, stays) = (rig(GRACE), rig(GRACE + 1));
    assert_eq!((ends.migrations.len(), ends.preemptions.len()), (0, 0));
    assert_eq!((stays.migrations.len(), stays.preemptions.len()), (1, 1));
}

#[test]
fn nobody_moves_for_work_that_has_room_once_another_has_ended() {
    let rig = |left: i64| {
        let policy = PreemptionPolicy {
            consolidate: true,
            ..policy()
        };
        rig()
            .pool(Pool::new("p").preemption(policy))
            .nodes(2, 2)
            .work(ending("e", "b", &[0], left))
            .work(Workload::waiting("m", "b", 1, before(60)).running_on("n2", &[0], before(10)))
            .work(owner(2))
            .plan()
    };
    let moves = |plan: &Plan| plan.migrations.len();
    assert_eq!(moves(&rig(GRACE)), 0);
    assert_eq!(moves(&rig(GRACE + 1)), 1);
}

#[test]
fn who_ends_does_not_leave_for_a_booking() {
    let rig = |left: i64| {
        let booking = Booking {
            name: "demo".to_owned(),
            team: "c".to_owned(),
            pool: "p".to_owned(),
            gpus: domain::MilliGpu::whole(2),
            from: before(1),
            to: before(-60),
        };
        let never = PreemptionPolicy {
            reclaim: engine::world::Reclaim::Never,
            ..policy()
        };
        Rig::new()
            .pool(Pool::new("p").preemption(never))
            .team("b", 0)
            .nodes(1, 2)
            .tenant(Team::new("c").quota("p", Quota::guaranteed(domain::MilliGpu::whole(0))))
            .with(|w| w.bookings.push(booking))
            .work(ending("e", "b", &[0, 1], left))
            .work(Workload::waiting("demo-job", "c", 2, before(5)))
            .plan()
    };
    assert_eq!(victims(&rig(GRACE + 1)), ["e"]);
    let plan = rig(GRACE);
    assert_eq!(victims(&plan), Vec::<&str>::new());
    assert_eq!(plan.nominations[0].waits_for, ["e"]);
}

#[test]
fn a_try_goes_on_once_they_have_ended_who_are_waited_for() {
    let rig = rig()
        .nodes(1, 2)
        .work(ending("e", "b", &[0, 1], GRACE))
        .work(owner(2));
    let stages = cycles::until_left(rig.world().clone(), &std::collections::BTreeSet::new());
    let starts = stages.iter().flat_map(|stage| &stage.plan.starts);
    assert_eq!(
        starts.map(|s| s.workload.as_str()).collect::<Vec<_>>(),
        ["owner"]
    );
    assert_eq!(stages[1].at, noon() + TimeDelta::seconds(GRACE));
}

#[test]
fn who_waits_for_released_ranks_does_not_wait_for_the_end_of_their_workload() {
    // The gang is shrunk, and ends by itself while its released rank is in its grace.
    let mut gang = ending("gang", "b", &[0], GRACE + 10);
    (gang.workers, gang.min_workers) = (2, Some(1));
    gang.placed.push(ending("", "b", &[1], 0).placed.remove(0));
    let rig = rig()
        .nodes(1, 2)
        .work(gang)
        .work(owner(1))
        .work(Workload::waiting("head", "b", 1, before(4)));
    let rest = rig.settles(4 * GRACE as usize);
    assert_eq!(rest.evictions(), 1);
    assert_eq!(rest.running("owner"), 1);
}

#[test]
fn a_replica_whose_released_rank_is_awaited_is_not_missing() {
    let mut gang = ending("gang", "b", &[0], GRACE + 10);
    (gang.workers, gang.min_workers) = (2, Some(1));
    gang.placed.push(ending("", "b", &[1], 0).placed.remove(0));
    gang.service = Some("chat".to_owned());
    let rest = rig()
        .nodes(1, 2)
        .with(|w| {
            w.services.push(engine::world::Service {
                name: "chat".to_owned(),
                team: "b".to_owned(),
                min_replicas: 1,
                max_replicas: 1,
            });
        })
        .work(gang)
        .work(owner(1))
        .settles(4 * GRACE as usize);
    assert_eq!(rest.running("owner"), 1);
}
