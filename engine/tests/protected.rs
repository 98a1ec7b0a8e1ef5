//! When work that others are protected from is told to start.

use domain::Timestamp;
use engine::plan::{Code, Waiting};
use engine::rig::{Rig, before};
use engine::world::{Pool, PreemptionPolicy, Workload};

/// Two devices that a borrower has had for ten and for thirty minutes, each to its end in ten hours, and
/// a workload that wants so many of its own since five minutes.
fn rig(policy: PreemptionPolicy, wanted: i64) -> Rig {
    let lent = |name: &str, device: u32, minutes: i64| {
        let mut work = Workload::waiting(name, "b", 1, before(40));
        work.time_limit_seconds = Some(10 * 3600);
        work.running_on("n1", &[device], before(minutes))
    };
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 2)
        .team("a", 2)
        .team("b", 0)
        .work(lent("young", 0, 10))
        .work(lent("old", 1, 30))
        .work(Workload::waiting("own", "a", wanted, before(5)))
}

fn policy() -> PreemptionPolicy {
    PreemptionPolicy {
        min_runtime_seconds: 3600,
        grace_seconds: 30,
        ..PreemptionPolicy::default()
    }
}

fn told(rig: &Rig) -> Waiting {
    let plan = rig.plan();
    let told = plan.waiting_for("own").expect("it waits");
    told.clone()
}

/// The rig's now, so many seconds on.
fn after(seconds: i64) -> Option<Timestamp> {
    Some(before(0) + chrono::TimeDelta::seconds(seconds))
}

#[test]
fn work_is_told_to_start_when_enough_of_those_in_its_way_have_run_for_long_enough() {
    assert_eq!(told(&rig(policy(), 1)).expected_start, after(30 * 60 + 30));
    assert_eq!(
        told(&rig(policy(), 2)).expected_start,
        after(50 * 60 + 30),
        "both must have"
    );
}

#[test]
fn it_starts_then_and_not_sooner() {
    for (seconds, displaced) in [(30 * 60 - 1, 0), (30 * 60, 1)] {
        let mut world = rig(policy(), 1).world().clone();
        world.now = after(seconds).expect("a time");
        let plan = engine::plan(&world);
        assert_eq!(plan.preemptions.len(), displaced, "after {seconds} s");
    }
}

#[test]
fn an_end_that_comes_first_is_told_first() {
    let mut policy = policy();
    policy.min_runtime_seconds = 100 * 3600;
    let told = told(&rig(policy, 1));
    assert_eq!(told.expected_start, after(10 * 3600 - 30 * 60));
}

#[test]
fn a_wait_that_is_asked_for_before_anybody_is_displaced_ends_too() {
    let policy = PreemptionPolicy {
        delay_seconds: 3600,
        grace_seconds: 0,
        ..PreemptionPolicy::default()
    };
    // Who is told to leave without grace has left by the next cycle.
    assert_eq!(told(&rig(policy, 1)).expected_start, after(55 * 60 + 1));
}

#[test]
fn what_no_time_lets_go_is_not_told_by_time() {
    let policy = PreemptionPolicy {
        max_per_day: Some(0),
        ..policy()
    };
    let told = told(&rig(policy, 1));
    assert_ne!(told.code, Code::WaitingForVictims);
    assert_eq!(told.expected_start, after(10 * 3600 - 30 * 60));
}
