//! What a verdict says would help does: the change is made to the row, and the same world is planned anew.

mod worlds;

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use domain::{MilliCpu, MilliGpu};
use engine::cycles;
use engine::plan::{Code, Remedy, Waiting};
use engine::rig::{Rig, before, cut, shared, slices};
use engine::world::{
    MigMode, Node, Placed, PlacedDevice, Pool, PreemptionPolicy, Quota, Reclaim, Team, Workload,
    WorkloadState, World,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use worlds::rich::rich;
use worlds::tried;

/// Cycles that are looked at from the world that is given.
const CYCLES: usize = 3;

/// The world with the change made to a row, for whose old request room may have been kept.
fn changed(world: &World, workload: &str, remedy: &Remedy) -> World {
    let mut world = world.clone();
    let rows = world.workloads.iter_mut();
    let row = rows
        .filter(|w| w.name == workload)
        .last()
        .expect("a remedy is for a row");
    row.nominated = None;
    for (key, value) in &remedy.change {
        let number = || u32::try_from(value.as_u64().expect("a count")).expect("a small count");
        let text = || value.as_str().map(str::to_owned);
        match key.as_str() {
            "workers" => row.workers = number(),
            "min_workers" => row.min_workers = Some(number()),
            "per_worker.gpus" => {
                row.per_worker.gpus = Some(MilliGpu::whole(number().into()));
            }
            "per_worker.mig_profile" => row.per_worker.mig_profile = text(),
            "topology.require" => row.topology.require = text(),
            "anti_affinity" => row.anti_affinity = text(),
            "nvlink" => {
                assert_eq!(value, "prefer");
                row.nvlink = NvlinkRule::Prefer;
            }
            "time_limit_seconds" => row.time_limit_seconds = value.as_i64(),
            "preemptible" => row.preemptible = value.as_bool(),
            other => panic!("a remedy changes {other}"),
        }
    }
    world
}

fn verdict(rig: &Rig, workload: &str) -> Waiting {
    rig.plan().waiting_for(workload).expect("it waits").clone()
}

/// The changes that would start a workload now, each as JSON; that they do is demanded.
fn helps(rig: &Rig, workload: &str) -> Vec<Value> {
    let told = verdict(rig, workload).remedies;
    let mut changes = Vec::new();
    for remedy in told.iter().filter(|r| r.effect == "starts_now") {
        let plan = engine::plan(&changed(rig.world(), workload, remedy));
        assert!(plan.start_of(workload).is_some(), "{remedy:?}: {plan:?}");
        changes.push(json!(remedy.change));
    }
    changes
}

/// A node of 8 whose `long` ends in an hour, when the head `big` has its start kept.
fn head_waits() -> Rig {
    let mut long =
        Workload::waiting("long", "t", 4, before(70)).running_on("n1", &[0, 1, 2, 3], before(60));
    long.time_limit_seconds = Some(7200);
    let mut big = Workload::waiting("big", "t", 8, before(50));
    big.time_limit_seconds = Some(3600);
    Rig::new().nodes(1, 8).team("t", 0).work(long).work(big)
}

#[test]
fn who_is_held_for_a_kept_start_is_told_the_time_limit_that_ends_before_it() {
    let rig = head_waits().work(Workload::waiting("late", "t", 4, before(40)));
    assert_eq!(verdict(&rig, "late").code, Code::HeldForReservation);
    assert_eq!(helps(&rig, "late"), [json!({"time_limit_seconds": 3600})]);
}

#[test]
fn who_is_predicted_to_run_longer_is_not_told_to_be_stopped() {
    let mut late = Workload::waiting("late", "t", 4, before(40));
    late.predicted_seconds = Some(7200);
    let rig = head_waits().work(late);
    assert_eq!(verdict(&rig, "late").code, Code::HeldForReservation);
    assert_eq!(helps(&rig, "late"), [] as [Value; 0]);
}

#[test]
fn what_would_take_the_room_of_a_kept_start_is_no_help() {
    // Four devices are free, and the head needs all of them in an hour.
    let rig = head_waits().work(Workload::waiting("late", "t", 6, before(40)));
    assert_eq!(verdict(&rig, "late").code, Code::InsufficientCapacity);
    assert_eq!(helps(&rig, "late"), [] as [Value; 0]);
}

#[test]
fn who_is_over_a_limit_that_never_lets_it_is_told_so_and_what_would_fit() {
    let row = Quota::guaranteed(MilliGpu::ZERO).limited(MilliGpu::whole(2));
    let rig = Rig::new()
        .nodes(1, 8)
        .tenant(Team::new("t").quota("p", row))
        .work(Workload::waiting("run", "t", 1, before(9)).running_on("n1", &[0], before(8)))
        .work(Workload::waiting("one", "t", 4, before(5)))
        .work(Workload::waiting("gang", "t", 3, before(4)).workers(2));
    let told = verdict(&rig, "one");
    assert_eq!((told.code, &*told.scope), (Code::OverLimit, "team t"));
    assert_eq!((told.need.milli(), told.have.milli()), (4000, 1000));
    assert!(told.message.contains("never"), "{}", told.message);
    assert_eq!(helps(&rig, "one"), [json!({"per_worker.gpus": 1})]);
    assert_eq!(helps(&rig, "gang"), [] as [Value; 0]);
    let told = verdict(&rig, "gang").remedies;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].effect, "within_limit");
    assert_eq!(json!(told[0].change), json!({"per_worker.gpus": 1}));
}

