//! Published and simulated examples of fair sharing and preemption, as numbered in the list of facts that the design rests on.

use domain::sharing::SharingMode;
use domain::{MilliCpu, MilliGpu};
use engine::rig::{Rig, before, eager};
use engine::world::{Class, Node, Nominated, Pool, PreemptionPolicy, Quota, Team, Workload};

fn row(milli: i64) -> Quota {
    Quota::guaranteed(MilliGpu::from_milli(milli))
}

fn host_job(name: &str, team: &str, cpus: i64, memory: i64, gpus: i64, order: i64) -> Workload {
    let mut work = Workload::waiting(name, team, gpus, before(600 - order));
    work.per_worker.cpus = MilliCpu::whole(cpus);
    work.per_worker.memory_mib = memory;
    work
}

fn endless(
    mut rig: Rig,
    prefix: &str,
    team: &str,
    count: i64,
    cpus: i64,
    memory: i64,
    gpus: i64,
) -> Rig {
    for i in 0..count {
        rig = rig.work(host_job(
            &format!("{prefix}{i:02}"),
            team,
            cpus,
            memory,
            gpus,
            i,
        ));
    }
    rig
}

/// T-1.1: 9 CPUs and 18 GB; tasks of <1, 4> and <3, 1>.
#[test]
fn dominant_shares_are_evened_out_between_unlike_tasks() {
    let rig = Rig::new()
        .node(Node::new("n1", "p", 0).host(9, 18))
        .team("a", 0)
        .team("b", 0);
    let rig = endless(endless(rig, "a", "a", 9, 1, 4, 0), "b", "b", 9, 3, 1, 0);
    assert_eq!((rig.count("a"), rig.count("b")), (3, 2));
}

/// T-1.5: with one resource only it is weighted max-min.
#[test]
fn with_one_resource_shares_are_weighted_max_min() {
    let team = |name: &str, weight| Team::new(name).quota("p", row(0).weighing(weight));
    let rig = Rig::new()
        .nodes(3, 4)
        .tenant(team("a", 1000))
        .tenant(team("b", 2000))
        .tenant(team("c", 3000))
        .jobs("a", "a", 1, 1)
        .jobs("b", "b", 12, 1)
        .jobs("c", "c", 12, 1);
    // Team a wants less than its sixth; what it leaves is split 2 to 3.
    assert_eq!((rig.count("a"), rig.count("b") + rig.count("c")), (1, 11));
    assert!((4..=5).contains(&rig.count("b")), "{}", rig.count("b"));
}

/// T-1.6: a leaf of <1, 1> beside a team with leaves of <1, 0> and <0, 1>.
#[test]
fn a_parent_of_complementary_children_gets_its_half_of_both() {
    let rig = Rig::new()
        .node(Node::new("n1", "p", 12).host(12, 1024))
        .team("n1", 0)
        .team("n2", 0)
        .tenant(Team::new("n2-c").under("n2").quota("p", row(0)))
        .tenant(Team::new("n2-g").under("n2").quota("p", row(0)));
    let rig = endless(rig, "both", "n1", 12, 1, 0, 1);
    let rig = endless(
        endless(rig, "cpu", "n2-c", 12, 1, 0, 0),
        "gpu",
        "n2-g",
        12,
        0,
        0,
        1,
    );
    assert_eq!(
        (rig.count("both"), rig.count("cpu"), rig.count("gpu")),
        (6, 6, 6)
    );
}

/// T-1.8: two equal departments on 480 devices, one with teams weighted 3 to 2; each job has a node.
#[test]
fn what_a_team_leaves_goes_to_its_siblings_first_and_comes_back_from_them() {
    const NODES: usize = 60;
    let child = |name: &str, weight| {
        Team::new(name)
            .under("d2")
            .quota("p", row(0).weighing(weight))
    };
    let rig = |x: usize, y: usize| {
        Rig::new()
            .pool(Pool::new("p").preemption(engine::world::PreemptionPolicy {
                across_borrowers: true,
                ..eager()
            }))
            .nodes(NODES, 8)
            .team("d1", 0)
            .team("d2", 0)
            .tenant(child("x", 3000))
            .tenant(child("y", 2000))
            .jobs("one", "d1", NODES, 8)
            .jobs("x", "x", x, 8)
            .jobs("y", "y", y, 8)
    };
    let gpus = |of: &Rig, prefix: &str| 8 * of.count(prefix);
    let all = rig(NODES, NODES);
    let shares = ["one", "x", "y"].map(|prefix| gpus(&all, prefix));
    assert_eq!(shares, [240, 144, 96]);
    let idle = rig(NODES, 0);
    assert_eq!((gpus(&idle, "one"), gpus(&idle, "x")), (240, 240));
    assert_eq!(gpus(&rig(0, 0), "one"), 480);
    // When y comes back, it has its part from x alone.
    let mut world = idle.world().clone();
    engine::cycles::apply(&mut world, &idle.plan());
    engine::cycles::advance(&mut world, None);
    let back = Rig::new().with(|w| *w = world).jobs("y", "y", NODES, 8);
    let given = back.plan().preemptions;
    assert!(
        given.iter().all(|p| p.workload.starts_with('x')),
        "{given:?}"
    );
    let rest = back.settles(20);
    let shares = ["one", "x", "y"].map(|prefix| 8 * rest.running(prefix));
    assert_eq!(shares, [240, 144, 96]);
}

