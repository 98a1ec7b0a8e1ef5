//! Room by moves: who moves where, for whom, and who stays.

use engine::plan::Plan;
use engine::rig::{Rig, before, eager};
use engine::world::{Node, Placed, PlacedDevice, Pool, PreemptionPolicy, Workload};

/// A pool that consolidates and displaces nobody, with so many nodes of so many devices.
fn rig(nodes: usize, gpus: u32) -> Rig {
    let policy = PreemptionPolicy {
        consolidate: true,
        ..eager()
    };
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(nodes, gpus)
        .team("t", 100)
}

fn running(name: &str, node: &str, devices: &[u32], minutes: i64) -> Workload {
    Workload::waiting(name, "t", devices.len() as i64, before(minutes + 10)).running_on(
        node,
        devices,
        before(minutes),
    )
}

fn new(gpus: i64) -> Workload {
    Workload::waiting("new", "t", gpus, before(5))
}

/// `who to where` for all who move.
fn moved(plan: &Plan) -> Vec<String> {
    let moves = plan.migrations.iter().map(|m| {
        let nodes: Vec<&str> = m.placement.iter().map(|p| p.node.as_str()).collect();
        format!("{} to {}", m.workload, nodes.join(" "))
    });
    moves.collect()
}

#[test]
fn the_cheapest_moves_that_make_room_are_made() {
    // n1 and n2 each lack one device; what runs on n2 began only lately.
    let plan = rig(3, 4)
        .work(running("old", "n1", &[0], 100))
        .work(running("young", "n2", &[0], 1))
        .work(running("big", "n3", &[0, 1, 2], 100))
        .work(new(4))
        .plan();
    assert_eq!(moved(&plan), ["young to n3"]);
    assert_eq!(plan.nominations[0].waits_for, ["young"]);
    assert!(plan.preemptions.is_empty());
}

