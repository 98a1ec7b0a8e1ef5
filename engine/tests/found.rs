//! What random worlds found, cut down to the least that shows it: each failed before it was mended.

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use domain::{MilliCpu, MilliGpu};
use engine::rig::{Rig, before, cut, eager, running_on_slices, shared, slices};
use engine::world::{
    Node, NodeState, Nominated, Placed, PlacedDevice, Pool, PreemptionPolicy, Quota, Service,
    Strategy, Team, Workload, WorkloadState, World,
};

/// `who to how many for reason` of all who give way.
fn victims(rig: &Rig) -> Vec<String> {
    let told = rig.plan().preemptions.into_iter();
    told.map(|p| format!("{} to {} by {:?}", p.workload, p.to_workers, p.reason))
        .collect()
}

#[test]
fn the_least_replicas_stay_on_a_node_that_is_emptied_while_there_is_no_other_place() {
    let replica = |name: &str, device: u32| Workload {
        service: Some("chat".to_owned()),
        ..Workload::waiting(name, "t", 1, before(60)).running_on("n1", &[device], before(50))
    };
    let with = |least: u32| {
        Rig::new()
            .node(Node::new("n1", "p", 3).state(NodeState::Draining))
            .team("t", 3)
            .work(replica("r0", 0))
            .work(replica("r1", 1))
            .work(replica("r2", 2))
            .with(move |w: &mut World| {
                w.services.push(Service {
                    name: "chat".to_owned(),
                    team: "t".to_owned(),
                    min_replicas: least,
                    max_replicas: 8,
                });
            })
    };
    assert_eq!(victims(&with(2)), ["r0 to 0 by Drain"]);
    assert!(victims(&with(3)).is_empty());
}

#[test]
fn what_was_started_as_borrowed_spoils_a_node_and_not_who_is_put_beside_it() {
    let mut pool = shared().preemption(eager());
    pool.whole_node_guarantees = true;
    let mut spread = Workload::waiting("spread", "t0", 1, before(60)).workers(3);
    for (node, device) in [("n3", 0), ("n2", 0), ("n2", 1)] {
        let there = spread.clone().running_on(node, &[device], before(50));
        spread.placed.extend(there.placed);
        (spread.state, spread.started) = (there.state, there.started);
    }
    let part = Workload::waiting("part", "t2", 0, before(5));
    let half = MilliGpu::from_milli(500);
    let rig = Rig::new()
        .pool(pool)
        .nodes(1, 3)
        .nodes(1, 2)
        .nodes(1, 1)
        .team("t0", 3)
        .team("t2", 1)
        .team("t3", 1)
        .work(Workload::waiting("big", "t3", 2, before(60)).running_on("n1", &[0, 1], before(50)))
        .work(spread)
        .work(Workload::waiting("one", "t3", 1, before(9)))
        .work(part.fraction(SharingMode::TimeSlice, half, None));
    // When `big` has left, `one` is in the guarantee of its team.
    assert_eq!(rig.starts(), ["one"]);
    assert_eq!(victims(&rig), ["big to 0 by Reclaim"]);
}

#[test]
fn a_pool_that_wastes_little_and_has_no_node_is_no_reason_to_give_up() {
    let mut empty = Pool::new("q");
    empty.strategy = Strategy::LeastFragmentation;
    let row = Quota::guaranteed(MilliGpu::ZERO);
    let rig = Rig::new()
        .nodes(1, 2)
        .with(|w| w.pools.push(empty))
        .tenant(Team::new("t").quota("p", row.clone()).quota("q", row))
        .work(Workload::waiting("two", "t", 2, before(5)));
    assert_eq!(rig.starts(), ["two"]);
}

