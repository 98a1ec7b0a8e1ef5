//! Backfill: what may start before a blocked head, and what may not (T-2.2 to T-2.6 and more).

use chrono::TimeDelta;
use domain::{MilliGpu, Timestamp};
use engine::cycles;
use engine::plan::{Code, Plan};
use engine::rig::{Rig, before, noon};
use engine::world::{
    Backfill, NodeState, Pool, PreemptionPolicy, Quota, Reclaim, Team, Workload, WorkloadState,
};

/// Most cycles that a test runs: more than its jobs have ends.
const CYCLES: usize = 400;

/// A pool in which nobody is displaced.
fn pool(backfill: Backfill) -> Pool {
    let mut pool = Pool::new("p").preemption(PreemptionPolicy {
        reclaim: Reclaim::Never,
        grace_seconds: 0,
        ..PreemptionPolicy::default()
    });
    pool.backfill = backfill;
    pool
}

fn hours(hours: i64) -> Timestamp {
    noon() + TimeDelta::hours(hours)
}

/// A job of team `a` that waits since `minutes` before noon and takes `hours`; endless when 0.
fn job(name: &str, gpus: i64, minutes: i64, hours: i64) -> Workload {
    let mut work = Workload::waiting(name, "a", gpus, before(minutes));
    work.time_limit_seconds = (hours > 0).then_some(hours * 3600);
    work
}

/// The same, running since noon on these devices of `n1`.
fn running(name: &str, devices: std::ops::Range<u32>, hours: i64) -> Workload {
    let devices: Vec<u32> = devices.collect();
    job(name, devices.len() as i64, 600, hours).running_on("n1", &devices, noon())
}

/// Ten devices: six are held for four hours, two for ten, two are free.
fn ten(backfill: Backfill) -> Rig {
    Rig::new()
        .pool(pool(backfill))
        .nodes(1, 10)
        .team("a", 0)
        .work(running("j1", 0..6, 4))
        .work(running("j2", 6..8, 10))
}

fn starts(plan: &Plan) -> Vec<&str> {
    plan.starts.iter().map(|s| s.workload.as_str()).collect()
}

fn reserved(plan: &Plan) -> Vec<(&str, Timestamp)> {
    plan.reservations
        .iter()
        .map(|r| (r.workload.as_str(), r.start))
        .collect()
}

fn code(plan: &Plan, name: &str) -> Code {
    plan.waiting_for(name).expect("it waits").code
}

/// T-2.2.
#[test]
fn a_job_that_ends_before_the_head_starts_passes_it_and_a_longer_one_does_not() {
    let rig = ten(Backfill::Easy)
        .work(job("head", 8, 60, 1))
        .work(job("short", 2, 50, 3));
    let plan = rig.plan();
    assert_eq!(starts(&plan), ["short"]);
    assert_eq!(reserved(&plan), [("head", hours(4))]);
    assert_eq!(plan.reservations[0].nodes, ["n1"]);
    assert_eq!(
        plan.waiting_for("head").expect("it waits").expected_start,
        Some(hours(4))
    );

    let plan = ten(Backfill::Easy)
        .work(job("head", 8, 60, 1))
        .work(job("long", 2, 50, 6))
        .plan();
    assert_eq!(starts(&plan), [""; 0]);
    assert_eq!(code(&plan, "long"), Code::HeldForReservation);
    let long = plan.waiting_for("long").expect("it waits");
    assert_eq!(&*long.scope, "pool p", "no booking is in its way");
    assert_eq!(long.counts.get("held_by_reservation"), Some(&1));
    assert_eq!(long.expected_start, Some(hours(5)));
}

/// T-2.3.
#[test]
fn a_long_job_takes_what_the_head_leaves_free_whichever_devices_are_free_now() {
    for free_first in [false, true] {
        let rig = Rig::new()
            .pool(pool(Backfill::Easy))
            .nodes(1, 10)
            .team("a", 0);
        let rig = if free_first {
            rig.work(running("j1", 4..10, 4))
                .work(running("j2", 2..4, 10))
        } else {
            rig.work(running("j1", 0..6, 4))
                .work(running("j2", 6..8, 10))
        };
        let plan = rig
            .work(job("head", 6, 60, 1))
            .work(job("long", 2, 50, 6))
            .work(job("more", 1, 40, 6))
            .plan();
        assert_eq!(starts(&plan), ["long"]);
        assert_eq!(reserved(&plan), [("head", hours(4))]);
    }
}

