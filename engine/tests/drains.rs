//! Work that moves off emptied nodes takes its place in the line: nobody behind it has its room, and it has nobody's before it.

use chrono::TimeDelta;
use domain::MilliGpu;
use engine::plan::{Plan, Reason};
use engine::rig::{Rig, before, eager, noon};
use engine::world::{
    Booking, Node, NodeState, Pool, PreemptionPolicy, Reclaim, Workload, WorkloadState,
};

fn emptied(name: &str, gpus: u32) -> Node {
    Node::new(name, "p", gpus).state(NodeState::Draining)
}

fn running(name: &str, team: &str, node: &str, devices: &[u32]) -> Workload {
    let work = Workload::waiting(name, team, devices.len() as i64, before(60));
    work.running_on(node, devices, before(50))
}

fn waiting(name: &str, team: &str, gpus: i64) -> Workload {
    Workload::waiting(name, team, gpus, before(20))
}

/// Elastic work of one worker on each of these devices.
fn elastic(name: &str, team: &str, devices: &[(&str, u32)]) -> Workload {
    let mut work = running(name, team, devices[0].0, &[devices[0].1]);
    work.workers = devices.len() as u32;
    work.min_workers = Some(1);
    work.placed = devices
        .iter()
        .flat_map(|(node, device)| running("", team, node, &[*device]).placed)
        .collect();
    work
}

fn started(plan: &Plan) -> Vec<&str> {
    plan.starts.iter().map(|s| s.workload.as_str()).collect()
}

fn moved(plan: &Plan) -> Vec<&str> {
    plan.migrations
        .iter()
        .map(|m| m.workload.as_str())
        .collect()
}

/// Who gives way, and for whom.
fn gone(plan: &Plan) -> Vec<(&str, &str)> {
    let all = plan.preemptions.iter();
    all.map(|p| (p.workload.as_str(), p.gainer.as_deref().unwrap_or("nobody")))
        .collect()
}

#[test]
fn an_owner_moves_before_a_borrower() {
    // Both of the owner's jobs leave: the first is in its guarantee wherever it goes.
    let rig = Rig::new()
        .node(emptied("n1", 3))
        .nodes(1, 1)
        .team("b", 0)
        .team("o", 1)
        .work(running("x", "b", "n1", &[0]).class("high"))
        .work(running("o1", "o", "n1", &[1]))
        .work(running("o2", "o", "n1", &[2]));
    let plan = rig.plan();
    assert_eq!(moved(&plan), ["o1"]);
    assert_eq!(gone(&plan).len(), 2);
    assert_eq!(rig.settles(10).evictions(), 2);
}

#[test]
fn elastic_work_moves_with_as_many_workers_as_fit() {
    let rig = Rig::new()
        .node(emptied("n1", 3))
        .nodes(1, 2)
        .team("b", 0)
        .team("o", 3)
        .work(elastic("e", "o", &[("n1", 0), ("n1", 1), ("n1", 2)]))
        .work(waiting("s", "b", 1));
    let rest = rig.settles(10);
    let first = &rest.plans[0].preemptions[0];
    assert_eq!((first.reason, first.to_workers), (Reason::Drain, 2));
    assert_eq!(started(&rest.plans[0]), Vec::<&str>::new());
    assert_eq!(moved(&rest.plans[1]), ["e"]);
    assert_eq!(rest.evictions(), 1);
    let work = rest.world.workloads.iter().find(|w| w.name == "e");
    assert_eq!(work.map(|w| w.placed.len()), Some(2));
}

#[test]
fn elastic_work_moves_with_what_it_borrows_where_nobody_comes_before() {
    let rig = |other: &str| {
        let rig = Rig::new()
            .node(emptied("n1", 2))
            .nodes(1, 2)
            .team("b", 0)
            .team("o", 1)
            .work(elastic("e", "o", &[("n1", 0), ("n1", 1)]));
        match other {
            "" => rig,
            team => rig.team("c", 1).work(waiting("s", team, 1)),
        }
    };
    assert_eq!(moved(&rig("").plan()), ["e"]);
    // An owner comes before the part of it that is borrowed.
    let plan = rig("c").plan();
    assert_eq!(started(&plan), ["s"]);
    assert_eq!(plan.preemptions[0].to_workers, 1);
    assert_eq!(moved(&rig("c").settles(10).plans[1]), ["e"]);
}

#[test]
fn higher_work_of_the_team_starts_before_lower_work_moves() {
    let rig = Rig::new()
        .node(emptied("n1", 1))
        .nodes(1, 1)
        .team("t", 1)
        .work(running("l", "t", "n1", &[0]).class("low"))
        .work(waiting("h", "t", 1).class("high"));
    let plan = rig.plan();
    assert_eq!(started(&plan), ["h"]);
    assert_eq!(gone(&plan), [("l", "nobody")]);
    assert_eq!(rig.settles(10).evictions(), 1);
}