#[test]
fn a_rank_whose_devices_do_not_help_is_given_back_though_higher_ones_are_needed() {
    let elastic = |name: &str| {
        let mut work = Workload::waiting(name, "b", 1, before(60)).workers(3);
        work.min_workers = Some(1);
        work
    };
    let mut spread = elastic("spread");
    for node in ["n3", "n2", "n1"] {
        let there = spread.clone().running_on(node, &[0], before(10));
        spread.placed.extend(there.placed);
        (spread.state, spread.started) = (there.state, there.started);
    }
    let dear = Workload::waiting("dear", "b", 1, before(60)).running_on("n1", &[1], before(50));
    let fixed = |node: &str| {
        let work = Workload::waiting(&format!("fixed-{node}"), "c", 1, before(60)).class("fixed");
        work.running_on(node, &[1], before(50))
    };
    let rig = Rig::new()
        .nodes(3, 2)
        .team("a", 2)
        .team("b", 0)
        .team("c", 2)
        .work(spread)
        .work(dear)
        .work(fixed("n2"))
        .work(fixed("n3"))
        .work(Workload::waiting("new", "a", 2, before(5)));
    // Each step of `spread` costs less than `dear`, and only the first is on a node that helps.
    assert_eq!(
        victims(&rig),
        ["spread to 2 by Shrink", "dear to 0 by Reclaim"]
    );
}

#[test]
fn instances_have_no_links_to_require() {
    let mut job = slices("two", "t", "1g.10gb", 2);
    job.nvlink = NvlinkRule::Require;
    let rig = Rig::new().pool(shared()).nodes(1, 1).team("t", 1).work(job);
    assert_eq!(rig.starts(), ["two"]);
}

/// Two nodes of four devices, each with one job of a borrower on all of them.
fn two_large_borrowers() -> Rig {
    let large = |name: &str, node: &str| {
        Workload::waiting(name, "b", 4, before(60)).running_on(node, &[0, 1, 2, 3], before(50))
    };
    Rig::new()
        .pool(Pool::new("p").preemption(PreemptionPolicy::default()))
        .nodes(2, 4)
        .team("t", 5)
        .team("b", 0)
        .work(large("one", "n1"))
        .work(large("two", "n2"))
}

#[test]
fn what_leaves_for_one_leaves_room_for_the_next_and_nobody_else_gives_way() {
    let rig = two_large_borrowers().jobs("j", "t", 4, 1);
    assert_eq!(victims(&rig), ["one to 0 by Reclaim"]);
    let plan = rig.plan();
    assert_eq!(plan.nominations.len(), 4);
    assert!(plan.nominations.iter().all(|n| n.waits_for == ["one"]));
    assert_eq!(victims(&rig.jobs("k", "t", 1, 1)).len(), 2);
}

#[test]
fn what_leaves_since_an_earlier_plan_has_room_for_who_comes_later() {
    let rig = two_large_borrowers().jobs("j", "t", 1, 1);
    let mut world = rig.world().clone();
    engine::cycles::apply(&mut world, &rig.plan());
    engine::cycles::advance(&mut world, None);
    let later = Rig::new().with(|w| *w = world).jobs("k", "t", 3, 1);
    assert!(victims(&later).is_empty());
    assert_eq!(later.plan().nominations.len(), 4);
    assert_eq!(later.settles(60).evictions(), 0);
}

#[test]
fn an_elastic_borrower_gives_all_that_is_asked_in_one_plan() {
    let mut elastic = Workload::waiting("elastic", "b", 1, before(60)).workers(4);
    elastic.min_workers = Some(1);
    let there = elastic.clone().running_on("n1", &[0], before(50));
    elastic.placed = (0..4)
        .map(|i| elastic.clone().running_on("n1", &[i], before(50)).placed[0].clone())
        .collect();
    (elastic.state, elastic.started) = (there.state, there.started);
    let rig = |jobs| {
        let guaranteed = if jobs > 4 { 4 } else { jobs };
        Rig::new()
            .nodes(1, 4)
            .team("t", guaranteed as i64)
            .team("b", 0)
            .work(elastic.clone())
            .jobs("j", "t", jobs, 1)
    };
    assert_eq!(victims(&rig(3)), ["elastic to 1 by Shrink"]);
    assert_eq!(rig(3).plan().preemptions[0].released, [1, 2, 3]);
    assert_eq!(rig(3).plan().preemptions[0].lost_gpu_seconds, 3 * 50 * 60);
    assert_eq!(victims(&rig(4)), ["elastic to 0 by Reclaim"]);
}