/// T-2.4.
#[test]
fn a_job_without_an_end_never_passes_a_head_that_needs_its_devices() {
    let plan = ten(Backfill::Easy)
        .work(job("head", 8, 60, 1))
        .work(job("endless", 1, 50, 0))
        .plan();
    assert_eq!(starts(&plan), [""; 0]);
    let plan = ten(Backfill::Easy)
        .work(job("head", 7, 60, 1))
        .work(job("endless", 1, 50, 0))
        .plan();
    assert_eq!(starts(&plan), ["endless"]);
}

#[test]
fn running_work_without_an_end_is_waited_for_and_holds_back_only_endless_work() {
    let rig = Rig::new()
        .pool(pool(Backfill::Easy))
        .nodes(1, 4)
        .team("a", 0)
        .work(running("j1", 0..2, 0))
        .work(job("head", 4, 60, 1))
        .work(job("endless", 1, 50, 0))
        .work(job("short", 1, 40, 1));
    let plan = rig.plan();
    assert_eq!(starts(&plan), ["short"]);
    assert!(reserved(&plan).is_empty());
    assert_eq!(code(&plan, "endless"), Code::HeldForReservation);
}

/// T-2.5.
#[test]
fn an_early_end_brings_the_head_forward_and_moves_nothing_that_started() {
    let rig = ten(Backfill::Easy)
        .work(job("head", 8, 60, 1))
        .work(job("short", 2, 50, 3));
    let mut world = rig.world().clone();
    let plan = engine::plan(&world);
    cycles::apply(&mut world, &plan);
    world.workloads.retain(|w| w.name != "j1");
    world.now = hours(2);
    let plan = Rig::new().with(|w| *w = world).plan();
    // Two hold on for eight hours more, and two for one.
    assert_eq!(starts(&plan), [""; 0]);
    assert_eq!(reserved(&plan), [("head", hours(3))]);
    assert!(plan.preemptions.is_empty() && plan.migrations.is_empty());
}

/// Small jobs arrive for ever, and one wants the whole cluster.
fn stream(backfill: Backfill) -> Vec<Plan> {
    let mut rig = Rig::new()
        .pool(pool(backfill))
        .nodes(2, 4)
        .team("a", 0)
        .work(running("busy", 0..1, 2))
        .work(job("whole", 4, 60, 1).workers(2));
    for i in 0..80 {
        let mut small = job(&format!("s{i:02}"), 1, 59, 1 + i % 3);
        small.not_before = Some(noon() + TimeDelta::minutes(10 * i));
        rig = rig.work(small);
    }
    cycles::run(rig.world().clone(), CYCLES)
}

fn start_of(plans: &[Plan], name: &str) -> Timestamp {
    let started = plans.iter().find(|p| p.start_of(name).is_some());
    started.expect("it starts").now
}

/// T-2.6.
#[test]
fn a_job_for_the_whole_cluster_starts_by_the_time_that_was_first_told() {
    for backfill in [Backfill::Easy, Backfill::Conservative] {
        let plans = stream(backfill);
        let told = plans[0].reservations[0].start;
        assert_eq!(told, hours(2));
        assert!(start_of(&plans, "whole") <= told, "with {backfill:?}");
        assert!(plans[0].start_of("s00").is_some(), "with {backfill:?}");
    }
    assert!(start_of(&stream(Backfill::None), "whole") > hours(3));
}

#[test]
fn only_the_first_head_reserves_unless_the_pool_is_conservative() {
    // The head gets all at 4 h. Behind it `next` would start at 5 h, and `late` would delay it.
    let world = |backfill| {
        ten(backfill)
            .work(job("head", 8, 60, 1))
            .work(job("next", 8, 50, 1))
            .work(job("late", 2, 40, 3))
            .work(job("long", 1, 30, 12))
    };
    let easy = world(Backfill::Easy).plan();
    assert_eq!(reserved(&easy), [("head", hours(4))]);
    assert_eq!(starts(&easy), ["late"]);
    let all = world(Backfill::Conservative).plan();
    assert_eq!(
        reserved(&all),
        [
            ("head", hours(4)),
            ("next", hours(5)),
            // Two are held until 10 h, and the eight others are spoken for until 6 h.
            ("long", hours(6))
        ]
    );
    assert_eq!(starts(&all), ["late"]);
}

