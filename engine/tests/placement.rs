//! Where work goes: a shape of cluster, and the placement that is expected.

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use domain::{MilliCpu, MilliGpu};
use engine::plan::Code;
use engine::rig::{Rig, before, eager};
use engine::world::{Node, NodeState, Pool, PreemptionPolicy, Reclaim, Strategy, Workload};

/// A team with plenty, three nodes of four devices, one of them half full.
fn three_nodes() -> Rig {
    let busy = Workload::waiting("busy", "t", 2, before(60)).running_on("n2", &[0, 1], before(50));
    Rig::new().nodes(3, 4).team("t", 12).work(busy)
}

#[test]
fn packing_takes_the_fullest_node_that_fits_and_spreading_the_emptiest() {
    let job = |gpus| Workload::waiting("new", "t", gpus, before(10));
    assert_eq!(three_nodes().work(job(1)).place("new"), "n2:2");
    assert_eq!(three_nodes().work(job(3)).place("new"), "n1:0,1,2");
    let spread = |rig: Rig| rig.with(|w| w.pools[0].strategy = Strategy::Spread);
    assert_eq!(spread(three_nodes().work(job(1))).place("new"), "n1:0");
}

#[test]
fn packing_weighs_links_against_fill_exactly() {
    // 21 of 26 devices given is 80.77 points; 16 of 26 and links are 81.54.
    let node = |name: &str| Node::new(name, "p", 26).host(64, 524_288);
    let busy = |name: &str, node: &str, devices: u32| {
        let devices: Vec<u32> = (0..devices).collect();
        Workload::waiting(name, "t", devices.len() as i64, before(60)).running_on(
            node,
            &devices,
            before(50),
        )
    };
    let linked = Node {
        nvlink: vec![(0..26).collect()],
        ..node("n2")
    };
    let rig = Rig::new()
        .team("t", 60)
        .node(node("n1"))
        .node(linked)
        .work(busy("a", "n1", 21))
        .work(busy("b", "n2", 16));
    let two = Workload::waiting("new", "t", 2, before(10));
    assert_eq!(rig.work(two).place("new"), "n2:16,17");
}

/// A pool that wastes little, and shares devices.
fn wasting_little() -> Rig {
    let mut pool = Pool::new("p").sharing(&[SharingMode::Exclusive, SharingMode::TimeSlice]);
    pool.strategy = Strategy::LeastFragmentation;
    Rig::new().pool(pool).team("t", 64)
}

fn part(name: &str, milli: i64) -> Workload {
    Workload::waiting(name, "t", 0, before(10)).fraction(
        SharingMode::TimeSlice,
        MilliGpu::from_milli(milli),
        None,
    )
}

#[test]
fn little_waste_spares_whole_nodes_for_the_requests_that_are_seen() {
    let eight = Workload::waiting("eight", "t", 8, before(5));
    let busy =
        Workload::waiting("busy", "t", 3, before(60)).running_on("n2", &[0, 1, 2], before(50));
    let rig = wasting_little().nodes(2, 8).work(busy);
    let one = || Workload::waiting("one", "t", 1, before(10));
    let both = rig.clone().work(one()).work(eight);
    assert_eq!(both.place("one"), "n2:3");
    assert_eq!(both.place("eight"), "n1:0,1,2,3,4,5,6,7");
    // Requests that are gone by now show as well as those that wait.
    let past = rig.with(|w| w.remember("p", &Workload::waiting("past", "t", 8, before(99))));
    assert_eq!(past.work(one()).place("one"), "n2:3");
}

#[test]
fn little_waste_puts_a_part_where_the_parts_that_come_can_use_the_rest() {
    // Parts of 600 and of 400 are seen: 400 goes beside 600, not beside another 400.
    let running = |name: &str, milli: i64, device: u32| {
        let mut work = part(name, milli).running_on("n1", &[], before(50));
        work.placed[0].devices = vec![engine::world::PlacedDevice::fraction(
            device,
            SharingMode::TimeSlice,
            MilliGpu::from_milli(milli),
            81_559 * milli / 1000,
        )];
        work
    };
    let rig = wasting_little()
        .nodes(1, 3)
        .work(running("a", 400, 0))
        .work(running("b", 600, 1))
        .work(part("new", 400));
    assert_eq!(rig.place("new"), "n1:1");
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    let gang = |workers| Workload::waiting("new", "t", 2, before(10)).workers(workers);
    assert_eq!(
        three_nodes().work(gang(5)).place("new"),
        "n2:2,3 n1:0,1 n1:2,3 n3:0,1 n3:2,3"
    );
    assert_eq!(three_nodes().work(gang(6)).place("new"), "");
}