#[test]
fn a_borrower_of_a_lower_share_starts_before_one_moves() {
    let policy = PreemptionPolicy {
        across_borrowers: true,
        ..eager()
    };
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .node(emptied("n1", 1))
        .nodes(2, 1)
        .team("b", 0)
        .team("c", 0)
        .work(running("m", "b", "n1", &[0]))
        .work(running("x", "b", "n3", &[0]))
        .work(waiting("s", "c", 1));
    let plan = rig.plan();
    assert_eq!(started(&plan), ["s"]);
    assert_eq!(gone(&plan), [("m", "nobody")]);
    assert_eq!(rig.settles(10).evictions(), 1);
}

/// A borrower on a node that is emptied, one on a device of another, and work of two that is alone in the line.
fn beside(team: &str) -> Rig {
    Rig::new()
        .node(emptied("n1", 1))
        .nodes(1, 2)
        .team("b", 0)
        .work(running("m", "b", "n1", &[0]))
        .work(running("x", "b", "n2", &[0]))
        .work(waiting("new", team, 2))
}

#[test]
fn an_owner_who_is_alone_in_the_line_has_its_room_before_a_borrower_moves_there() {
    let rig = beside("o").team("o", 2);
    let plan = rig.plan();
    assert_eq!(gone(&plan), [("x", "new"), ("m", "nobody")]);
    assert_eq!(plan.nominations[0].workload, "new");
    assert_eq!(rig.settles(10).evictions(), 2);
}

#[test]
fn a_booking_that_begins_has_its_room_before_a_borrower_moves_there() {
    let booking = Booking {
        name: "demo".to_owned(),
        team: "c".to_owned(),
        pool: "p".to_owned(),
        gpus: MilliGpu::whole(2),
        from: noon(),
        to: before(-60),
    };
    let policy = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..eager()
    };
    let rig = beside("c")
        .pool(Pool::new("p").preemption(policy))
        .team("c", 0)
        .with(|w| w.bookings.push(booking));
    let plan = rig.plan();
    assert_eq!(gone(&plan), [("x", "demo"), ("m", "nobody")]);
    assert_eq!(plan.nominations[0].workload, "new");
}

#[test]
fn who_is_stopped_keeps_the_room_that_it_may_take_back() {
    let rig = Rig::new()
        .node(emptied("n1", 2))
        .nodes(1, 2)
        .team("b", 0)
        .team("o", 2)
        .work(running("m", "o", "n1", &[0, 1]))
        .work(running("x", "b", "n2", &[0]))
        .work(waiting("s", "b", 1));
    let plan = rig.plan();
    assert_eq!(started(&plan), Vec::<&str>::new());
    assert_eq!(gone(&plan), [("m", "nobody"), ("x", "m")]);
    let rest = rig.settles(10);
    assert_eq!(rest.evictions(), 2);
    assert_eq!(rest.running("m"), 1);
}

#[test]
fn who_has_a_place_once_others_have_left_waits_for_that_where_it_is() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    };
    let mut leaving = running("l", "b", "n2", &[0]);
    leaving.state = WorkloadState::Leaving;
    leaving.leaves_at = Some(noon() + TimeDelta::seconds(2));
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .node(emptied("n1", 1))
        .nodes(1, 1)
        .team("b", 0)
        .team("o", 1)
        .work(running("m", "o", "n1", &[0]))
        .work(leaving)
        .work(waiting("s", "b", 1));
    let mut world = rig.world().clone();
    for _ in 0..2 {
        let plan = engine::plan(&world);
        assert_eq!(
            (started(&plan), moved(&plan), gone(&plan)),
            (vec![], vec![], vec![])
        );
        engine::cycles::apply(&mut world, &plan);
        engine::cycles::advance(&mut world, None);
    }
    assert_eq!(moved(&engine::plan(&world)), ["m"]);
}

#[test]
fn nobody_moves_into_room_that_is_kept_for_the_head() {
    let rig = |limit: Option<i64>| {
        let mut m = running("m", "b", "n1", &[0]);
        m.time_limit_seconds = limit;
        let mut x = running("x", "b", "n2", &[0]);
        x.time_limit_seconds = Some(2 * 3600);
        Rig::new()
            .pool(Pool::new("p").preemption(PreemptionPolicy {
                reclaim: Reclaim::Never,
                ..eager()
            }))
            .node(emptied("n1", 1))
            .nodes(1, 2)
            .team("b", 0)
            .team("o", 2)
            .work(m)
            .work(x)
            .work(waiting("head", "o", 2))
            .plan()
    };
    assert_eq!(gone(&rig(None)), [("m", "nobody")]);
    assert_eq!(moved(&rig(Some(3600))), ["m"]);
}

#[test]
fn a_replica_that_its_service_needs_stays_where_it_has_no_place() {
    let mut replica = running("r", "o", "n1", &[0]);
    replica.service = Some("chat".to_owned());
    let rig = Rig::new()
        .node(emptied("n1", 1))
        .nodes(1, 1)
        .team("o", 1)
        .with(|w| {
            w.services.push(engine::world::Service {
                name: "chat".to_owned(),
                team: "o".to_owned(),
                min_replicas: 1,
                max_replicas: 1,
            });
        })
        .work(replica)
        .work(running("x", "o", "n2", &[0]).class("high"));
    let plan = rig.plan();
    assert_eq!((moved(&plan), gone(&plan)), (vec![], vec![]));
}