#[test]
fn a_conservative_pool_starts_nothing_that_delays_the_second_in_line() {
    let world = |backfill| {
        Rig::new()
            .pool(pool(backfill))
            .nodes(1, 10)
            .team("a", 0)
            .work(running("j1", 0..6, 4))
            .work(running("j2", 6..8, 6))
            .work(job("head", 8, 60, 2))
            .work(job("next", 10, 50, 1))
            // It leaves the head its eight, but not the next its ten.
            .work(job("extra", 2, 40, 7))
    };
    let easy = world(Backfill::Easy).plan();
    assert_eq!(reserved(&easy), [("head", hours(4))]);
    assert_eq!(starts(&easy), [""; 0]);
    let wide = |backfill| {
        let rig = world(backfill);
        rig.with(|w| {
            let head = w.workloads.iter_mut().find(|w| w.name == "head");
            head.expect("it is there").per_worker.gpus = Some(MilliGpu::whole(6));
        })
    };
    assert_eq!(starts(&wide(Backfill::Easy).plan()), ["extra"]);
    let all = wide(Backfill::Conservative).plan();
    assert_eq!(starts(&all), [""; 0]);
    assert_eq!(
        reserved(&all)[..2],
        [("head", hours(4)), ("next", hours(6))]
    );
}

#[test]
fn work_in_its_guarantee_is_not_held_back_by_a_borrower() {
    let rig = |guaranteed| {
        let row = Quota::guaranteed(MilliGpu::whole(guaranteed));
        let mut own = job("own", 1, 10, 6);
        own.team = "b".to_owned();
        own.min_workers = Some(1);
        ten(Backfill::Easy)
            .tenant(Team::new("b").quota("p", row))
            .with(|w| w.workloads.iter_mut().for_each(|w| w.team = "b".to_owned()))
            .work(job("head", 8, 60, 1))
            .work(own.workers(2))
    };
    assert_eq!(starts(&rig(9).plan()), ["own"]);
    // With one worker it is in the guarantee, and the head waits until that ends; with the other it
    // borrows, and the head waits no longer for it.
    assert_eq!(rig(9).plan().starts[0].workers, 2);
    assert_eq!(reserved(&rig(9).plan()), [("head", hours(6))]);
    assert_eq!(starts(&rig(0).plan()), [""; 0]);
}

#[test]
fn who_is_over_its_limit_is_no_head() {
    let row = Quota::guaranteed(MilliGpu::ZERO).limited(MilliGpu::whole(7));
    let mut over = job("over", 8, 90, 1);
    over.team = "b".to_owned();
    let plan = ten(Backfill::Easy)
        .tenant(Team::new("b").quota("p", row))
        .work(over)
        .work(job("long", 2, 50, 6))
        .plan();
    assert_eq!(starts(&plan), ["long"]);
    assert_eq!(code(&plan, "over"), Code::OverLimit);
    assert!(reserved(&plan).is_empty());
}

#[test]
fn who_could_not_start_if_all_had_ended_holds_nothing_back() {
    let rig = ten(Backfill::Easy)
        .nodes(1, 12)
        .with(|w| w.nodes[1].state = NodeState::Cordoned);
    let plan = rig
        .work(job("head", 12, 60, 1))
        .work(job("second", 8, 50, 1))
        .work(job("long", 2, 40, 6))
        .plan();
    assert_eq!(starts(&plan), [""; 0]);
    assert_eq!(reserved(&plan), [("second", hours(4))]);
}

#[test]
fn a_long_job_goes_to_a_node_that_the_head_does_not_need() {
    // Packed, it would go to the fuller node, which the head needs whole.
    let mut head = job("head", 4, 60, 1);
    head.node = Some("n1".to_owned());
    let rig = Rig::new()
        .pool(pool(Backfill::Easy))
        .nodes(2, 4)
        .team("a", 0)
        .work(running("j1", 0..3, 1))
        .work(head)
        .work(job("long", 1, 50, 6));
    assert_eq!(rig.place("long"), "n2:0");
    assert_eq!(reserved(&rig.plan()), [("head", hours(1))]);
}

#[test]
fn cores_are_counted_at_the_time_of_the_start_and_not_added_up_over_time() {
    let cores = |mut work: Workload, cores: i64| {
        work.per_worker.cpus = domain::MilliCpu::whole(cores);
        work
    };
    for backfill in [Backfill::Easy, Backfill::Conservative] {
        let plan = Rig::new()
            .pool(pool(backfill))
            .nodes(1, 8)
            .team("a", 0)
            .work(cores(running("j1", 0..6, 4), 40))
            .work(cores(job("head", 7, 60, 1), 40))
            .work(cores(job("long", 1, 50, 6), 20))
            .plan();
        assert_eq!(starts(&plan), ["long"], "with {backfill:?}");
    }
}