#[test]
fn a_gang_prefers_one_domain_and_takes_several_when_none_holds_it() {
    let rack = |name: &str, rack: &str| Node::new(name, "p", 2).label("rack", rack);
    let rig = || {
        Rig::new()
            .team("t", 12)
            .node(rack("n1", "r1"))
            .node(rack("n2", "r2"))
            .node(rack("n3", "r2"))
            .node(rack("n4", "r1"))
            .work(Workload::waiting("busy", "t", 1, before(60)).running_on("n1", &[0], before(50)))
    };
    let gang = |workers| {
        let mut gang = Workload::waiting("new", "t", 2, before(10)).workers(workers);
        gang.topology.prefer = Some("rack".to_owned());
        gang
    };
    assert_eq!(rig().work(gang(2)).place("new"), "n2:0,1 n3:0,1");
    assert_eq!(rig().work(gang(3)).place("new"), "n2:0,1 n3:0,1 n4:0,1");
}

#[test]
fn several_devices_are_taken_from_the_tightest_clique() {
    let mut node = Node::new("n1", "p", 8);
    node.nvlink = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
    let rig = Rig::new().team("t", 8).node(node);
    let busy = Workload::waiting("busy", "t", 2, before(60)).running_on("n1", &[4, 5], before(50));
    let rig = rig.work(busy);
    assert_eq!(
        rig.clone()
            .work(Workload::waiting("new", "t", 2, before(10)))
            .place("new"),
        "n1:6,7"
    );
    assert_eq!(
        rig.clone()
            .work(Workload::waiting("new", "t", 1, before(10)))
            .place("new"),
        "n1:6"
    );
    let mut linked = Workload::waiting("new", "t", 5, before(10));
    assert_eq!(
        rig.clone().work(linked.clone()).place("new"),
        "n1:0,1,2,3,6"
    );
    linked.nvlink = NvlinkRule::Require;
    assert_eq!(rig.work(linked).place("new"), "");
}

#[test]
fn only_ready_nodes_and_sound_devices_are_used() {
    let rig = Rig::new()
        .team("t", 12)
        .node(Node::new("n1", "p", 2).state(NodeState::Cordoned))
        .node(Node::new("n2", "p", 2).state(NodeState::Unreachable))
        .node(Node {
            failed: vec![0],
            ..Node::new("n3", "p", 2)
        })
        .jobs("j", "t", 3, 1);
    assert_eq!((rig.place("j00"), rig.count("j")), ("n3:1".to_owned(), 1));
}

#[test]
fn a_mode_that_no_agent_drives_is_hardware_that_is_not_there() {
    let sharing = [SharingMode::Exclusive, SharingMode::TimeSlice];
    let part = Workload::waiting("new", "t", 0, before(10)).fraction(
        SharingMode::TimeSlice,
        MilliGpu::from_milli(500),
        None,
    );
    let rig = |drives| {
        Rig::new()
            .pool(Pool::new("p").sharing(&sharing))
            .team("t", 2)
            .node(Node {
                drives,
                ..Node::new("n1", "p", 2)
            })
            .work(part.clone())
    };
    assert_eq!(rig(None).count("new"), 1);
    let plan = rig(Some(vec![SharingMode::Exclusive])).plan();
    assert_eq!(plan.waiting[0].code.as_str(), "no_such_hardware");
}