/// T-1.28, T-1.29, T-1.30, T-1.31, T-1.32 and T-1.33: deserved 2, request 6, as entitlements; in whole devices where ours are finer.
#[test]
fn spare_capacity_is_poured_by_weight_up_to_limits_and_demand() {
    let fair = |total: u32, weights: [i64; 2], request: usize, limit: Option<i64>| {
        let team = |name: &str, weight: i64, limit: Option<i64>| {
            let quota = row(2000).weighing(weight * 1000);
            Team::new(name).quota(
                "p",
                Quota {
                    limit: limit.map(MilliGpu::whole),
                    ..quota
                },
            )
        };
        let plan = Rig::new()
            .nodes(1, total)
            .tenant(team("a", weights[0], limit))
            .tenant(team("b", weights[1], None))
            .jobs("a", "a", request, 1)
            .jobs("b", "b", request, 1)
            .plan();
        let of = |name: &str| {
            plan.shares
                .iter()
                .find(|s| s.team == name)
                .expect("a row")
                .fair_share
                .milli()
        };
        (of("a"), of("b"))
    };
    assert_eq!(fair(15, [1, 1], 6, None), (6000, 6000));
    assert_eq!(fair(12, [1, 1], 6, None), (6000, 6000));
    assert_eq!(fair(8, [1, 3], 6, None), (3000, 5000));
    assert_eq!(fair(12, [1, 1], 6, Some(5)), (5000, 6000));
    assert_eq!(fair(11, [1, 4], 10, None), (3400, 7600));
    assert_eq!(fair(11, [1, 1], 6, None), (5500, 5500));
}

/// T-2.7: of equals the younger is paused, and it is the one that resumes.
#[test]
fn the_younger_of_equals_gives_way_and_comes_back_first() {
    let rig = Rig::new()
        .nodes(1, 2)
        .team("t", 2)
        .work(Workload::waiting("e1", "t", 1, before(90)).running_on("n1", &[0], before(80)))
        .work(Workload::waiting("e2", "t", 1, before(70)).running_on("n1", &[1], before(60)))
        .work(Workload::waiting("e3", "t", 1, before(50)));
    let pressed = rig
        .clone()
        .work(Workload::waiting("e4", "t", 1, before(10)).class("high"));
    let plan = pressed.plan();
    let victims: Vec<&str> = plan
        .preemptions
        .iter()
        .map(|p| p.workload.as_str())
        .collect();
    assert_eq!(victims, ["e2"]);
    let freed = rig.with(|world| {
        let e2 = world
            .workloads
            .iter_mut()
            .find(|w| w.name == "e2")
            .expect("it is there");
        e2.state = engine::world::WorkloadState::Waiting;
        (e2.started, e2.placed) = (None, Vec::new());
    });
    assert_eq!(freed.starts(), ["e2"]);
}

/// T-2.8: guarantees of 0.15 and 0.15 beside a team without any.
#[test]
fn a_team_without_a_guarantee_is_not_evicted_for_ever() {
    let part = |name: &str, team: &str, milli: i64, minutes: i64| {
        let work = Workload::waiting(name, team, 0, before(minutes));
        work.fraction(SharingMode::TimeSlice, MilliGpu::from_milli(milli), None)
    };
    let sharing = [SharingMode::Exclusive, SharingMode::TimeSlice];
    let rig = Rig::new()
        .pool(
            Pool::new("p")
                .preemption(eager())
                .sharing(&sharing)
                .with(|policy| policy.time_slices = 10),
        )
        .nodes(1, 1)
        .tenant(Team::new("a").quota("p", row(150).limited(MilliGpu::from_milli(300))))
        .tenant(Team::new("b").quota("p", row(150).limited(MilliGpu::from_milli(300))))
        .tenant(Team::new("best-effort").quota("p", row(0)))
        .work(part("a1", "a", 250, 50))
        .work(part("be1", "best-effort", 50, 40))
        .work(part("a2", "a", 50, 30));
    assert!(rig.settles(20).evictions() <= 1);
}