#[test]
fn who_may_borrow_once_it_may_be_preempted_is_told_so() {
    let rig = Rig::new()
        .nodes(1, 8)
        .team("t", 2)
        .work(Workload::waiting("firm", "t", 4, before(5)).class("fixed"));
    let told = verdict(&rig, "firm");
    assert_eq!(told.code, Code::NonPreemptibleOverGuarantee);
    let changes = helps(&rig, "firm");
    assert!(
        changes.contains(&json!({"preemptible": true})),
        "{changes:?}"
    );
}

#[test]
fn who_may_borrow_and_would_change_the_order_is_not_told_to_start() {
    let child = |name: &str, parent: &str, milli: i64| {
        let row = Quota::guaranteed(MilliGpu::from_milli(milli));
        Team::new(name).under(parent).quota("p", row)
    };
    let slice = |name: &str, team: &str, milli: i64, memory: Option<i64>| {
        let work = Workload::waiting(name, team, 0, before(30));
        work.fraction(SharingMode::TimeSlice, MilliGpu::from_milli(milli), memory)
    };
    let mut first = slice("j00", "t2", 100, Some(23_000)).workers(2);
    first.predicted_seconds = Some(2400);
    let mut short = slice("j02", "t5", 250, None);
    short.time_limit_seconds = Some(300);
    let mut firm = slice("j03", "t2", 250, None).workers(2);
    (firm.preemptible, firm.predicted_seconds) = (Some(false), Some(2400));
    let mut pool = shared().preemption(PreemptionPolicy::default());
    pool.strategy = engine::world::Strategy::Spread;
    let rig = Rig::new()
        .pool(pool)
        .nodes(1, 4)
        .tenant(Team::new("d0"))
        .tenant(Team::new("d1"))
        .tenant(child("t0", "d0", 1000))
        .tenant(child("t2", "d0", 500))
        .tenant(child("t4", "d0", 500))
        .tenant(child("t1", "d1", 1000))
        .tenant(child("t3", "d1", 1000))
        .tenant(child("t5", "d1", 2000))
        .work(first)
        .work(Workload::waiting("j01", "t0", 2, before(30)).workers(2))
        .work(short)
        .work(firm);
    assert_eq!(verdict(&rig, "j03").code, Code::NonPreemptibleOverGuarantee);
    assert_eq!(helps(&rig, "j03"), [] as [Value; 0]);
}

#[test]
fn a_borrower_below_a_department_is_told_what_would_help_in_a_fleet_of_thousands_of_rows() {
    let below = |name: &str, parent: &str| {
        let row = Quota::guaranteed(MilliGpu::ZERO);
        Team::new(name).under(parent).quota("p", row)
    };
    let mut rig = Rig::new()
        .nodes(1, 4)
        .nodes(1_250, 1)
        .tenant(Team::new("d0"))
        .tenant(Team::new("d1"))
        .tenant(below("t0", "d0"))
        .tenant(below("t1", "d1"))
        .work(Workload::waiting("other", "t1", 4, before(50)).workers(2))
        .work(Workload::waiting("big", "t0", 8, before(40)));
    for node in 2..=1_251 {
        let busy = Workload::waiting(&format!("b{node:04}"), "t1", 1, before(90));
        rig = rig.work(busy.running_on(&format!("n{node}"), &[0], before(80)));
    }
    assert_eq!(helps(&rig, "big"), [json!({"per_worker.gpus": 4})]);
}