#[test]
fn time_slices_share_a_device_up_to_memory_compute_and_count() {
    let part = |name: &str, milli, memory| {
        let job = Workload::waiting(name, "t", 0, before(10));
        job.fraction(
            SharingMode::TimeSlice,
            MilliGpu::from_milli(milli),
            Some(memory),
        )
    };
    let sharing = [SharingMode::Exclusive, SharingMode::TimeSlice];
    let rig = || {
        Rig::new()
            .pool(Pool::new("p").sharing(&sharing))
            .team("t", 2)
            .nodes(1, 2)
    };
    let packed = rig()
        .work(part("a", 300, 20_000))
        .work(part("b", 300, 20_000));
    assert_eq!(
        (packed.place("a"), packed.place("b")),
        ("n1:0".to_owned(), "n1:0".to_owned())
    );
    let memory = rig()
        .work(part("a", 300, 60_000))
        .work(part("b", 300, 60_000));
    assert_eq!(
        (memory.place("a"), memory.place("b")),
        ("n1:0".to_owned(), "n1:1".to_owned())
    );
}

#[test]
fn vgpu_parts_of_a_device_have_one_size_and_as_many_fit_as_its_memory_holds() {
    let part = |name: &str, milli, memory| {
        let job = Workload::waiting(name, "t", 0, before(10));
        job.fraction(SharingMode::Vgpu, MilliGpu::from_milli(milli), memory)
    };
    let rig = |gpus| {
        let sharing = [SharingMode::Exclusive, SharingMode::Vgpu];
        let pool = Pool::new("p").sharing(&sharing);
        Rig::new().pool(pool).team("t", 9).nodes(1, gpus)
    };
    // 81,559 MiB hold three of 24,000, whatever is left.
    let three = (0..5).fold(rig(1), |rig, i| {
        rig.work(part(&format!("a{i}"), 100, Some(24_000)))
    });
    assert_eq!(three.count("a"), 3);
    let odd = || rig(1).work(part("a", 250, None)).work(part("b", 500, None));
    assert_eq!(odd().starts(), ["a"]);
    let plan = odd().plan();
    assert_eq!(plan.waiting[0].code.as_str(), "fragmented");
    let two = rig(2)
        .work(part("a", 250, None))
        .work(part("b", 500, None))
        .work(part("c", 250, None));
    let places = ["a", "b", "c"].map(|name| two.place(name));
    assert_eq!(places, ["n1:0", "n1:1", "n1:0"]);
}

#[test]
fn work_without_devices_keeps_off_nodes_that_have_some() {
    let mut plain = Workload::waiting("new", "t", 0, before(10));
    plain.per_worker.cpus = MilliCpu::whole(8);
    let rig = Rig::new()
        .team("t", 0)
        .nodes(1, 4)
        .node(Node::new("z-host", "p", 0))
        .work(plain);
    assert_eq!(rig.place("new"), "z-host:");
}

/// Two nodes of eight; each of two teams is guaranteed one of them, whole.
fn whole_nodes() -> Rig {
    Rig::new()
        .pool(Pool::new("p").preemption(eager()).with(|policy| {
            policy.whole_node_guarantees = true;
            policy.strategy = Strategy::Spread;
        }))
        .nodes(2, 8)
        .team("vc1", 8)
        .team("vc2", 8)
}

/// T-1.46: eight jobs of one device stay on one node although the pool spreads.
#[test]
fn a_guarantee_in_whole_nodes_keeps_the_other_teams_node_whole() {
    let rig = whole_nodes().jobs("a", "vc1", 8, 1);
    let rest = rig
        .work(Workload::waiting("b", "vc2", 8, before(1)))
        .settles(3);
    assert_eq!(rest.running(""), 9);
    assert_eq!(rest.evictions(), 0);
}

/// T-1.47: borrowed work may sit on a promised node, and gives way when its owner comes.
#[test]
fn who_borrows_a_promised_node_gives_way_and_nobody_else() {
    let guest = |i: u32| {
        Workload::waiting(&format!("g{i}"), "guests", 1, before(90)).running_on(
            "n2",
            &[i],
            before(80),
        )
    };
    let mut rig = whole_nodes().team("guests", 0);
    for i in 0..4 {
        let own = Workload::waiting(&format!("a{i}"), "vc1", 1, before(90));
        rig = rig
            .work(guest(i))
            .work(own.running_on("n1", &[i], before(80)));
    }
    let plan = rig.work(Workload::waiting("b", "vc2", 8, before(1))).plan();
    let mut gone: Vec<&str> = plan
        .preemptions
        .iter()
        .map(|p| p.workload.as_str())
        .collect();
    gone.sort_unstable();
    assert_eq!(gone, ["g0", "g1", "g2", "g3"]);
}