#[test]
fn a_dry_run_names_who_would_move() {
    let rig = rig(2, 4)
        .work(running("a", "n1", &[0, 1], 100))
        .work(running("b", "n2", &[0], 1));
    let outcome = engine::dry_run(rig.world(), new(4));
    let engine::DryRun::Displaces {
        victims, movers, ..
    } = outcome
    else {
        panic!("room is made by moves: {outcome:?}");
    };
    assert!(victims.is_empty());
    let names: Vec<&str> = movers.iter().map(|m| m.workload.as_str()).collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn who_moves_is_back_and_the_newcomer_runs_in_the_end() {
    let rest = rig(2, 4)
        .work(running("a", "n1", &[0, 1], 100))
        .work(running("b", "n2", &[0], 1))
        .work(new(4))
        .settles(10);
    assert_eq!(rest.running(""), 3);
}

#[test]
fn a_gang_gets_several_nodes_freed() {
    let plan = rig(4, 2)
        .work(running("a", "n1", &[0], 50))
        .work(running("b", "n2", &[0], 50))
        .work(running("c", "n3", &[0], 50))
        .work(running("d", "n4", &[0], 50))
        .work(new(2).workers(2))
        .plan();
    assert_eq!(moved(&plan).len(), 2);
    assert_eq!(plan.nominations.len(), 1);
}

#[test]
fn nobody_moves_where_one_of_them_would_find_no_place() {
    let plan = rig(2, 4)
        .work(running("a", "n1", &[0, 1, 2], 50))
        .work(running("b", "n2", &[0, 1, 2], 50))
        .work(new(2))
        .plan();
    assert_eq!(moved(&plan), Vec::<String>::new());
    assert_eq!(plan.waiting[0].workload, "new");
}

#[test]
fn a_move_is_not_made_for_a_fraction_nor_before_a_victim_has_run_its_least() {
    let world = |policy: PreemptionPolicy| {
        rig(2, 2)
            .with(|w| w.pools[0].preemption = policy)
            .work(running("a", "n1", &[0], 5))
            .work(running("b", "n2", &[0], 5))
            .work(new(2))
            .plan()
    };
    let policy = PreemptionPolicy {
        consolidate: true,
        ..eager()
    };
    assert_eq!(moved(&world(policy.clone())).len(), 1);
    let protected = PreemptionPolicy {
        min_runtime_seconds: 600,
        ..policy.clone()
    };
    assert_eq!(moved(&world(protected)).len(), 0);
    let late = PreemptionPolicy {
        delay_seconds: 600,
        ..policy.clone()
    };
    assert_eq!(moved(&world(late)).len(), 0);
    let off = PreemptionPolicy {
        consolidate: false,
        ..policy
    };
    assert_eq!(moved(&world(off)).len(), 0);
}

#[test]
fn a_limit_that_forbids_the_newcomer_moves_nobody() {
    let mut world = rig(2, 2)
        .work(running("a", "n1", &[0], 50))
        .work(running("b", "n2", &[0], 50))
        .work(new(2))
        .world()
        .clone();
    world.teams[0].quotas.get_mut("p").expect("its row").limit = Some(domain::MilliGpu::whole(3));
    world.teams[0]
        .quotas
        .get_mut("p")
        .expect("its row")
        .guaranteed = domain::MilliGpu::whole(3);
    assert!(engine::plan(&world).migrations.is_empty());
}

#[test]
fn a_mover_stays_in_the_domain_that_it_asked_for() {
    let rack = |name: &str, rack: &str| Node::new(name, "p", 2).label("rack", rack);
    let policy = PreemptionPolicy {
        consolidate: true,
        ..eager()
    };
    let mut tied = running("tied", "n1", &[0], 50);
    tied.selector.insert("rack".to_owned(), "r1".to_owned());
    let plan = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .team("t", 100)
        .node(rack("n1", "r1"))
        .node(rack("n2", "r2"))
        .work(tied)
        .work(running("free", "n2", &[0], 100))
        .work(new(2))
        .plan();
    assert_eq!(moved(&plan), ["free to n1"]);
}

#[test]
fn a_world_in_the_middle_of_a_move_is_written_and_read_back() {
    let mut world = rig(2, 4)
        .with(|w| w.pools[0].preemption.grace_seconds = 30)
        .work(running("a", "n1", &[0, 1], 100))
        .work(running("b", "n2", &[0], 1))
        .work(new(4))
        .world()
        .clone();
    let plan = engine::plan(&world);
    engine::cycles::apply(&mut world, &plan);
    let mover = |w: &Workload| w.leaves_at.is_some() && w.nominated.is_some();
    assert!(world.workloads.iter().any(mover));
    let text = engine::scenario::write(&world);
    assert_eq!(
        engine::scenario::parse(&text).expect("its own writing"),
        world
    );
}

#[test]
fn the_last_place_beside_an_emptied_node_is_for_who_is_the_last_to_give_way() {
    let mut node = Node::new("n1", "p", 2);
    node.state = engine::world::NodeState::Draining;
    let rig = |high: &str| {
        let class = |name: &str| if name == high { "high" } else { "normal" };
        Rig::new()
            .node(node.clone())
            .node(Node::new("n2", "p", 1))
            .team("t", 2)
            .work(running("a", "n1", &[0], 50).class(class("a")))
            .work(running("b", "n1", &[1], 50).class(class("b")))
            .plan()
    };
    assert_eq!(moved(&rig("a")), ["a to n2"]);
    assert_eq!(moved(&rig("b")), ["b to n2"]);
}

#[test]
fn what_leaves_an_emptied_node_goes_where_nobody_stands() {
    let emptied = |name: &str| Node::new(name, "p", 2).state(engine::world::NodeState::Draining);
    let place = |node: &str, devices: [u32; 2]| Placed {
        node: node.to_owned(),
        devices: devices.map(PlacedDevice::whole).to_vec(),
    };
    let gang = |place: [Placed; 2]| {
        let mut gang = running("gang", "n2", &[0, 1], 100).workers(2);
        gang.placed = place.to_vec();
        gang
    };
    let policy = PreemptionPolicy {
        grace_seconds: 5,
        ..eager()
    };
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .node(emptied("n1"))
        .node(emptied("n2"))
        .node(Node::new("n3", "p", 2))
        .team("t", 100);
    let plan = rig
        .work(running("a", "n1", &[0, 1], 10))
        .work(gang([place("n2", [0, 1]), place("n3", [0, 1])]))
        .plan();
    // The gang leaves for nobody, and until it has left stands on all there is.
    assert_eq!(moved(&plan), Vec::<String>::new());
    let left: Vec<&str> = plan
        .preemptions
        .iter()
        .map(|p| p.workload.as_str())
        .collect();
    assert_eq!(left, ["gang", "a"]);
    // What it has itself is free for it.
    let plan = Rig::new()
        .node(emptied("n2"))
        .node(Node::new("n1", "p", 2))
        .node(Node::new("n3", "p", 2))
        .team("t", 100)
        .work(gang([place("n2", [0, 1]), place("n3", [0, 1])]))
        .plan();
    assert_eq!(moved(&plan).len(), 1);
}