#[test]
fn who_comes_first_is_not_held_back_by_the_start_of_who_comes_after() {
    let row = |gpus| Quota::guaranteed(MilliGpu::whole(gpus));
    let limited = row(1).limited(MilliGpu::whole(1));
    let guest = Workload::waiting("guest", "t3", 1, before(60)).running_on("n2", &[1], before(50));
    let mut gang = Workload::waiting("large", "t1", 1, before(60)).workers(2);
    for (node, device) in [("n1", 0), ("n2", 0)] {
        let there = gang.clone().running_on(node, &[device], before(50));
        gang.placed.extend(there.placed);
        (gang.state, gang.started) = (there.state, there.started);
    }
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(PreemptionPolicy::default()))
        .nodes(1, 1)
        .nodes(1, 2)
        .tenant(Team::new("d0"))
        .tenant(Team::new("d1").quota("p", limited))
        .tenant(Team::new("t0").under("d0").quota("p", row(1)))
        .tenant(Team::new("t1").under("d0").quota("p", row(0)))
        .tenant(Team::new("t2").under("d1").quota("p", row(1)))
        .tenant(Team::new("t3").under("d1").quota("p", row(0)))
        .work(guest)
        .work(gang)
        .work(Workload::waiting("first", "t2", 1, before(9)))
        .work(Workload::waiting("second", "t0", 1, before(9)));
    // The limit of d1 makes the first displace its guest. The second, which could run, is the
    // head, and its start is the end of that same guest.
    let all = ["guest to 0 by Reclaim", "large to 0 by Reclaim"];
    assert_eq!(victims(&rig), all);
}

#[test]
fn a_part_asked_for_by_memory_takes_back_nothing_that_is_beyond_the_guarantee_there() {
    let small = Node {
        gpu_memory_mib: 24_576,
        ..Node::new("n2", "p", 1)
    };
    let part = Workload::waiting("part", "t", 0, before(5));
    let quarter = MilliGpu::from_milli(250);
    let half = Quota::guaranteed(MilliGpu::from_milli(500));
    // 23,000 MiB are 0.283 of the large device and 0.936 of the small one.
    let rig = Rig::new()
        .pool(shared().preemption(PreemptionPolicy::default()))
        .nodes(1, 1)
        .node(small)
        .tenant(Team::new("t").quota("p", half))
        .team("fixed", 1)
        .team("b", 0)
        .work(Workload::waiting("f", "fixed", 1, before(60)).running_on("n1", &[0], before(50)))
        .work(Workload::waiting("b", "b", 1, before(60)).running_on("n2", &[0], before(50)))
        .work(part.fraction(SharingMode::TimeSlice, quarter, Some(23_000)));
    assert!(victims(&rig).is_empty());
}

#[test]
fn work_without_devices_takes_nothing_back() {
    let plain = |name: &str, team: &str, class: &str| {
        let mut work = Workload::waiting(name, team, 0, before(60)).class(class);
        work.per_worker.cpus = MilliCpu::whole(1);
        work
    };
    // Both cores are in use; t borrows, and its own low job alone is not enough.
    let rig = Rig::new()
        .node(Node::new("n1", "p", 2).host(2, 1024))
        .team("t", 0)
        .team("b", 0)
        .work(Workload::waiting("g", "b", 1, before(60)).running_on("n1", &[0], before(50)))
        .work(plain("own", "t", "low").running_on("n1", &[], before(50)))
        .work(plain("other", "b", "low").running_on("n1", &[], before(50)))
        .work(plain("gang", "t", "high").workers(2));
    assert!(victims(&rig).is_empty());
}