/// T-1.49: a bad node makes the guarantees smaller; the other team keeps its node.
#[test]
fn a_promise_is_kept_with_the_nodes_that_are_left() {
    let mut bad = Node::new("n3", "p", 8);
    bad.failed = vec![0];
    let rest = whole_nodes()
        .node(bad)
        .jobs("a", "vc1", 8, 1)
        .work(Workload::waiting("b", "vc2", 8, before(1)))
        .settles(3);
    assert_eq!(rest.running("b"), 1);
}

#[test]
fn little_waste_counts_instances_of_the_past_by_their_slices() {
    let cut = |name: &str| {
        let mut work = Workload::waiting(name, "t", 0, before(10));
        work.per_worker.gpus = None;
        work.per_worker.mig_profile = Some("1g.10gb".to_owned());
        work.per_worker.sharing = vec![SharingMode::Mig];
        work
    };
    let mut pool = Pool::new("p").sharing(&[SharingMode::Exclusive, SharingMode::Mig]);
    pool.strategy = Strategy::LeastFragmentation;
    let rig = Rig::new().pool(pool).team("t", 64).nodes(2, 2);
    let rig = rig.with(|w| w.remember("p", &cut("past")));
    let whole = Workload::waiting("whole", "t", 2, before(5));
    let both = rig.work(cut("new")).work(whole);
    assert_eq!(both.place("new"), "n1:0/1g.10gb@4");
    assert_eq!(both.place("whole"), "n2:0,1");
}

#[test]
fn a_pool_without_nodes_holds_nothing() {
    let rig = Rig::new().team("t", 1).jobs("j", "t", 1, 1);
    assert_eq!(rig.starts(), Vec::<String>::new());
    let host_only = |w: &mut engine::world::World| w.workloads[0].per_worker.gpus = None;
    assert_eq!(rig.with(host_only).starts(), Vec::<String>::new());
}

/// Whose nodes are whose is as it will be: what stands there then, and whose guarantee it is in.
#[test]
fn a_start_that_is_told_breaks_no_promise_of_whole_nodes() {
    let guest = |name: &str, node: &str, devices: &[u32], hours: i64| {
        let gpus = devices.len() as i64;
        let mut guest = Workload::waiting(name, "guests", gpus, before(60));
        guest.time_limit_seconds = Some(hours * 3600);
        guest.running_on(node, devices, before(0))
    };
    let own = Workload::waiting("own", "vc1", 2, before(60)).running_on("n1", &[0, 1], before(50));
    let asks = Workload::waiting("asks", "vc1", 2, before(5));
    let never = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..eager()
    };
    let rig = Rig::new()
        .pool(
            Pool::new("p")
                .preemption(never)
                .with(|policy| policy.whole_node_guarantees = true),
        )
        .nodes(2, 4)
        .team("vc1", 4)
        .team("vc2", 4)
        .team("guests", 0)
        .work(own)
        .work(guest("long", "n1", &[2, 3], 2))
        .work(guest("short", "n2", &[0, 1, 2, 3], 1))
        .work(asks);
    // After an hour n2 is free, and the only node that is left for vc2.
    let kept = &rig.plan().reservations[0];
    assert_eq!(kept.start, before(-120));
    assert_eq!(kept.nodes, ["n1"]);
}