#[test]
fn elastic_work_does_not_grow_into_what_the_head_needs() {
    let elastic = |hours| {
        let mut work = running("elastic", 8..9, hours);
        work.per_worker.gpus = Some(MilliGpu::whole(1));
        work.min_workers = Some(1);
        work.workers(2)
    };
    let rig = |hours| {
        Rig::new()
            .pool(pool(Backfill::Easy))
            .nodes(1, 10)
            .team("a", 0)
            .work(running("j1", 0..6, 4))
            .work(running("j2", 6..8, 10))
            .work(elastic(hours))
            .work(job("head", 7, 60, 1))
    };
    assert!(rig(6).plan().resizes.is_empty());
    assert_eq!(rig(3).plan().resizes.len(), 1);
    assert_eq!(reserved(&rig(3).plan()), [("head", hours(4))]);
}

#[test]
fn preemption_makes_no_room_that_delays_the_head() {
    // A victim of the newcomer's own team would have ended before the head's start.
    let rig = |length| {
        let mut high = job("high", 2, 10, length).class("high");
        high.team = "b".to_owned();
        let mut low = running("low", 4..6, 1).class("low");
        low.team = "b".to_owned();
        let mut busy = running("j1", 0..4, 2).class("high");
        busy.team = "b".to_owned();
        let mut pool = pool(Backfill::Easy);
        pool.preemption.within_team = engine::world::WithinTeam::LowerPriority;
        Rig::new()
            .pool(pool)
            .nodes(1, 6)
            .team("a", 0)
            .team("b", 0)
            .work(busy)
            .work(job("head", 6, 60, 1).class("high"))
            .work(low)
            .work(high)
    };
    let plan = rig(6).plan();
    assert!(plan.preemptions.is_empty(), "{:?}", plan.preemptions);
    assert_eq!(reserved(&plan), [("head", hours(2))]);
    let plan = rig(1).plan();
    assert_eq!(plan.nominations.len(), 1);
    assert_eq!(reserved(&plan), [("head", hours(2))]);
}

#[test]
fn what_was_held_for_a_head_starts_in_the_cycle_in_which_the_head_makes_its_room() {
    // By ends alone the owner would need the free device; by reclaim it does not.
    let mut own = job("own", 4, 60, 0);
    own.team = "b".to_owned();
    let mut pool = pool(Backfill::Easy);
    pool.preemption.reclaim = Reclaim::Any;
    let plan = Rig::new()
        .pool(pool)
        .nodes(1, 8)
        .team("a", 3)
        .team("b", 4)
        .work(running("fixed", 4..7, 0).class("fixed"))
        .work(running("lent", 0..4, 0))
        .work(own)
        .work(job("small", 1, 50, 0))
        .plan();
    assert_eq!(plan.nominations.len(), 1);
    assert_eq!(starts(&plan), ["small"]);
}

#[test]
fn the_head_of_one_pool_does_not_wait_where_another_is_sooner() {
    let rig = Rig::new()
        .pool(pool(Backfill::Easy))
        .with(|w| {
            let mut other = pool(Backfill::Easy);
            other.name = "q".to_owned();
            w.pools.push(other);
        })
        .nodes(2, 4)
        .with(|w| w.nodes[1].pool = "q".to_owned())
        .tenant(
            Team::new("a")
                .quota("p", Quota::guaranteed(MilliGpu::ZERO))
                .quota("q", Quota::guaranteed(MilliGpu::ZERO)),
        )
        .work(running("j1", 0..3, 4))
        .with(|w| {
            let mut other = w.workloads[0].clone();
            other.name = "j2".to_owned();
            other.placed[0].node = "n2".to_owned();
            other.time_limit_seconds = Some(3600);
            w.workloads.push(other);
        })
        .work(job("head", 4, 60, 1));
    let plan = rig.plan();
    assert_eq!(reserved(&plan), [("head", hours(1))]);
    assert_eq!(plan.reservations[0].nodes, ["n2"]);
}

#[test]
fn work_that_has_outrun_its_prediction_is_expected_to_go_on_to_its_limit() {
    let mut late = running("late", 0..6, 4);
    late.started = Some(before(120));
    late.predicted_seconds = Some(3600);
    let rig = Rig::new()
        .pool(pool(Backfill::Easy))
        .nodes(1, 8)
        .team("a", 0)
        .work(late)
        .work(job("head", 8, 60, 1));
    assert_eq!(reserved(&rig.plan()), [("head", hours(2))]);
    let rig = rig.with(|w| w.workloads[0].time_limit_seconds = None);
    let soon = noon() + TimeDelta::seconds(1);
    assert_eq!(reserved(&rig.plan()), [("head", soon)]);
}

#[test]
fn leaving_work_is_waited_for_only_until_it_has_left() {
    let rig = ten(Backfill::Easy).work(job("head", 8, 60, 1)).with(|w| {
        w.workloads[0].state = WorkloadState::Leaving;
        w.workloads[0].leaves_at = Some(hours(1));
    });
    assert_eq!(reserved(&rig.plan()), [("head", hours(1))]);
}