#[test]
fn what_moves_goes_where_it_takes_its_team_over_no_limit() {
    let small = |name: &str| Node {
        gpu_memory_mib: 24_576,
        ..Node::new(name, "p", 1)
    };
    let mut part = Workload::waiting("part", "t", 0, before(60)).fraction(
        SharingMode::TimeSlice,
        MilliGpu::from_milli(250),
        Some(23_000),
    );
    let there = part.clone().running_on("n1", &[0], before(50));
    (part.state, part.started) = (there.state, there.started);
    part.placed = vec![Placed {
        node: "n1".to_owned(),
        devices: vec![PlacedDevice::fraction(
            0,
            SharingMode::TimeSlice,
            MilliGpu::from_milli(250),
            23_000,
        )],
    }];
    let half = Quota::guaranteed(MilliGpu::from_milli(500)).limited(MilliGpu::from_milli(500));
    // It counts 0.283 where it is, and 0.936 on the small device.
    let rig = Rig::new()
        .pool(shared().preemption(PreemptionPolicy::default()))
        .node(Node::new("n1", "p", 1).state(NodeState::Draining))
        .node(small("n2"))
        .tenant(Team::new("t").quota("p", half))
        .work(part);
    assert_eq!(victims(&rig), ["part to 0 by Drain"]);
    // A large device would do.
    let plan = rig.node(Node::new("n3", "p", 1)).plan();
    assert_eq!(plan.migrations[0].placement[0].node, "n3");
}

#[test]
fn what_a_limit_lets_start_when_others_leave_starts_and_counts() {
    let row = |gpus| Quota::guaranteed(MilliGpu::whole(gpus));
    let mut elastic = Workload::waiting("elastic", "t1", 2, before(60)).workers(2);
    elastic.min_workers = Some(1);
    for devices in [[0, 1], [2, 3]] {
        let there = elastic.clone().running_on("n1", &devices, before(50));
        elastic.placed.extend(there.placed);
        (elastic.state, elastic.started) = (there.state, there.started);
    }
    // Five of nine devices are free, and the limit of the department is what binds.
    let mut pool = Pool::new("p").preemption(PreemptionPolicy::default());
    pool.strategy = Strategy::Spread;
    let rig = Rig::new()
        .pool(pool)
        .nodes(1, 4)
        .nodes(1, 5)
        .tenant(Team::new("d").quota("p", row(5).limited(MilliGpu::whole(5))))
        .tenant(Team::new("t0").under("d").quota("p", row(5)))
        .tenant(Team::new("t1").under("d").quota("p", row(0)))
        .work(elastic)
        .jobs("j", "t0", 5, 1);
    // The last has room with what left for the fourth.
    let plan = rig.plan();
    assert_eq!(plan.starts.len() + plan.nominations.len(), 5);
    assert_eq!(victims(&rig), ["elastic to 0 by Reclaim"]);
}

#[test]
fn what_a_node_overbooks_itself_is_no_fault_of_who_waits_for_it_to_leave() {
    let plain = |name: &str| {
        let mut work = Workload::waiting(name, "t", 0, before(60));
        work.per_worker.memory_mib = 1024;
        work
    };
    let rig = Rig::new()
        .pool(Pool::new("p").preemption(PreemptionPolicy {
            consolidate: true,
            ..PreemptionPolicy::default()
        }))
        .node(Node::new("n1", "p", 1).host(8, 0))
        .node(Node::new("n2", "p", 0).host(8, 4096))
        .team("t", 1)
        .work(plain("host").running_on("n1", &[], before(50)))
        .work(Workload::waiting("new", "t", 1, before(5)));
    // The node has less memory than it had when `host` was put on it.
    let plan = rig.plan();
    assert_eq!(plan.migrations[0].placement[0].node, "n2");
    assert_eq!(plan.nominations[0].workload, "new");
}

/// The room that is kept for a workload, and that it does not have yet, was taken from who stands there.
#[test]
fn who_leaves_holds_its_instance_until_it_has_left_whoever_waits_for_it() {
    let on = |name: &str, held: &str| {
        let work = Workload::waiting(name, "t", 1, before(60));
        running_on_slices(work, "n1", &[(0, held)])
    };
    let mut leaves = on("leaves", "7g.80gb@0");
    leaves.state = WorkloadState::Leaving;
    leaves.leaves_at = Some(before(-1));
    let kept = |name: &str, held: &str| {
        let mut work = on(name, held);
        let placement = std::mem::take(&mut work.placed);
        (work.state, work.started) = (WorkloadState::Waiting, None);
        let until = before(-5);
        work.nominated = Some(Nominated { placement, until });
        work.per_worker.sharing = vec![SharingMode::Mig];
        work
    };
    let rig = Rig::new()
        .pool(shared())
        .node(cut(Node::new("n1", "p", 1), 0, &["7g.80gb@0"]))
        .team("t", 1)
        .work(leaves)
        .work(kept("first", "1g.10gb@0"))
        .work(kept("second", "3g.40gb@0"))
        .work(slices("new", "t", "2g.20gb", 1));
    assert_eq!(rig.starts(), [] as [&str; 0]);
}