#[test]
fn a_wait_for_want_of_nodes_names_those_that_are_out() {
    let rig = || {
        Rig::new()
            .nodes(3, 4)
            .team("t", 12)
            .work(Workload::waiting("new", "t", 4, before(10)))
    };
    let told = |states: [NodeState; 3]| {
        let rig = rig().with(|w| {
            for (node, state) in w.nodes.iter_mut().zip(states) {
                node.state = state;
            }
        });
        rig.plan().waiting.remove(0).message.to_string()
    };
    use NodeState::{Cordoned, Draining, Unreachable};
    assert_eq!(
        told([Cordoned, Cordoned, Cordoned]),
        "it needs 4 GPUs, and 0 are free in pool p; not counting 3 cordoned nodes"
    );
    assert_eq!(
        told([Cordoned, Draining, Unreachable]),
        "it needs 4 GPUs, and 0 are free in pool p; not counting 3 nodes (1 cordoned, 1 draining, 1 unreachable)"
    );
    // A node that would not do anyhow is not to blame, nor is one where there is enough.
    let other = rig().with(|w| {
        w.nodes[0].state = Cordoned;
        w.nodes[0].labels = [("rack".to_owned(), "r2".to_owned())].into();
        w.workloads[0].selector = [("rack".to_owned(), "r1".to_owned())].into();
        for node in &mut w.nodes[1..] {
            node.labels = [("rack".to_owned(), "r1".to_owned())].into();
        }
        for (name, node) in [("a", "n2"), ("b", "n3")] {
            let busy = Workload::waiting(name, "t", 4, before(60));
            w.workloads
                .push(busy.running_on(node, &[0, 1, 2, 3], before(50)));
        }
    });
    assert_eq!(
        &*other.plan().waiting[0].message,
        "it needs 4 GPUs, and 0 are free in pool p"
    );
}

#[test]
fn a_wait_for_want_of_cpus_or_memory_names_those_and_no_gpus() {
    let asking = |gpus: i64, cpus: i64, memory_mib: i64| {
        let with = |name: &str, gpus: i64, cpus: i64, memory_mib: i64| {
            let mut work = Workload::waiting(name, "t", gpus, before(10));
            work.per_worker.cpus = MilliCpu::whole(cpus);
            work.per_worker.memory_mib = memory_mib;
            work
        };
        let mut world = Rig::new().nodes(1, 4).team("t", 4);
        world = world.work(with("holds", 1, 30, 1024).running_on("n1", &[0], before(5)));
        world = world.work(with("new", gpus, cpus, memory_mib));
        world.with(|w| {
            w.nodes[0].cpus = MilliCpu::whole(64);
            w.nodes[0].memory_mib = 4096;
        })
    };
    let told = |rig: Rig| rig.plan().waiting.remove(0);
    let cpus = told(asking(1, 60, 0));
    assert_eq!(cpus.code, Code::InsufficientCapacity);
    assert_eq!(
        &*cpus.message,
        "each worker needs 60 CPUs, and no node of pool p that could hold one has as much free"
    );
    let memory = told(asking(0, 0, 4000));
    assert_eq!(
        &*memory.message,
        "each worker needs 4000 MiB of memory, and no node of pool p that could hold one has as much free"
    );
    // Of work without GPUs no GPUs are told, whatever keeps it.
    let out = told(asking(0, 1, 1).with(|w| w.nodes[0].state = NodeState::Cordoned));
    assert_eq!(out.code, Code::InsufficientCapacity);
    assert_eq!(
        &*out.message,
        "no node of pool p that could hold it takes work; not counting 1 cordoned node"
    );
}

/// Memory is counted in MiB, and never by a rounded part of a device.
#[test]
fn twenty_three_of_2000_mib_fit_on_46068_and_the_next_waits() {
    let mut rig = Rig::new().team("t", 4).with(|w| {
        w.pools = vec![Pool::new("p").sharing(SharingMode::ALL)];
        w.pools[0].policy.time_slices = 32;
    });
    rig = rig.nodes(1, 1).with(|w| w.nodes[0].gpu_memory_mib = 46_068);
    for number in 0..24 {
        let small = Workload::waiting(&format!("j{number:02}"), "t", 1, before(60 - number));
        let fraction = MilliGpu::from_milli(31);
        rig = rig.work(small.fraction(SharingMode::TimeSlice, fraction, Some(2000)));
    }
    let plan = rig.plan();
    assert_eq!(plan.starts.len(), 23);
    assert_eq!(plan.waiting.len(), 1);
    assert_eq!(plan.waiting[0].workload, "j23");
}