#[test]
fn who_could_start_but_for_others_that_come_first_then_is_not_told_that_it_would() {
    let mut host = Workload::waiting("busy", "t2", 0, before(60)).workers(2);
    host.per_worker.cpus = MilliCpu::whole(1);
    host.placed = vec![
        Placed {
            node: "n1".to_owned(),
            devices: Vec::new(),
        };
        2
    ];
    (host.state, host.started) = (WorkloadState::Running, Some(before(1)));
    let mut parts = Workload::waiting("parts", "t1", 0, before(60))
        .workers(2)
        .fraction(SharingMode::TimeSlice, MilliGpu::from_milli(250), None);
    parts.per_worker.cpus = MilliCpu::whole(1);
    let part = Placed {
        node: "n1".to_owned(),
        devices: vec![PlacedDevice::fraction(
            0,
            SharingMode::TimeSlice,
            MilliGpu::from_milli(250),
            20_389,
        )],
    };
    parts.placed = vec![part; 2];
    (parts.state, parts.started) = (WorkloadState::Running, Some(before(1)));
    let mut plain = Workload::waiting("plain", "t1", 0, before(40)).workers(2);
    plain.per_worker.cpus = MilliCpu::whole(2);
    let mut head = Workload::waiting("head", "t0", 0, before(50))
        .workers(3)
        .fraction(SharingMode::TimeSlice, MilliGpu::from_milli(250), None);
    head.per_worker.cpus = MilliCpu::whole(2);
    let mut two = slices("two", "t2", "2g.20gb", 2);
    two.per_worker.cpus = MilliCpu::whole(1);
    two.predicted_seconds = Some(60);
    let below = |name: &str| {
        let row = Quota::guaranteed(MilliGpu::ZERO);
        Team::new(name).under("d0").quota("p", row)
    };
    let rig = Rig::new()
        .pool(shared().with(|policy| policy.mig_mode = MigMode::Static))
        .tenant(Team::new("d0"))
        .tenant(below("t0"))
        .tenant(below("t2"))
        .team("t1", 1)
        .node(cut(
            Node::new("n1", "p", 8).host(8, 524_288),
            7,
            &["1g.10gb@0", "1g.10gb@3", "2g.20gb@4"],
        ))
        .work(parts)
        .work(host)
        .work(plain)
        .work(head)
        .work(two);
    // Its department comes after the other once it can start one, and the cores are gone by then.
    assert_eq!(verdict(&rig, "two").code, Code::NeverFits);
    assert_eq!(helps(&rig, "two"), [] as [Value; 0]);
}

/// A pool whose only device a borrower has had for ten minutes, and a workload that wants its own.
fn protected(policy: PreemptionPolicy) -> Rig {
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 1)
        .team("a", 1)
        .team("b", 0)
        .work(Workload::waiting("lent", "b", 1, before(20)).running_on("n1", &[0], before(10)))
        .work(Workload::waiting("own", "a", 1, before(5)))
}

#[test]
fn the_rule_that_keeps_it_from_making_room_is_named() {
    let rules = |policy: PreemptionPolicy| {
        let told = verdict(&protected(policy), "own");
        assert_eq!(told.code, Code::PreemptionNotAllowed);
        told.scope.to_string()
    };
    let plain = PreemptionPolicy::default;
    let reclaim = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..plain()
    };
    assert_eq!(rules(reclaim.clone()), "preemption.reclaim of pool p");
    let protects = PreemptionPolicy {
        min_runtime_seconds: 3600,
        ..plain()
    };
    assert_eq!(rules(protects), "preemption.min_runtime_seconds of pool p");
    let both = PreemptionPolicy {
        max_per_day: Some(0),
        ..reclaim
    };
    assert_eq!(
        rules(both),
        "preemption.max_per_day, preemption.reclaim of pool p"
    );
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn what_would_help_does(recipe in rich()) {
        let mut world = recipe.world();
        for _ in 0..CYCLES {
            let plan = engine::plan(&world);
            for waits in &plan.waiting {
                for remedy in &waits.remedies {
                    let mended = changed(&world, &waits.workload, remedy);
                    let written = engine::scenario::write(&mended);
                    if mended.workloads.iter().all(|w| w.name.chars().all(|c| !c.is_control())) {
                        let read = engine::scenario::parse(&written);
                        prop_assert!(read.is_ok(), "{remedy:?} of {written}: {read:?}");
                    }
                    let then = engine::plan(&mended);
                    let starts = then.start_of(&waits.workload).is_some();
                    prop_assert!(
                        starts || remedy.effect != "starts_now",
                        "{waits:?} {remedy:?} then {:?} of {written}",
                        then.waiting_for(&waits.workload)
                    );
                }
            }
            cycles::apply(&mut world, &plan);
            cycles::advance(&mut world, None);
        }
    }
}