#[test]
fn who_of_two_that_start_is_in_the_guarantee_turns_on_who_came_first_and_not_on_names() {
    let mut pool = Pool::new("p");
    pool.whole_node_guarantees = true;
    pool.non_preemptible_borrowing = true;
    let pinned = |name: &str, node: &str, minutes: i64| {
        let mut work = Workload::waiting(name, "b", 1, before(minutes));
        work.node = Some(node.to_owned());
        work
    };
    for (first, second) in [("k", "m"), ("m", "k")] {
        let rig = Rig::new()
            .pool(pool.clone())
            .nodes(2, 2)
            .team("a", 2)
            .team("b", 1)
            .team("c", 0)
            .work(pinned(first, "n1", 9))
            .work(pinned(second, "n2", 8))
            .work(Workload::waiting("new", "c", 1, before(5)).class("fixed"));
        // The first makes n1 its team's; n2 is left whole for a, once the second has left it.
        let plan = rig.plan();
        let new = plan.start_of("new").expect("it starts");
        assert_eq!(new.placement[0].node, "n1");
    }
}

#[test]
fn who_is_on_a_node_that_is_emptied_has_its_whole_node_elsewhere() {
    let mut pool = Pool::new("p");
    pool.whole_node_guarantees = true;
    let leaves = Workload::waiting("leaves", "a", 1, before(60)).running_on("n1", &[0], before(50));
    let rig = Rig::new()
        .pool(pool)
        .node(Node::new("n1", "p", 2).state(NodeState::Draining))
        .node(Node::new("n2", "p", 2))
        .team("a", 2)
        .team("b", 1)
        .work(leaves)
        .work(Workload::waiting("new", "b", 1, before(5)));
    // The one node that is left is promised to `a`.
    let plan = rig.plan();
    assert_eq!(plan.migrations[0].placement[0].node, "n2");
    assert_eq!(plan.starts, []);
}

#[test]
fn room_that_is_kept_for_another_request_is_not_given() {
    let mut part = Workload::waiting("part", "t", 1, before(60));
    part.nominated = Some(Nominated {
        placement: vec![Placed {
            node: "n1".to_owned(),
            devices: vec![PlacedDevice::fraction(
                0,
                SharingMode::TimeSlice,
                MilliGpu::from_milli(250),
                20_000,
            )],
        }],
        until: before(-5),
    });
    // It asks for a whole device by now.
    let rig = Rig::new()
        .pool(shared())
        .nodes(1, 2)
        .team("t", 1)
        .work(part);
    let plan = rig.plan();
    let start = plan.start_of("part").expect("it starts");
    assert_eq!(start.placement[0].devices[0].mode, SharingMode::Exclusive);
}

#[test]
fn a_device_that_a_kept_room_makes_whole_again_has_no_instance_after_that() {
    let mut leaves = running_on_slices(
        Workload::waiting("leaves", "t", 1, before(60)),
        "n1",
        &[(0, "1g.20gb@0")],
    );
    leaves.state = WorkloadState::Leaving;
    leaves.leaves_at = Some(before(-1));
    let mut whole = Workload::waiting("whole", "t", 1, before(50));
    whole.nominated = Some(Nominated {
        placement: vec![Placed {
            node: "n1".to_owned(),
            devices: vec![PlacedDevice::whole(0)],
        }],
        until: before(-5),
    });
    let rig = Rig::new()
        .pool(shared())
        .node(cut(Node::new("n1", "p", 1), 0, &["1g.20gb@0"]))
        .team("t", 0)
        .work(leaves)
        .work(whole)
        .work(slices("slice", "t", "3g.40gb", 1));
    // Nobody knows when `whole` ends.
    let plan = rig.plan();
    assert_eq!(plan.nominations[0].workload, "whole");
    assert_eq!(plan.reservations, []);
}