/// T-2.9: four 2-GPU jobs of one team; another asks for 4, and a 3-GPU job comes by.
#[test]
fn exactly_two_of_four_give_way_and_nothing_flaps() {
    let rig = |third: bool| {
        let mut rig = Rig::new().nodes(1, 8).team("one", 4).team("two", 4);
        for i in 0..4_u32 {
            let job = Workload::waiting(&format!("one{i}"), "one", 2, before(100 - i64::from(i)));
            rig = rig.work(job.running_on("n1", &[2 * i, 2 * i + 1], before(90)));
        }
        rig = rig.work(Workload::waiting("four", "two", 4, before(20)));
        if third {
            rig.work(Workload::waiting("three", "two", 3, before(10)))
        } else {
            rig
        }
    };
    for third in [false, true] {
        let rest = rig(third).settles(20);
        assert_eq!(rest.evictions(), 2, "with the third: {third}");
        assert_eq!((rest.running("four"), rest.running("one")), (1, 2));
    }
}

#[test]
fn a_class_that_is_not_listed_is_normal() {
    let rig = Rig::new()
        .nodes(1, 1)
        .team("t", 1)
        .jobs("j", "t", 1, 1)
        .with(|w| w.classes = vec![Class::new("x", 1, true)]);
    assert_eq!(rig.count("j"), 1);
}

/// Departments of the given teams with guarantees in whole GPUs, whose borrowers even out.
fn departments(teams: &[(&str, &str, i64)], nodes: &[u32]) -> Rig {
    let policy = PreemptionPolicy {
        across_borrowers: true,
        ..eager()
    };
    let sharing = [SharingMode::Exclusive, SharingMode::TimeSlice];
    let mut rig = Rig::new().pool(Pool::new("p").sharing(&sharing).preemption(policy));
    for &gpus in nodes {
        rig = rig.nodes(1, gpus);
    }
    rig = rig.tenant(Team::new("d0")).tenant(Team::new("d1"));
    for &(name, parent, guaranteed) in teams {
        let quota = row(guaranteed * 1000).weighing(0);
        rig = rig.tenant(Team::new(name).under(parent).quota("p", quota));
    }
    rig
}

#[test]
fn teams_that_borrow_within_their_departments_guarantees_do_not_displace_each_other() {
    let teams = [
        ("t0", "d0", 3),
        ("t1", "d0", 0),
        ("t2", "d1", 1),
        ("t3", "d1", 0),
    ];
    let part = |name: &str, team: &str, milli: i64| {
        Workload::waiting(name, team, 0, before(1))
            .class("low")
            .fraction(SharingMode::TimeSlice, MilliGpu::from_milli(milli), None)
    };
    let rig = departments(&teams, &[3])
        .work(part("half", "t3", 500))
        .work(part("gang", "t1", 750).workers(3));
    assert_eq!(rig.settles(10).evictions(), 0);
}

#[test]
fn what_evens_out_shares_leaves_a_guarantee_alone() {
    let teams = [
        ("t0", "d0", 3),
        ("t1", "d0", 0),
        ("t2", "d1", 1),
        ("t3", "d1", 2),
    ];
    let job = |name: &str, team: &str, gpus, class: &str| {
        Workload::waiting(name, team, gpus, before(1)).class(class)
    };
    let rig = departments(&teams, &[4, 2])
        .work(job("j0", "t0", 1, "low"))
        .work(job("j1", "t0", 3, "normal"))
        .work(job("j2", "t2", 3, "low"))
        .work(job("j3", "t0", 1, "low"))
        .work(job("j4", "t1", 1, "low"));
    assert_eq!(rig.settles(20).running("j1"), 1);
}

/// Two workloads of one team are given room at once; the one that may not borrow is in the
/// guarantee whatever their names are.
#[test]
fn room_is_kept_first_for_what_may_not_borrow() {
    let kept = |name: &str, class: &str, device| {
        let mut work = Workload::waiting(name, "t", 1, before(1)).class(class);
        let placed =
            Workload::waiting("x", "t", 1, before(1)).running_on("n1", &[device], before(1));
        work.nominated = Some(Nominated {
            placement: placed.placed,
            until: before(-5),
        });
        work
    };
    let rig = Rig::new()
        .nodes(1, 2)
        .team("t", 1)
        .work(kept("a", "low", 0))
        .work(kept("b", "fixed", 1));
    assert_eq!(rig.starts(), ["b", "a"]);
}

#[test]
fn what_evens_out_shares_does_not_take_what_would_come_back_over_lower_work_of_its_team() {
    let teams = [
        ("t0", "d0", 0),
        ("t1", "d0", 2),
        ("t2", "d1", 0),
        ("t3", "d1", 3),
    ];
    let job = |name: &str, team: &str, gpus, class: &str| {
        Workload::waiting(name, team, gpus, before(1)).class(class)
    };
    let rig = departments(&teams, &[1, 1, 4])
        .work(job("j0", "t0", 1, "low"))
        .work(job("j1", "t1", 1, "low").workers(2))
        .work(job("j2", "t1", 2, "normal"))
        .work(job("j3", "t3", 1, "low"))
        .work(job("j4", "t2", 2, "low"));
    rig.settles(20);
}
