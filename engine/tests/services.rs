//! Services: no more replicas than they may have, whoever asks and wherever they are.

use engine::plan::Code;
use engine::rig::{Rig, before};
use engine::world::{Node, NodeState, Nominated, Service, Workload, WorkloadState, World};

/// The service `chat`, with so many replicas at most.
fn chat(most: u32) -> impl FnOnce(&mut World) {
    move |world| {
        world.services.push(Service {
            name: "chat".to_owned(),
            team: "t".to_owned(),
            min_replicas: 0,
            max_replicas: most,
        });
    }
}

fn replica(name: &str, gpus: i64) -> Workload {
    let mut work = Workload::waiting(name, "t", gpus, before(10));
    work.service = Some("chat".to_owned());
    work
}

/// A node of eight devices for team `t`.
fn rig(most: u32) -> Rig {
    Rig::new().nodes(1, 8).team("t", 8).with(chat(most))
}

#[test]
fn replicas_beyond_the_most_are_not_started_and_told_why() {
    let rig = rig(2)
        .work(replica("r0", 1).running_on("n1", &[0], before(60)))
        .work(replica("r1", 1))
        .work(replica("r2", 1))
        .work(Workload::waiting("other", "t", 1, before(5)));
    assert_eq!(rig.starts(), ["r1", "other"]);
    let plan = rig.plan();
    let told = plan.waiting_for("r2").expect("it waits");
    assert_eq!(
        (told.code, &*told.scope),
        (Code::OverLimit, "max_replicas of service chat")
    );
    assert_eq!((told.need.milli(), told.have.milli()), (1000, 0));
    assert_eq!(
        &*told.message,
        "max_replicas of service chat allows 2 replicas, and it has no fewer"
    );
}

#[test]
fn replicas_without_devices_count_too() {
    let rig = rig(1).work(replica("r0", 0)).work(replica("r1", 0));
    assert_eq!(rig.starts(), ["r0"]);
}

#[test]
fn a_replica_that_leaves_makes_room_for_another_and_one_that_waits_for_its_room_does_not() {
    let mut leaving = replica("old", 1).running_on("n1", &[0], before(60));
    (leaving.state, leaving.leaves_at) = (WorkloadState::Leaving, Some(before(-1)));
    assert_eq!(
        rig(1).work(leaving).work(replica("new", 1)).starts(),
        ["new"]
    );
    let there = replica("kept", 8).running_on("n1", &[0, 1, 2, 3, 4, 5, 6, 7], before(60));
    let mut kept = replica("kept", 8);
    kept.nominated = Some(Nominated {
        placement: there.placed,
        until: before(-10),
    });
    let mut busy = Workload::waiting("busy", "t", 1, before(60)).running_on("n1", &[0], before(50));
    (busy.state, busy.leaves_at) = (WorkloadState::Leaving, Some(before(-1)));
    let rig = rig(1)
        .nodes(1, 8)
        .work(busy)
        .work(kept)
        .work(replica("new", 1));
    assert_eq!(rig.starts(), [] as [&str; 0]);
    let plan = rig.plan();
    assert!(plan.nomination_of("kept").is_some(), "{plan:?}");
}

#[test]
fn a_replica_that_grows_or_moves_is_none_more() {
    let mut elastic = replica("elastic", 1)
        .workers(3)
        .running_on("n1", &[0], before(60));
    elastic.min_workers = Some(1);
    let plan = rig(1).work(elastic).plan();
    assert_eq!(plan.resizes.len(), 1, "{plan:?}");
    let drained = Rig::new()
        .node(Node::new("a", "p", 1).state(NodeState::Draining))
        .node(Node::new("b", "p", 1))
        .team("t", 1)
        .with(chat(1))
        .work(replica("r", 1).running_on("a", &[0], before(60)));
    let rest = drained.settles(4);
    assert_eq!(rest.running("r"), 1, "{:?}", rest.plans);
    assert_eq!(rest.world.workloads[0].placed[0].node, "b");
}

#[test]
fn a_replica_of_higher_priority_takes_the_place_of_one_of_its_service() {
    let rest = rig(1)
        .work(
            replica("low", 1)
                .class("low")
                .running_on("n1", &[0], before(60)),
        )
        .work(replica("high", 1).class("high"))
        .settles(6);
    assert_eq!((rest.running("high"), rest.running("low")), (1, 0));
}

#[test]
fn a_service_that_may_have_no_replica_is_told_that_it_never_starts_one() {
    let rig = rig(0).work(replica("r", 2));
    let told = rig.plan().waiting_for("r").expect("it waits").clone();
    assert_eq!(told.code, Code::OverLimit);
    assert_eq!(told.expected_start, None);
}

#[test]
fn a_replica_that_waits_for_another_to_end_is_told_when() {
    let mut first = replica("first", 1).running_on("n1", &[0], before(60));
    first.time_limit_seconds = Some(2 * 3600);
    let plan = rig(1).work(first).work(replica("next", 1)).plan();
    let told = plan.waiting_for("next").expect("it waits");
    assert_eq!(told.expected_start, Some(before(-60)));
}
